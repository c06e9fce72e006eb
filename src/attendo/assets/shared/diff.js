// @ts-check
// The comparison of two texts, word by word.
import { el } from "./dom.js";

const MOST_WORDS = 1200; // maximum number of compared words per text
const JOINS = /^[-‐‑'’]$/; // T-Shirt and l'eau are words
const segmenters = new Map(); // by language

function segmenterOf(language) {
  if (!segmenters.has(language)) {
    const known = language && language !== "und" ? language : undefined;
    let made;
    try {
      made = new Intl.Segmenter(known, { granularity: "word" });
    } catch {
      made = new Intl.Segmenter(undefined, { granularity: "word" }); // not a language code
    }
    segmenters.set(language, made);
  }
  return segmenters.get(language);
}

// A text in words and the text between them: [{ start, end, isWord }…]
export function segments(text, language) {
  const parts = [...segmenterOf(language).segment(text)];
  const found = [];
  parts.forEach(({ index, segment, isWordLike }, n) => {
    const last = found.at(-1);
    const joins = last?.isWord && JOINS.test(segment) && parts[n + 1]?.isWordLike;
    if (joins || last?.joins) Object.assign(last, { end: index + segment.length, joins });
    else found.push({ start: index, end: index + segment.length, isWord: isWordLike, joins: false });
  });
  return found;
}

// Both texts in parts [{ text, same }…], same: whether the part is in the longest common subsequence of words. The
// text after the first MOST_WORDS words is one part that is not compared.
export function compared(before, after, language) {
  const cut = (text) => segments(text, language).map(({ start, end }) => text.slice(start, end));
  const [whole, other] = [cut(before), cut(after)];
  const [left, right] = [whole.slice(0, MOST_WORDS), other.slice(0, MOST_WORDS)];
  const width = right.length + 1;
  const common = new Uint16Array((left.length + 1) * width);
  for (let i = left.length - 1; i >= 0; i--) {
    for (let j = right.length - 1; j >= 0; j--) {
      const skipped = Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
      common[i * width + j] = left[i] === right[j] ? common[(i + 1) * width + j + 1] + 1 : skipped;
    }
  }
  const [old, now] = [left, right].map((words) => words.map((text) => ({ text, same: false })));
  for (let i = 0, j = 0; i < left.length && j < right.length;) {
    if (left[i] === right[j]) old[i++].same = now[j++].same = true;
    else if (common[(i + 1) * width + j] >= common[i * width + j + 1]) i++;
    else j++;
  }
  old.push({ text: whole.slice(left.length).join(""), same: true });
  now.push({ text: other.slice(right.length).join(""), same: true });
  return [old, now];
}

// A text of a comparison in one line: its name, its parts, and a note
export function comparedLine(name, parts, note = null) {
  const text = el("p", { class: "output-text", dir: "auto" }, ...parts);
  return el("div", { class: "change" }, el("span", { class: "note" }, name), text, note);
}

// Parts as text and elements, in which parts that the other text lacks are in an element `name`
export function marked(parts, name, className = "") {
  return parts
    .filter(({ text }) => text)
    .map(({ text, same }) => (same || !text.trim() ? text : el(name, className ? { class: className } : {}, text)));
}
