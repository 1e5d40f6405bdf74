// The bar above the charts: search for a job, zoom buttons, the visible range, and the facts of the marked job.

const WIDE = 760; // width of a window above which the facts of the marked job are side by side, CSS pixels

class Toolbar {
  constructor(state) {
    this.state = state;
    this.bar = element("div", "toolbar");
    const label = element("label", "", "Job ");
    this.input = element("input");
    Object.assign(this.input, { type: "search", placeholder: "id", autocomplete: "off", spellcheck: false });
    label.append(this.input);
    this.message = element("output", "message");
    this.range = element("span", "range");
    this.card = element("div", "card");
    this.card.setAttribute("aria-live", "polite");
    const find = this.button("Find", "Find the job", () => this.find());
    const zoom = [
      this.button("\u2212", "Zoom out", () => state.zoom(1 / 2)),
      this.button("+", "Zoom in", () => state.zoom(2)),
      this.button("All", "Show the whole time", () => state.reset()),
    ];
    const about = element("span", "message", state.data.about);
    this.bar.append(label, find, ...zoom, this.range, this.message, about, this.card);
    this.input.addEventListener("keydown", (event) => event.key === "Enter" && this.find());
    this.input.addEventListener("input", () => (this.message.textContent = ""));
    state.changed.push(() => this.show());
    this.show();
  }

  button(text, title, action) {
    const made = element("button", "", text);
    Object.assign(made, { type: "button", title });
    made.addEventListener("click", action);
    return made;
  }

  // Jumps to the job with the given id, or to the next job whose id starts with it.
  find() {
    const { ids } = this.state.data;
    const text = this.input.value.trim();
    if (!text) return;
    const exact = ids.indexOf(text);
    const found = exact >= 0 ? [exact] : [...ids.keys()].filter((job) => ids[job].startsWith(text));
    if (!found.length) {
      this.message.textContent = `no job ${text}`;
      this.state.mark(-1);
      return;
    }
    const next = found.find((job) => job > this.state.marked) ?? found[0];
    const place = found.indexOf(next) + 1;
    this.message.textContent =
      found.length > 1 ? `${number(place, 0)} of ${number(found.length, 0)} ids with this start` : "";
    this.state.jump(exact >= 0 ? exact : next);
    this.scrollToChart();
  }

  // Scrolls to the first chart if the window shows none.
  scrollToChart() {
    const panels = [...document.querySelectorAll(".panel")];
    const visible = panels.some((panel) => {
      const { top, bottom } = panel.getBoundingClientRect();
      return bottom > 0 && top < innerHeight;
    });
    if (!visible) panels[0].scrollIntoView({ block: "center" });
  }

  show() {
    const { state } = this;
    this.range.textContent = state.isHome ? "" : `${showTime(state.low)} to ${showTime(state.high)}`;
    if (this.shown === state.marked) return;
    this.shown = state.marked;
    this.card.replaceChildren();
    if (state.marked < 0) return;
    const close = this.button("\u00d7", "Unmark the job", () => state.mark(-1));
    this.card.append(factsTable(state.data, state.marked, "", innerWidth > WIDE), close);
  }
}
