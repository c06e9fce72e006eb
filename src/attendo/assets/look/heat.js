// @ts-check
// The heat map of the open head: rows are queries, columns are keys. A second canvas shows the cell under the
// pointer.
import { cutText, el, fitText, formatted, keyCanvas, movedTo, oncePerFrame, sized, svgEl } from "../shared/dom.js";
import { pathName, say } from "../shared/words.js";
import { cssColor, ink, palette, rgbText } from "./colors.js";
import { cellColor, cellsPicture, isLong, labelsOf, shownMatrix } from "./shown.js";

const LABEL = 15; // pixels between two labels
const HEAT_FONT = "13px system-ui, 'Hiragino Sans', 'Noto Sans JP', 'Noto Sans CJK JP', sans-serif";
const LEAST_NUMBER = 0.03; // smaller values have a color, but no number
const TURN = Math.PI / 3; // rotation of the labels above

export function makeHeat(app, root) {
  const { state } = app;
  const canvas = keyCanvas("heat", say("heat-role"));
  const over = el("canvas", { class: "over", "aria-hidden": "true", dataset: { name: "heat-marks" } });
  const stage = el("div", { class: "stage" }, canvas, over);
  root.append(stage);
  let shown = null;
  let plan = null; // the layout
  let cells = null; // the image of the cells
  let overPen = null;

  const draw = oncePerFrame(() => {
    shown = shownMatrix(app);
    const room = stage.clientWidth;
    if (!shown || !room) {
      plan = null; // drawn anew when it is shown again
      if (!room) app.late.release(); // another view or the ribbons alone are shown
      return;
    }
    if (plan?.layer !== shown.layer || plan.room !== room) plan = planOf(room, app, shown.layer);
    cells = cellsPicture(cells, app, shown);
    drawBase(sized(canvas, plan.width, plan.height), app, shown, plan, cells.canvas);
    overPen = sized(over, plan.width, plan.height);
    canvas.setAttribute("aria-label", say("heat-name", { path: pathName(shown.layer.path), n: shown.head + 1 }));
    mark();
    app.drew("heat");
  });

  function mark() {
    if (!overPen || !shown) return;
    overPen.clearRect(0, 0, plan.width, plan.height);
    const { query, key } = app.spot();
    if (query < shown.layer.q_len && key < shown.layer.k_len) drawMarks(overPen, plan, query, key);
  }

  function cellAt(event) {
    const key = Math.floor((event.offsetX - plan.left) / plan.wide);
    const query = Math.floor((event.offsetY - plan.top) / plan.tall);
    const inside = key >= 0 && query >= 0 && key < shown.layer.k_len && query < shown.layer.q_len;
    return inside ? { query, key } : null;
  }
  canvas.addEventListener("pointermove", (event) => shown && app.point(cellAt(event)));
  canvas.addEventListener("pointerleave", () => app.point(null));
  canvas.addEventListener("click", (event) => {
    const cell = shown && cellAt(event);
    if (cell) app.hold(cell);
  });
  canvas.addEventListener("keydown", (event) => shown && onHeatKey(app, shown.layer, event));

  // Prepare the parts that the first drawing would have to wait for: fonts, colors and drawing contexts
  app.late.add(() => {
    if (plan) return;
    for (const pen of [sized(canvas, 1, 1), sized(over, 1, 1)]) pen.clearRect(0, 0, 1, 1);
    planWidths(["Look"], 40);
    palette();
  });
  app.on("map", draw);
  app.on("theme", draw);
  app.on("point", mark);
  state.on(["layer", "head", "shows", "beta", "hideEnds", "root"], draw);
  state.on(["query", "key", "locked"], mark);
  new ResizeObserver(() => app.look && stage.clientWidth && stage.clientWidth !== plan?.room && draw()).observe(stage);
  return { canvas, svg: () => shown && heatSvg(canvas, app, shown, plan) };
}

function onHeatKey(app, layer, event) {
  const { query, key } = app.spot();
  const to = movedTo(event, [query, key], [layer.q_len, layer.k_len]);
  if (to) {
    app.point(null);
    app.state.set({ query: to[0], key: to[1] });
  } else if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    app.hold({ query, key });
  }
}

// The width of each label, up to a maximum in pixels
function planWidths(labels, most) {
  const pen = new OffscreenCanvas(1, 1).getContext("2d");
  pen.font = HEAT_FONT;
  return labels.map((label) => Math.min(most, pen.measureText(cutText(label, 16)).width));
}

// The layout of labels and cells: cells fill the room, and are square if possible. The label of a column is
// upright if it is short enough to clear a slanted label beside it
function planOf(room, app, layer) {
  const [rows, columns] = [layer.q_len, layer.k_len];
  const [rowLabels, columnLabels] = [app.rowTokens(layer), app.tokensOf(layer.keys)].map(labelsOf);
  const left = Math.ceil(Math.max(20, ...planWidths(rowLabels, Math.min(112, room * 0.26)))) + 8;
  const above = planWidths(columnLabels, 110);
  const about = (room - left) / (columns + 1); // approximate width of a cell
  const lean = Math.ceil(
    Math.max(8, ...above.map((width, j) => width * Math.cos(TURN) + 10 - (columns - j - 0.5) * about)),
  ); // labels beyond the right edge
  const fitting = (size) => (size >= 4 ? Math.floor(size) : Math.max(0.5, size));
  const large = isLong(layer);
  const [across, down] = [(room - left - lean) / columns, (large ? 640 : 400) / rows];
  const wide = fitting(large ? Math.min(across, Math.max(down, LABEL + 1)) : Math.min(across, 48));
  const tall = fitting(large ? Math.min(down, Math.max(across, LABEL + 1)) : Math.max(LABEL + 1, Math.min(down, 26)));
  const upright = above.map((width) => width <= Math.min(wide - 2, 2 * (wide - LABEL - 2)));
  const long = Math.max(20, ...above.filter((_, j) => !upright[j]));
  const top = Math.ceil(long * Math.sin(TURN)) + 26;
  return {
    layer,
    room,
    rows,
    columns,
    rowLabels,
    columnLabels,
    left,
    top,
    long,
    upright,
    wide,
    tall,
    width: Math.min(room, Math.ceil(left + wide * columns + lean)),
    height: Math.ceil(top + tall * rows) + 2,
  };
}

function drawBase(pen, app, shown, plan, cells) {
  const { values, kind } = shown;
  const { left, top, wide, tall, rows, columns } = plan;
  pen.clearRect(0, 0, plan.width, plan.height);
  pen.imageSmoothingEnabled = Math.min(wide, tall) < 1; // only if several cells share a pixel
  pen.drawImage(cells, left, top, columns * wide, rows * tall);
  if (Math.min(wide, tall) >= 10) drawGaps(pen, plan);
  if (wide >= 34 && tall >= LABEL) drawValues(pen, values, cellColor(app, shown), plan, kind === "weights" ? 2 : 1);
  pen.strokeStyle = cssColor("--line");
  pen.strokeRect(left - 0.5, top - 0.5, columns * wide + 1, rows * tall + 1);
  drawLabels(pen, plan);
  pen.fillStyle = cssColor("--dim");
  pen.textAlign = "left";
  const axis = shown.layer.queries === shown.layer.keys ? "self" : "cross";
  pen.fillText(say(`axis-${axis}-down`), 0, top - 26);
  pen.fillText(say(`axis-${axis}-across`), 0, top - 11);
}

function drawGaps(pen, { left, top, wide, tall, rows, columns }) {
  pen.fillStyle = cssColor("--card");
  for (let i = 1; i < rows; i++) pen.fillRect(left, top + i * tall - 1, columns * wide, 1);
  for (let j = 1; j < columns; j++) pen.fillRect(left + j * wide - 1, top, 1, rows * tall);
}

function drawValues(pen, values, color, { left, top, wide, tall, rows, columns }, digits) {
  pen.font = HEAT_FONT;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  for (let i = 0; i < rows * columns; i++) {
    const rgb = color(values[i], i);
    if (!rgb || Math.abs(values[i]) < LEAST_NUMBER) continue;
    pen.fillStyle = ink(rgb);
    const text = formatted(values[i], digits).replace(/^0\./, ".");
    pen.fillText(text, left + ((i % columns) + 0.5) * wide, top + (Math.floor(i / columns) + 0.5) * tall);
  }
}

function drawLabels(pen, plan) {
  const { rows, columns, wide, tall } = plan;
  const [stepDown, stepAcross] = [tall, wide].map((size) => Math.max(1, Math.ceil(LABEL / size)));
  pen.fillStyle = cssColor("--ink");
  for (let i = 0; i < rows; i += stepDown) rowLabel(pen, plan, i);
  for (let j = 0; j < columns; j += stepAcross) columnLabel(pen, plan, j);
}

function rowLabel(pen, plan, i) {
  pen.font = HEAT_FONT;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  pen.fillText(fitText(pen, plan.rowLabels[i], plan.left - 6), plan.left - 6, plan.top + (i + 0.5) * plan.tall);
}

function columnLabel(pen, plan, j) {
  pen.save();
  pen.translate(plan.left + (j + 0.5) * plan.wide, plan.top - 5);
  if (!plan.upright[j]) pen.rotate(-TURN);
  pen.font = HEAT_FONT;
  pen.textAlign = plan.upright[j] ? "center" : "left";
  pen.textBaseline = plan.upright[j] ? "bottom" : "middle";
  pen.fillText(fitText(pen, plan.columnLabels[j], plan.long), 0, 0);
  pen.restore();
}

// Mark the row, the column and the cell, with their two labels on top of the others
function drawMarks(pen, plan, query, key) {
  const { left, top, wide, tall, rows, columns } = plan;
  const [x, y] = [left + key * wide, top + query * tall];
  const [thick, high] = [Math.max(wide, 1), Math.max(tall, 1)];
  pen.strokeStyle = cssColor("--hot");
  pen.lineWidth = 1;
  const small = Math.min(wide, tall) < 4;
  pen.globalAlpha = small ? 0.45 : 0.6;
  if (small) {
    pen.fillStyle = cssColor("--hot");
    pen.fillRect(left, y, columns * wide, high);
    pen.fillRect(x, top, thick, rows * tall);
  } else {
    pen.strokeRect(left, y, columns * wide, high);
    pen.strokeRect(x, top, thick, rows * tall);
  }
  pen.globalAlpha = 1;
  pen.lineWidth = 2;
  const [broad, long] = [Math.max(wide, 5), Math.max(tall, 5)];
  pen.strokeRect(x + (wide - broad) / 2, y + (tall - long) / 2, broad, long);
  pen.fillStyle = cssColor("--card");
  pen.fillRect(0, y + tall / 2 - 9, left - 2, 18);
  if (wide < LABEL) {
    pen.save();
    pen.translate(x + wide / 2, top - 5);
    pen.rotate(-TURN);
    pen.fillRect(-2, -10, plan.long + 6, 20);
    pen.restore();
  }
  pen.fillStyle = cssColor("--hot");
  rowLabel(pen, plan, query);
  columnLabel(pen, plan, key);
}

// The map as a drawing; a large map contains its cells as one image
function heatSvg(canvas, app, shown, plan) {
  const { width, height, left, top, wide, tall, rows, columns } = plan;
  const made = svgEl("svg", {
    xmlns: "http://www.w3.org/2000/svg",
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    "font-family": "sans-serif",
    "font-size": 13,
    fill: cssColor("--ink"),
  });
  made.append(svgEl("rect", { width, height, fill: cssColor("--paper") }));
  const color = cellColor(app, shown);
  if (rows * columns > 4096) made.append(svgEl("image", { href: canvas.toDataURL("image/png"), width, height }));
  else {
    shown.values.forEach((value, i) => {
      const rgb = color(value, i);
      if (!rgb) return;
      const at = { x: left + (i % columns) * wide, y: top + Math.floor(i / columns) * tall };
      const rect = svgEl("rect", { ...at, width: wide, height: tall, fill: rgbText(rgb) });
      rect.append(svgEl("title", {}, formatted(value)));
      made.append(rect);
    });
    plan.rowLabels.forEach((label, i) =>
      made.append(
        svgEl("text", { x: left - 6, y: top + (i + 0.5) * tall + 4, "text-anchor": "end" }, cutText(label, 16)),
      ),
    );
    plan.columnLabels.forEach((label, j) => {
      const [x, y] = [left + (j + 0.5) * wide, top - 5];
      const way = plan.upright[j]
        ? { x, y, "text-anchor": "middle" }
        : { x: x + 4, y, transform: `rotate(-60 ${x + 4} ${y})` };
      made.append(svgEl("text", way, cutText(label, 16)));
    });
  }
  return made;
}
