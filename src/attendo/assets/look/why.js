// @ts-check
// The comparison of a text of the reader with the text that the search found.
import { barOf, scrolled, tableHead } from "../shared/bars.js";
import { compared, comparedLine, marked } from "../shared/diff.js";
import { button, clear, el, formatted, percent, pieceElement, pieceText } from "../shared/dom.js";
import { inJapanese, say } from "../shared/words.js";
import { beamOfTree } from "./tree.js";
import { drawWhenShown, onlyLive, questions } from "./views.js";

export function makeWhy(app, root) {
  const text = el("textarea", { id: "why-text", rows: 2, dir: "auto", spellcheck: false, value: app.state.get("why") });
  const [said, place] = [el("p", { class: "note" }), el("div", { "aria-live": "polite" })];
  const view = { asked: "", said, place };
  view.ask = questions(app, view.said, view.place);
  const go = () => {
    view.asked = "";
    if (!text.value.trim()) {
      view.said.textContent = say("why-empty");
      return void text.focus();
    }
    if (text.value === app.state.get("why")) update();
    else app.state.set({ why: text.value });
  };
  view.form = el(
    "div",
    { class: "why-form" },
    el("label", { htmlFor: "why-text", class: "note" }, say("why-label")),
    text,
    button(say("why-go"), go, { class: "main", id: "why-go" }),
  );
  onlyLive(app, view.form);
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    go();
  });
  root.append(view.form, view.said, view.place);
  const update = drawWhenShown(root, () => {
    const { look } = app;
    if (look) {
      const question = { key: look.key, target: app.state.get("why"), beam: beamOfTree(app) };
      const other = JSON.stringify(question) !== view.asked;
      if (other) clear(view.place);
      if (other) view.said.textContent = "";
      if (other && question.target.trim()) askWhy(app, view, question);
    }
  });
  app.on("look", update);
  app.state.on(["why", "treeBeam"], (changed) => {
    if (changed.includes("why")) text.value = app.state.get("why");
    update();
  });
  update();
}

async function askWhy(app, view, question) {
  view.asked = JSON.stringify(question);
  const answer = await view.ask("why", question);
  if (!answer) return;
  clear(view.place).append(whyVerdict(answer), whyScores(answer), whyTokens(app, answer));
  app.drew("why");
}

function whyVerdict({ verdict, sentence_en: english, sentence_ja: japanese }) {
  return el(
    "p",
    { class: `verdict ${verdict}` },
    el("strong", {}, say(`why-${verdict}`)),
    " ",
    inJapanese() ? japanese : english,
  );
}

function whyScores({ text, score, best_text: bestText, best_score: best }) {
  const [yours, found] = compared(text, bestText);
  const line = (key, parts, x) => {
    const told = el("span", { class: "note number" }, say("tree-score", { x: formatted(x, 2) }));
    return comparedLine(say(key), marked(parts, "span", "changed"), told);
  };
  return el("div", { class: "before-after" }, line("why-yours", yours, score), line("why-found", found, best));
}

function whyTokens(app, { tokens, diverges_at: apart, lost_at: lost }) {
  const columns = ["token", "log-prob", "rank", "first", "sum"];
  let sum = 0;
  const body = tokens.map((token, i) => {
    sum += token.log_prob;
    const tags = [i === apart ? "why-apart" : null, i === lost ? "why-lost" : null].filter(Boolean);
    return el(
      "tr",
      { class: tags.length ? "here" : "" },
      el("td", {}, String(i + 1)),
      el(
        "th",
        { scope: "row" },
        pieceElement(token),
        tags.map((key) => el("span", { class: "tag" }, say(key))),
      ),
      el(
        "td",
        { title: formatted(token.log_prob) },
        barOf(Math.exp(token.log_prob)),
        ` ${percent(Math.exp(token.log_prob))}`,
      ),
      el("td", {}, String(token.rank)),
      el("td", {}, token.rank === 1 ? "" : `${pieceText(token.best)} ${percent(Math.exp(token.best.log_prob))}`),
      el("td", {}, formatted(sum, 2)),
    );
  });
  return scrolled(
    say("why-label"),
    el(
      "table",
      {},
      tableHead([["#"], ...columns.map((key) => [say(`why-column-${key}`), `of-${key}`])]),
      el("tbody", {}, body),
    ),
  );
}
