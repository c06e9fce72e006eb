// @ts-check
// The view "Why this label": the tokens that explain the label of a classifier, and the heads that matter.
import { largest } from "../shared/bars.js";
import {
  clear,
  el,
  field,
  formatted,
  ordinal,
  percent,
  pieceElement,
  pieceText,
  roving,
  select,
  signed,
} from "../shared/dom.js";
import { say, sayWith } from "../shared/words.js";
import { colorScale, inkOf } from "./cells.js";
import { divergingColor, weightColor } from "./colors.js";
import { effectControls, effectsOf } from "./effects.js";
import { drawRanking } from "./ranking.js";
import { pointsAt } from "./ribbons.js";
import { decimals, drawWhenShown, questions } from "./views.js";

const CLASS_WAYS = ["left_out", "integrated_gradients", "gradient_times_input", "rollout", "pooled"];
const SIGNED_WAYS = CLASS_WAYS.slice(0, 3);

export function makeLabel(app, root) {
  const view = { answer: null, key: null, controls: effectControls(app) };
  for (const name of ["tokens", "heads"]) view[name] = el("div", { class: `class-${name}` });
  view.title = el("h2", { class: "claim" });
  view.said = el("p", { class: "note" });
  view.note = el("p", { class: "note" }, say("class-note"));
  view.read = el("output");
  view.ngrams = el("p", { class: "note", id: "class-ngrams" });
  view.scale = colorScale();
  view.way = select(
    CLASS_WAYS.map((way) => [way, say(`class-${way}`)]),
    CLASS_WAYS[0],
    () => drawClassTokens(app, view),
    { id: "class-way" },
  );
  view.tokenPart = el(
    "div",
    {},
    view.tokens,
    view.read,
    view.ngrams,
    el("div", { class: "bar" }, field(say("class-by"), view.way), view.scale.node),
    el("details", {}, el("summary", {}, say("class-about")), view.note),
  );
  view.ask = questions(app, view.said, view.tokenPart);
  root.append(
    view.title,
    view.said,
    view.tokenPart,
    el("h3", {}, say("class-heads")),
    el("p", { class: "note" }, say("class-heads-note")),
    view.controls.node,
    view.heads,
  );
  const load = drawWhenShown(root, () => loadLabel(app, view));
  app.on("look", load);
  app.on("theme", () => drawClassTokens(app, view));
  effectsOf(app).on(drawWhenShown(root, () => drawClassHeads(app, view)));
  load();
}

async function loadLabel(app, view) {
  const { look } = app;
  if (!look) return;
  drawClassHeads(app, view);
  const answer = await view.ask("tokens", { key: look.key });
  if (!answer) return;
  Object.assign(view, { answer, key: look.key });
  for (const option of view.way.options) option.disabled = !answer[option.value]; // too slow in a large model
  if (!answer[view.way.value]) view.way.value = CLASS_WAYS[2];
  drawClassTokens(app, view);
  app.drew("label");
}

// The number is below each token, because color alone is not accessible
function drawClassTokens(app, view) {
  if (!view.answer || view.key !== app.look?.key) return;
  const way = view.way.value;
  const numbers = view.answer[way];
  const most = largest(numbers) || 1;
  const digits = decimals(most);
  const both = SIGNED_WAYS.includes(way);
  view.scale.set(both ? formatted(-most, digits) : "0", formatted(most, digits));
  const chips = app.look.source.map((token, i) => {
    const x = numbers[i] ?? 0;
    const color = both ? divergingColor(x / most) : weightColor(x / most);
    const made = el(
      "button",
      { type: "button", class: "chip", style: inkOf(color) },
      pieceElement(token),
      el("span", { class: "number" }, both ? signed(x, digits) : formatted(x, digits)),
    );
    return pointsAt(app, made, () => spotOfToken(app, i));
  });
  clear(view.tokens).append(
    roving(el("div", { class: "class-chips", role: "group", "aria-label": say(`class-${way}`) }, ...chips), chips),
  );
  const order = numbers
    .map((x, i) => [x, i])
    .sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]))
    .slice(0, 5);
  const name = ([x, i]) =>
    `${pieceText(app.look.source[i] ?? {})} (${ordinal(i)}) ${both ? signed(x, digits) : formatted(x, digits)}`;
  const [most_, at] = order.find(([x]) => x > 0) ?? [0, -1];
  const word = el("bdi", { class: "hot" }, at < 0 ? "" : pieceText(app.look.source[at]));
  const label = el("strong", {}, view.answer.label);
  clear(view.title).append(...sayWith(most_ ? "class-claim" : "class-title", { label, word }));
  const { ngrams = [], ngrams_share: share } = app.look.outcome;
  const list = ngrams.map(({ ngram, delta }) => `“${ngram}” ${signed(delta, 2)}`).join(" · ");
  view.ngrams.textContent = share ? say("class-ngrams", { share: percent(share), list }) : "";
  view.read.textContent = say("class-top", { label: view.answer.label, list: order.map(name).join(" · ") });
}

// The query of a token in the open layer
function spotOfToken(app, i) {
  const layer = app.openLayer();
  return layer && i < layer.q_len ? { query: i, key: app.strongestKey(i) } : null;
}

function drawClassHeads(app, view) {
  view.controls.update();
  const heads = effectsOf(app).rows.filter(({ kind }) => kind === "head");
  drawRanking(app, view.heads, heads, "ranking-number");
}
