// The search as a tree: a column is a step, and texts that are more probable so far are higher in a
// column.
import { addWords, say } from "./words.js";
import { button, clear, el, field, formatted, oncePerFrame, pieceText, select } from "./dom.js";
import { drawWhenShown, questions } from "./views.js";
import { drawTree, paintTree, showNode, TREE_COLUMN, TREE_NODE, TREE_ROW, treeKind } from "./treedraw.js";
import { treeCanvas, treeLayout, treeRows, treeSvg, zoomTree } from "./treedraw.js";
import { treeButtons } from "./saving.js";
import { lock } from "./locks.js";

const MOST_BEAMS = 8; // largest beam size in the menu, unless the model's default is larger

export function makeTree(app, root) {
  addTreeWords();
  const view = treeParts(app, root);
  const update = drawWhenShown(root, () => {
    if (view.key !== app.look?.key) forgetTree(app, view);
    if (!app.look) return;
    heldBeams(app, view);
    const beam = beamOfTree(app);
    view.beam.value = String(beam);
    // loaded on request by the button or the address; a saved page contains it
    if ((app.state.get("tree") || !app.source.live) && view.asked !== beam) loadTree(app, view, beam);
    else if (view.tree) drawTree(view);
  });
  view.search = () => {
    view.asked = null;
    if (app.state.get("tree")) update();
    else app.state.set({ tree: true });
  };
  app.on("look", update);
  app.on("theme", () => view.tree && drawTree(view));
  app.state.on(["tree", "treeBeam"], update);
  new ResizeObserver(oncePerFrame(() => view.tree && drawTree(view))).observe(view.scroller);
  update();
}

function treeParts(app, root) {
  const view = { key: null, tree: null, asked: null, zoom: 1, at: null };
  const given = beamOfTree(app);
  const most = Math.max(MOST_BEAMS, given, app.model.beam);
  const beams = Array.from({ length: most }, (_, n) => [String(n + 1), String(n + 1)]);
  view.beam = select(beams, String(given), (n) => app.state.set({ treeBeam: Number(n) }), {
    id: "tree-beam",
  });
  view.go = button(say("tree-go"), () => view.search(), { class: "main", id: "tree-go" });
  view.zooms = el(
    "span",
    { class: "zooms" },
    button("−", () => zoomTree(view, -1), { "aria-label": say("tree-smaller") }),
    button("+", () => zoomTree(view, 1), { "aria-label": say("tree-larger") }),
    button(say("tree-fit"), () => zoomTree(view, 0)),
  );
  const files = { canvas: () => treeCanvas(view), svg: () => treeSvg(view), rows: () => treeRows(view) };
  view.files = treeButtons(() => view.tree, files);
  view.said = el("p", { class: "view-said" });
  view.best = el("p", { class: "tree-best" });
  view.canvas = el("canvas", {
    tabIndex: 0,
    role: "application",
    "aria-roledescription": say("tree-role"),
    dataset: { name: "tree" },
  });
  view.space = el("div", { class: "tree-space" }, view.canvas);
  view.scroller = el("div", { class: "tree-scroll" }, view.space);
  view.read = el("output", { class: "cells-value tree-read" });
  view.whole = el(
    "div",
    {},
    view.best,
    treeLegend(),
    view.scroller,
    view.read,
    el("p", { class: "note" }, say("tree-keys")),
  );
  view.controls = el(
    "div",
    { class: "view-controls" },
    field(say("tree-beam"), view.beam),
    view.go,
    view.zooms,
    view.files,
  );
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
    lock(option, !source.has("tree", { key: look.key, beam: Number(option.value) }));
  lock(view.beam);
  view.beam.disabled = false; // saved beam sizes can be chosen
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
  view.whole.hidden = view.zooms.hidden = view.files.hidden = true;
  view.controls.hidden = !look;
  view.said.textContent = say(look ? "tree-press" : "view-nothing-yet");
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
  const score =
    answer.best_score === null ? "" : `  ${say("tree-score", { x: formatted(answer.best_score) })}`;
  clear(view.best).append(
    el("bdi", { dir: "auto" }, answer.best_text),
    el("span", { class: "number" }, score),
  );
  view.whole.hidden = view.zooms.hidden = view.files.hidden = false;
  view.canvas.setAttribute(
    "aria-label",
    say("tree-label", { beam: answer.beam, n: view.tree.nodes.length, steps: view.tree.steps.length }),
  );
  view.read.textContent = say("tree-hint");
  zoomTree(view, null);
  app.drew("tree");
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
  if (!view.tree || !view.at || event.ctrlKey || event.altKey || event.metaKey) return;
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
  for (let node = at; node; node = node.from) path.unshift(node.token.text ?? pieceText(node.token));
  const words = {
    step: at.step + 1,
    piece: pieceText(at.token),
    p: formatted(at.log_prob),
    sum: formatted(at.sum),
    rank: at.row + 1,
  };
  const parts = [
    say("tree-node", words),
    at.score === null ? "" : say("tree-score", { x: formatted(at.score) }),
    at.finished ? say("tree-ended") : "",
    say(`tree-${treeKind(at)}`),
  ];
  clear(view.read).append(
    parts.filter(Boolean).join(" · "),
    el("span", { class: "note" }, ` ${pathText(path)}`),
  );
}

// Show the end of a long text
function pathText(path) {
  const shown = path.slice(-16).join(" ").replace(/\s+/g, " ");
  return path.length > 16 ? `… ${shown}` : shown;
}

function addTreeWords() {
  addWords({
    "tree-role": ["tree", "木"],
    "tree-beam": ["Beam", "ビーム幅"],
    "tree-go": ["Search and show the tree", "探索して木を表示"],
    "tree-smaller": ["Smaller", "小さく"],
    "tree-larger": ["Larger", "大きく"],
    "tree-fit": ["Show all", "全体"],
    "tree-press": [
      "A search of this width is run again and every step of it kept.",
      "選んだ幅で探索をやり直し、すべての段階を残します。",
    ],
    "tree-best": ["the best text", "最良の文"],
    "tree-alive": ["came to an end too", "最後まで残った"],
    "tree-lost": ["given up later", "途中で捨てた"],
    "tree-passed": ["no place in its step", "その段階で選ばれず"],
    "tree-score": ["score {x}", "スコア {x}"],
    "tree-start": ["start", "開始"],
    "tree-ended": ["ended", "終了"],
    "tree-label": [
      "Beam search of width {beam}: {n} nodes in {steps} steps",
      "幅 {beam} のビームサーチ：{steps} 段階、{n} ノード",
    ],
    "tree-hint": [
      "Point at a node, or go in with Tab and walk with the arrow keys.",
      "ノードを指すか、Tab で入って矢印キーでたどってください。",
    ],
    "tree-node": [
      "step {step}, “{piece}”: log-prob {p}, sum {sum}, place {rank}",
      "段階 {step} 「{piece}」：対数確率 {p}、合計 {sum}、{rank} 番目",
    ],
    "tree-keys": [
      "The higher in its column, the more probable the text so far. ← parent, → best that follows, ↑ ↓ " +
        "within the step, + − zoom.",
      "列の上ほど、そこまでの文の確率が高い。← 親、→ 最良の続き、↑ ↓ 同じ段階、+ − 拡大縮小。",
    ],
  });
}
