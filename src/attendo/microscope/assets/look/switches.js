// Switched-off parts: the list, their effect on the output, and a ranking of all parts.
import { addWords, pathName, say } from "./words.js";
import { button, clear, el, field, formatted, pieceElement, select, signed } from "./dom.js";
import { decimals, drawWhenShown, largest, partName } from "./views.js";
import { scrolled, signedBarOf, tableHead, withNumber } from "./views.js";
import { onlyLive } from "./locks.js";
import { pointsAt, roving } from "./chips.js";
import { rankedName, sweepControls, sweepOf } from "./sweep.js";
import { makeMatrices } from "./matrices.js";
import { comparedWords, markedText } from "./compared.js";

const MOST_ROWS = 12; // rows of the ranking before "all"

function offButton(app, path, head) {
  const off = app.isOff(path, head);
  const made = button(say(off ? "off-undo" : "off-do"), () => app.setOff(path, head, !off), {
    class: "small",
    "aria-label": `${say(off ? "off-undo" : "off-do")}: ${partName(path, head)}`,
  });
  return onlyLive(app, made);
}

// The effect of the edits on the output

function changeOfText(app) {
  const { outcome, baseline } = app.look;
  const [old, now] = comparedWords(baseline.text ?? "", outcome.text ?? "");
  const same = baseline.text === outcome.text;
  return el(
    "dl",
    { class: "before-after" },
    el("dt", {}, say("off-before")),
    el("dd", {}, markedText(old, "del")),
    el("dt", {}, say("off-after")),
    el("dd", {}, same ? el("p", { class: "note" }, say("off-same")) : markedText(now, "ins")),
  );
}

function changeOfLabels(app) {
  const { outcome, baseline } = app.look;
  const before = new Map(baseline.labels.map(({ label, probability }) => [label, probability]));
  const columns = ["off-label", "off-before", "off-after", "off-change"].map((key) => [say(key)]);
  const rows = outcome.labels.map(({ label, probability }) => {
    const change = probability - before.get(label);
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, label),
      el("td", {}, formatted(before.get(label))),
      el("td", {}, formatted(probability)),
      el("td", {}, withNumber(signedBarOf(change, 1), signed(change))),
    );
  });
  return el("table", { class: "numbers" }, tableHead(columns), el("tbody", {}, rows));
}

// If the answer has not changed, a token selects the position at which it is predicted
function changeByToken(app) {
  const { baseline, outcome, prompt_tokens: prompt } = app.look;
  const { deltas, tokens } = baseline;
  const most = Math.max(0.1, largest(deltas));
  const digits = decimals(largest(deltas));
  const side = app.look.family === "masked-language-model" ? "source" : "target";
  const chip = (delta, i) => {
    const made = el(
      "button",
      { type: "button" },
      pieceElement(tokens[i]),
      signedBarOf(delta, most),
      el("span", { class: "chip-number" }, signed(delta, digits)),
    );
    return baseline.text === outcome.text ? pointsAt(app, made, side, prompt - 1 + i) : made;
  };
  const chips = deltas.map((delta, i) => (tokens[i] === null ? null : chip(delta, i))).filter(Boolean);
  const items = chips.map((one) => el("li", {}, one));
  return roving(el("ol", { class: "delta-chips", "aria-label": say("off-by-token") }, ...items), chips);
}

function drawChange(app, view) {
  const place = clear(view.change);
  const { look } = app;
  if (!look?.baseline) return void place.append(el("p", { class: "note" }, say("off-nothing-changed")));
  const classes = Boolean(look.baseline.labels);
  place.append(classes ? changeOfLabels(app) : changeOfText(app));
  if (classes) return;
  place.append(
    el("p", { class: "total" }, el("strong", {}, signed(look.baseline.total)), ` ${say("off-total")}`),
    el("p", { class: "note" }, say("off-by-token-note")),
    changeByToken(app),
  );
}

// Build the parts of the view

function drawOff(app, view) {
  const place = clear(view.off);
  const edits = app.state.get("edits").filter((edit) => edit.kind === "off");
  if (!edits.length) place.append(el("p", { class: "note" }, say("off-none")));
  for (const edit of edits) {
    const { path, head = null, how = "zero" } = edit;
    const name = partName(path, head);
    const ways = ["zero", "mean"].map((way) => [way, say(`off-${way}`)]);
    const replaced = select(ways, how, (way) => app.setOff(path, head, true, way), {
      "aria-label": `${say("off-how")}: ${name}`,
    });
    place.append(
      el(
        "div",
        { class: "off-row" },
        el("span", { class: "off-name" }, name),
        onlyLive(app, replaced),
        offButton(app, path, head),
      ),
    );
  }
  const allOn = () => {
    app.state.set({ edits: app.state.get("edits").filter((edit) => edit.kind !== "off") });
    app.relook();
  };
  if (edits.length > 1)
    place.append(onlyLive(app, button(say("off-all-on"), allOn, { class: "small" })));
}

function drawChosenParts(app, view) {
  const [path, head] = [app.state.get("layer"), app.state.get("head")];
  const place = clear(view.chosen);
  if (!path) return;
  const net = path.replace(/[^.]+$/, "feed_forward");
  const parts = [
    [path, head],
    [path, null],
    ...((app.model.effects ?? []).includes(net) ? [[net, null]] : []),
  ];
  for (const [part, at] of parts) {
    place.append(
      el(
        "div",
        { class: "off-row" },
        el(
          "span",
          { class: "off-name" },
          at === null && part === path ? say("off-whole", { name: pathName(path) }) : partName(part, at),
        ),
        offButton(app, part, at),
      ),
    );
  }
}

function drawRanking(app, view) {
  view.sweepParts.update();
  const { rows } = view.sweep;
  const kinds = { heads: ["head"], layers: ["layer", "net"], all: ["head", "layer", "net"] }[
    view.kinds.value
  ];
  const wanted = rows
    .filter((row) => kinds.includes(row.kind))
    .sort((a, b) => Math.abs(b.delta) - Math.abs(a.delta));
  const most = largest(wanted.map((row) => row.delta));
  const place = clear(view.ranking);
  place.parentElement.hidden = !rows.length;
  if (!rows.length) return;
  const columns = ["rank", "part", "effect", "number", "do"].map((key) => [
    say(`ranking-${key}`),
    `of-${key}`,
  ]);
  const shown = view.whole ? wanted : wanted.slice(0, MOST_ROWS);
  const body = shown.map(({ path, head: at, kind, delta }, i) =>
    el(
      "tr",
      {},
      el("td", {}, String(i + 1)),
      el("th", { scope: "row" }, rankedName(app, path, at, kind)),
      el("td", {}, signedBarOf(delta, most)),
      el("td", { class: delta < 0 ? "less-text" : "more-text" }, signed(delta)),
      el("td", {}, offButton(app, path, at)),
    ),
  );
  place.append(el("p", { class: "note" }, say("ranking-note")));
  place.append(
    scrolled(
      say("ranking-title"),
      el("table", { class: "numbers ranking" }, tableHead(columns), el("tbody", {}, body)),
    ),
  );
  if (wanted.length > MOST_ROWS)
    place.append(
      button(
        say(view.whole ? "ranking-less" : "ranking-more", { n: wanted.length }),
        () => {
          view.whole = !view.whole;
          drawRanking(app, view);
        },
        { class: "small" },
      ),
    );
}

export function makeSwitches(app, root) {
  addSwitchWords();
  const view = { sweep: sweepOf(app), whole: false };
  for (const name of ["chosen", "off", "change", "ranking"]) view[name] = el("div", { class: `off-${name}` });
  view.sweepParts = sweepControls(app, view.sweep);
  const kinds = ["heads", "layers", "all"].map((kind) => [kind, say(`ranking-${kind}`)]);
  view.kinds = select(kinds, "heads", () => drawRanking(app, view));
  view.kindsField = field(say("ranking-show"), view.kinds);
  root.append(
    el(
      "div",
      { class: "view-columns" },
      el(
        "div",
        { class: "off-side" },
        el("h3", {}, say("off-chosen")),
        view.chosen,
        el("h3", {}, say("off-title")),
        view.off,
      ),
      el("div", { class: "off-main" }, el("h3", {}, say("off-change-title")), view.change),
    ),
    el("h3", {}, say("ranking-title")),
    view.sweepParts.node,
    el("div", { class: "rank-columns" }, el("div", {}, view.kindsField, view.ranking), makeMatrices(app)),
  );
  const ranking = drawWhenShown(root, () => drawRanking(app, view));
  const draw = drawWhenShown(root, () => {
    drawOff(app, view);
    drawChosenParts(app, view);
    drawChange(app, view);
    drawRanking(app, view);
    app.drew("switches");
  });
  view.sweep.on(ranking);
  app.on("look", draw);
  app.state.on(["edits", "layer", "head"], draw);
  draw();
}

function addSwitchWords() {
  addWords({
    "off-chosen": ["What is chosen", "選んでいる部分"],
    "off-title": ["Switched off", "オフの部分"],
    "off-none": [
      "Nothing. Switch off a head and see what the model does without it.",
      "ありません。ヘッドをオフにすると、そのヘッドなしでのモデルの答えがわかります。",
    ],
    "off-do": ["Switch off", "オフにする"],
    "off-undo": ["Switch on", "オンに戻す"],
    "off-all-on": ["Switch all on", "すべてオンに戻す"],
    "off-how": ["Replaced by", "置き換え"],
    "off-zero": ["zero", "ゼロ"],
    "off-mean": ["its mean", "その平均"],
    "off-change-title": ["What that changes", "オフにしたときの変化"],
    "off-nothing-changed": ["The model is as it was trained.", "モデルは訓練したままの状態です。"],
    "off-before": ["before", "変更前"],
    "off-after": ["after", "変更後"],
    "off-same": ["the same text", "同じテキスト"],
    "off-label": ["label", "ラベル"],
    "off-change": ["change", "変化"],
    "off-total": [
      "nats: change of the log-probability of the text before",
      "ナット：変更前のテキストの対数確率の変化",
    ],
    "off-by-token": ["Change of the log-probability by token", "トークンごとの対数確率の変化"],
    "off-by-token-note": [
      "Token by token of the text before: left of the middle is less probable.",
      "変更前のテキストのトークンごと。中央より左は確率が下がったもの。",
    ],
    "ranking-title": ["Which parts matter for this answer", "この答えに効いている部分"],
    "ranking-note": [
      "Each switched off alone, besides what is off already: the change of the answer's log-probability in nats.",
      "すでにオフの部分に加えて一つずつオフにしたときの、答えの対数確率の変化（ナット）。",
    ],
    "ranking-show": ["Show", "表示"],
    "ranking-heads": ["heads", "ヘッド"],
    "ranking-layers": ["layers and feed-forward nets", "層とフィードフォワード"],
    "ranking-all": ["all", "すべて"],
    "ranking-rank": ["#", "順位"],
    "ranking-part": ["part", "部分"],
    "ranking-effect": ["effect", "効果"],
    "ranking-number": ["Δ log-prob", "Δ 対数確率"],
    "ranking-do": ["switch", "切替"],
    "ranking-more": ["Show all {n}", "{n} 件すべて表示"],
    "ranking-less": ["Show the first", "上位だけ表示"],
  });
}
