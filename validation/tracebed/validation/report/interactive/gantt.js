// The Gantt chart of a run: bars by node, or by job if the nodes of the jobs are unknown.

// The colors are those of style.py.
const COLORS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#44aa99", "#999933"];
const OFF = 2; // the state "off" among those in which a node is not on; the others are changes
const FEW = 3000; // up to this number of bars, each is a rectangle with a gap; more bars are painted as pixels
const NAMED = 16; // up to this number of nodes, the axis shows names

// The bars of a run, sorted by start. `top` and `bottom` are their edges in rows: the jobs on a shared node have parts of
// its row. `reach[i]` is the last end of the bars 0 to i, so that both ends of the visible
// range are found by binary search.
class Bars {
  constructor(data, side) {
    this.byJob = data[`bar_job_${side}`].length === 0;
    Object.assign(this, this.byJob ? Bars.ofJobs(data, side) : Bars.ofNodes(data, side));
    this.reach = new Int32Array(this.end.length);
    for (let i = 0, last = -Infinity; i < this.reach.length; i++) this.reach[i] = last = Math.max(last, this.end[i]);
  }

  static ofNodes(data, side) {
    const names = ["job", "low", "high", "start", "end", "upper", "lower"];
    const bars = Object.fromEntries(names.map((name) => [name, data[`bar_${name}_${side}`]]));
    bars.top = Float64Array.from(bars.low, (low, i) => low + bars.upper[i] / data.parts);
    bars.bottom = Float64Array.from(bars.high, (high, i) => high + bars.lower[i] / data.parts);
    return bars;
  }

  static ofJobs(data, side) {
    const [start, end] = [data[`start_${side}`], data[`end_${side}`]];
    const jobs = Int32Array.from(start.keys()).filter((job) => start[job] !== data.missing);
    jobs.sort((a, b) => start[a] - start[b]);
    const last = Math.round(data.last / data.tick);
    const ends = jobs.map((job) => (end[job] === data.missing ? last : end[job]));
    const bottom = jobs.map((job) => job + 1);
    return { job: jobs, top: jobs, bottom, start: jobs.map((job) => start[job]), end: ends };
  }

  visible(from, to) {
    return [lowerBound(this.reach, from), lowerBound(this.start, to)];
  }
}

class Gantt {
  constructor(state, side, last) {
    Object.assign(this, { state, side, last, sides: [side] });
    this.data = state.data;
    this.bars = new Bars(this.data, side);
    this.label = `Gantt chart, ${side}, by ${this.bars.byJob ? "job" : "node"}`;
    this.selectsRows = !this.bars.byJob;
    const rows = this.bars.byJob ? this.data.ids.length : state.nodes;
    this.height = Math.min(Math.max(27 * rows, 106), 307) + (last ? 52 : 32);
    this.malleable = this.data.kind_names.indexOf("malleable");
    this.scales = { y: { dir: -1 } };
    this.yAxis = {
      label: this.bars.byJob ? "job, by submission" : "node",
      splits: (u, axis, low, high) => rowTicks(low, high),
      values: (u, splits) => splits.map((split) => this.rowName(split)),
    };
  }

  rowName(split) {
    const named = !this.bars.byJob && Array.isArray(this.data.nodes) && !Number.isInteger(split);
    if (!named) return Number.isInteger(split) ? number(split, 0) : "";
    const name = this.data.nodes[Math.floor(split)] ?? "";
    return name.length > 9 ? `${name.slice(0, 8)}\u2026` : name;
  }

  // The charts by job show the jobs that run in the visible range.
  yRange() {
    if (!this.bars.byJob) return [this.state.top, this.state.bottom];
    const [from, to] = this.ticks();
    const [first, last] = this.bars.visible(from, to);
    let [low, high] = [Infinity, -Infinity];
    for (let i = first; i < last; i++) {
      if (this.bars.end[i] <= from) continue;
      low = Math.min(low, this.bars.job[i]);
      high = Math.max(high, this.bars.job[i] + 1);
    }
    return low < high ? [low, high] : [0, this.data.ids.length];
  }

  ticks() {
    return [this.state.low / this.data.tick, this.state.high / this.data.tick];
  }

  color(job) {
    return COLORS[job % COLORS.length];
  }

  alpha(job) {
    return this.malleable >= 0 && this.data.kind[job] !== this.malleable ? 0.4 : 0.9;
  }

  // Returns the function from time and row to device pixels of the plotting area.
  place(u) {
    const [from, to] = this.ticks();
    const { min, max } = u.scales.y;
    const [across, down] = [u.bbox.width / (to - from), u.bbox.height / (max - min)];
    return { from, to, x: (time) => (time - from) * across, y: (row) => (row - min) * down };
  }

  draw(u) {
    const at = this.place(u);
    const [first, last] = this.bars.visible(at.from, at.to);
    this.drawSleep(u, at);
    if (last - first > FEW) this.paint(u, at, first, last);
    else this.drawBars(u, at, first, last);
    this.drawMark(u, at, first, last);
  }

  // Nodes that are off are grey, and darker if they boot or are being switched off.
  drawSleep(u, at) {
    const [state, low, high, start, end] = ["state", "low", "high", "start", "end"].map(
      (name) => this.data[`sleep_${name}_${this.side}`] ?? [],
    );
    if (this.bars.byJob) return;
    const { ctx, bbox } = u;
    ctx.fillStyle = css("soft");
    for (let i = 0; i < state.length; i++) {
      if (end[i] <= at.from || start[i] >= at.to) continue;
      const [left, right] = [Math.max(at.x(start[i]), 0), Math.min(at.x(end[i]), bbox.width)];
      const [top, bottom] = [at.y(low[i]), at.y(high[i] + 1)];
      ctx.globalAlpha = state[i] === OFF ? 0.2 : 0.45;
      ctx.fillRect(bbox.left + left, bbox.top + top, Math.max(right - left, 1), bottom - top);
    }
    ctx.globalAlpha = 1;
  }

  drawBars(u, at, first, last) {
    const { ctx, bbox } = u;
    const { job, start, end } = this.bars;
    ctx.font = `${11 * devicePixelRatio}px Helvetica, Arial, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    for (let i = first; i < last; i++) {
      const [left, right] = [Math.max(at.x(start[i]), -2), Math.min(at.x(end[i]), bbox.width + 2)];
      if (right < 0) continue;
      const [top, bottom] = [at.y(this.bars.top[i]), at.y(this.bars.bottom[i])];
      const gap = bottom - top > 4 ? 1 : 0;
      const width = Math.max(right - left - gap, 1);
      ctx.globalAlpha = this.alpha(job[i]);
      ctx.fillStyle = this.color(job[i]);
      ctx.fillRect(bbox.left + left, bbox.top + top, width, Math.max(bottom - top - gap, 1));
      ctx.globalAlpha = 1;
      const name = this.data.ids[job[i]];
      if (bottom - top < 13 * devicePixelRatio || width < 7 * devicePixelRatio * (name.length + 1)) continue;
      ctx.fillStyle = css("ink");
      ctx.fillText(name, bbox.left + Math.max(left, 0) + 4 * devicePixelRatio, bbox.top + (top + bottom) / 2);
    }
  }

  // Paints the bars into an image. Bars do not overlap, so that the cost is the number of pixels and of visible bars. A bar that covers no center of a pixel is faint, and painted if the pixel is empty, so that short jobs
  // are visible.
  paint(u, at, first, last) {
    const raster = new Raster(u);
    const { width, height, pixels } = raster;
    const { job, start, end } = this.bars;
    const strong = COLORS.map((color) => pixel(color, 0.9));
    const pale = COLORS.map((color) => pixel(color, 0.4));
    const faint = COLORS.map((color) => pixel(color, 0.25));
    for (let i = first; i < last; i++) {
      if (end[i] <= at.from) continue;
      const [x0, x1, y0, y1] = [at.x(start[i]), at.x(end[i]), at.y(this.bars.top[i]), at.y(this.bars.bottom[i])];
      let [left, right] = [Math.max(Math.round(x0), 0), Math.min(Math.round(x1), width)];
      let [top, bottom] = [Math.max(Math.round(y0), 0), Math.min(Math.round(y1), height)];
      const thin = left >= right || top >= bottom;
      if (left >= right) [left, right] = [Math.max(Math.floor(x0), 0), Math.min(Math.floor(x0) + 1, width)];
      if (top >= bottom) [top, bottom] = [Math.max(Math.floor(y0), 0), Math.min(Math.floor(y0) + 1, height)];
      const color = (thin ? faint : this.alpha(job[i]) > 0.5 ? strong : pale)[job[i] % COLORS.length];
      for (let y = top; y < bottom; y++) {
        if (thin) {
          for (let x = y * width + left; x < y * width + right; x++) pixels[x] ||= color;
        } else {
          pixels.fill(color, y * width + left, y * width + right);
        }
      }
    }
    raster.drawTo(u);
  }

  // Outlines the bars of the marked job, with lines at its submission (dashed) and start.
  drawMark(u, at, first, last) {
    const marked = this.state.marked;
    if (marked < 0) return;
    const { ctx, bbox } = u;
    const { job, top: tops, bottom, start, end } = this.bars;
    ctx.strokeStyle = ctx.fillStyle = css("ink");
    drawInstants(u, this.state, [this.side], (seconds) => bbox.left + at.x(seconds / this.data.tick));
    ctx.setLineDash([]);
    ctx.lineWidth = 2.5 * devicePixelRatio;
    for (let i = first; i < last; i++) {
      if (job[i] !== marked) continue;
      const [left, top] = [bbox.left + at.x(start[i]), bbox.top + at.y(tops[i])];
      const [width, height] = [at.x(end[i]) - at.x(start[i]), at.y(bottom[i]) - at.y(tops[i])];
      ctx.strokeRect(left, top, Math.max(width, 3), Math.max(height, 3));
    }
  }

  at(u, x, y, { left }) {
    const near = Math.abs(u.posToVal(left + 3, "x") - x) / this.data.tick;
    const time = x / this.data.tick;
    const { job, top, bottom, start, end } = this.bars;
    const [first, last] = this.bars.visible(time - near, time + near);
    let [best, distance] = [-1, near];
    for (let i = last - 1; i >= first; i--) {
      if (y < top[i] || y >= bottom[i]) continue;
      const off = Math.max(start[i] - time, time - end[i], 0);
      if (off <= distance) [best, distance] = [i, off];
      if (off === 0) break;
    }
    if (best < 0) return null;
    return { job: job[best], more: this.bars.byJob ? "" : this.held(best) };
  }

  // Returns the nodes of a bar and the time for which the job holds them.
  held(i) {
    const name = (row) => (Array.isArray(this.data.nodes) ? this.data.nodes[row] : `node ${number(row, 0)}`);
    const { low, high, start, end, upper, lower } = this.bars;
    const nodes = low[i] === high[i] ? name(low[i]) : `${name(low[i])} to ${name(high[i])}`;
    const share = (lower[i] - upper[i]) / this.data.parts;
    const part = share < 1 ? ` (${number(100 * share, 0)} % of its cores)` : "";
    const [from, to] = [start[i], end[i]].map((time) => number(time * this.data.tick));
    return `${this.side}: ${nodes}${part}, ${from} to ${to} s`;
  }
}

// Returns the ticks of an axis of rows: the middle of each row if there are few, else round numbers.
function rowTicks(low, high) {
  if (high - low <= NAMED) {
    const first = Math.floor(low);
    return Array.from({ length: Math.ceil(high) - first }, (_, n) => first + n + 0.5);
  }
  return roundTicks(low, high, 1);
}

// Draws lines at the submission (dashed) and at the start of the marked job.
function drawInstants(u, state, sides, place) {
  const { ctx, bbox } = u;
  for (const side of sides) {
    for (const [name, dash] of [
      ["submit", [3, 3]],
      ["start", []],
    ]) {
      const seconds = timeOf(state.data, name, side, state.marked);
      if (Number.isNaN(seconds)) continue;
      ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
      ctx.lineWidth = devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(place(seconds), bbox.top);
      ctx.lineTo(place(seconds), bbox.top + bbox.height);
      ctx.stroke();
    }
  }
}
