// The words that decided the label of a line: how much less probable the label is without each word.
import { clear, el, percent, roving } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { makeLatest } from "../shared/asking.js";
import { largest } from "../shared/bars.js";
import { makeKept, wordsFrom } from "./lines.js";

const WEAK = 0.01; // nats; if no word changes more, no word decides
const known = makeKept(200); // of every model: { source, left_out } by model and text

// The places of tokens in a text. A tokenizer may change the text, so tokens that are not found share the gap between
// their neighbors: [{ start, end, effect }…]
function placed(text, pieces, effects) {
  const folded = text.toLowerCase();
  const isSame = folded.length === text.length; // otherwise, places would not be those of the text
  const found = [];
  let at = 0;
  pieces.forEach(({ text: piece }, n) => {
    const word = (isSame ? piece.toLowerCase() : piece).trim();
    const start = word ? (isSame ? folded : text).indexOf(word, at) : -1;
    if (start >= 0) at = start + word.length;
    found.push(start < 0 ? { effect: effects[n] } : { start, end: at, effect: effects[n] });
  });
  return found.map(({ start, end, effect }, n) => {
    const before = found.slice(0, n).findLast((one) => one.end !== undefined)?.end ?? 0;
    const after = found.slice(n).find((one) => one.start !== undefined)?.start ?? text.length;
    return { start: start ?? before, end: end ?? after, effect };
  });
}

export function makeDecided(app, model) {
  const latest = makeLatest(app.failed);
  const path = (name) => `look/${encodeURIComponent(model.id)}/api/${name}`;

  async function effectsOf(text, signal) {
    const name = JSON.stringify([model.id, text]);
    if (!known.get(name)) {
      const { key, source } = await app.server.ask(path("look"), { text }, signal);
      const { left_out: effects } = await app.server.ask(path("tokens"), { key }, signal);
      known.set(name, { source, effects });
    }
    return known.get(name);
  }

  function wordElement(word, most, { label, probability }) {
    const effect = word.tokens.reduce((sum, token) => sum + token.effect, 0);
    const without = percent(Math.min(1, probability * Math.exp(-effect))); // the effects are logarithms
    const title = say("serve-decided-word", { word: word.text, label, percent: without });
    const strength = Math.round((45 * Math.abs(effect)) / most);
    const color = `color-mix(in srgb, var(${effect < 0 ? "--less" : "--more"}) ${strength}%, transparent)`;
    const properties = { class: "tinted", role: "note", title, "aria-label": title };
    return el("span", { ...properties, style: { backgroundColor: color } }, word.text);
  }

  function show(root, text, result, { source, effects }) {
    const tokens = effects && placed(text, source, effects);
    const words = tokens && wordsFrom(text, tokens).filter(({ isWord }) => isWord);
    const most = words ? largest(words.map((word) => word.tokens.reduce((sum, { effect }) => sum + effect, 0))) : 0;
    const note = !words ? "serve-decided-long" : most < WEAK ? "serve-decided-none" : "serve-decided-legend";
    const line = el("p", { class: "tints", dir: "auto" });
    let at = 0;
    for (const word of most < WEAK ? [] : words) {
      line.append(text.slice(at, word.start), wordElement(word, most, result));
      at = word.end;
    }
    line.append(words ? text.slice(at) : "");
    roving(line, [...line.children]);
    const legend = el("p", { class: "note" }, say(note, { label: result.label }));
    clear(root).append(el("h3", { class: "small-caps" }, say("serve-decided")), line, legend);
    root.setAttribute("aria-busy", "false");
  }

  return {
    // An element that shows the words of a text as soon as they are known; empty without the microscope
    of(text, result) {
      const root = el("div", { class: "decided" });
      latest.stop();
      if (!app.facts.look) return root;
      root.setAttribute("aria-busy", "true");
      latest.run(async (signal) => show(root, text, result, await effectsOf(text, signal)));
      return root;
    },
    end: () => latest.end(),
  };
}
