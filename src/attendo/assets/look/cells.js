// @ts-check
// A heat map of any matrix, with the value under the pointer or the keyboard focus, and its color scale.
import { say } from "../shared/words.js";
import { el, fitText, formatted, keyCanvas, movedTo, oncePerFrame, ordinal, pieceText, sized } from "../shared/dom.js";
import { cssColor, divergingColor, ink, picture, weightColor } from "./colors.js";

const MAP_HIGH = 380; // height in CSS pixels of a heat map whose cells can be larger than 1 pixel
const MAP_WIDE = 620;
const NAMED_CELL = 13; // cell size from which rows and columns are labeled with names instead of numbers

// A heat map with the value under the pointer or the keyboard focus. map.show({ rows, columns, data, most,
// diverging, root, square, named, trained, rowName(i), columnName(j), label }): the value `most` has the
// full color. root: square root scale for small values. trained: number of rows (and columns, if square)
// seen in training; a dashed line is drawn after them. first: the number of the first row and column.
export function cellMap(name, onPick = null) {
  const canvas = keyCanvas(name, say("cells-role"));
  const mark = el("div", { class: "cells-mark", hidden: true });
  const value = el("output", { class: "cells-value note" }, say("cells-keys"));
  const node = el(
    "div",
    { class: "cells" },
    el("div", { class: "cells-scroll" }, el("div", { class: "cells-field" }, canvas, mark)),
    value,
  );
  const map = { canvas, mark, value, node, onPick, at: [0, 0], shown: null, size: null };
  map.show = (shown) => {
    map.shown = shown;
    drawCells(map);
  };
  map.redraw = () => map.shown && drawCells(map);
  const fit = oncePerFrame(() => node.clientWidth && node.clientWidth !== map.room && map.redraw());
  new ResizeObserver(fit).observe(node);
  canvas.addEventListener("pointermove", (event) => pointAtCell(map, event, false));
  canvas.addEventListener("click", (event) => pointAtCell(map, event, true));
  canvas.addEventListener("focus", () => map.shown && markCell(map));
  canvas.addEventListener("keydown", (event) => walkCells(map, event));
  return map;
}

// Show a matrix of attention: rows are queries, columns are keys
export function showAttention(map, queries, keys, more) {
  const name = (tokens) => (i) => [ordinal(i), tokens[i] && pieceText(tokens[i])].filter(Boolean).join(" ");
  const looks = { root: true, square: true, named: true, first: 1 };
  map.show({ ...looks, rowName: name(queries), columnName: name(keys), ...more });
}

function cellSizes({ rows, columns, square, named }, wide) {
  const side = (room, count) => Math.max(1, Math.min(26, Math.floor(room / count)));
  let [width, height] = [side(wide, columns), side(MAP_HIGH, rows)];
  if (square) width = height = Math.min(width, height);
  const names = named && width >= NAMED_CELL && height >= NAMED_CELL;
  return { width, height, left: names ? 84 : 36, top: names ? 72 : 20, names };
}

function drawCells(map) {
  const { rows, columns, data, most, root, diverging, label } = map.shown;
  map.room = map.node.clientWidth;
  const wide = Math.min(MAP_WIDE, Math.max(140, (map.room || MAP_WIDE) - 90));
  const size = (map.size = cellSizes(map.shown, wide));
  const pen = sized(
    map.canvas,
    size.left + columns * size.width + (size.names ? 36 : 14),
    size.top + rows * size.height + 2,
  );
  map.canvas.setAttribute("aria-label", label);
  const part = root ? (x) => Math.sqrt(Math.max(0, x) / (most || 1)) : (x) => x / (most || 1);
  const color = diverging ? (x) => divergingColor(part(x)) : (x) => weightColor(part(x));
  const small = el("canvas", { width: columns, height: rows });
  small.getContext("2d").putImageData(picture(data, rows, columns, color), 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, size.left, size.top, columns * size.width, rows * size.height);
  nameCells(map, pen);
  drawTrained(map, pen);
  map.mark.hidden = true;
}

function nameCells({ canvas, shown, size }, pen) {
  const { rows, columns, rowName, columnName, first = 0 } = shown;
  const { width, height, left, top, names } = size;
  const step = (cell, least) =>
    names ? 1 : ([1, 2, 5, 10, 20, 50, 100, 200, 500].find((n) => n * cell >= least) ?? 1000);
  pen.fillStyle = cssColor("--dim");
  pen.font = `11px ${getComputedStyle(canvas).fontFamily}`;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (let i = 0; i < rows; i += step(height, 15)) {
    pen.fillText(fitText(pen, names ? rowName(i) : String(i + first), left - 8), left - 5, top + (i + 0.5) * height);
  }
  pen.textAlign = names ? "left" : "center";
  for (let j = 0; j < columns; j += step(width, 32)) {
    pen.save();
    pen.translate(left + (j + 0.5) * width, top - (names ? 5 : 8));
    if (names) pen.rotate(-Math.PI / 3);
    pen.fillText(fitText(pen, names ? columnName(j) : String(j + first), names ? top : 60), 0, 0);
    pen.restore();
  }
}

function drawTrained({ shown, size }, pen) {
  const { rows, columns, trained, square } = shown;
  if (!trained || trained >= rows) return;
  const { width, height, left, top } = size;
  pen.strokeStyle = cssColor("--hot");
  pen.setLineDash([5, 3]);
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(left - 30, top + trained * height);
  pen.lineTo(left + columns * width, top + trained * height);
  if (square) {
    pen.moveTo(left + trained * width, top);
    pen.lineTo(left + trained * width, top + rows * height);
  }
  pen.stroke();
}

function pointAtCell(map, event, picked) {
  if (!map.shown) return;
  const { rows, columns } = map.shown;
  const row = Math.floor((event.offsetY - map.size.top) / map.size.height);
  const column = Math.floor((event.offsetX - map.size.left) / map.size.width);
  if (row < 0 || column < 0 || row >= rows || column >= columns) return;
  map.at = [row, column];
  markCell(map);
  if (picked && map.onPick) map.onPick(row, column);
}

function markCell(map) {
  const { rows, columns, data, rowName, columnName } = map.shown;
  const { width, height, left, top } = map.size;
  const [row, column] = (map.at = [Math.min(map.at[0], rows - 1), Math.min(map.at[1], columns - 1)]);
  const side = (cell) => Math.max(5, cell + 2);
  Object.assign(map.mark.style, {
    left: `${left + (column + 0.5) * width - side(width) / 2}px`,
    top: `${top + (row + 0.5) * height - side(height) / 2}px`,
    width: `${side(width)}px`,
    height: `${side(height)}px`,
  });
  map.mark.hidden = false;
  const number = formatted(data[row * columns + column]);
  map.value.textContent = `${rowName(row)}  ·  ${columnName(column)}  =  ${number}`;
}

function walkCells(map, event) {
  if (!map.shown) return;
  if (event.key === "Enter") map.onPick?.(...map.at);
  const to = movedTo(event, map.at, [map.shown.rows, map.shown.columns]);
  if (!to) return;
  map.at = to;
  markCell(map);
  map.mark.scrollIntoView({ block: "nearest", inline: "nearest" });
}

// A strip of the color scale with its two end values
export function colorScale() {
  const ends = [el("span"), el("span")];
  const strip = el("span", { class: "scale-strip" }, "");
  const node = el("span", { class: "color-scale", "aria-hidden": "true" }, ends[0], strip, ends[1]);
  return {
    node,
    // the colors of 0 and above, or of both signs; middle: the value in the middle, if it is not the mean of the ends
    set: (low, high, middle = "") => {
      strip.classList.toggle("diverging", low !== "0");
      [ends[0].textContent, ends[1].textContent, strip.textContent] = [low, high, middle];
    },
  };
}

export function inkOf(rgb) {
  return { background: `rgb(${rgb.join(",")})`, color: ink(rgb) };
}
