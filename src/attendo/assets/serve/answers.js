// @ts-check
// The answers of translators, kept by request, and what the reader chose instead.
import { inChunks, lossOf, makeKept, wordsOf } from "./lines.js";

const MOST_LINES = 16; // maximum number of lines per request
const EMPTY = { candidate: { text: "" }, words: [], chosen: [], loss: { all: 0, missing: [] } };

// Of every model, by request; and the reader's choices, { candidate, chosen }
const answers = makeKept(60_000); // more than the lines of the longest text
const rankings = makeKept(100);
const taken = makeKept(100);

export function makeAnswers(app, model) {
  const languages = { source: model.source, target: model.target };
  const { state } = app;
  const options = () => ({ beam: Number(state.get("beam")) || undefined, segment: state.get("segment") || undefined });
  const keyOf = (...values) => JSON.stringify([model.id, options(), ...values]);
  const bestOf = (text) => answers.get(keyOf(text))?.candidates[0];

  async function found(q, more, signal) {
    const body = { model: model.id, q, ...options(), details: true, ...more };
    return (await app.server.ask("translate", body, signal)).details;
  }
  return {
    ...{ languages, options, bestOf, found },
    // Requests the missing answers, a few lines at a time
    async complete(texts, signal, onSome) {
      for (const some of inChunks(new Set(texts.filter((text) => !bestOf(text))), MOST_LINES)) {
        const told = await found(some, {}, signal);
        some.forEach((text, n) => answers.set(keyOf(text), told[n]));
        onSome();
      }
    },
    // The results of the search for a line, best first
    async ranked(text, most, signal) {
      const known = rankings.get(keyOf(text, most));
      if (known) return known;
      const [{ candidates }] = await found([text], { alternatives: most }, signal);
      rankings.set(keyOf(text, most), candidates);
      return candidates;
    },
    isRanked: (text, most) => Boolean(rankings.get(keyOf(text, most))),
    take: (text, candidate, chosen) => taken.set(keyOf(text), { candidate, chosen }),
    isTaken: (text) => Boolean(taken.get(keyOf(text))?.candidate),
    // The displayed candidate of a line: the reader's choice, or otherwise the best; null: no answer yet
    shownOf(text) {
      if (!text) return EMPTY;
      const own = taken.get(keyOf(text));
      const candidate = own?.candidate ?? bestOf(text);
      if (!candidate) return null;
      const { omission, parts } = answers.get(keyOf(text)) ?? {};
      const words = wordsOf(candidate, text, languages);
      const loss = own?.candidate ? EMPTY.loss : { ...lossOf(text, words, languages.source), omission, parts };
      return { candidate, chosen: own?.chosen ?? EMPTY.chosen, words, loss };
    },
  };
}
