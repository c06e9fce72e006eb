// @ts-check
// The layout and the drawing of a search tree.
import { say } from "../shared/words.js";
import { el, fitText, formatted, pieceText, sized } from "../shared/dom.js";
import { cssColor } from "./colors.js";
import { svgPen } from "./svgpen.js";

export const TREE_COLUMN = 124; // CSS pixels at zoom 1
export const TREE_ROW = 38;
export const TREE_NODE = { width: 92, height: 30 };
const TREE_ZOOMS = [0.2, 0.3, 0.45, 0.65, 0.85, 1, 1.25, 1.6];
const TREE_HIGH = 460;

// The place of each node: the column is its step, the row is its rank in the step
export function treeLayout({ nodes }) {
  const made = nodes.map((node) => ({ ...node, children: [], alive: false }));
  const byId = new Map(made.map((node) => [node.id, node]));
  const steps = [];
  for (const node of made) {
    (steps[node.step] ??= []).push(node);
    node.from = byId.get(node.parent) ?? null;
    node.from?.children.push(node);
  }
  for (const step of steps) {
    step.sort((a, b) => b.kept - a.kept || b.sum - a.sum);
    step.forEach((node, row) => (node.row = row));
  }
  for (const node of made) {
    const lives = node.best || node.finished || (node.kept && node.step === steps.length - 1);
    for (let at = node; lives && at && !at.alive; at = at.from) at.alive = true;
  }
  return { nodes: made, steps, rows: Math.max(1, ...steps.map((step) => step.length)) };
}

export function treeKind(node) {
  return node.best ? "best" : !node.kept ? "passed" : node.alive ? "alive" : "lost";
}

// Zoom and scroll position. step: −1 smaller, 1 larger, 0 fit all, null: unchanged

export function zoomTree(view, step) {
  const { steps, rows } = view.tree;
  const whole = [(steps.length + 1) * TREE_COLUMN, rows * TREE_ROW];
  const fit = Math.min(view.scroller.clientWidth / whole[0], TREE_HIGH / whole[1]);
  const nearest = TREE_ZOOMS.findLastIndex((zoom) => zoom <= view.zoom);
  if (step === 0) view.zoom = Math.min(1, TREE_ZOOMS.findLast((zoom) => zoom <= fit) ?? TREE_ZOOMS[0]);
  else if (step) view.zoom = TREE_ZOOMS[Math.max(0, Math.min(TREE_ZOOMS.length - 1, nearest + step))];
  drawTree(view);
  showNode(view);
}

function treePlace(view, node) {
  const column = node ? node.step + 1 : 0;
  const row = node ? node.row : 0;
  return [(column * TREE_COLUMN + 14) * view.zoom, (row * TREE_ROW + 8) * view.zoom];
}

export function drawTree(view) {
  const [width, height] = wholeSize(view.tree).map((size) => size * view.zoom);
  Object.assign(view.space.style, { width: `${width}px`, height: `${height}px` });
  view.scroller.style.height = `${Math.min(TREE_HIGH, height + 18)}px`;
  const room = [view.scroller.clientWidth, view.scroller.clientHeight];
  view.pen = sized(view.canvas, Math.max(1, Math.min(width, room[0])), Math.max(1, Math.min(height, room[1])));
  paintTree(view);
}

// Draw only the visible part
export function paintTree(view) {
  const { pen, canvas, scroller, tree, zoom } = view;
  pen.save();
  pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  pen.translate(-scroller.scrollLeft, -scroller.scrollTop);
  const first = Math.floor(scroller.scrollLeft / (TREE_COLUMN * zoom)) - 2;
  const last = Math.ceil((scroller.scrollLeft + canvas.clientWidth) / (TREE_COLUMN * zoom));
  paintNodes(view, pen, tree.steps.slice(Math.max(0, first), Math.max(0, last + 1)).flat());
  pen.restore();
}

function paintNodes(view, pen, nodes) {
  const order = ["passed", "lost", "alive", "best"];
  nodes.sort((a, b) => order.indexOf(treeKind(a)) - order.indexOf(treeKind(b)));
  const family = getComputedStyle(view.canvas).fontFamily;
  nodes.forEach((node) => paintEdge(view, pen, node));
  paintNode(view, pen, null, family);
  nodes.forEach((node) => paintNode(view, pen, node, family));
}

function wholeSize({ steps, rows }) {
  return [(steps.length + 1) * TREE_COLUMN + 20, rows * TREE_ROW + 12];
}

// Draw the whole tree at zoom 1, for a file
export function treeCanvas(view) {
  const canvas = el("canvas");
  paintNodes({ ...view, zoom: 1, at: null }, sized(canvas, ...wholeSize(view.tree)), view.tree.nodes.slice());
  return canvas;
}

export function treeSvg(view) {
  const pen = svgPen(...wholeSize(view.tree));
  paintNodes({ ...view, zoom: 1, at: null }, pen, view.tree.nodes.slice());
  return pen.svg;
}

// One row per node: its parent, its token, its numbers, and its outcome
export function treeRows({ tree }) {
  const names = ["id", "parent", "step", "piece", "log_prob", "sum", "score", "kept", "finished", "best"];
  const row = (node) => [
    ...[node.id, node.parent, node.step + 1, node.token.piece, node.log_prob, node.sum, node.score],
    ...[node.kept, node.finished, node.best].map(Number),
  ];
  return [names, ...tree.nodes.map(row)];
}

function treeInk(kind) {
  return cssColor({ best: "--hot", alive: "--ink", lost: "--edge", passed: "--edge" }[kind]);
}

function paintEdge(view, pen, node) {
  const { zoom } = view;
  const kind = treeKind(node);
  const [[x0, y0], [x1, y1]] = [treePlace(view, node.from), treePlace(view, node)];
  const [from, middle] = [x0 + TREE_NODE.width * zoom, (TREE_NODE.height / 2) * zoom];
  const bend = (x1 - from) * 0.6;
  pen.strokeStyle = treeInk(kind);
  pen.lineWidth = kind === "best" ? 3 : kind === "alive" ? 1.5 : 1;
  pen.setLineDash(kind === "passed" ? [3, 3] : []);
  pen.beginPath();
  pen.moveTo(from, y0 + middle);
  pen.bezierCurveTo(from + bend, y0 + middle, x1 - bend, y1 + middle, x1, y1 + middle);
  pen.stroke();
  pen.setLineDash([]);
}

function paintNode(view, pen, node, family) {
  const { zoom } = view;
  const [x, y] = treePlace(view, node);
  const [width, height] = [TREE_NODE.width * zoom, TREE_NODE.height * zoom];
  const kind = node ? treeKind(node) : "alive";
  pen.fillStyle = cssColor(kind === "best" ? "--soft" : "--card");
  pen.strokeStyle = treeInk(kind);
  pen.lineWidth = kind === "best" ? 2 : 1;
  pen.setLineDash(kind === "passed" ? [3, 3] : []);
  pen.beginPath();
  pen.roundRect(x, y, width, height, Math.min(7, 7 * zoom));
  pen.fill();
  pen.stroke();
  pen.setLineDash([]);
  if (node?.finished) {
    // the end of a text has a double border
    pen.beginPath();
    pen.roundRect(x - 3 * zoom, y - 3 * zoom, width + 6 * zoom, height + 6 * zoom, Math.min(9, 9 * zoom));
    pen.stroke();
  }
  if (node && node === view.at) {
    pen.strokeStyle = cssColor("--accent");
    pen.lineWidth = 2.5;
    const gap = 5 * Math.min(1, zoom);
    pen.strokeRect(x - gap, y - gap, width + 2 * gap, height + 2 * gap);
  }
  if (zoom >= 0.6) nameNode(pen, node, kind, [x, y, zoom], family);
}

function nameNode(pen, node, kind, [x, y, zoom], family) {
  pen.textBaseline = "middle";
  pen.textAlign = "center";
  const middle = x + (TREE_NODE.width / 2) * zoom;
  pen.fillStyle = cssColor(kind === "lost" || kind === "passed" ? "--dim" : "--ink");
  pen.font = `${kind === "best" ? "600 " : ""}${13 * zoom}px ${family}`;
  const text = node ? pieceText(node.token) : say("tree-start");
  pen.fillText(fitText(pen, text, (TREE_NODE.width - 8) * zoom), middle, y + (node ? 10 : 15) * zoom);
  if (!node) return;
  pen.fillStyle = cssColor("--dim");
  pen.font = `${10.5 * zoom}px ${family}`;
  // the order within a step is that of the sum
  const number =
    node.score === null ? `Σ ${formatted(node.sum, 2)}` : say("tree-score", { x: formatted(node.score, 3) });
  pen.fillText(fitText(pen, number, (TREE_NODE.width - 4) * zoom), middle, y + 22.5 * zoom);
}

export function showNode(view) {
  if (!view.at) return;
  const { scroller, zoom } = view;
  const [x, y] = treePlace(view, view.at);
  const [room, high] = [scroller.clientWidth, scroller.clientHeight];
  const beside = TREE_COLUMN * zoom;
  if (x < scroller.scrollLeft + 20 || x + beside > scroller.scrollLeft + room) scroller.scrollLeft = x - room / 2;
  if (y < scroller.scrollTop + 8 || y + TREE_ROW * zoom > scroller.scrollTop + high) scroller.scrollTop = y - high / 2;
}
