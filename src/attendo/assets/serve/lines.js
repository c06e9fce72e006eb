// @ts-check
// Texts in lines and words. Lines are asked for one by one and cached, so typing only requests the changed line.
import { segments } from "../shared/diff.js";

// [{ before, text, after }…]: requests do not contain the whitespace around the text of a line
export function linesOf(text) {
  return text.split(/\r\n|\n|\r/).map((line) => {
    const inner = line.trim();
    const at = inner ? line.indexOf(inner) : line.length;
    return { before: line.slice(0, at), text: inner, after: line.slice(at + inner.length) };
  });
}

const CHUNK = 1500; // characters per request, so a long text appears piece by piece

export function* inChunks(texts, most) {
  let [chunk, size] = [[], 0];
  for (const text of texts) {
    if (chunk.length && (size + text.length > CHUNK || chunk.length >= most)) {
      yield chunk;
      [chunk, size] = [[], 0];
    }
    chunk.push(text);
    size += text.length;
  }
  if (chunk.length) yield chunk;
}

// The latest `most` answers, by request
export function makeKept(most) {
  const kept = new Map();
  return {
    get: (key) => {
      const value = kept.get(key);
      if (kept.delete(key)) kept.set(key, value); // now it is the latest
      return value;
    },
    set: (key, value) => {
      kept.set(key, value);
      if (kept.size > most) kept.delete(kept.keys().next().value);
    },
  };
}

// The server counts characters, a browser counts UTF-16 units: place[character] is the browser's index
function placesOf(text) {
  let at = 0;
  const places = Array.from(text, (character) => (at += character.length) - character.length);
  return [...places, at];
}

/**
 * A text in words, [{ start, end, isWord, text, tokens }…]. A word ends where the language and the tokens end.
 * @param {string} text
 * @param {{ start: number, end: number }[]} tokens
 * @param {string | null} [language]
 */
export function wordsFrom(text, tokens, language) {
  const words = [];
  let first = 0; // of the tokens that can be in the next word
  for (const { start, end, isWord } of segments(text, language)) {
    if (!text.slice(start, end).trim()) continue;
    while (first < tokens.length && tokens[first].end <= start) first++;
    let last = first;
    while (last < tokens.length && tokens[last].start < end) last++;
    const inside = tokens.slice(first, last).filter((token) => token.end > start);
    const before = words.at(-1);
    if (before && inside.some((token) => before.tokens.includes(token))) {
      before.end = end;
      before.isWord ||= isWord;
      before.tokens.push(...inside.filter((token) => !before.tokens.includes(token)));
    } else words.push({ start, end, isWord, tokens: inside });
  }
  return words.map((word) => ({ ...word, text: text.slice(word.start, word.end) }));
}

// The probability of all tokens of a word, or null if it is unknown
export function shareOf(tokens) {
  const known = tokens.length > 0 && tokens.every(({ logProb }) => logProb !== null);
  return known ? Math.exp(tokens.reduce((sum, { logProb }) => sum + logProb, 0)) : null;
}

// Spans, extended to whole words
function wholeWords(text, spans, language) {
  const inside = (word) => spans.some(([start, end]) => start < word.end && word.start < end);
  const found = segments(text, language).filter(inside);
  return found.filter((word) => word.isWord || found.length === 1).map((word) => [word.start, word.end]);
}

const cutWords = new WeakMap(); // candidate → its words

// The words of a translation; share: see shareOf; sources: words of the source, as the browser counts; tokens: numbers
export function wordsOf(candidate, source, languages) {
  if (!cutWords.has(candidate)) cutWords.set(candidate, inWords(candidate, source, languages));
  return cutWords.get(candidate);
}

function inWords(candidate, source, languages) {
  const [own, theirs] = [placesOf(candidate.text), placesOf(source)];
  const tokens = candidate.tokens.map(({ span: [start, end], log_prob: logProb }, index) => {
    return { index, start: own[start], end: own[end], logProb };
  });
  return wordsFrom(candidate.text, tokens, languages.target).map((word) => {
    const spans = candidate.alignment
      .filter((link) => word.tokens.some((token) => token.index === link.target))
      .map((link) => link.source_span.map((at) => theirs[at]))
      .filter(([start, end]) => end > start);
    const sources = wholeWords(source, spans, languages.source);
    return { ...word, tokens: word.tokens.map(({ index }) => index), share: shareOf(word.tokens), sources };
  });
}

// Other beginnings at a word, most probable first: [{ prefix, share }…]. A word of several tokens can differ at
// each token.
export function othersAt(candidate, word, most) {
  const found = new Map();
  let before = 0; // log-probability of the word's tokens so far
  for (const index of word.tokens) {
    const token = candidate.tokens[index];
    for (const { prefix, log_prob: logProb } of token.alternatives ?? []) {
      const share = Math.exp(before + logProb);
      if (prefix !== null && !(found.get(prefix) >= share)) found.set(prefix, share);
    }
    before += token.log_prob ?? 0;
  }
  const rows = [...found].map(([prefix, share]) => ({ prefix, share, head: "" }));
  return rows.sort((a, b) => b.share - a.share).slice(0, most);
}

// Short words and these are rarely translated by a word of their own
const FUNCTION_WORDS = `about after also been before being between could does during from have into just might more most
  much must only over should some such than that their them then there these they this those through very were what when
  where which while will with would your`.split(/\s+/);
const IDEOGRAM = /[\p{Script=Han}\p{Script=Katakana}]/u; // words in hiragana alone are mostly particles

function isContent(word) {
  if (/\p{Script=Hiragana}/u.test(word) || IDEOGRAM.test(word)) return IDEOGRAM.test(word);
  return word.length >= 4 && !FUNCTION_WORDS.includes(word.toLowerCase());
}

// The words of a source that carry content, and those of them that no word of the translation is from. A word after a
// linked word counts as translated: of "17 degrees" or "heavy rain", the model often attends only to the first word.
export function lossOf(source, words, language) {
  const linked = words.flatMap((word) => word.sources);
  const isLinked = (word) => linked.some(([start, end]) => start < word.end && word.start < end);
  const every = segments(source, language).filter(({ isWord }) => isWord);
  const content = every.map(({ start, end }) => isContent(source.slice(start, end)));
  const missing = every.filter((word, n) => content[n] && !isLinked(word) && !(n && isLinked(every[n - 1])));
  const spans = missing.map(({ start, end }) => [start, end]);
  return { all: content.filter(Boolean).length, missing: linked.length ? spans : [] };
}
