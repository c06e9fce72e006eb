// @ts-check
// The small parts that every view has: names, icons, and the controls around a text.
import { button, el, svgEl } from "../shared/dom.js";
import { inJapanese, say } from "../shared/words.js";
import { copyText } from "../shared/files.js";

const ICONS = {
  copy: "M6 6V2.5h7.5V10H10M2.5 6H10v7.5H2.5z",
  done: "M3 8.5l3.5 3.5L13 4.5",
  swap: "M2 5.5h11M10 2.5l3 3-3 3M14 10.5H3M6 7.5l-3 3 3 3",
  warning: "M8 2L14.5 13.5H1.5zM8 6.5v3.5M8 11.5v.5",
};

/** @param {keyof typeof ICONS} name */
export function icon(name) {
  const path = svgEl("path", { d: ICONS[name] });
  return svgEl("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, path);
}

// The name of a language code in the language of the page, or "" for an unknown language
export function languageName(code) {
  if (!code || code === "und") return "";
  try {
    return new Intl.DisplayNames([inJapanese() ? "ja" : "en"], { type: "language" }).of(code);
  } catch {
    return code; // not a language code, but a custom name
  }
}

// The name of a model in the menu of models
export function modelName({ id, source, target }) {
  const [from, to] = [languageName(source), languageName(target)];
  return from && to ? `${from} → ${to} (${id})` : id;
}

// A button that copies text() and says so
export function copyButton(app, text, label = say("copy"), properties = {}) {
  const made = button("", copy, { class: "quiet copy", ...properties });
  const name = (key, words) => made.replaceChildren(icon(key), el("span", {}, words));
  async function copy() {
    if (!(await copyText(text()))) return app.failed(new Error(say("not-copied")));
    name("done", say("serve-copied"));
    app.announce(say("copied"));
    setTimeout(() => name("copy", label), 1500);
  }
  name("copy", label);
  return made;
}

// The number of characters and the button that clears the text. update() follows the text
export function makeCounter(app, reading, onText) {
  const count = el("span", { class: "number" });
  const clearing = button(["× ", el("span", {}, say("clear"))], () => replace(""), { id: "clear", class: "quiet" });
  function replace(text) {
    reading.text = text;
    reading.box.focus();
    onText(text);
  }
  function update() {
    const [n, most] = [reading.text.length, app.facts.characters];
    const values = { n: n.toLocaleString(), most: most.toLocaleString() };
    const key = 2 * n > most ? "characters" : n === 1 ? "serve-character" : "serve-characters";
    count.textContent = n ? say(key, values) : "";
    clearing.hidden = !n;
  }
  return { count, clearing, replace, update };
}

// link.lookAt(text, target): the microscope opens with this text; target: the output to show, or null
export function lookLink(app, model) {
  const tab = { target: "_blank", rel: "opener" }; // the new tab gets the key
  const named = { class: "button quiet look", title: say("microscope-title") };
  const link = el("a", { ...named, ...tab }, `${say("microscope")} →`);
  link.lookAt = (text, target = null) => {
    const asked = new URLSearchParams({ text, language: inJapanese() ? "ja" : "en" });
    if (target !== null) (asked.set("search", "forced"), asked.set("target", target));
    link.href = `look/${encodeURIComponent(model.id)}/#${asked}`;
    link.hidden = !app.facts.look;
  };
  link.hidden = true;
  return link;
}

// Below the card: texts to try while there is no text, disclosures, and where the model runs. update(isEmpty)
export function makeUnder(model, onTry, ...parts) {
  const examples = model.examples ?? [];
  const chips = examples.map((text) => button(text, () => onTry(text), { class: "pill", dir: "auto" }));
  const tries = el("div", { class: "tries bar note" }, el("span", {}, say("serve-try")), ...chips);
  const { hostname } = location;
  const local = /^(localhost|127\..*|\[::1\])$/.test(hostname);
  const where = say(local ? "serve-here" : "serve-there", { name: model.id, host: hostname });
  return {
    root: [tries, el("div", { class: "extras" }, ...parts, el("span", { class: "note end" }, where))],
    update: (isEmpty) => (tries.hidden = !isEmpty || !examples.length),
  };
}
