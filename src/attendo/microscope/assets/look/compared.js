// The comparison of two texts, word by word.
import { el } from "./dom.js";

const MOST_WORDS = 1200; // maximum number of compared words per text

// Both texts split into words, each with whether it is in the longest common subsequence. The text after the
// first MOST_WORDS words is one part that is not compared.
export function comparedWords(before, after, locale) {
  const cut = (text) =>
    [...new Intl.Segmenter(locale, { granularity: "word" }).segment(text)].map((part) => part.segment);
  const [whole, other] = [cut(before), cut(after)];
  const [left, right] = [whole.slice(0, MOST_WORDS), other.slice(0, MOST_WORDS)];
  const width = right.length + 1;
  const common = new Uint16Array((left.length + 1) * width);
  for (let i = left.length - 1; i >= 0; i--) {
    for (let j = right.length - 1; j >= 0; j--) {
      const [skipped, both] = [
        Math.max(common[(i + 1) * width + j], common[i * width + j + 1]),
        common[(i + 1) * width + j + 1] + 1,
      ];
      common[i * width + j] = left[i] === right[j] ? both : skipped;
    }
  }
  const [old, now] = [
    left.map((text) => ({ text, same: false })),
    right.map((text) => ({ text, same: false })),
  ];
  for (let i = 0, j = 0; i < left.length && j < right.length;) {
    if (left[i] === right[j]) old[i++].same = now[j++].same = true;
    else if (common[(i + 1) * width + j] >= common[i * width + j + 1]) i++;
    else j++;
  }
  for (const [words, all] of [
    [old, whole],
    [now, other],
  ]) {
    const rest = all.slice(words.length).join("");
    if (rest) words.push({ text: rest, same: true });
  }
  return [old, now];
}

// A text in which words that the other text lacks are marked; name: "del", "ins" or "mark"
export function markedText(words, name) {
  return el(
    "p",
    { class: "output-text", dir: "auto" },
    words.map(({ text, same }) => (same || !text.trim() ? text : el(name, {}, text))),
  );
}
