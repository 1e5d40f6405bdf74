// Tables that sort by a click on a column, and long ones that filter their rows by a text.

const SORTED = 3; // rows below which a table does not sort
const LONG = 10; // rows from which a table has a filter

for (const table of document.querySelectorAll("main table:not(.facts):not(.heat)")) {
  const body = table.tBodies[0];
  const rows = [...(body?.rows ?? [])];
  const heads = [...(table.tHead?.rows[0]?.cells ?? [])];
  const merged = table.querySelector("tbody [colspan], tbody [rowspan]");
  if (rows.length < SORTED || merged || table.tHead?.rows.length !== 1) continue;
  for (const [column, head] of heads.entries()) {
    head.tabIndex = 0;
    head.classList.add("sorts");
    const sort = () => sorted(body, rows, heads, column);
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
  }
  if (rows.length >= LONG) (table.closest(".scroll") ?? table).before(filter(rows));
}

// Sorts the rows by a column: ascending, then descending, then in the order of the page.
function sorted(body, rows, heads, column) {
  const way = { ascending: "descending", descending: "none" }[heads[column].ariaSort] ?? "ascending";
  for (const head of heads) head.ariaSort = "none";
  heads[column].ariaSort = way;
  const texts = new Map(rows.map((row) => [row, row.cells[column]?.textContent.trim() ?? ""]));
  const numbers = new Map(rows.map((row) => [row, quantity(row.cells[column]?.dataset.value ?? texts.get(row))]));
  const numeric = [...numbers.values()].filter((each) => !isNaN(each)).length * 2 > rows.length;
  const compare = (a, b) => numeric
    ? (isNaN(numbers.get(a)) - isNaN(numbers.get(b))) || sign * (numbers.get(a) - numbers.get(b))
    : sign * texts.get(a).localeCompare(texts.get(b), "en", { numeric: true });
  const sign = way === "descending" ? -1 : 1;
  body.append(...(way === "none" ? rows : [...rows].sort(compare)));
}

// Returns the number at the beginning of a text, or NaN.
function quantity(text) {
  return parseFloat(text.replace(/[,\u2009\u00a0]/g, "").replace("\u2212", "-").replace(/^[^\d.+-]+/, ""));
}

function filter(rows) {
  const input = document.createElement("input");
  input.type = "search";
  input.className = "filter";
  input.placeholder = `filter ${rows.length} rows`;
  input.setAttribute("aria-label", "Show only rows with this text");
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
  return input;
}
