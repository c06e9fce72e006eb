// @ts-check
// Rollout: the share of each input token in each position after all layers (an approximation).
import { say } from "../shared/words.js";
import { clear, el, formatted } from "../shared/dom.js";
import { floatsOf } from "./numbers.js";
import { largest } from "../shared/bars.js";
import { drawWhenShown, questions, stackChoice } from "./views.js";
import { cellMap, colorScale, showAttention } from "./cells.js";

const ROLLOUT_SIDES = { encoder: ["source", "source"], decoder: ["target", "target"], cross: ["target", "source"] };

export function makeRollout(app, root) {
  const view = { stack: "", side: "" };
  view.map = cellMap("rollout", (row) => {
    // a row selects a query if the queries of the open layer are the same tokens
    if (app.openLayer()?.queries === view.side) app.state.set({ query: row });
  });
  view.said = el("p", { class: "note" });
  view.note = el("p", { class: "note" });
  view.choice = el("span");
  view.scale = colorScale(false);
  view.ask = questions(app, view.said, view.map.node);
  const load = drawWhenShown(root, () => loadRollout(app, view));
  root.append(el("div", { class: "bar" }, view.choice, view.scale.node), view.note, view.said, view.map.node);
  app.on("theme", view.map.redraw);
  app.on("look", load);
  load();
}

async function loadRollout(app, view) {
  const { look } = app;
  if (!look) return;
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
  const label = say("rollout-label", { stack: say(`stack-${stack}`) });
  showAttention(view.map, queries, keys, { rows: answer.q_len, columns: answer.k_len, data, most, label });
  clear(view.note).append(`${say("rollout-note")} `, el("cite", {}, answer.source));
  app.drew("rollout");
}
