// @ts-check
// Alternatives of a line: other words at a word, and the other results of the search.
import { afterPause, button, clear, el } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { makeLatest } from "../shared/asking.js";
import { othersAt, wordsOf } from "./lines.js";
import { makeAskingSheet, makeChoices, makeOwnWord } from "./choices.js";

const MOST_OTHERS = 5; // maximum number of alternatives of a word, and of a line
const MOST_CARDS = 3;
const IDLE = 700; // ms after the translation until the alternatives of a line are requested

// known: see makeAnswers; isCurrent(line): there is no newer text; several(): whether there are several lines;
// take(line, candidate, chosen): the reader chose one; chosen: the ranges in it, [[start, end]…], whose words the
// reader chose.
export function makeOthers({ app, known, isCurrent, several, take }) {
  const { languages } = known;
  const { asking, sheet, end: endSheet } = makeAskingSheet(app);
  const noted = (key) => el("p", { class: "note", role: "status" }, key ? say(key) : "");

  function taken(line, candidate, chosen) {
    sheet.close();
    take(line, candidate, chosen);
  }

  // Earlier choices of the reader remain: the text continues from the place
  const chosenWith = (line, start, end) => [...line.shown.chosen.filter((one) => one[1] <= start), [start, end]];

  function atWord(line, word, element) {
    if (!isCurrent(line)) return;
    const { candidate } = line.shown;
    const rows = othersAt(candidate, word, MOST_OTHERS);
    for (const row of rows) row.head = `${row.prefix.slice(word.start).trim() || row.prefix}…`;
    const onTake = (row) => row.candidate && taken(line, row.candidate, row.chosen);
    const list = makeChoices(rows, languages.target, onTake);
    const has = word.tokens.some((token) => candidate.tokens[token].alternatives?.length);
    const note = noted(rows.length ? "looking-for-others" : has ? "long-text" : "no-others");
    const own = makeOwnWord((text) => goOn(line, word, text, note));
    const isFirstPart = rows.length > 0 || candidate.text.slice(0, word.start).trim() === "";
    const title = say("other-words", { word: word.text });
    sheet.open(element, title, list, note, isFirstPart && own, foot(line, element));
    if (rows.length) asking.run((signal) => fill({ line, word, rows, note }, signal));
  }

  // Each alternative word with the whole line to which it leads; equal lines are merged
  async function fill({ line, word, rows, note }, signal) {
    const { candidate } = line.shown;
    const texts = rows.map(() => line.text);
    const answers = await known.found(texts, { prefix: rows.map(({ prefix }) => prefix) }, signal);
    const seen = new Set([candidate.text]);
    rows.forEach((row, n) => {
      row.candidate = answers[n].candidates[0];
      const { text } = row.candidate;
      if (seen.has(text)) return row.item.remove();
      seen.add(text);
      const there = wordsOf(row.candidate, line.text, languages).find((one) => one.end > word.start);
      row.chosen = chosenWith(line, word.start, there?.end ?? row.prefix.length);
      row.tell(text, candidate.text, there?.text);
    });
    note.textContent = seen.size > 1 ? "" : say("no-others");
  }

  function goOn(line, word, text, note) {
    const prefix = line.shown.candidate.text.slice(0, word.start) + text;
    note.textContent = say("looking-for-others");
    asking.run(async (signal) => {
      const [answer] = await known.found([line.text], { prefix: [prefix] }, signal);
      taken(line, answer.candidates[0], chosenWith(line, word.start, prefix.length));
    });
  }

  function foot(line, element) {
    const best = known.bestOf(line.text);
    const isBest = !best || (best.text === line.shown.candidate.text && !line.shown.chosen.length);
    const more = button(say("other-translations"), () => ofLine(line, element), { class: "quiet" });
    const back = !isBest && button(say("back-to-best"), () => taken(line, best, []), { class: "quiet" });
    return el("div", { class: "bar" }, more, back);
  }

  // The other results of the search for a line as rows for choices
  async function rowsOf(line, signal) {
    const texts = new Set([line.shown.candidate.text]);
    const found = [known.bestOf(line.text), ...(await known.ranked(line.text, MOST_OTHERS, signal))];
    return found.filter(({ text }) => !texts.has(text) && texts.add(text)).map((one) => ({ candidate: one }));
  }
  function choicesOf(line, rows, className) {
    const made = makeChoices(rows, languages.target, (row) => taken(line, row.candidate, []), className);
    for (const row of rows) row.tell(row.candidate.text, line.shown.candidate.text);
    return made;
  }

  function ofLine(line, element) {
    if (!isCurrent(line)) return;
    const note = noted("looking-for-others");
    const holder = el("div", {}, note);
    const title = several() ? say("others-of-line", { n: line.n + 1 }) : say("other-translations");
    sheet.open(element, title, holder);
    asking.run(async (signal) => {
      const rows = await rowsOf(line, signal);
      if (!rows.length) return void (note.textContent = say("no-others"));
      holder.replaceChildren(choicesOf(line, rows));
      holder.querySelector("button").focus({ preventScroll: true });
    });
  }

  // "Also possible": cards under the translation of a single line, once nobody types
  const cards = el("div", {});
  const heading = el("h2", { class: "small-caps", id: "also-title" }, say("serve-also"));
  const also = el("section", { class: "also", "aria-labelledby": "also-title", hidden: true }, heading, cards);
  const idle = makeLatest(() => {}); // the cards are an extra: without them, nothing is said
  let wanted = null; // the line whose cards are shown or requested
  const load = () =>
    idle.run(async (signal) => {
      const line = wanted;
      const rows = line && (await rowsOf(line, signal)).slice(0, MOST_CARDS);
      signal.throwIfAborted();
      also.hidden = !rows?.length;
      if (rows?.length) clear(cards).append(choicesOf(line, rows, "cards"));
    });
  const soon = afterPause(load, IDLE);
  function offer(line) {
    const isSame = line && line.shown.candidate === wanted?.shown.candidate;
    wanted = line;
    if (isSame) return;
    idle.stop();
    also.hidden = true;
    if (line && known.isRanked(line.text, MOST_OTHERS)) load();
    else if (line) soon();
  }

  const end = () => (endSheet(), idle.end());
  return { atWord, ofLine, offer, also, close: sheet.close, end };
}
