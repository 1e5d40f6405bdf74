// Charts with a point per job: differences of waits over submit times, and predicted over real waits.

const RADII = [
  [2000, 3],
  [20000, 2],
  [Infinity, 1],
]; // up to this number of points: radius, CSS pixels
const NEAR = 12;
const BINS = 40;

class Points {
  // `x` and `y` are the coordinates of the jobs (s), NaN if unknown; `linear` is the threshold of each axis or null.
  constructor(state, x, y, linear) {
    this.state = state;
    this.data = state.data;
    this.linear = linear;
    this.jobs = Int32Array.from(x.keys()).filter((job) => !Number.isNaN(x[job]) && !Number.isNaN(y[job]));
    const [xs, ys] = [x, y].map((values) => Float64Array.from(this.jobs, (job) => values[job]));
    this.scaled = { x: this.scaledOf("x", xs), y: this.scaledOf("y", ys) };
    this.extent = { x: extent(xs), y: extent(ys) };
    this.scales = Object.fromEntries(
      ["x", "y"].filter((axis) => linear[axis]).map((axis) => [axis, asinhScale(linear[axis])]),
    );
    [this.xAxis, this.yAxis] = ["x", "y"].map((axis) => this.axisOf(linear[axis]));
  }

  axisOf(linear) {
    const values = (u, splits) => splits.map(short);
    if (!linear) return { values };
    const splits = (u, axis, low, high) => decadeTicks(low, high, linear);
    return { values, splits, filter: (u, found) => found };
  }

  // Returns values on the scale of an axis: linear up to the threshold and logarithmic beyond.
  scaledOf(axis, values) {
    const linear = this.linear[axis];
    const scaled = new Float64Array(values);
    if (linear) for (let i = 0; i < scaled.length; i++) scaled[i] = Math.asinh(scaled[i] / linear);
    return scaled;
  }

  // Returns the functions from points to device pixels of the plotting area: from the left and from the top.
  place(u) {
    const along = (axis, length) => {
      const [low, high] = this.scaledOf(axis, [u.scales[axis].min, u.scales[axis].max]);
      const values = this.scaled[axis];
      return (n) => ((values[n] - low) / (high - low)) * length;
    };
    const up = along("y", u.bbox.height);
    return [along("x", u.bbox.width), (n) => u.bbox.height - up(n)];
  }

  // Draws the points into an image: the more points share a pixel, the stronger its color.
  drawPoints(u) {
    const raster = new Raster(u);
    const { width, height, pixels } = raster;
    const [across, down] = this.place(u);
    const radius = Math.round(RADII.find(([most]) => this.jobs.length <= most)[1] * devicePixelRatio);
    const counts = new Uint16Array(width * height);
    for (let n = 0; n < this.jobs.length; n++) {
      const [x, y] = [Math.round(across(n)), Math.round(down(n))];
      if (!(x > -radius && y > -radius && x < width + radius && y < height + radius)) continue;
      for (let row = Math.max(y - radius, 0); row <= Math.min(y + radius, height - 1); row++) {
        const half = Math.round(Math.sqrt(radius * radius - (row - y) * (row - y)));
        const end = Math.min(x + half, width - 1);
        for (let column = Math.max(x - half, 0); column <= end; column++) counts[row * width + column]++;
      }
    }
    const color = css("predicted");
    const shades = Uint32Array.from({ length: 16 }, (_, n) => pixel(color, 1 - 0.75 * 0.6 ** n));
    for (let n = 0; n < counts.length; n++) if (counts[n]) pixels[n] = shades[Math.min(counts[n], 15)];
    raster.drawTo(u);
  }

  drawMark(u) {
    const n = this.jobs.indexOf(this.state.marked);
    if (this.state.marked < 0 || n < 0) return;
    const [across, down] = this.place(u);
    const { ctx, bbox } = u;
    ctx.strokeStyle = css("ink");
    ctx.setLineDash([]);
    ctx.lineWidth = 2 * devicePixelRatio;
    ctx.beginPath();
    ctx.arc(bbox.left + across(n), bbox.top + down(n), 7 * devicePixelRatio, 0, 2 * Math.PI);
    ctx.stroke();
  }

  line(u, axis, value, color, dash = []) {
    const { ctx, bbox } = u;
    const place = u.valToPos(value, axis, true);
    ctx.strokeStyle = css(color);
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
    ctx.beginPath();
    ctx.moveTo(bbox.left, place);
    ctx.lineTo(bbox.left + bbox.width, place);
    ctx.stroke();
  }

  at(u, x, y, { left, top }) {
    const [across, down] = this.place(u);
    const [column, row] = [left * devicePixelRatio, top * devicePixelRatio];
    let [best, distance] = [-1, (NEAR * devicePixelRatio) ** 2];
    for (let n = 0; n < this.jobs.length; n++) {
      const off = (across(n) - column) ** 2 + (down(n) - row) ** 2;
      if (off < distance) [best, distance] = [n, off];
    }
    return best < 0 ? null : { job: this.jobs[best] };
  }
}

// The difference of waits of each job over its submit time, with bias, limits of agreement and histogram.
class Differences extends Points {
  constructor(state) {
    const data = state.data;
    const [real, predicted] = SIDES.map((side) => secondsBetween(data, "submit", "start", side));
    const off = predicted.map((wait, job) => wait - real[job]);
    super(state, secondsBetween(data, null, "submit", "real"), off, { y: data.linear });
    Object.assign(this, { label: "Difference of waits", height: 221 + 52 });
    this.yAxis.label = "predicted \u2212 real wait (s)";
  }

  yRange() {
    const [low, high] = this.extent.y;
    const linear = this.linear.y;
    if (linear) return [low < 0 ? 1.5 * low : -linear, high > 0 ? 1.5 * high : linear];
    const margin = 0.06 * (high - low) || 1;
    return [low - margin, high + margin];
  }

  draw(u) {
    const { ctx, bbox } = u;
    if (this.data.agreement) {
      const [bias, low, high] = this.data.agreement;
      const [top, bottom] = [u.valToPos(high, "y", true), u.valToPos(low, "y", true)];
      ctx.globalAlpha = 0.1;
      ctx.fillStyle = css("real");
      ctx.fillRect(bbox.left, top, bbox.width, bottom - top);
      ctx.globalAlpha = 1;
      this.line(u, "y", bias, "real", [6, 4]);
    }
    this.line(u, "y", 0, "rule");
    this.drawPoints(u);
    this.drawHistogram(u);
    this.drawMark(u);
  }

  // Draws the distribution of the visible jobs at the right edge, up to a tenth of the width.
  drawHistogram(u) {
    const { ctx, bbox } = u;
    const [across, down] = this.place(u);
    const counts = new Array(BINS).fill(0);
    for (let n = 0; n < this.jobs.length; n++) {
      const [x, y] = [across(n), down(n)];
      if (x >= 0 && x <= bbox.width && y >= 0 && y < bbox.height) counts[Math.floor((y / bbox.height) * BINS)]++;
    }
    const most = Math.max(...counts, 1);
    ctx.fillStyle = css("soft");
    ctx.globalAlpha = 0.35;
    counts.forEach((count, bin) => {
      const length = (0.1 * bbox.width * count) / most;
      const top = bbox.top + (bin * bbox.height) / BINS;
      ctx.fillRect(bbox.left + bbox.width - length, top, length, bbox.height / BINS - 1);
    });
    ctx.globalAlpha = 1;
  }
}

// The predicted over the real value of each job. `quantity` is `wait` or `response`.
class Scatter extends Points {
  constructor(state, quantity) {
    const data = state.data;
    const until = { wait: "start", response: "end" }[quantity];
    const linear = data.decades[quantity];
    const [real, predicted] = SIDES.map((side) => secondsBetween(data, "submit", until, side));
    super(state, real, predicted, { x: linear, y: linear });
    Object.assign(this, { own: true, selectsRows: true, label: `Predicted over real ${quantity}`, height: 360 });
    this.xAxis.label = `real ${quantity} (s)`;
    this.yAxis.label = `predicted ${quantity} (s)`;
    this.reset();
  }

  reset() {
    const largest = 1.1 * (Math.max(this.extent.x[1], this.extent.y[1]) || 1);
    this.range = { x: [0, largest], y: [0, largest] };
  }

  xRange() {
    return this.range.x;
  }

  yRange() {
    return this.range.y;
  }

  select(x, y) {
    this.range = { x, y };
  }

  draw(u) {
    const { ctx } = u;
    const ends = [Math.max(this.range.x[0], this.range.y[0]), Math.min(this.range.x[1], this.range.y[1])];
    ctx.strokeStyle = css("soft");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    for (const value of ends) ctx.lineTo(u.valToPos(value, "x", true), u.valToPos(value, "y", true));
    ctx.stroke();
    this.drawPoints(u);
    this.drawMark(u);
  }
}

// Returns the time between two events of each job (s), from time 0 if `from` is null; NaN unless the job ended in both
// runs. It is computed for all jobs at once, since a call for each of 200,000 jobs is slow.
function secondsBetween(data, from, to, side) {
  const [begin, end] = [data[`${from}_${side}`], data[`${to}_${side}`]];
  const [real, predicted] = [data.end_real, data.end_predicted];
  const found = new Float64Array(end.length);
  for (let job = 0; job < found.length; job++) {
    const ended = real[job] !== data.missing && predicted[job] !== data.missing;
    found[job] = ended ? (end[job] - (begin ? begin[job] : 0)) * data.tick : NaN;
  }
  return found;
}

// A scale that is linear up to a threshold and logarithmic beyond.
function asinhScale(threshold) {
  return { distr: 4, asinh: threshold };
}

// Returns the smallest and the largest of values and 0.
function extent(values) {
  let [low, high] = [0, 0];
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return [low, high];
}
