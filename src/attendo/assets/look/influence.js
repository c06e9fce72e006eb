// @ts-check
// The influence of input tokens or activations on the answer: rollout, integrated gradients and activation patching.
import { say } from "../shared/words.js";
import { el, field, formatted, pieceText, select } from "../shared/dom.js";
import { floatsOf } from "./numbers.js";
import { largest } from "../shared/bars.js";
import { drawWhenShown, onlyLive, questions, stackChoice } from "./views.js";
import { cellMap, colorScale, showAttention } from "./cells.js";
import { nextTokens, positionOf } from "./inspector.js";

const WITHOUT = { gradients: "encoder", patching: "cross" }; // the stack of a translator that a way does not have

export function makeInfluence(app, root) {
  const view = { side: "", choice: el("span"), scale: colorScale(), said: el("p", { class: "note" }) };
  view.note = el("p", { class: "note" });
  // a row selects a query if the queries of the open layer are the same tokens
  const pick = (query) => void (app.openLayer()?.queries === view.side && app.state.set({ query }));
  view.map = cellMap("influence", pick);
  view.ask = questions(app, view.said, view.map.node);
  const load = drawWhenShown(root, () => loadInfluence(app, view));
  view.set = (some) => {
    app.state.set(some);
    load();
  };
  const ways = ["rollout", ...(app.model.family === "classification" ? [] : ["gradients"]), "patching"];
  const options = ways.map((way) => [way, say(`influence-${way}`)]);
  const choose = (influence) => view.set({ influence });
  view.way = select(options, app.state.get("influence"), choose, { id: "influence-way" });
  const onchange = ({ target }) => view.set({ otherText: target.value });
  const box = el("input", { type: "text", id: "other-text", dir: "auto", onchange, value: app.state.get("otherText") });
  view.otherField = field(say("other-text"), box);
  const way = onlyLive(app, field(say("influence-way"), view.way));
  const bar = el("div", { class: "bar" }, way, view.choice, view.scale.node);
  root.append(bar, view.otherField, view.note, view.said, view.map.node);
  app.on("theme", view.map.redraw);
  app.on("look", load);
  app.state.on(["position", "query"], () => view.way.value === "patching" && load());
  load();
}

async function loadInfluence(app, view) {
  const { look, state } = app;
  if (!look) return;
  const way = view.way.value;
  const [isPatching, other] = [way === "patching", state.get("otherText")];
  const names = look.stacks.map(({ name }) => name).filter((name, _, all) => all.length < 2 || name !== WITHOUT[way]);
  const stack = [state.get("influenceStack"), "cross", names[0]].find((name) => names.includes(name));
  stackChoice(view.choice, names, stack, (influenceStack) => view.set({ influenceStack }));
  view.otherField.hidden = !isPatching;
  const tokens = nextTokens(look);
  const last = tokens.findLastIndex((token) => token.out); // the last token of an unfinished text predicts nothing
  const position = Math.max(0, Math.min(positionOf(app, tokens), last));
  const piece = tokens.length ? pieceText(tokens[position].out ?? {}) : look.outcome.labels?.[0].label;
  view.note.textContent = `${say(`influence-note-${way}`, { piece })} `;
  view.map.node.hidden = isPatching && !other;
  if (view.map.node.hidden) return;
  const answer = await view.ask("influence", { key: look.key, stack, way, ...(isPatching && { position, other }) });
  if (!answer) return;
  const [layer] = look.stacks.find((one) => one.name === stack).layers;
  view.side = isPatching ? "" : layer.queries;
  const data = floatsOf(answer.data);
  const [most, diverging] = [largest(data), way !== "rollout"];
  view.scale.set(diverging ? formatted(-most, 2) : "0", formatted(most, 2), diverging ? "" : formatted(most / 4, 2));
  const label = `${say(`influence-${way}`)}, ${say(`stack-${stack}`)}`;
  const shown = { rows: answer.q_len, columns: answer.k_len, data, most, label, diverging, root: !diverging };
  const rows = isPatching && { rowName: (i) => say("layer", { n: i + 1 }) };
  showAttention(view.map, app.rowTokens(layer), app.tokensOf(layer.keys), { ...shown, ...rows });
  view.note.append(el("cite", {}, answer.source));
  app.drew("influence");
}
