// @ts-check
// The texts of the pages, from one JSON file per language, which the document contains.

/** @type {Record<string, Record<string, string>> | null} */
let texts = null;
let current = "en";
let again = "again-command";

/** @param {string} name */
export function setLanguage(name) {
  current = name === "ja" ? "ja" : "en";
  document.documentElement.lang = current;
}

export function inJapanese() {
  return current === "ja";
}

// No command can load a model with custom modules: name the code that runs it again
/** @param {{ own_parts: boolean }} model */
export function setAgain({ own_parts: ownParts }) {
  if (ownParts) again = "again-python";
}

/** @returns {Record<string, string>} */
function words() {
  texts ??= JSON.parse(document.getElementById("words")?.textContent ?? "{}");
  return texts?.[current] ?? {};
}

/** @param {string} key */
function has(key) {
  return key in words();
}

/**
 * The text for a key. "{n}" in it is replaced by values.n, and {again} by the way to run the model again.
 * @param {string} key
 * @param {Record<string, string | number>} values
 * @returns {string}
 */
export function say(key, values = {}) {
  const text = words()[key];
  if (text === undefined) return key;
  return text.replace(/\{(\w+)\}/g, (whole, name) =>
    name === "again" ? words()[again] : name in values ? String(values[name]) : whole,
  );
}

// A text in which some values are elements: [text, element, text…]
/**
 * @param {string} key
 * @param {Record<string, string | number | Node>} values
 * @returns {(string | Node)[]}
 */
export function sayWith(key, values) {
  return say(key)
    .split(/\{(\w+)\}/)
    .map((part, n) => {
      const value = n % 2 ? (values[part] ?? part) : part;
      return value instanceof Node ? value : String(value);
    });
}

// The description of a module path: decoder.blocks.2.cross_attention -> "Cross-attention, layer 3"
/** @param {string} path */
export function pathName(path) {
  const layer = /(?:^|\.)blocks\.(\d+)(?:\.|$)/.exec(path);
  const side = /(?:^|\.)(encoder|decoder)\./.exec(path);
  const part = path.split(".").pop();
  const key = part === "cross_attention" ? "path-cross" : `path-${side ? side[1] : "model"}-${part}`;
  const name = has(key) ? say(key) : path;
  return layer && has(key) ? say("path-layer", { name, n: Number(layer[1]) + 1 }) : name;
}

// "Encoder self-attention, layer 2, head 3"; without a head, the whole layer
/** @param {string} path @param {number | null} [head] */
export function partName(path, head = null) {
  return head === null ? pathName(path) : say("part-name", { name: pathName(path), n: head + 1 });
}
