// @ts-check
// Direct logit attribution: what each part of the model adds to the logit of a token of the answer.
import { clear, el, field, formatted, pieceElement, pieceText, select } from "../shared/dom.js";
import { say, sayWith } from "../shared/words.js";
import { nextTokens, positionOf } from "./inspector.js";
import { drawRanking } from "./ranking.js";
import { drawWhenShown, onlyLive, questions } from "./views.js";

export function makeAttribution(app, root) {
  const view = { at: "", other: "", said: el("p", { class: "note" }), parts: el("div") };
  view.claim = el("p", { class: "claim", id: "logit" });
  view.choice = onlyLive(app, el("div"));
  const source = el("cite", {}, say("attribution-source"));
  const note = el("p", { class: "note" }, `${say("attribution-note")} `, source);
  const all = el("div", {}, view.claim, view.choice, view.parts, note);
  view.ask = questions(app, view.said, all);
  view.load = drawWhenShown(root, () => loadAttribution(app, view));
  root.append(view.said, all);
  app.on("numbers", view.load); // not "look": the strongest query is known only now
  app.state.on(["position", "query", "layer"], view.load);
  view.load();
}

async function loadAttribution(app, view) {
  const { look } = app;
  if (!look) return;
  const position = positionOf(app, nextTokens(look));
  const at = `${look.key} ${position}`;
  if (at !== view.at) view.other = view.at = "";
  const other = view.other && { other: Number(view.other) };
  const answer = await view.ask("attribution", { key: look.key, position, ...other });
  if (!answer) return;
  if (at !== view.at) drawChoice(view, answer.others);
  view.at = at;
  const { token, others, logit, parts } = answer;
  const against = others.find(({ id }) => String(id) === view.other);
  const names = { piece: pieceElement(token), other: pieceElement(against ?? token) };
  const x = formatted(logit, 4);
  clear(view.claim).append(...sayWith(against ? "attribution-less" : "attribution-logit", { ...names, x }));
  drawRanking(app, view.parts, parts, "attribution-number");
  app.drew("attribution");
}

// The tokens whose logit can be subtracted
function drawChoice(view, others) {
  const options = others.map((token) => [String(token.id), pieceText(token)]);
  const choose = (other) => {
    view.other = other;
    view.load();
  };
  const choice = select([["", say("attribution-none")], ...options], "", choose, { id: "logit-other" });
  clear(view.choice).append(field(say("attribution-other"), choice));
}
