// The comparison of a text of the reader with the text that the search found.
import { addWords, inJapanese, say } from "./words.js";
import { button, clear, el, formatted, pieceElement, pieceText } from "./dom.js";
import { barOf, drawWhenShown, questions, scrolled, tableHead, withNumber } from "./views.js";
import { comparedWords, markedText } from "./compared.js";
import { beamOfTree } from "./tree.js";
import { onlyLive } from "./locks.js";

export function makeWhy(app, root) {
  addWhyWords();
  const text = el("textarea", {
    id: "why-text",
    rows: 2,
    dir: "auto",
    spellcheck: false,
    value: app.state.get("why"),
  });
  const [said, place] = [el("p", { class: "view-said" }), el("div", { "aria-live": "polite" })];
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
    onlyLive(app, button(say("why-go"), go, { class: "main", id: "why-go" })),
  );
  onlyLive(app, text);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.stopPropagation();
      go();
    }
  });
  root.append(view.form, view.said, view.place);
  const update = drawWhenShown(root, () => {
    const { look } = app;
    view.form.hidden = !look;
    if (!look) view.said.textContent = say("view-nothing-yet");
    else {
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
  const [yours, found] = comparedWords(text, bestText);
  const row = (key, words, name, x) => [
    el("dt", {}, say(key)),
    el(
      "dd",
      {},
      markedText(words, name),
      el("span", { class: "number" }, say("tree-score", { x: formatted(x) })),
    ),
  ];
  return el(
    "dl",
    { class: "before-after" },
    row("why-yours", yours, "mark", score),
    row("why-found", found, "mark", best),
  );
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
      el("td", {}, withNumber(barOf(Math.exp(token.log_prob), 1), formatted(token.log_prob))),
      el("td", {}, String(token.rank)),
      el("td", {}, token.rank === 1 ? "" : `${pieceText(token.best)} ${formatted(token.best.log_prob)}`),
      el("td", {}, formatted(sum)),
    );
  });
  return scrolled(
    say("why-label"),
    el(
      "table",
      { class: "numbers" },
      tableHead([["#"], ...columns.map((key) => [say(`why-column-${key}`), `of-${key}`])]),
      el("tbody", {}, body),
    ),
  );
}

function addWhyWords() {
  addWords({
    "why-label": [
      "Why not this text? Type what you would have expected.",
      "なぜこの文ではないのか。期待した文を入れてください。",
    ],
    "why-go": ["Ask", "調べる"],
    "why-empty": ["Type a text first.", "先に文を入れてください。"],
    "why-same": ["The same.", "同じ文です。"],
    "why-model": ["The model's choice.", "モデルの選択です。"],
    "why-forced": ["Not searched for.", "探索の対象外です。"],
    "why-search": ["A search error.", "探索の誤りです。"],
    "why-yours": ["yours", "入力した文"],
    "why-found": ["found", "見つかった文"],
    "why-apart": ["leaves the best path", "最良の経路を離れる"],
    "why-lost": ["dropped by the beam", "ビームから落ちる"],
    "why-column-token": ["token", "トークン"],
    "why-column-log-prob": ["log-prob", "対数確率"],
    "why-column-rank": ["rank", "順位"],
    "why-column-first": ["first choice there", "そこでの第一候補"],
    "why-column-sum": ["sum", "合計"],
  });
}
