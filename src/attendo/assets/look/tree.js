// @ts-check
// The search as a tree. First, the texts that reached an end, where sure runs of tokens are one node; then every step:
// a column is a step, and texts that are more probable so far are higher in a column.
import {
  button,
  clear,
  el,
  field,
  formatted,
  hasModifier,
  keyCanvas,
  oncePerFrame,
  percent,
  pieceText,
  roving,
  select,
} from "../shared/dom.js";
import { say } from "../shared/words.js";
import { treeButtons } from "./saving.js";
import { isSpaced, joinedText } from "./shown.js";
import {
  drawTree,
  paintTree,
  showNode,
  TREE_COLUMN,
  TREE_NODE,
  TREE_ROW,
  treeCanvas,
  treeKind,
  treeLayout,
  treeRows,
  treeSvg,
  zoomTree,
} from "./treedraw.js";
import { drawWhenShown, questions } from "./views.js";

const MOST_BEAMS = 8; // largest beam size in the menu, unless the model's default is larger
const QUICK_SEARCH = 0.5; // seconds of a look up to which the tree is loaded without being asked

export function makeTree(app, root) {
  const view = treeParts(app, root);
  const update = drawWhenShown(root, () => {
    if (view.key !== app.look?.key) forgetTree(app, view);
    if (!app.look) return;
    heldBeams(app, view);
    const beam = beamOfTree(app);
    view.beam.value = String(beam);
    // a slow search is loaded on request by the button or the address; a saved page contains it
    const wanted = app.state.get("tree") || !app.source.live || app.look.seconds < QUICK_SEARCH;
    if (wanted && view.asked !== beam) loadTree(app, view, beam);
    else if (view.tree && view.steps.open) drawTree(view);
  });
  view.search = () => {
    view.asked = null;
    if (app.state.get("tree")) update();
    else app.state.set({ tree: true });
  };
  app.on("look", update);
  app.on("theme", () => view.tree && view.steps.open && drawTree(view));
  app.state.on(["tree", "treeBeam"], update);
  new ResizeObserver(oncePerFrame(() => view.tree && view.steps.open && drawTree(view))).observe(view.scroller);
  update();
}

function treeParts(app, root) {
  const view = { key: null, tree: null, asked: null, zoom: 1, at: null };
  const given = beamOfTree(app);
  const most = Math.max(MOST_BEAMS, given, app.model.beam);
  const beams = Array.from({ length: most }, (_, n) => [String(n + 1), String(n + 1)]);
  view.beam = select(beams, String(given), (n) => app.state.set({ treeBeam: Number(n) }), { id: "tree-beam" });
  view.go = button(say("tree-go"), () => view.search(), { id: "tree-go" });
  view.zooms = el(
    "span",
    { class: "zooms" },
    button("−", () => zoomTree(view, -1), { "aria-label": say("tree-smaller") }),
    button("+", () => zoomTree(view, 1), { "aria-label": say("tree-larger") }),
    button(say("tree-fit"), () => zoomTree(view, 0)),
  );
  const files = { canvas: () => treeCanvas(view), svg: () => treeSvg(view), rows: () => treeRows(view) };
  view.files = treeButtons(() => view.tree, files);
  view.said = el("p", { class: "note" });
  view.best = el("p", { class: "tree-best" });
  view.canvas = keyCanvas("tree", say("tree-role"));
  view.space = el("div", { class: "tree-space" }, view.canvas);
  view.scroller = el("div", { class: "tree-scroll" }, view.space);
  view.read = el("output", { class: "tree-read" });
  view.folded = el("div", { class: "scroll folded-tree" });
  view.steps = el(
    "details",
    { id: "tree-steps" },
    el("summary", {}, say("tree-steps")),
    treeLegend(),
    el("div", { class: "bar" }, view.zooms, view.files),
    view.scroller,
    view.read,
    el("p", { class: "note" }, say("tree-keys")),
  );
  view.steps.addEventListener("toggle", () => view.steps.open && view.tree && zoomTree(view, 0));
  view.whole = el("div", {}, view.best, view.folded, view.steps);
  view.controls = el("div", { class: "bar" }, field(say("tree-beam"), view.beam), view.go);
  root.append(view.controls, view.said, view.whole);
  view.ask = questions(app, view.said, view.whole);
  view.scroller.addEventListener(
    "scroll",
    oncePerFrame(() => view.tree && paintTree(view)),
  );
  view.canvas.addEventListener("pointermove", (event) => hoverTree(view, event));
  view.canvas.addEventListener("click", (event) => hoverTree(view, event));
  view.canvas.addEventListener("keydown", (event) => walkTree(view, event));
  return view;
}

// The beam size of the displayed search
export function beamOfTree(app) {
  return app.state.get("treeBeam") ?? app.model.beam;
}

// The beam sizes whose search a saved page contains
function heldBeams({ source, look, state }, view) {
  if (source.live) return;
  for (const option of view.beam.options)
    option.disabled = !source.has("tree", { key: look.key, beam: Number(option.value) });
  view.go.hidden = true;
  if (view.beam.options[state.get("treeBeam") - 1]?.disabled) state.amend({ treeBeam: null });
}

function treeLegend() {
  const kinds = ["best", "alive", "lost", "passed"];
  return el(
    "ul",
    { class: "tree-legend" },
    kinds.map((kind) =>
      el("li", {}, el("span", { class: `sample ${kind}`, "aria-hidden": "true" }), say(`tree-${kind}`)),
    ),
  );
}

function forgetTree(app, view) {
  const { look } = app;
  Object.assign(view, { key: look?.key, tree: null, asked: null, at: null });
  view.whole.hidden = true;
  view.controls.hidden = !look;
  view.said.textContent = look ? say("tree-press") : "";
}

async function loadTree(app, view, beam) {
  const { key } = app.look;
  view.asked = beam;
  const answer = await view.ask("tree", { key, beam });
  if (!answer) return;
  view.key = key;
  view.tree = treeLayout(answer);
  view.at = view.tree.nodes.find((node) => node.best) ?? view.tree.nodes[0] ?? null;
  view.scroller.scrollLeft = view.scroller.scrollTop = 0;
  const score = answer.best_score === null ? "" : `  ${say("tree-score", { x: formatted(answer.best_score, 2) })}`;
  clear(view.best).append(el("bdi", { dir: "auto" }, answer.best_text), el("span", { class: "number" }, score));
  view.whole.hidden = false;
  drawFolded(view);
  view.canvas.setAttribute(
    "aria-label",
    say("tree-label", { beam: answer.beam, n: view.tree.nodes.length, steps: view.tree.steps.length }),
  );
  view.read.textContent = say("tree-hint");
  if (view.steps.open) zoomTree(view, 0);
  app.drew("tree");
}

// The texts that reached an end, as nested lists: tokens without an alternative that reached an end are one node

function drawFolded(view) {
  const stops = [];
  view.spaced = isSpaced(view.tree.nodes.map((node) => node.token));
  const roots = view.tree.nodes.filter((node) => node.alive && !node.from);
  clear(view.folded).append(foldedList(view, roots, stops));
  roving(view.folded, stops);
}

function foldedList(view, nodes, stops) {
  const order = nodes.toSorted((a, b) => b.best - a.best || b.sum - a.sum);
  return el("ul", {}, ...order.map((node) => foldedItem(view, node, stops)));
}

function foldedItem(view, node, stops) {
  const run = [node];
  const next = (one) => one.children.filter((child) => child.alive);
  while (next(run.at(-1)).length === 1 && !run.at(-1).finished) run.push(next(run.at(-1))[0]);
  const last = run.at(-1);
  const share = Math.exp(run.reduce((sum, one) => sum + one.log_prob, 0));
  const words = run.filter((one) => !one.finished || one.token.text).map((one) => one.token);
  const told = say("tree-run", { n: run.length, p: percent(share), sum: formatted(last.sum, 2) });
  const made = el(
    "span",
    { class: `run ${last.best ? "best" : ""}`, tabIndex: -1, title: told },
    el("bdi", { dir: "auto" }, joinedText(words, view.spaced) || "▪"),
    el("span", { class: "note number" }, percent(share)),
  );
  stops.push(made);
  const ends = last.finished
    ? el("span", { class: "note number" }, say("tree-score", { x: formatted(last.score, 2) }))
    : "";
  return el("li", {}, made, ends, next(last).length ? foldedList(view, next(last), stops) : "");
}

// Pointer and keyboard handlers

function hoverTree(view, event) {
  if (!view.tree) return;
  const x = (event.offsetX + view.scroller.scrollLeft) / view.zoom - 14;
  const y = (event.offsetY + view.scroller.scrollTop) / view.zoom - 8;
  const [column, row] = [Math.floor(x / TREE_COLUMN), Math.floor(y / TREE_ROW)];
  const node = view.tree.steps[column - 1]?.[row];
  if (!node || node === view.at || x - column * TREE_COLUMN > TREE_NODE.width) return;
  view.at = node;
  readNode(view);
  paintTree(view);
}

// Left moves to the parent, right to the best child, up and down within a step
function walkTree(view, event) {
  if (!view.tree || !view.at || hasModifier(event)) return;
  if ("+-=".includes(event.key)) return void zoomTree(view, event.key === "-" ? -1 : 1);
  const { at, tree } = view;
  const step = tree.steps[at.step];
  const next = {
    ArrowLeft: at.from,
    ArrowRight: at.children.toSorted((a, b) => b.best - a.best || b.alive - a.alive || b.sum - a.sum)[0],
    ArrowUp: step[at.row - 1],
    ArrowDown: step[at.row + 1],
    Home: tree.nodes.find((node) => node.best) ?? tree.nodes[0],
    End: tree.nodes.findLast((node) => node.best),
  };
  if (!(event.key in next)) return;
  event.preventDefault();
  view.at = next[event.key] ?? at;
  readNode(view);
  showNode(view);
  paintTree(view);
}

function readNode(view) {
  const { at } = view;
  const path = [];
  for (let node = at; node; node = node.from) path.unshift(node.token);
  const words = {
    step: at.step + 1,
    piece: pieceText(at.token),
    p: percent(Math.exp(at.log_prob)),
    sum: formatted(at.sum, 2),
    rank: at.row + 1,
  };
  const parts = [
    say("tree-node", words),
    at.score === null ? "" : say("tree-score", { x: formatted(at.score, 2) }),
    at.finished ? say("tree-ended") : "",
    say(`tree-${treeKind(at)}`),
  ];
  clear(view.read).append(
    parts.filter(Boolean).join(" · "),
    el("span", { class: "note" }, ` ${pathText(path, view.spaced)}`),
  );
}

// Show the end of a long text
function pathText(path, spaced) {
  const shown = joinedText(path.slice(-16), spaced);
  return path.length > 16 ? `… ${shown}` : shown;
}
