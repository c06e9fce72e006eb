"use strict";
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const [nLayers, nHeads, nRows, nColumns] = data.shape;
const MEAN = "mean";
const heat = byId("heat");
const cell = Math.max(8, Math.min(30, Math.floor(1100 / Math.max(nRows, nColumns)))); // CSS pixels
const state = { layer: data.sharpestLayer, head: MEAN, row: 0, column: 0, held: false };
const all = decode(data.weights); // layer by layer, head by head, row by row
let weights; // of what is shown: rows one after another
let palette; // 256 colors, for the weights 0 to 1

function decode(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

function weightsOf(layer, head) {
  const size = nRows * nColumns;
  const start = (h) => (layer * nHeads + h) * size;
  if (head !== MEAN) return all.subarray(start(head), start(head) + size);
  const mean = new Float32Array(size);
  for (let h = 0; h < nHeads; h++) for (let i = 0; i < size; i++) mean[i] += all[start(h) + i] / nHeads;
  return mean;
}

function entropyOf(shown) {
  return -shown.reduce((sum, w) => sum + (w > 0 ? w * Math.log(w) : 0), 0) / nRows;
}

function short(piece) {
  const characters = [...piece];
  return characters.length > 40 ? `${characters.slice(0, 39).join("")}…` : piece;
}

function element(parent, name, text = "", properties = {}) {
  const made = Object.assign(document.createElement(name), properties);
  made.textContent = text; // never read as HTML
  parent.append(made);
  return made;
}

// Drawing

function mixColors() {
  const style = getComputedStyle(document.documentElement);
  const stops = [0, 1, 2, 3, 4].map((n) => {
    const hex = style.getPropertyValue(`--shade-${n}`).trim();
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  });
  palette = Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * 4;
    const n = Math.min(3, Math.floor(at));
    return stops[n].map((from, c) => Math.round(from + (stops[n + 1][c] - from) * (at - n)));
  });
}

function colorOf(weight) {
  return palette[Math.round(255 * Math.min(1, weight))];
}

function inkOn([red, green, blue]) {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#111" : "#fff";
}

function drawHeat() {
  const scale = Math.max(nRows, nColumns) > 128 ? 1 : window.devicePixelRatio || 1;
  heat.width = Math.round(nColumns * cell * scale);
  heat.height = Math.round(nRows * cell * scale);
  heat.style.width = `${nColumns * cell}px`;
  heat.style.height = `${nRows * cell}px`;
  const pen = heat.getContext("2d");
  pen.scale(scale, scale);
  const gap = cell >= 12 ? 1 : 0;
  pen.font = `${Math.round(cell * 0.37)}px system-ui, sans-serif`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  weights.forEach((weight, i) => {
    const [x, y] = [(i % nColumns) * cell, Math.floor(i / nColumns) * cell];
    const color = colorOf(weight);
    pen.fillStyle = `rgb(${color})`;
    pen.fillRect(x, y, cell - gap, cell - gap);
    if (cell >= 24 && weight >= 0.095) {
      pen.fillStyle = inkOn(color);
      pen.fillText(Math.round(weight * 100), x + (cell - gap) / 2, y + cell / 2);
    }
  });
}

function drawSmall(canvas, shown) {
  canvas.width = nColumns;
  canvas.height = nRows;
  const image = new ImageData(nColumns, nRows);
  shown.forEach((weight, i) => image.data.set([...colorOf(weight), 255], 4 * i));
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function drawAll() {
  mixColors();
  drawHeat();
  thumbnails.forEach(({ canvas, layer, head }) => drawSmall(canvas, weightsOf(layer, head)));
  show();
}

// What is chosen

function choose(layer, head) {
  Object.assign(state, { layer, head });
  weights = weightsOf(layer, head);
  byId("layer").value = layer;
  byId("head").value = head;
  thumbnails.forEach((thumbnail) => {
    const chosen = thumbnail.layer === layer && thumbnail.head === head;
    thumbnail.button.setAttribute("aria-pressed", chosen);
  });
  const why = layer === data.sharpestLayer && nLayers > 1 ? " (the sharpest)" : "";
  const heads = head === MEAN ? `mean of ${nHeads} heads` : `head ${head + 1} of ${nHeads}`;
  byId("caption").textContent = `Cross-attention, layer ${layer + 1} of ${nLayers}${why}, ${heads}`;
  heat.setAttribute("aria-label", byId("caption").textContent);
  if (byId("details").open) fillTable();
  if (palette) drawHeat();
  if (palette) show();
}

function show(row = state.row, column = state.column) {
  Object.assign(state, { row, column });
  const weight = weights[row * nColumns + column];
  byId("value").textContent = `${short(data.targetPieces[row])} ← ${short(data.sourcePieces[column])}   ${weight.toFixed(4)}`;
  byId("lock").hidden = !state.held;
  const place = (id, x, y, width, height) =>
    Object.assign(byId(id).style, { left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` });
  place("row-mark", 0, row * cell, nColumns * cell, cell);
  place("column-mark", column * cell, 0, cell, nRows * cell);
  place("cell-mark", column * cell - 1, row * cell - 1, cell + 1, cell + 1);
  document.querySelectorAll(".here").forEach((found) => found.classList.remove("here"));
  for (const [id, n] of [["top", column], ["source", column], ["left", row], ["target", row]]) {
    byId(id).children[n].classList.add("here");
  }
  [...byId("source").children].forEach((piece, s) => {
    const color = colorOf(weights[row * nColumns + s]);
    piece.style.background = `rgb(${color})`;
    piece.style.color = inkOn(color);
  });
  clearTimeout(state.timer);
  state.timer = setTimeout(remember, 250); // browsers refuse more than a few changes of address a second
}

// The state stands in the address, so that a link shows the same: #layer=2&head=mean&row=1&column=1

function remember() {
  const { layer, head, row, column } = state;
  const parts = { layer: layer + 1, head: head === MEAN ? MEAN : head + 1, row: row + 1, column: column + 1 };
  history.replaceState(null, "", `#${new URLSearchParams(parts)}`);
}

function recall() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const number = (name, count, other) => {
    const given = Number(parts.get(name)) - 1;
    return Number.isInteger(given) && given >= 0 && given < count ? given : other;
  };
  state.row = number("row", nRows, 0);
  state.column = number("column", nColumns, weightsOf(state.layer, MEAN).slice(0, nColumns).reduce(
    (best, weight, s, row) => (weight > row[best] ? s : best), 0));
  choose(number("layer", nLayers, state.layer), number("head", nHeads, state.head));
}

// The parts of the page

function fillTable() {
  const [head, body] = [byId("table").tHead, byId("table").tBodies[0]];
  head.replaceChildren();
  body.replaceChildren();
  const top = element(head, "tr");
  element(top, "td");
  data.sourcePieces.forEach((piece) => element(top, "th", piece, { scope: "col" }));
  data.targetPieces.forEach((piece, t) => {
    const row = element(body, "tr");
    element(row, "th", piece, { scope: "row" });
    for (let s = 0; s < nColumns; s++) element(row, "td", weights[t * nColumns + s].toFixed(4));
  });
}

function buildPieces() {
  data.sourcePieces.forEach((piece, s) => {
    element(byId("source"), "span", piece);
    const label = element(byId("top"), "span", piece, { dir: "auto", title: piece });
    Object.assign(label.style, { left: `${(s + 0.5) * cell}px`, fontSize: `${Math.min(15, cell - 1)}px` });
  });
  data.targetPieces.forEach((piece, t) => {
    element(byId("target"), "span", piece, { onclick: () => hold(t, strongest(t)) });
    const label = element(byId("left"), "span", piece, { dir: "auto", title: piece });
    Object.assign(label.style, { height: `${cell}px`, lineHeight: `${cell}px`, fontSize: `${Math.min(15, cell - 1)}px` });
  });
  for (const [id, name] of [["source", "source"], ["target", "translation"]]) {
    byId(id).setAttribute("aria-label", `${name}: ${data[id]}`);
    if (byId(id).scrollHeight > byId(id).clientHeight) byId(id).tabIndex = 0; // so that keys can scroll it
  }
  document.title = `Attention map: ${data.source}`;
  const longest = Math.max(...[...byId("top").children].map((label) => label.offsetWidth));
  byId("top").style.height = `${Math.ceil(longest * 0.87 + 22)}px`;
  byId("top").style.width = `${Math.ceil(nColumns * cell + longest * 0.5)}px`;
}

function buildHeads() {
  const heads = nHeads > 1 ? [MEAN, ...Array(nHeads).keys()] : [0];
  const grid = byId("heads");
  const longer = Math.max(nRows, nColumns);
  const found = [];
  grid.style.gridTemplateColumns = `max-content repeat(${heads.length}, max-content)`;
  for (let layer = 0; layer < nLayers; layer++) {
    element(grid, "span", `layer ${layer + 1}`, { className: "name" });
    for (const head of heads) {
      const button = element(grid, "button", "", { type: "button", onclick: () => choose(layer, head) });
      const canvas = element(button, "canvas");
      canvas.style.width = `${(72 * nColumns) / longer}px`;
      canvas.style.height = `${(72 * nRows) / longer}px`;
      const name = head === MEAN ? MEAN : `head ${head + 1}`;
      const nats = entropyOf(weightsOf(layer, head)).toFixed(2);
      element(button, "span", `${name} ${nats}`);
      button.setAttribute("aria-label", `layer ${layer + 1}, ${name}, entropy ${nats} nats`);
      found.push({ button, canvas, layer, head });
    }
  }
  return found;
}

function buildChoices() {
  const [layer, head] = [byId("layer"), byId("head")];
  for (let n = 0; n < nLayers; n++) element(layer, "option", n + 1, { value: n });
  if (nHeads > 1) element(head, "option", "mean of all", { value: MEAN });
  for (let n = 0; n < nHeads; n++) element(head, "option", n + 1, { value: n });
  const chosen = () => choose(Number(layer.value), head.value === MEAN ? MEAN : Number(head.value));
  layer.onchange = head.onchange = chosen;
}

// Pointer and keys

function strongest(row) {
  const shown = weights.subarray(row * nColumns, (row + 1) * nColumns);
  return shown.indexOf(Math.max(...shown));
}

function hold(row, column) {
  state.held = true;
  show(row, column);
}

function cellAt(event) {
  const box = heat.getBoundingClientRect();
  const within = (at, count) => Math.max(0, Math.min(count - 1, Math.floor(at / cell)));
  return [within(event.clientY - box.top, nRows), within(event.clientX - box.left, nColumns)];
}

function moveBy(event) {
  const { row, column } = state;
  const targets = {
    ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
    Home: [row, 0], End: [row, nColumns - 1], PageUp: [0, column], PageDown: [nRows - 1, column],
  };
  if (event.key === "Enter" || event.key === " ") state.held = !state.held;
  else if (event.key === "Escape") state.held = false;
  else if (!(event.key in targets) || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  const [t, s] = targets[event.key] || [row, column];
  show(Math.max(0, Math.min(nRows - 1, t)), Math.max(0, Math.min(nColumns - 1, s)));
  byId("cell-mark").scrollIntoView({ block: "nearest", inline: "nearest" });
}

heat.addEventListener("pointermove", (event) => {
  const [row, column] = cellAt(event);
  if (!state.held && (row !== state.row || column !== state.column)) show(row, column);
});
heat.addEventListener("click", (event) => {
  const [row, column] = cellAt(event);
  state.held = !(state.held && row === state.row && column === state.column);
  show(row, column);
});
heat.addEventListener("keydown", moveBy);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.held) { state.held = false; show(); }
});
byId("details").addEventListener("toggle", () => { if (byId("details").open) fillTable(); });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

if (nHeads === 1) state.head = 0;
buildPieces();
buildChoices();
const thumbnails = buildHeads();
recall();
drawAll();
