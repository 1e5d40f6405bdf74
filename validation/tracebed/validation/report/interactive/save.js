// Links below each figure that save it for a paper, as wide as one or two columns, and the data that it shows.

const COLUMNS = { "1 column": [3.5, ".narrow"], "2 columns": [7.16, ".wide"] }; // inches, and the drawing of that width
const DPI = 300;

for (const figure of document.querySelectorAll("figure[data-name]")) {
  const bar = document.createElement("p");
  bar.className = "save";
  bar.append("Save ");
  for (const [label, [width, drawing]] of Object.entries(COLUMNS)) {
    const svg = figure.querySelector(`${drawing} > svg, .any > svg`);
    const name = `${figure.dataset.name}-${label.replace(" ", "-")}`;
    bar.append(`${label}: `, link("SVG", () => offer(svgFile(svg, width), `${name}.svg`)));
    bar.append(" ", link("PNG", async () => offer(await pngFile(svg, width), `${name}.png`)));
    bar.append(" ", link("PDF", () => print(svg, width)), " \u00b7 ");
  }
  const table = figure.querySelector("script.table");
  if (table) {
    const save = async () => offer(new Blob([await inflated(table.textContent)]), `${figure.dataset.name}.csv`);
    bar.append("data: ", link("CSV", save));
  } else bar.lastChild.remove();
  figure.append(bar);
}

function link(text, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.addEventListener("click", act);
  return made;
}

function offer(file, name) {
  const made = document.createElement("a");
  made.href = URL.createObjectURL(file);
  made.download = name;
  made.click();
  setTimeout(() => URL.revokeObjectURL(made.href), 60000);
}

// Returns a drawing as a document of its own, with the colors of light paper in place of those of the page.
function standalone(svg, width) {
  const copy = svg.cloneNode(true);
  const [, , across, down] = svg.getAttribute("viewBox").split(" ").map(Number);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("xmlns:xlink", "http://www.w3.org/1999/xlink");
  copy.setAttribute("width", `${width}in`);
  copy.setAttribute("height", `${(width * down) / across}in`);
  const text = new XMLSerializer().serializeToString(copy);
  return { text: text.replace(/var\(--[\w-]+, (#\w+)\)/g, "$1"), height: (width * down) / across };
}

function svgFile(svg, width) {
  return new Blob([standalone(svg, width).text], { type: "image/svg+xml" });
}

async function pngFile(svg, width) {
  const { text, height } = standalone(svg, width);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.round(width * DPI), Math.round(height * DPI)];
  const context = canvas.getContext("2d");
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

// Prints the drawing alone, on a page of its size: the browser saves it as a PDF with vectors.
function print(svg, width) {
  const { text, height } = standalone(svg, width);
  const paper = document.createElement("div");
  paper.className = "paper";
  paper.innerHTML = text;
  const style = document.createElement("style");
  style.textContent = `@page { size: ${width}in ${height + 0.02}in; margin: 0; }`;
  document.body.append(paper, style);
  document.body.classList.add("printing");
  addEventListener("afterprint", () => {
    document.body.classList.remove("printing");
    paper.remove();
    style.remove();
  }, { once: true });
  window.print();
}
