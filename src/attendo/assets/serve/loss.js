// @ts-check
// The bar that warns of words which the translation may lack.
import { button, clear, el } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { icon } from "./tools.js";

// The share of missing content words from which the bar warns. Of 120 right translations of the demo, none has more; of
// 24 that lost a sentence, 20 have.
const MANY = 1 / 4;
const sentences = new Intl.Segmenter(undefined, { granularity: "sentence" });

// onSegment(): the reader wants each sentence translated by itself
export function makeLossBar(onSegment) {
  const text = el("span", {});
  const split = button(say("serve-by-sentence"), onSegment, { class: "link end" });
  const root = el("div", { class: "loss", role: "status", hidden: true }, icon("warning"), text, split);

  // lines: see makeWriting. Returns the spans of the words in the whole text
  function show(lines, isSplit) {
    const lost = lines.filter(({ shown }) => {
      const { omission = "none", missing, all } = shown?.loss ?? { missing: [] };
      return omission !== "none" || (missing.length > 1 && missing.length >= MANY * all);
    });
    root.hidden = !lost.length;
    if (!lost.length) return [];
    const sum = (of) => lost.reduce((total, { shown }) => total + of(shown.loss), 0);
    const [n, all] = [sum(({ missing }) => missing.length), sum((loss) => loss.all)];
    const said = n ? say("serve-lost", { n, all }) : say(`omission-${lost[0].shown.loss.omission}`);
    if (text.textContent !== said) clear(text).append(said);
    // it helps only where the model read several sentences at once
    const isWhole = ({ text: line, shown }) => [...sentences.segment(line)].length > shown.loss.parts;
    split.hidden = isSplit || !lost.some(isWhole);
    return lost.flatMap(({ start, shown }) => shown.loss.missing.map((span) => span.map((at) => at + start)));
  }
  return { root, show };
}
