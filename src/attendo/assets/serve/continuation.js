// The text of a model as pieces with probabilities: drawn right behind the reader's text, or as a card.
import { clear, el, percent, roving } from "../shared/dom.js";
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

// The pieces without the first n characters
export function without(pieces, n) {
  const left = [];
  let at = 0;
  for (const piece of pieces) {
    const cut = Math.max(0, n - at);
    at += piece.text.length;
    if (cut < piece.text.length) left.push(cut ? { ...piece, text: piece.text.slice(cut) } : piece);
  }
  return left;
}

// The pieces of the first n characters
export function upTo(pieces, n) {
  const left = [];
  let at = 0;
  for (const piece of pieces) {
    if (at >= n) break;
    left.push(at + piece.text.length > n ? { ...piece, text: piece.text.slice(0, n - at) } : piece);
    at += piece.text.length;
  }
  return left;
}

function levelOf(share) {
  return share === null ? 0 : LEVELS.filter((level) => share < level).length;
}

/**
 * Draws pieces as words. onWord(word, element): the reader wants others; without it, the words are plain
 * @param {HTMLElement} root
 * @param {Piece[]} pieces
 */
export function drawWords(root, pieces, onWord = null) {
  const text = textOf(pieces);
  let end = 0;
  const tokens = pieces.map((piece) => ({ ...piece, start: end, end: (end += piece.text.length) }));
  clear(root);
  let at = 0;
  for (const word of wordsFrom(text, tokens)) {
    const share = shareOf(word.tokens);
    const chosen = word.tokens.some((token) => token.chosen);
    const kind = `word level-${chosen || !word.isWord ? 0 : levelOf(share)}${chosen ? " chosen" : ""}`;
    root.append(text.slice(at, word.start));
    const title = chosen
      ? say("own-choice")
      : share === null
        ? ""
        : say("serve-probability", { word: word.text, percent: percent(share) });
    if (onWord) root.append(wordButton(word.text, { class: kind, title }, (made) => onWord(word, made)));
    else root.append(el("span", { class: kind }, word.text));
    at = word.end;
  }
  root.append(text.slice(at));
  if (onWord) roving(root, [...root.children]);
}
