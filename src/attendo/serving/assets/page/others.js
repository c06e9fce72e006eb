// Alternatives of a line: other words at a word, and the other results of the search.
import { button, el } from "./dom.js";
import { say } from "./words.js";
import { othersAt, wordsOf } from "./lines.js";
import { makeLatest } from "./asking.js";
import { makeChoices, makeOwnWord, makeSheet } from "./choices.js";

const MOST_OTHERS = 5; // maximum number of alternatives of a word, and of a line

// found(texts, more, signal) sends the request; bestOf(text): the model's own candidate; isCurrent(line): there is
// no newer text; several(): whether there are several lines; take(line, candidate, chosen): the reader chose one;
// chosen: the ranges in it, [[start, end]…], whose words the reader chose.
export function makeOthers({ app, languages, found, bestOf, isCurrent, several, take }) {
  const asking = makeLatest((error) => (sheet.close(), app.failed(error)));
  const sheet = makeSheet(() => asking.stop());
  const noted = (key) => el("p", { class: "note", role: "status" }, key ? say(key) : "");

  function taken(line, candidate, chosen) {
    sheet.close();
    take(line, candidate, chosen);
  }

  // Earlier choices of the reader remain: the text continues from the place
  const chosenWith = (line, start, end) => [
    ...line.shown.chosen.filter((one) => one[1] <= start),
    [start, end],
  ];

  function atWord(line, word, element) {
    if (!isCurrent(line)) return;
    const { candidate } = line.shown;
    const rows = othersAt(candidate, word, MOST_OTHERS).map((other) => ({
      ...other,
      head: `${other.prefix.slice(word.start).trim() || other.prefix}…`,
    }));
    const list = makeChoices(
      rows,
      languages.target,
      (row) => row.candidate && taken(line, row.candidate, row.chosen),
    );
    const reason = word.tokens.some((token) => candidate.tokens[token].alternatives?.length)
      ? "long-text"
      : "no-others";
    const note = noted(rows.length ? "looking-for-others" : reason);
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
    const answers = await found(texts, { prefix: rows.map(({ prefix }) => prefix) }, signal);
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
      const [answer] = await found([line.text], { prefix: [prefix] }, signal);
      taken(line, answer.candidates[0], chosenWith(line, word.start, prefix.length));
    });
  }

  function foot(line, element) {
    const best = bestOf(line.text);
    const isBest = !best || (best.text === line.shown.candidate.text && !line.shown.chosen.length);
    return el(
      "div",
      { class: "bar" },
      button(say("other-translations"), () => ofLine(line, element)),
      !isBest && button(say("back-to-best"), () => taken(line, best, [])),
    );
  }

  function ofLine(line, element) {
    if (!isCurrent(line)) return;
    const note = noted("looking-for-others");
    const holder = el("div", {}, note);
    sheet.open(
      element,
      several() ? say("others-of-line", { n: line.n + 1 }) : say("other-translations"),
      holder,
    );
    asking.run(async (signal) => {
      const [answer] = await found([line.text], { alternatives: MOST_OTHERS }, signal);
      const { candidate } = line.shown;
      const texts = new Set([candidate.text]);
      const rows = answer.candidates
        .filter(({ text }) => !texts.has(text) && texts.add(text))
        .map((one) => ({ candidate: one }));
      if (!rows.length) return void (note.textContent = say("no-others"));
      holder.replaceChildren(makeChoices(rows, languages.target, (row) => taken(line, row.candidate, [])));
      for (const row of rows) row.tell(row.candidate.text, candidate.text);
      holder.querySelector("button").focus({ preventScroll: true });
    });
  }

  return { atWord, ofLine, root: sheet.root, close: sheet.close, end: asking.stop };
}
