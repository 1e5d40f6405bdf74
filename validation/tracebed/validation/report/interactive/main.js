// Replaces the static figures of the page by interactive charts, when the data of the charts is decoded.

async function main() {
  const figures = Object.fromEntries(
    [...document.querySelectorAll("figure[data-chart]")].map((each) => [each.dataset.chart, each]),
  );
  const state = new State(await readColumns(document.getElementById("chart-data").textContent));
  const tooltip = new Tooltip();
  const charts = {
    gantt: () => [new Gantt(state, "real", false), new Gantt(state, "predicted", true)],
    utilization: () => [
      new Curves(state, { name: "busy", label: "utilization", most: 1, show: share, end: state.data.arrivals }),
    ],
    queue: () => [new Curves(state, { name: "queue", label: "waiting jobs", most: 0, show: short, end: null })],
    differences: () => [new Differences(state)],
    scatter: () => [new Scatter(state, "wait"), new Scatter(state, "response")],
  };
  const toolbar = new Toolbar(state);
  const first = Object.values(figures)[0]?.closest("section");
  first?.before(toolbar.bar);
  for (const [name, figure] of Object.entries(figures)) {
    const box = element("div", "charts");
    figure.prepend(box);
    figure.classList.add("live");
    for (const chart of charts[name]()) {
      const panel = new Panel(box, state, chart);
      new Gestures(panel, state, tooltip);
    }
    if (name === "gantt" && state.data.omitted.some(Boolean)) box.append(element("p", "note", omitted(state.data)));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.notify());
  document.documentElement.dataset.charts = "ready";
}

function omitted(data) {
  const counts = SIDES.map((side, n) => `${number(data.omitted[n], 0)} ${side}`).join(" and ");
  return `The charts omit the bars with the smallest areas (nodes times time): ${counts}.`;
}

main();
