// The answer of a classifier: the classes, the tokens that explain the label, and the important heads.
import { addWords, inJapanese, say } from "./words.js";
import { clear, el, field, formatted, ordinal, pieceElement, select, signed } from "./dom.js";
import { divergingColor, weightColor } from "./colors.js";
import { barOf, decimals, drawWhenShown, largest, questions, scrolled, signedBarOf } from "./views.js";
import { withNumber } from "./views.js";
import { colorScale, inkOf } from "./cells.js";
import { pointsAt, roving } from "./chips.js";
import { rankedName, sweepControls, sweepOf } from "./sweep.js";

const CLASS_WAYS = ["left_out", "gradient_times_input", "rollout", "pooled"];
const SIGNED_WAYS = ["left_out", "gradient_times_input"];
const CLASS_HEADS = 8;

export function makeClasses(app, root) {
  addClassWords();
  const view = { answer: null, key: null, sweep: sweepOf(app) };
  for (const name of ["bars", "tokens", "heads"]) view[name] = el("div", { class: `class-${name}` });
  view.said = el("p", { class: "view-said" });
  view.note = el("p", { class: "note" });
  view.read = el("output", { class: "cells-value" });
  view.scale = colorScale(true);
  view.way = select(
    CLASS_WAYS.map((way) => [way, say(`class-${way}`)]),
    CLASS_WAYS[0],
    () => drawClassTokens(app, view),
    { id: "class-way" },
  );
  view.sweepParts = sweepControls(app, view.sweep);
  view.tokenPart = el(
    "div",
    {},
    el("div", { class: "view-controls" }, field(say("class-by"), view.way), view.scale.node),
    view.tokens,
    view.read,
    view.note,
  );
  view.ask = questions(app, view.said, view.tokenPart);
  view.all = el(
    "div",
    {},
    el("h3", {}, say("class-classes")),
    view.bars,
    el("h3", {}, say("class-tokens")),
    view.said,
    view.tokenPart,
    el("h3", {}, say("class-heads")),
    view.sweepParts.node,
    view.heads,
  );
  view.none = el("p", { class: "view-said" });
  root.append(view.none, view.all);
  const load = drawWhenShown(root, () => loadClasses(app, view));
  app.on("look", load);
  app.on("theme", () => drawClassTokens(app, view));
  view.sweep.on(drawWhenShown(view.heads.parentElement, () => drawClassHeads(app, view)));
  load();
}

async function loadClasses(app, view) {
  const { look } = app;
  view.all.hidden = !look;
  view.none.textContent = look ? "" : say("view-nothing-yet");
  if (!look) return;
  drawClassBars(app, view);
  drawClassHeads(app, view);
  const answer = await view.ask("tokens", { key: look.key });
  if (!answer) return;
  Object.assign(view, { answer, key: look.key });
  view.tokenPart.hidden = false;
  view.way.options[0].disabled = !answer.left_out; // too slow in a large model
  if (!answer.left_out && view.way.selectedIndex === 0) view.way.selectedIndex = 1;
  view.note.textContent = (inJapanese() ? answer.note_ja : answer.note_en) ?? "";
  drawClassTokens(app, view);
  app.drew("classes");
}

function drawClassBars(app, view) {
  const rows = app.look.outcome.labels.map(({ label, probability }) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, el("bdi", {}, label)),
      el("td", {}, withNumber(barOf(probability, 1), formatted(probability), "wide")),
    ),
  );
  clear(view.bars).append(
    scrolled(say("class-classes"), el("table", { class: "numbers" }, el("tbody", {}, rows))),
  );
}

// The number is below each token, because color alone is not accessible
function drawClassTokens(app, view) {
  if (!view.answer || view.key !== app.look?.key) return;
  const way = view.way.value;
  const numbers = view.answer[way];
  const most = largest(numbers) || 1;
  const digits = decimals(most);
  const both = SIGNED_WAYS.includes(way);
  view.scale.node.lastElementChild.previousElementSibling.classList.toggle("diverging", both);
  view.scale.set(both ? formatted(-most, digits) : "0", formatted(most, digits));
  const chips = app.look.source.map((token, i) => {
    const x = numbers[i] ?? 0;
    const color = both ? divergingColor(x / most) : weightColor(x / most);
    const made = el(
      "button",
      { type: "button", style: inkOf(color) },
      pieceElement(token),
      el("span", { class: "chip-number" }, both ? signed(x, digits) : formatted(x, digits)),
    );
    return pointsAt(app, made, "source", i);
  });
  const items = chips.map((one) => el("li", {}, one));
  clear(view.tokens).append(
    roving(el("ol", { class: "class-chips", "aria-label": say(`class-${way}`) }, ...items), chips),
  );
  const order = numbers
    .map((x, i) => [x, i])
    .sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]))
    .slice(0, 5);
  const name = ([x, i]) => `${app.look.source[i]?.piece ?? ""} (${ordinal(i)}) ${both ? signed(x) : formatted(x)}`;
  view.read.textContent = say("class-top", { label: view.answer.label, list: order.map(name).join(" · ") });
}

function drawClassHeads(app, view) {
  view.sweepParts.update();
  const rows = view.sweep.rows
    .filter((row) => row.kind === "head")
    .sort((a, b) => Math.abs(b.delta) - Math.abs(a.delta))
    .slice(0, CLASS_HEADS);
  const most = largest(rows.map((row) => row.delta));
  clear(view.heads);
  if (!rows.length) return;
  view.heads.append(
    el(
      "table",
      { class: "numbers ranking" },
      el("caption", { class: "note" }, say("class-heads-note")),
      el(
        "tbody",
        {},
        rows.map(({ path, head, kind, delta }) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, rankedName(app, path, head, kind)),
            el("td", {}, signedBarOf(delta, most)),
            el("td", {}, signed(delta)),
          ),
        ),
      ),
    ),
  );
}

function addClassWords() {
  addWords({
    "class-classes": ["Probability of each class", "クラスごとの確率"],
    "class-tokens": ["Which tokens the label rests on", "ラベルのよりどころとなるトークン"],
    "class-by": ["Color by", "色分け"],
    "class-left_out": ["without the token", "そのトークンを除いたとき"],
    "class-gradient_times_input": ["gradient × input", "勾配×入力"],
    "class-rollout": ["rollout (approximation)", "ロールアウト（近似）"],
    "class-pooled": ["share of the pooled vector", "プールされたベクトルの割合"],
    "class-top": ["Most for or against “{label}”: {list}", "「{label}」に最も効くもの：{list}"],
    "class-heads": ["Which heads matter", "効いているヘッド"],
    "class-heads-note": [
      "Change of the label's log-probability when the head alone is switched off.",
      "そのヘッドだけをオフにしたときの、ラベルの対数確率の変化。",
    ],
  });
}
