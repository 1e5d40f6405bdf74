// Curves over time of both runs: utilization and number of waiting jobs.

class Curves {
  // `most` is the largest value of the axis (0: the largest visible value), `show` makes a value text, and the time
  // after `end` (s, or null) is shaded.
  constructor(state, { name, label, most, show, end }) {
    Object.assign(this, { state, label, most, show, end });
    this.data = state.data;
    this.height = 180 + 52;
    this.sides = SIDES;
    this.yAxis = { label, values: (u, splits) => splits.map(show) };
    if (!most) this.yAxis.incrs = [1, 10, 100, 1000, 10000, 100000].flatMap((unit) => [unit, 2 * unit, 5 * unit]);
    this.curves = SIDES.map((side) => ({
      side,
      times: this.data[`${name}_time_${side}`],
      values: this.data[`${name}_${side}`],
      divisor: name === "busy" ? Math.max(this.data[`cores_${side}`], 1) : 1,
    }));
  }

  get visible() {
    return [this.state.low / this.data.tick, this.state.high / this.data.tick];
  }

  yRange() {
    if (this.most) return [0, 1.04 * this.most];
    const [from, to] = this.visible;
    let largest = 1;
    for (const { times, values, divisor } of this.curves) {
      const last = lowerBound(times, to);
      for (let i = Math.max(lowerBound(times, from) - 1, 0); i < last; i++)
        largest = Math.max(largest, values[i] / divisor);
    }
    return [0, 1.06 * largest];
  }

  draw(u) {
    const { ctx, bbox } = u;
    if (this.end !== null) {
      const from = Math.max(u.valToPos(this.end, "x", true), bbox.left);
      ctx.globalAlpha = 0.13;
      ctx.fillStyle = css("soft");
      ctx.fillRect(from, bbox.top, bbox.left + bbox.width - from, bbox.height);
      ctx.globalAlpha = 1;
    }
    for (const curve of this.curves) {
      const [path, count] = this.path(u, curve);
      ctx.strokeStyle = ctx.fillStyle = css(curve.side);
      if (curve.side === "real") {
        const area = new Path2D(path);
        area.lineTo(bbox.left + bbox.width, bbox.top + bbox.height);
        area.lineTo(bbox.left, bbox.top + bbox.height);
        ctx.globalAlpha = 0.1;
        ctx.fill(area);
        ctx.globalAlpha = 1;
      }
      // Dashes of a curve with a step in most pixels look like other steps.
      const dashed = curve.side === "predicted" && count < bbox.width / 4;
      ctx.setLineDash(dashed ? [5 * devicePixelRatio, 4 * devicePixelRatio] : []);
      ctx.lineWidth = 1.3 * devicePixelRatio;
      ctx.globalAlpha = curve.side === "predicted" && !dashed ? 0.7 : 1; // the real curve below stays visible
      ctx.stroke(path);
      ctx.globalAlpha = 1;
    }
    if (this.state.marked < 0) return;
    for (const { side } of this.curves) {
      ctx.strokeStyle = css(side);
      drawInstants(u, this.state, [side], (seconds) => u.valToPos(seconds, "x", true));
    }
  }

  // Returns the path of a step function, and the number of its visible steps. The steps in one column of pixels become
  // one vertical line from their smallest to their largest value.
  path(u, { times, values, divisor }) {
    const [from, to] = this.visible;
    const { left, top, width, height } = u.bbox;
    const { min, max } = u.scales.y;
    const path = new Path2D();
    const x = (time) => left + ((time - from) / (to - from)) * width;
    const y = (value) => top + height - ((value / divisor - min) / (max - min)) * height;
    const first = lowerBound(times, from);
    let value = first > 0 ? values[first - 1] : 0;
    path.moveTo(left, y(value));
    let i = first;
    while (i < times.length && times[i] < to) {
      const column = Math.floor(x(times[i]));
      const place = x(times[i]);
      path.lineTo(place, y(value));
      let [low, high] = [value, value];
      for (; i < times.length && times[i] < to && Math.floor(x(times[i])) === column; i++) {
        value = values[i];
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
      if (low < value) path.lineTo(place, y(low));
      if (high > value) path.lineTo(place, y(high));
      path.lineTo(place, y(value));
    }
    path.lineTo(left + width, y(value));
    return [path, i - first];
  }

  at(u, x) {
    const content = document.createDocumentFragment();
    content.append(element("div", "about", showTime(x)));
    for (const { side, times, values, divisor } of this.curves) {
      const i = lowerBound(times, x / this.data.tick + 0.5) - 1;
      content.append(element("div", side, `${side}: ${this.show((i < 0 ? 0 : values[i]) / divisor)}`));
    }
    return { content };
  }
}

function share(value) {
  return `${number(100 * value)} %`;
}
