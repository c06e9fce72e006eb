// @ts-check
// The text of a model as pieces with probabilities, and how it is drawn: after the reader's text, and as cards.
import { button, clear, el, percent, roving } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { shareOf, wordsFrom } from "./lines.js";
import { wordButton } from "./choices.js";

const LEVELS = [0.2, 0.04, 0.008]; // below each of these probabilities, a word is tinted more strongly

/** @typedef {{ text: string, logProb: number | null, chosen?: boolean }} Piece */

/** @param {Piece[]} pieces */
export function textOf(pieces) {
  return pieces.map(({ text }) => text).join("");
}

// The piece of an event of a stream
export function pieceOf({ text, logprobs }) {
  const values = logprobs?.token_logprobs ?? [];
  return { text, logProb: values.length ? values.reduce((sum, value) => sum + value, 0) : null };
}

// The pieces of some characters
export function cutPieces(pieces, from, to = Infinity) {
  let at = 0;
  return pieces.flatMap((piece) => {
    const start = at;
    at += piece.text.length;
    const text = piece.text.slice(Math.max(0, from - start), Math.max(0, to - start));
    return text ? { ...piece, text } : [];
  });
}

/**
 * Draws pieces as words. onWord(word, element): the reader wants others; without it, the words are plain.
 * @param {HTMLElement} root
 * @param {Piece[]} pieces
 */
export function drawWords(root, pieces, onWord = null) {
  const text = textOf(pieces);
  let [end, at] = [0, 0];
  const tokens = pieces.map((piece) => ({ ...piece, start: end, end: (end += piece.text.length) }));
  clear(root);
  for (const word of wordsFrom(text, tokens)) {
    const share = shareOf(word.tokens);
    const chosen = word.tokens.some((token) => token.chosen);
    const level = chosen || !word.isWord || share === null ? 0 : LEVELS.filter((most) => share < most).length;
    const kind = `word level-${level}${chosen ? " chosen" : ""}`;
    const known = share === null ? "" : say("serve-probability", { word: word.text, percent: percent(share) });
    const properties = { class: kind, title: chosen ? say("own-choice") : known };
    const open = (made) => onWord(word, made);
    root.append(text.slice(at, word.start));
    root.append(onWord ? wordButton(word.text, properties, open) : el("span", { class: kind }, word.text));
    at = word.end;
  }
  root.append(text.slice(at));
  if (onWord) roving(root, [...root.children]);
}

// Several variants as cards; onChoose(n)
export function makeCards(onChoose) {
  const list = el("ul", { class: "cards" });
  let texts = [];
  return {
    root: el("section", { class: "also", "aria-label": say("serve-three") }, list),
    add: (n, piece) => texts[n]?.append(piece.text),
    show({ texts: all, shown }) {
      list.parentNode.hidden = all.length < 2;
      texts = all.map(() => el("bdi", { class: "whole", dir: "auto" }));
      texts.forEach((text, n) => drawWords(text, cutPieces(all[n], textOf(all[n]).search(/\S|$/))));
      const focused = [...list.children].findIndex((item) => item.contains(document.activeElement));
      const items = texts.map((text, n) => {
        const named = { "aria-label": say("serve-variant", { n: n + 1 }), "aria-pressed": String(n === shown) };
        return el("li", {}, button(text, () => onChoose(n), named));
      });
      clear(list).append(...items);
      items[focused]?.firstChild.focus();
    },
  };
}
