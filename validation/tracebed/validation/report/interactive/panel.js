// A panel: one uPlot with axes and cursor. A chart draws its content and finds what is at a position.
//
// A chart has: label, height (CSS pixels), yRange() -> [low, high], draw(u), at(u, x, y, pixels) -> {job} or {content}
// or null; optionally sides (for the heading), yAxis, scales, selectsRows, and own: a chart with an x axis of its own.

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

class Panel {
  constructor(figure, state, chart) {
    this.state = state;
    this.chart = chart;
    this.host = element("div", "panel");
    this.host.tabIndex = 0;
    this.host.setAttribute("role", "group");
    this.host.setAttribute(
      "aria-label",
      `${chart.label}. Keys: ${chart.own ? "" : "+ and - zoom, arrows move, "}0 shows all, Escape unmarks.`,
    );
    const heading = element("div", "heading");
    heading.append(...(chart.sides ?? []).map((side) => element("span", side, side)));
    this.host.append(heading);
    figure.append(this.host);
    this.plot = new uPlot(
      this.options(),
      [
        [0, 1],
        [0, 1],
      ],
      this.host,
    );
    new ResizeObserver(() => this.resize()).observe(this.host);
    state.changed.push((what) => (what === "reset" ? chart.reset?.() : this.redraw()));
  }

  get width() {
    return Math.max(this.host.clientWidth, 120);
  }

  options() {
    const { chart, state } = this;
    const narrow = this.width < 600;
    const axis = {
      stroke: () => css("soft"),
      font: "12px Helvetica, Arial, sans-serif",
      ticks: { width: 1, size: 4, stroke: () => css("rule") },
    };
    const grid = { width: 1, stroke: () => css("line") };
    const time = {
      label: chart.last === false ? undefined : `time after the first submission${timeUnit(state.data.last)}`,
      incrs: TIME_STEPS,
      space: 84,
      values: (u, splits, index, space, step) => splits.map((split) => tickLabel(split, step, state.data.last)),
    };
    const labelled = { labelFont: axis.font, labelSize: 20, labelGap: 0 };
    return {
      width: this.width,
      height: chart.height,
      padding: [6, 14, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: false, auto: false, range: () => this.xRange(), ...chart.scales?.x },
        y: { auto: false, range: () => chart.yRange(), ...chart.scales?.y },
      },
      series: [{}, { paths: () => null, points: { show: false } }],
      axes: [
        {
          ...axis,
          ...labelled,
          grid: { ...grid, show: Boolean(chart.own) },
          size: 26,
          ...(chart.own ? chart.xAxis : time),
        },
        { ...axis, ...labelled, grid, size: narrow ? 44 : 62, ...chart.yAxis },
      ],
      cursor: {
        points: { show: false },
        y: Boolean(chart.own),
        drag: { x: true, y: Boolean(chart.selectsRows), uni: 40, setScale: false },
        sync: chart.own
          ? undefined
          : { key: "time", scales: ["x", null], filters: { pub: (type) => /move|leave/.test(type) } },
        bind: {
          mousedown: (u, target, handle) => (event) => (event.shiftKey ? null : handle(event)), // Shift and drag: pan
          dblclick: () => () => state.reset(),
        },
      },
      hooks: { draw: [(u) => this.draw(u)], setSelect: [(u) => this.select(u)] },
    };
  }

  xRange() {
    return this.chart.own ? this.chart.xRange() : [this.state.low, this.state.high];
  }

  redraw() {
    const [low, high] = this.xRange();
    const [bottom, top] = this.chart.yRange();
    this.plot.batch(() => {
      this.plot.setScale("x", { min: low, max: high }); // draws, even if the range is the same
      this.plot.setScale("y", { min: bottom, max: top });
    });
  }

  resize() {
    if (this.host.clientWidth && this.width !== this.plot.width) {
      this.plot.setSize({ width: this.width, height: this.chart.height });
    }
  }

  draw(u) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    this.chart.draw(u);
    ctx.restore();
  }

  // Zooms to the selected rectangle.
  select(u) {
    const { left, top, width, height } = u.select;
    if (width < 4 && height < 4) return;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    const x = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    const y = [u.posToVal(top, "y"), u.posToVal(top + height, "y")].sort((a, b) => a - b);
    if (this.chart.own) {
      this.chart.select(x, y);
      this.redraw();
    } else {
      if (width >= 4 && width < u.over.clientWidth) this.state.show(...x);
      if (this.chart.selectsRows && height >= 4 && height < u.over.clientHeight) this.state.showNodes(...y);
    }
  }

  // Returns what the chart shows at a position of the page.
  at(clientX, clientY) {
    const box = this.plot.over.getBoundingClientRect();
    const [left, top] = [clientX - box.left, clientY - box.top];
    if (left < 0 || top < 0 || left > box.width || top > box.height) return null;
    return this.chart.at(this.plot, this.plot.posToVal(left, "x"), this.plot.posToVal(top, "y"), { left, top });
  }

  instant(clientX) {
    return this.plot.posToVal(clientX - this.plot.over.getBoundingClientRect().left, "x");
  }
}

// An image of the plotting area, one 32-bit color per device pixel, to be drawn over the grid.
class Raster {
  constructor(u) {
    this.width = Math.max(Math.round(u.bbox.width), 1);
    this.height = Math.max(Math.round(u.bbox.height), 1);
    this.image = new ImageData(this.width, this.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  drawTo(u) {
    const canvas = new OffscreenCanvas(this.width, this.height);
    canvas.getContext("2d").putImageData(this.image, 0, 0);
    u.ctx.drawImage(canvas, u.bbox.left, u.bbox.top);
  }
}

// Returns a color of the form #rrggbb as a pixel, little-endian ABGR.
function pixel(color, alpha) {
  const value = parseInt(color.slice(1), 16);
  const [red, green, blue] = [value >> 16, (value >> 8) & 255, value & 255];
  return ((Math.round(255 * alpha) << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
