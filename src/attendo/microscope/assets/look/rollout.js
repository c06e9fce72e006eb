// Rollout: the share of each input token in each position after all layers (an approximation).
import { addWords, say } from "./words.js";
import { clear, el, formatted, ordinal, pieceText } from "./dom.js";
import { floatsOf } from "./numbers.js";
import { largest, questions, stackChoice } from "./views.js";
import { cellMap, colorScale } from "./cells.js";

const ROLLOUT_SIDES = {
  encoder: ["source", "source"],
  decoder: ["target", "target"],
  cross: ["target", "source"],
};

// The section, and a function that loads it for the current result
export function makeRollout(app) {
  addRolloutWords();
  const view = { stack: "", side: "" };
  view.map = cellMap("rollout", (row) => {
    // a row selects a query if the queries of the open layer are the same tokens
    if (app.openLayer()?.queries === view.side) app.state.set({ query: row });
  });
  view.said = el("p", { class: "view-said" });
  view.note = el("p", { class: "note" });
  view.choice = el("span");
  view.scale = colorScale(false);
  view.ask = questions(app, view.said, view.map.node);
  const node = el(
    "div",
    {},
    el("h3", {}, say("rollout-title")),
    el("div", { class: "view-controls" }, view.choice, view.scale.node),
    view.said,
    view.map.node,
    view.note,
  );
  app.on("theme", view.map.redraw);
  return { node, load: () => loadRollout(app, view) };
}

async function loadRollout(app, view) {
  const { look } = app;
  const names = look.stacks.map((stack) => stack.name);
  view.stack = app.state.get("rolloutStack");
  if (!names.includes(view.stack)) view.stack = names.includes("cross") ? "cross" : names[0];
  stackChoice(view.choice, names, view.stack, (name) => {
    app.state.set({ rolloutStack: name });
    loadRollout(app, view);
  });
  const { stack } = view;
  const answer = await view.ask("rollout", { key: look.key, stack });
  if (!answer) return;
  const sides = ROLLOUT_SIDES[stack];
  view.side = sides[0];
  const [layer] = look.stacks.find((one) => one.name === stack).layers;
  const [queries, keys] = [app.rowTokens(layer), app.tokensOf(layer.keys)];
  const data = floatsOf(answer.data);
  const most = largest(data);
  view.scale.set("0", formatted(most, 2), formatted(most / 4, 2));
  const name = (tokens) => (i) => `${ordinal(i)} ${pieceText(tokens[i])}`;
  view.map.show({
    rows: answer.q_len,
    columns: answer.k_len,
    data,
    most,
    root: true,
    square: true,
    named: true,
    first: 1,
    rowName: name(queries),
    columnName: name(keys),
    label: say("rollout-label", { stack: say(`stack-${stack}`) }),
  });
  clear(view.note).append(`${say("rollout-note")} `, el("cite", {}, answer.source));
  app.drew("rollout");
}

function addRolloutWords() {
  addWords({
    "rollout-title": ["Rollout (approximation)", "ロールアウト（近似）"],
    "rollout-label": ["Attention rollout, {stack}", "アテンション・ロールアウト、{stack}"],
    "rollout-note": [
      "Mean attention of the heads, half of it the residual, multiplied through the layers. It leaves " +
        "out values and feed-forward nets.",
      "ヘッドの平均のアテンションと残差を半分ずつ足し、全層にわたって掛けた結果です。バリューとフィードフォワード層は考慮しません。",
    ],
  });
}
