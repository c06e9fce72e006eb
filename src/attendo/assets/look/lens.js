// @ts-check
// The logit lens: the prediction of each layer at each position, as if the layer were the last.
import { inJapanese, say } from "../shared/words.js";
import { button, clear, el, formatted, movedTo, ordinal, percent, pieceElement, pieceText } from "../shared/dom.js";
import { weightColor } from "./colors.js";
import { drawWhenShown, questions, stackChoice } from "./views.js";
import { colorScale, inkOf } from "./cells.js";

const LENS_WINDOW = 24; // number of positions shown at once

export function makeLens(app, root) {
  const view = lensParts(app, root);
  const load = drawWhenShown(root, () => loadLens(app, view));
  view.load = load;
  app.on("look", load);
  app.on("theme", () => drawLens(app, view));
  app.state.on(["query"], () => markQuery(app, view));
  load();
}

function lensParts(app, root) {
  const view = { answer: null, from: 0 };
  view.stackPlace = el("span");
  view.paging = el("div", { class: "bar paging" });
  view.scale = colorScale();
  view.table = el("div", { class: "scroll lens-scroll" });
  view.read = el("output", { class: "cells-value" });
  view.note = el("p", { class: "note" });
  view.said = el("p", { class: "note" });
  view.all = el(
    "div",
    { hidden: true }, // until the first answer
    el("div", { class: "bar" }, view.stackPlace, view.scale.node),
    view.note,
    view.paging,
    view.table,
    view.read,
  );
  view.ask = questions(app, view.said, view.all);
  root.append(view.said, view.all);
  return view;
}

async function loadLens(app, view) {
  const { look } = app;
  if (!look) return;
  const names = look.stacks.map((stack) => stack.name).filter((name) => name !== "cross");
  view.stack = app.state.get("lensStack");
  if (!names.includes(view.stack)) view.stack = names.at(-1);
  stackChoice(view.stackPlace, names, view.stack, (name) => {
    app.state.set({ lensStack: name });
    view.load();
  });
  const answer = await view.ask("lens", { key: look.key, stack: view.stack });
  if (!answer) return;
  view.answer = answer;
  view.read.textContent = say("lens-hint");
  if (view.from >= answer.positions) view.from = 0;
  drawLens(app, view);
}

// The tokens above the columns, one per position
function lensInputs(app, view) {
  const { look } = app;
  return view.stack === "decoder" && look.target.length ? look.target : look.source.length ? look.source : look.target;
}

function lensEnds(view) {
  return [view.from, Math.min(view.answer.positions, view.from + LENS_WINDOW)];
}

function drawPaging(app, view) {
  const { positions } = view.answer;
  const [from, to] = lensEnds(view);
  clear(view.paging);
  if (positions <= LENS_WINDOW) return;
  const go = (step) => () => {
    view.from += step * LENS_WINDOW; // the button at an end is disabled
    drawLens(app, view);
    view.paging.querySelector(`[data-step="${step}"]`)?.focus();
  };
  const page = (step, key, end) => button(say(key), go(step), { disabled: end, dataset: { step } });
  view.paging.append(
    page(-1, "lens-earlier", from === 0),
    el("span", {}, say("lens-window", { from: ordinal(from), to, of: positions })),
    page(1, "lens-later", to === positions),
  );
}

function drawLens(app, view) {
  const { answer } = view;
  if (!answer || !app.look) return;
  view.scale.set("0", "1");
  view.note.textContent = say(
    `lens-note-${{ vocabulary: "words", "nearest embedding": "near", classes: "classes" }[answer.kind]}`,
  );
  drawPaging(app, view);
  const [from, to] = lensEnds(view);
  const inputs = lensInputs(app, view);
  const columns = Array.from({ length: to - from }, (_, i) => from + i);
  const head = el(
    "tr",
    {},
    el("th", { scope: "col", class: "corner" }, say("lens-reads")),
    answer.pooled ? el("th", { scope: "col" }, say("lens-pooled")) : "",
    columns.map((at) =>
      el(
        "th",
        { scope: "col", dataset: { at } },
        el("span", { class: "index" }, ordinal(at)),
        inputs[at] ? pieceElement(inputs[at]) : "",
      ),
    ),
  );
  view.firsts = answer.tokens[0].map((_, at) => answer.tokens.findIndex((row) => row[at]?.rank_of_final === 1));
  const rows = answer.layers.map((name, layer) => lensRow(app, view, lensLayer(answer, layer), layer, columns));
  if (answer.kind === "vocabulary" && inputs.some((token) => token.out)) rows.push(ownRow(app, view, inputs, columns));
  const table = el(
    "table",
    { class: "lens", role: "grid", "aria-label": say("lens-label") },
    el("thead", {}, head),
    el("tbody", {}, rows),
  );
  table.addEventListener("keydown", (event) => walkLens(event, table));
  clear(view.table).append(table);
  const first = table.querySelector("tbody td");
  if (first) first.tabIndex = 0;
  markQuery(app, view);
  app.drew("lens");
}

// the program sends "embedding" and "block 3" in English
function lensLayer({ kind, layers }, layer) {
  const english = layers[layer];
  const block = /^block (\d+)$/.exec(english);
  const translated = block ? say("layer", { n: block[1] }) : say("lens-embedding");
  const name = inJapanese() ? translated : english;
  return kind === "vocabulary" && layer === layers.length - 1 ? say("lens-last", { name }) : name;
}

function lensRow(app, view, name, layer, columns) {
  const { tokens, pooled } = view.answer;
  const cell = (at) => {
    const token = tokens[layer]?.[at];
    return token
      ? lensCell(app, view, token, token.p, () => lensSays(view, name, at, token), at, view.firsts[at] === layer)
      : el("td");
  };
  const whole = pooled ? Object.entries(pooled[layer]).sort((a, b) => b[1] - a[1]) : [];
  const told = () => whole.map(([label, p]) => `${label} ${percent(p)}`).join("  ");
  const more = whole.slice(0, 1).map(([text, p]) => lensCell(app, view, { text }, p, told, null));
  return el("tr", {}, el("th", { scope: "row" }, name), more, columns.map(cell));
}

function ownRow(app, view, inputs, columns) {
  const cell = (at) => {
    const out = inputs[at]?.out;
    if (!out) return el("td", { role: "gridcell" }, "–");
    const says = () =>
      say("lens-own-says", {
        at: ordinal(at),
        piece: pieceText(out),
        p: percent(Math.exp(out.log_prob)),
        rank: out.rank,
      });
    return lensCell(app, view, out, Math.exp(out.log_prob), says, at);
  };
  return el(
    "tr",
    { class: "own" },
    el("th", { scope: "row" }, say(app.look.family === "masked-language-model" ? "lens-own-masked" : "lens-own")),
    columns.map(cell),
  );
}

function lensCell(app, view, token, p, says, at, isFirst = false) {
  const show = () => (view.read.textContent = says());
  return el(
    "td",
    {
      role: "gridcell",
      tabIndex: -1,
      dataset: at === null ? {} : { at },
      style: inkOf(weightColor(Math.max(0, p))),
      class: isFirst ? "first" : token.rank_of_final === 1 ? "same" : "",
      onpointerenter: show,
      onfocus: show,
      onclick: () => at !== null && sameSide(app, view) && app.state.set({ query: at }),
    },
    pieceElement(token),
  );
}

function lensSays(view, name, at, { rank_of_final: rank, p_of_final: final, p, ...token }) {
  const place = { name, at: ordinal(at), piece: pieceText(token) };
  const kind = view.answer.kind;
  const shown = kind === "nearest embedding" ? (x) => formatted(x, 2) : percent; // cosines are no probabilities
  const words = { ...place, p: shown(p), rank, final: shown(final) };
  const start = say(kind === "nearest embedding" ? "lens-says-near" : "lens-says", words);
  return rank === undefined || rank === null ? start : `${start}  ${say("lens-says-rank", words)}`;
}

// Whether the queries of the chosen layer are the tokens of the columns, so a column can select a query
function sameSide(app, view) {
  return app.look[app.openLayer()?.queries] === lensInputs(app, view);
}

function markQuery(app, view) {
  if (!view.answer || !app.look) return;
  const query = sameSide(app, view) ? String(app.state.get("query")) : "";
  view.table.querySelectorAll("[data-at]").forEach((cell) => cell.classList.toggle("here", cell.dataset.at === query));
}

function walkLens(event, table) {
  const cell = event.target.closest("td");
  if (!cell) return;
  if (event.key === "Enter") return void cell.click();
  const rows = [...table.tBodies[0].rows];
  const columns = cell.parentElement.cells.length - 1; // without the header of the row
  const to = movedTo(event, [rows.indexOf(cell.parentElement), cell.cellIndex - 1], [rows.length, columns]);
  const next = to && rows[to[0]].cells[to[1] + 1];
  if (!next) return;
  cell.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
