// Downloads: files that the page creates without sending data anywhere.
import { addWords, say } from "./words.js";
import { button, el, svgEl } from "./dom.js";
import { cssColor } from "./colors.js";

function saveBlob(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function saveText(name, text, kind) {
  saveBlob(name, new Blob([text], { type: `${kind};charset=utf-8` }));
}

function savePng(name, canvas) {
  canvas.toBlob((blob) => saveBlob(name, blob), "image/png");
}

function saveSvg(name, picture) {
  saveText(name, new XMLSerializer().serializeToString(picture), "image/svg+xml");
}

// Rows of cells as CSV (RFC 4180). A text that looks like a formula to a spreadsheet gets an apostrophe
function csvText(rows) {
  const cell = (value) => {
    if (typeof value === "number") return String(Number(value.toPrecision(7)));
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return `${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;
}

function saveCsv(name, rows) {
  saveText(name, csvText(rows), "text/csv");
}

// A file name from a path and a head: decoder.blocks.0.cross_attention, 1 → decoder-1-cross-head-2
function fileName(path, head, ending) {
  const short = path.replace(/blocks\.(\d+)/, (whole, n) => String(Number(n) + 1)).replace("_attention", "").replaceAll(".", "-");
  return `${short}-head-${head + 1}.${ending}`;
}

export function svgText(text, attributes) {
  const made = svgEl("text", attributes);
  made.textContent = text;
  return made;
}

const SAVING_WORDS = {
  "save-as": ["Save", "保存"],
  "save-heat-png": ["Heat map as PNG", "ヒートマップを PNG で保存"],
  "save-heat-svg": ["Heat map as SVG", "ヒートマップを SVG で保存"],
  "save-lines-svg": ["Lines as SVG", "線の図を SVG で保存"],
  "save-lines": ["SVG (lines)", "SVG（線）"],
  "save-tree-png": ["Tree as PNG", "木を PNG で保存"],
  "save-tree-svg": ["Tree as SVG", "木を SVG で保存"],
  "save-tree-csv": ["Nodes as CSV", "ノードを CSV で保存"],
  "save-csv": ["Numbers as CSV", "数値を CSV で保存"],
};

// Buttons that save files: [id, label, action]; ready(): whether there is something to save
function saveButtons(ready, acts) {
  const made = acts.map(([id, text, act]) =>
    button(text, () => ready() && act(), { id, title: say(id), "aria-label": say(id) }),
  );
  const name = el("span", { class: "note" }, say("save-as"));
  return el("span", { class: "bar", role: "group", "aria-label": say("save-as") }, name, ...made);
}

// The buttons that save the open head. heat, lines: the results of makeHeat and makeLines; shown(): the
// displayed values
export function exportButtons(app, heat, lines, shown) {
  addWords(SAVING_WORDS);
  addWords(SAVING_WORDS); // the label already contains this word
  const name = (ending) => fileName(app.state.get("layer"), app.state.get("head"), ending);
  return saveButtons(shown, [
    ["save-heat-png", "PNG", () => savePng(name("png"), onPaper(heat.canvas))],
    ["save-heat-svg", "SVG", () => saveSvg(name("svg"), heat.svg())],
    ["save-lines-svg", say("save-lines"), () => saveSvg(name("lines.svg"), styledCopy(lines.svg()))],
    ["save-csv", "CSV", () => saveCsv(name("csv"), tableOf(app, shown()))],
  ]);
}

// The buttons that save a search tree as an image and its nodes as a table. tree: { canvas(), svg(), rows() }
export function treeButtons(ready, tree) {
  return saveButtons(ready, [
    ["save-tree-png", "PNG", () => savePng("beam-tree.png", onPaper(tree.canvas()))],
    ["save-tree-svg", "SVG", () => saveSvg("beam-tree.svg", tree.svg())],
    ["save-tree-csv", "CSV", () => saveCsv("beam-tree.csv", tree.rows())],
  ]);
}

// Every value of the open head, with the tokens as first row and first column
function tableOf(app, shown) {
  const { layer, values } = shown;
  const rows = app.rowTokens(layer).map((token, i) => {
    const row = values.subarray(i * layer.k_len, (i + 1) * layer.k_len);
    return [token.piece, ...row];
  });
  return [["", ...app.tokensOf(layer.keys).map((token) => token.piece)], ...rows];
}

function onPaper(canvas) {
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const pen = copy.getContext("2d");
  pen.fillStyle = cssColor("--paper");
  pen.fillRect(0, 0, copy.width, copy.height);
  pen.drawImage(canvas, 0, 0);
  return copy;
}

// A drawing that does not require the page's style sheet
function styledCopy(svg) {
  const copy = svg.cloneNode(true);
  const looks = ["fill", "stroke", "opacity", "font-size", "text-anchor"];
  const [from, to] = [svg, copy].map((picture) => picture.querySelectorAll("path, text, rect"));
  from.forEach((part, n) => {
    const style = getComputedStyle(part);
    for (const look of looks) to[n].setAttribute(look, style.getPropertyValue(look));
  });
  const group = (which, picture) => picture.querySelector(which);
  for (const which of [".all", ".chosen"])
    group(which, copy)?.setAttribute("opacity", getComputedStyle(group(which, svg)).opacity);
  const [, , width, height] = svg.getAttribute("viewBox").split(" ");
  const paper = svgEl("rect", { width, height, fill: cssColor("--paper") });
  copy.prepend(paper);
  for (const [name, value] of Object.entries({ width, height, "font-family": "sans-serif" }))
    copy.setAttribute(name, value);
  return copy;
}
