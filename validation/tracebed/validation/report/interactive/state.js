// What all charts show: the range of time, the range of nodes, and the marked job.

const SMALLEST = 50; // shortest range of time, ticks

class State {
  constructor(data) {
    this.data = data;
    this.nodes = Array.isArray(data.nodes) ? data.nodes.length : data.nodes;
    this.margin = 0.01;
    this.marked = -1;
    this.changed = [];
    this.waiting = false;
    this.setHome();
  }

  setHome() {
    [this.low, this.high] = [0, this.data.home * (1 + this.margin)];
    [this.top, this.bottom] = [0, Math.max(this.nodes, 1)];
  }

  get isHome() {
    return this.low === 0 && this.high === this.data.home * (1 + this.margin) && this.allNodes;
  }

  get allNodes() {
    return this.top === 0 && this.bottom === Math.max(this.nodes, 1);
  }

  // Shows a range of time (s) within the runs.
  show(low, high) {
    const most = this.data.last * (1 + this.margin);
    const length = Math.min(Math.max(high - low, SMALLEST * this.data.tick), most);
    this.low = Math.min(Math.max((low + high - length) / 2, 0), most - length);
    this.high = this.low + length;
    this.notify();
  }

  showNodes(top, bottom) {
    const length = Math.min(Math.max(bottom - top, 1), Math.max(this.nodes, 1));
    this.top = Math.min(Math.max(top, 0), Math.max(this.nodes, 1) - length);
    this.bottom = this.top + length;
    this.notify();
  }

  // Divides the length of the range by `factor`; the instant `center` keeps its place.
  zoom(factor, center = (this.low + this.high) / 2) {
    this.show(center - (center - this.low) / factor, center + (this.high - center) / factor);
  }

  // Moves the range by a share of its length.
  pan(share) {
    const by = share * (this.high - this.low);
    const most = this.data.last * (1 + this.margin);
    const inside = Math.min(Math.max(by, -this.low), most - this.high);
    this.show(this.low + inside, this.high + inside);
  }

  reset() {
    this.setHome();
    this.notify("reset");
  }

  mark(job) {
    this.marked = job;
    this.notify();
  }

  // Marks a job, and shows the time from its first submission to its last end.
  jump(job) {
    const times = ["real", "predicted"].flatMap((side) =>
      ["submit", "start", "end"].map((name) => timeOf(this.data, name, side, job)).filter(Number.isFinite),
    );
    this.marked = job;
    if (!this.allNodes) this.showNodes(0, this.nodes);
    const [first, last] = [Math.min(...times), Math.max(...times)];
    const length = Math.min(this.high - this.low, 8 * Math.max(last - first, SMALLEST * this.data.tick));
    const center = (first + last) / 2;
    const half = Math.max(length, 1.2 * (last - first)) / 2;
    this.show(center - half, center + half);
  }

  // Redraws once per frame, whatever the number of changes.
  notify(what = "") {
    if (what) this.changed.forEach((listener) => listener(what));
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.changed.forEach((listener) => listener(""));
    });
  }
}
