// The facts of a job as a table, for tooltips and for the marked job.

const SIDES = ["real", "predicted"];

// Returns `submit`, `start` or `end` of a job, s after the first submission; NaN if missing.
function timeOf(data, name, side, job) {
  const value = data[`${name}_${side}`][job];
  return value === data.missing ? NaN : value * data.tick;
}

function factsOf(data, job) {
  const rows = ["submit", "start", "end"].map((name) => [name, ...SIDES.map((side) => timeOf(data, name, side, job))]);
  const [submit, start, end] = rows;
  const between = (from, to) => [1, 2].map((side) => to[side] - from[side]);
  rows.push(
    ["wait", ...between(submit, start)],
    ["run", ...between(start, end)],
    ["response", ...between(submit, end)],
  );
  return rows;
}

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

// Returns the table of a job, with a row (or, if `wide`, a column) per fact. Text is never read as HTML.
function factsTable(data, job, more = "", wide = false) {
  const found = document.createDocumentFragment();
  const user = data.user_names[data.user[job]];
  const nodes = data.nodes_requested[job];
  const about = [
    data.kind_names[data.kind[job]],
    nodes ? `${nodes} ${nodes === 1 ? "node" : "nodes"} requested` : "nodes unknown",
  ];
  if (user) about.push(`user ${user}`);
  found.append(element("strong", "", `job ${data.ids[job]}`), element("div", "about", about.join(", ")));
  if (more) found.append(element("div", "about", more));
  const seconds = (value) => (Number.isNaN(value) ? "\u2013" : number(value));
  let rows = [["s", "real", "predicted", "difference"]];
  for (const [name, real, predicted] of factsOf(data, job)) {
    rows.push([name, seconds(real), seconds(predicted), seconds(predicted - real)]);
  }
  rows.push(["state", ...SIDES.map((side) => data[`${side}_names`][data[side][job]] || "\u2013"), ""]);
  if (wide) rows = rows[0].map((_, column) => rows.map((row) => row[column]));
  const table = element("table");
  for (const row of rows) {
    const line = table.insertRow();
    row.forEach((text) => line.append(element("td", SIDES.includes(text) ? text : "", text)));
  }
  found.append(table);
  return found;
}

// A box beside the pointer.
class Tooltip {
  constructor() {
    this.box = element("div", "tooltip");
    this.box.hidden = true;
    document.body.append(this.box);
  }

  show(content, x, y) {
    this.box.replaceChildren(content);
    this.box.hidden = false;
    const { width, height } = this.box.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? x - 14 - width : x + 14;
    const top = y + 14 + height > innerHeight ? y - 14 - height : y + 14;
    this.box.style.left = `${Math.max(left, 4)}px`;
    this.box.style.top = `${Math.max(top, 4)}px`;
  }

  hide() {
    this.box.hidden = true;
  }
}
