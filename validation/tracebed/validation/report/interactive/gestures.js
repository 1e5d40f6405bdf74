// Mouse, touch and keyboard on a panel. A mouse selects by dragging (uPlot); everything else is here.

const CLICK = 4; // movements up to this distance, CSS pixels, are clicks

class Gestures {
  constructor(panel, state, tooltip) {
    Object.assign(this, { panel, state, tooltip });
    this.pointers = new Map();
    const { host } = panel;
    const { over } = panel.plot;
    over.addEventListener("pointerdown", (event) => this.down(event));
    over.addEventListener("pointermove", (event) => this.move(event));
    over.addEventListener("pointerup", (event) => this.up(event));
    over.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
    over.addEventListener("pointerleave", () => tooltip.hide());
    over.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    host.addEventListener("keydown", (event) => this.key(event));
  }

  down(event) {
    this.panel.host.focus({ preventScroll: true });
    this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    this.from = { x: event.clientX, y: event.clientY };
    this.moved = false;
    if (this.pans(event)) this.panel.plot.over.setPointerCapture(event.pointerId);
  }

  pans(event) {
    return !this.panel.chart.own && (event.pointerType !== "mouse" || event.shiftKey);
  }

  move(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return this.hover(event);
    this.tooltip.hide();
    if (Math.hypot(event.clientX - this.from.x, event.clientY - this.from.y) > CLICK) this.moved = true;
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    if (this.pans(event)) {
      if (others.length) this.pinch(before, event, others[0]);
      else this.state.pan((before.x - event.clientX) / this.panel.plot.over.clientWidth);
    }
    this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
  }

  // Zooms by the change of the distance of two fingers. The instant between the fingers keeps its place.
  pinch(before, event, other) {
    const [old, now] = [Math.abs(before.x - other.x), Math.abs(event.clientX - other.x)];
    if (old < 20 || now < 20) return;
    this.state.zoom(now / old, this.panel.instant((event.clientX + other.x) / 2));
  }

  up(event) {
    this.pointers.delete(event.pointerId);
    if (this.moved || event.button !== 0) return;
    const found = this.panel.at(event.clientX, event.clientY);
    this.state.mark(found && "job" in found ? found.job : -1);
  }

  hover(event) {
    if (event.pointerType !== "mouse") return;
    const found = this.panel.at(event.clientX, event.clientY);
    if (!found) return this.tooltip.hide();
    const content = found.content ?? factsTable(this.state.data, found.job, found.more);
    this.tooltip.show(content, event.clientX, event.clientY);
  }

  // A panel without the focus leaves the wheel to the page, so that the page can be scrolled.
  wheel(event) {
    const zooms = event.ctrlKey || event.metaKey || this.panel.host.contains(document.activeElement);
    if (!zooms || this.panel.chart.own) return;
    event.preventDefault();
    this.tooltip.hide();
    const along = event.shiftKey ? event.deltaY : event.deltaX;
    if (Math.abs(along) > Math.abs(event.shiftKey ? event.deltaX : event.deltaY)) {
      this.state.pan(along / this.panel.plot.over.clientWidth);
    } else {
      this.state.zoom(Math.exp(-event.deltaY / 400), this.panel.instant(event.clientX));
    }
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      "+": () => this.state.zoom(2),
      "=": () => this.state.zoom(2),
      "-": () => this.state.zoom(1 / 2),
      0: () => this.state.reset(),
      ArrowLeft: () => this.state.pan(-0.2),
      ArrowRight: () => this.state.pan(0.2),
      Escape: () => this.state.mark(-1),
    };
    if (!(event.key in actions) || (this.panel.chart.own && !["0", "Escape"].includes(event.key))) return;
    event.preventDefault();
    actions[event.key]();
  }
}
