// @ts-check
// Other words in a continuation: the likeliest tokens at a place, each completed to a word by the model.
import { byteOf, el } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { segments } from "../shared/diff.js";
import { makeAskingSheet, makeChoices } from "./choices.js";
import { textOf } from "./continuation.js";

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
  return text.slice(0, segments(text).find(({ start, end }) => text.slice(start, end).trim())?.end);
}

// onTake(pieces before the word, the new word)
export function makeNextWords(app, model, onTake) {
  const { asking, sheet, end } = makeAskingSheet(app);
  const fixed = { model: model.id, temperature: 0 };
  const ask = async (body, signal) => (await app.server.ask("v1/completions", { ...fixed, ...body }, signal)).choices;

  // The rows of the choices; before: the text up to the word
  async function found(before, word, signal) {
    const [{ logprobs }] = await ask({ prompt: before, max_tokens: 1, logprobs: MOST }, signal);
    const rows = Object.entries(logprobs?.top_logprobs?.[0] ?? {})
      .map(([token, logProb]) => ({ text: tokenText(token), share: Math.exp(logProb) }))
      .filter(({ text }) => text)
      .sort((a, b) => b.share - a.share)
      .slice(0, MOST);
    if (!rows.length) return [];
    const longer = await ask({ prompt: rows.map(({ text }) => before + text), max_tokens: PREVIEW }, signal);
    return rows.map(({ text, share }, n) => {
      const whole = text + longer[n].text;
      const own = text.trim() ? firstWord(whole) : text;
      const joins = /\p{L}$/u.test(before) && /^\p{L}/u.test(own) ? "…" : ""; // it continues the word before
      const head = joins + (own.trim() || (own.includes("\n") ? "↵" : "␠"));
      const rest = whole.slice(own.length).replace(/\s+/g, " ").trim();
      return { share, own, head, rest, current: own.trim() === word.text, item: null };
    });
  }

  // keep(n): the pieces of the first n characters of the continuation
  function open(prompt, keep, word, element) {
    const begun = keep(word.tokens[0].start); // with the space before the word
    const list = el("div", {});
    const note = el("p", { class: "note", role: "status" }, say("looking-for-others"));
    sheet.open(element, say("other-words", { word: word.text }), list, note);
    asking.run(async (signal) => {
      const rows = await found(prompt + textOf(begun), word, signal);
      note.textContent = rows.length ? "" : say("no-others");
      if (!rows.length) return;
      list.append(makeChoices(rows, undefined, ({ own }) => (sheet.close(), onTake(begun, own))));
      for (const { item, rest } of rows) item.querySelector(".whole").textContent = rest && `… ${rest}`;
      list.querySelector("button").focus({ preventScroll: true });
    });
  }
  return { open, close: sheet.close, end };
}
