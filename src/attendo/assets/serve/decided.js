// @ts-check
// The words that decided the label of a line: how much less probable the label is without each word.
import { clear, el, percent, roving } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { makeLatest } from "../shared/asking.js";
import { largest } from "../shared/bars.js";
import { makeKept, wordsFrom } from "./lines.js";

const WEAK = 0.01; // nats; if no word changes more, no word decides
const STRONGEST = 45; // percent of the color; with more, the text would have too little contrast
const effects = makeKept(200); // of every model: { source, left_out } by model and text

// The places of tokens in a text. A tokenizer may change the text, so tokens that are not found share the gap between
// their neighbors: [{ start, end, effect }…]
function placed(text, tokens, values) {
  const folded = text.toLowerCase();
  const fold = folded.length === text.length ? (word) => word.toLowerCase() : (word) => word; // else places would move
  let at = 0;
  const found = tokens.map((token) => {
    const word = fold(token.text).trim();
    const start = word ? fold(text).indexOf(word, at) : -1;
    if (start < 0) return null;
    at = start + word.length;
    return { start, end: at };
  });
  return found.map((place, n) => {
    const start = found.slice(0, n).findLast((one) => one)?.end ?? 0;
    const end = found.slice(n).find((one) => one)?.start ?? text.length;
    return { ...(place ?? { start, end }), effect: values[n] };
  });
}

function wordElement({ text, effect }, most, { label, probability }) {
  const share = Math.min(1, probability * Math.exp(-effect)); // effects are differences of logarithms
  const title = say("serve-decided-word", { word: text, label, percent: percent(share) });
  const part = Math.round((STRONGEST * Math.abs(effect)) / most);
  const backgroundColor = `color-mix(in srgb, var(${effect < 0 ? "--less" : "--more"}) ${part}%, transparent)`;
  return el("span", { class: "tinted", role: "note", title, "aria-label": title, style: { backgroundColor } }, text);
}

function draw(root, result, { source, left_out: values }) {
  const { text, label } = result;
  const words = (values ? wordsFrom(text, placed(text, source, values)) : [])
    .filter(({ isWord }) => isWord)
    .map((word) => ({ ...word, effect: word.tokens.reduce((sum, token) => sum + token.effect, 0) }));
  const most = largest(words.map(({ effect }) => effect));
  const line = el("p", { class: "tints", dir: "auto" });
  let at = 0;
  for (const word of most < WEAK ? [] : words) {
    line.append(text.slice(at, word.start), wordElement(word, most, result));
    at = word.end;
  }
  line.append(text.slice(at));
  roving(line, [...line.children]);
  const key = !values ? "serve-decided-long" : most < WEAK ? "serve-decided-none" : "serve-decided-legend";
  const note = el("p", { class: "note" }, say(key, { label }));
  // a finger can't wait for a tooltip
  for (const name of ["pointerover", "focusin"])
    line.addEventListener(name, ({ target }) => (note.textContent = target.title || say(key, { label })));
  clear(root).append(el("h2", { class: "small-caps" }, say("serve-decided")), line, note);
  root.setAttribute("aria-busy", "false");
}

export function makeDecided(app, model) {
  const latest = makeLatest(app.failed);
  const ask = (name, body, signal) => app.server.ask(`look/${encodeURIComponent(model.id)}/api/${name}`, body, signal);

  async function show(root, result, signal) {
    const name = JSON.stringify([model.id, result.text]);
    if (!effects.get(name)) {
      const { key, source } = await ask("look", { text: result.text }, signal);
      effects.set(name, { source, ...(await ask("tokens", { key }, signal)) });
    }
    draw(root, result, effects.get(name));
  }
  return {
    // An element that shows the words of { text, label, probability } as soon as they are known; it is empty if the
    // server has no microscope
    of(result) {
      const root = el("div", { class: "decided", "aria-busy": String(app.facts.look) });
      latest.stop();
      if (app.facts.look) latest.run((signal) => show(root, result, signal));
      return root;
    },
    end: () => latest.end(),
  };
}
