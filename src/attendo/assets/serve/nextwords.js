// Other words in a continuation: the likeliest tokens at a place, each completed to a word by the model.
import { byteOf, el } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { makeLatest } from "../shared/asking.js";
import { makeSheet } from "../shared/sheet.js";
import { segments } from "../shared/diff.js";
import { makeChoices } from "./choices.js";
import { textOf, upTo } from "./continuation.js";

const MOST = 5; // the API lists no more
const PREVIEW = 8; // tokens

// The text of a listed token, or null for a part of a character and for tokens without text
function tokenText(token) {
  const byte = byteOf({ piece: token });
  if (byte !== null) return byte < 128 ? String.fromCharCode(byte) : null;
  return /^<\S+>$/.test(token) ? null : token;
}

// A beginning up to the end of its first word
function firstWord(text) {
  const word = segments(text).find(({ start, end }) => text.slice(start, end).trim());
  return word ? text.slice(0, word.end) : text;
}

// onTake(pieces before the word, the new word)
export function makeNextWords(app, model, onTake) {
  const sheet = makeSheet(() => asking.stop());
  const asking = makeLatest((error) => (sheet.close(), app.failed(error)));
  const ask = async (body, signal) => (await app.server.ask("v1/completions", { model: model.id, temperature: 0, ...body }, signal)).choices;

  function open(prompt, pieces, word, element) {
    const start = word.tokens[0].start; // with the space before the word
    const begun = upTo(pieces, start);
    const before = prompt + textOf(begun);
    const list = el("div", {});
    const note = el("p", { class: "note", role: "status" }, say("looking-for-others"));
    sheet.open(element, say("other-words", { word: word.text }), list, note);
    asking.run(async (signal) => {
      const [{ logprobs }] = await ask({ prompt: before, max_tokens: 1, logprobs: MOST }, signal);
      const rows = Object.entries(logprobs?.top_logprobs?.[0] ?? {})
        .map(([token, logProb]) => ({ text: tokenText(token), share: Math.exp(logProb) }))
        .filter(({ text }) => text)
        .sort((a, b) => b.share - a.share)
        .slice(0, MOST);
      note.textContent = rows.length ? "" : say("no-others");
      if (!rows.length) return;
      const prompts = rows.map(({ text }) => before + text);
      const found = await ask({ prompt: prompts, max_tokens: PREVIEW }, signal);
      rows.forEach((row, n) => {
        const whole = row.text + found[n].text;
        row.word = row.text.trim() ? firstWord(whole) : row.text;
        row.head = row.word.trim() || (row.word.includes("\n") ? "↵" : "␠");
        row.rest = whole.slice(row.word.length).replace(/\s+/g, " ").trim();
        row.current = row.word === word.text || row.word.trim() === word.text;
      });
      const choices = makeChoices(rows, undefined, (row) => (sheet.close(), onTake(begun, row.word)));
      for (const row of rows) row.item.querySelector(".whole").textContent = row.rest && `… ${row.rest}`;
      list.replaceChildren(choices);
      list.querySelector("button").focus({ preventScroll: true });
    });
  }
  return { open, close: sheet.close, end: () => (sheet.close(), sheet.root.remove(), asking.end()) };
}
