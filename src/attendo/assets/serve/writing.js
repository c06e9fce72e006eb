// @ts-check
// A translation in words that respond to the pointer and show their probability and their source words.
import { button, el, percent, roving } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { wordButton } from "./choices.js";

const SURE = 0.5; // words with a lower probability are marked
const HARDLY = 0.2; // words with a lower probability are marked more strongly

function confidence({ isWord, share }) {
  if (!isWord || share === null || share >= SURE) return "";
  return share < HARDLY ? "hardly" : "unsure";
}

// The description of a word for the tooltip and for screen readers
function described(word, source, chosen) {
  const told = [];
  if (chosen) told.push(say("own-choice"));
  else if (word.share !== null) told.push(say("sure-of", { word: word.text, percent: percent(word.share) }));
  const words = word.sources.map(([start, end]) => source.slice(start, end));
  if (words.length) told.push(say("of-source", { words: words.join(" … ") }));
  return told.join("; ");
}

// lines: [{ n, before, text, after, start, stale, shown: { candidate, words, chosen } | null }…], start: the
// line's index in the source. on.point(line or null, word), on.choose(line, word, element), on.others(line,
// element)
export function makeWriting(root, on) {
  let entries = []; // per line: { line, key, element, words: [{ word, element }…] }

  function wordElement(entry, word) {
    const { line } = entry;
    const chosen = line.shown.chosen.some(([start, end]) => start < word.end && word.start < end);
    const kinds = ["word", chosen ? "chosen" : confidence(word)].filter(Boolean).join(" ");
    const properties = { class: kinds, title: described(word, line.text, chosen) };
    const element = wordButton(word.text, properties, (made) => on.choose(entry.line, word, made));
    for (const name of ["pointerenter", "focus"]) element.addEventListener(name, () => on.point(entry.line, word));
    for (const name of ["pointerleave", "blur"]) element.addEventListener(name, () => on.point(null));
    entry.words.push({ word, element });
    return element;
  }

  function moreButton(entry) {
    const title = say("others-of-line", { n: entry.line.n + 1 });
    const more = button("⋯", () => on.others(entry.line, more), { class: "quiet more", title, "aria-label": title });
    return more;
  }

  function fill(entry, several) {
    const { before, after, shown, text, stale } = entry.line;
    const made = el("p", { class: stale ? "line stale" : "line", dir: "auto" }, before);
    let at = 0;
    for (const word of shown?.words ?? []) {
      made.append(shown.candidate.text.slice(at, word.start));
      made.append(word.isWord && !stale ? wordElement(entry, word) : word.text);
      at = word.end;
    }
    made.append(shown ? shown.candidate.text.slice(at) : "…", after);
    if (several && text && !stale) made.append(moreButton(entry));
    const stops = entry.words.map(({ element }) => element);
    return Object.assign(entry, { element: roving(made, stops) });
  }

  return {
    // An unchanged line keeps its element: in a long text, typing redraws one line
    show(lines) {
      const several = lines.filter((line) => line.text).length > 1;
      const old = entries;
      entries = lines.map((line, n) => {
        const { shown, stale, before, after, text } = line;
        const key = [shown?.candidate, shown?.chosen, stale, before, after, text, several];
        const same = old[n]?.key.every((value, i) => value === key[i]);
        return same ? Object.assign(old[n], { line }) : fill({ line, key, words: [] }, several);
      });
      entries.forEach(({ element }, n) => {
        const there = root.children[n];
        if (!there) root.append(element);
        else if (there !== element) there.replaceWith(element);
      });
      while (root.children.length > entries.length) root.lastChild.remove();
    },
    // Highlight the words that belong to an index of the source; null: no highlight
    lightFrom(place) {
      for (const { line, words } of entries)
        for (const { word, element } of words) {
          const inside = ([start, end]) => start <= place - line.start && place - line.start < end;
          element.classList.toggle("lit", place !== null && word.sources.some(inside));
        }
    },
    elementAt(n, place) {
      const words = entries[n]?.words ?? [];
      return (words.find(({ word }) => word.end > place) ?? words.at(-1))?.element;
    },
  };
}
