// The state of the page: plain values that are mirrored in the address, so a link restores the view.
import { afterPause } from "./dom.js";
import { say } from "./words.js";

// A value whose default is a text is in the address as plain text, and so is the β "inf". All other values are
// in the address as JSON.
const DEFAULTS = {
  text: "",
  target: "",
  search: "", // default: the model's own
  beam: 0, // default: the model's own
  max_tokens: 20,
  prefix: [],
  edits: [],
  layer: "",
  head: 0,
  query: null,
  key: null,
  locked: false,
  view: "steps",
  beta: 1,
  betaScope: "head",
  language: "",
  theme: "auto",
  measure: "entropy",
  shows: "weights",
  threshold: 0.05,
  hideEnds: false,
  root: "auto",
  lensStack: "",
  rolloutStack: "",
  position: null,
  tree: false, // whether it was requested
  treeBeam: null, // default: the model's own
  why: "",
  positionsSide: "",
  positionsLike: "",
  frame: null,
};

const CHOICES = {
  search: ["", "greedy", "beam", "forced"],
  betaScope: ["head", "layer", "all"],
  language: ["", "en", "ja"],
  theme: ["auto", "light", "dark"],
  shows: ["weights", "weighted", "scores"],
  root: ["auto", "linear", "root"],
  positionsSide: ["", "source", "target"],
  positionsLike: ["", "dots", "cosine"],
};
const COUNTS = ["head", "query", "key", "position", "frame"];
const HARD = ["inf", "infinity", "∞", "hard"]; // the texts for infinite β, as in the command (cli/look.py)
const RANGES = { beam: [0, 16], max_tokens: [0, 1024], treeBeam: [1, 16] };
// Values whose changes are entries in the history of the browser
const ENTRIES = "text target search beam max_tokens prefix edits layer head view".split(" ");
const ADDRESS_PAUSE = 200; // ms

function addressOf(values) {
  const out = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value === undefined || JSON.stringify(value) === JSON.stringify(DEFAULTS[name])) continue;
    out.set(name, typeof value === "string" ? value : JSON.stringify(value));
  }
  return out.toString();
}

// The values of an address without invalid values. unfit: name → a description of valid values
function valuesIn(hash) {
  const [values, named, unfit] = [{ ...DEFAULTS }, new Set(), new Map()];
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    const value = typeof DEFAULTS[name] === "string" ? text : parsed(name, text);
    named.add(name);
    if (Object.hasOwn(DEFAULTS, name) && fits(name, value)) values[name] = value;
    else unfit.set(name, () => fitting(name));
  }
  return { values, named, unfit };
}

function parsed(name, text) {
  if (name === "beta" && HARD.includes(text.replace(/^"(.*)"$/, "$1").toLowerCase())) return "inf";
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function fits(name, value) {
  const whole = (number, least, most) => Number.isInteger(number) && number >= least && number <= most;
  if (value === undefined) return false;
  if (value === DEFAULTS[name]) return true;
  if (Object.hasOwn(CHOICES, name)) return CHOICES[name].includes(value);
  if (Object.hasOwn(RANGES, name)) return whole(value, ...RANGES[name]);
  if (COUNTS.includes(name)) return whole(value, 0, Infinity);
  if (name === "beta") return value === "inf" || (typeof value === "number" && value >= 0);
  if (name === "prefix") return Array.isArray(value) && value.every((id) => whole(id, 0, Infinity));
  if (name === "edits") return Array.isArray(value);
  return typeof value === typeof DEFAULTS[name];
}

function fitting(name) {
  if (Object.hasOwn(CHOICES, name)) return CHOICES[name].filter(Boolean).join(", ");
  if (Object.hasOwn(RANGES, name)) return RANGES[name].join("–");
  if (COUNTS.includes(name)) return say("fits-count");
  if (name === "beta") return say("fits-beta");
  if (typeof DEFAULTS[name] === "boolean") return "true, false";
  return say(Object.hasOwn(DEFAULTS, name) ? "fits-json" : "fits-nothing");
}

export function makeState() {
  let correct = () => ({}); // values of an address → replacements of some values
  let { values, named, unfit } = valuesIn(location.hash);
  let entry = false; // whether the next address gets an entry in the history
  const listeners = [];
  const write = afterPause(() => {
    if (location.protocol === "about:") return; // a page inside a notebook has no address
    const hash = addressOf(values);
    const way = entry ? "pushState" : "replaceState";
    entry = false;
    if (`#${hash}` === location.hash) return;
    try {
      history[way](null, "", hash ? `#${hash}` : location.pathname + location.search);
    } catch {
      // a browser may reject an address that is very long or changes very often; the page continues without it
    }
  }, ADDRESS_PAUSE);

  function changedTo(next, byReader) {
    const names = new Set([...Object.keys(values), ...Object.keys(next)]);
    const changed = [...names].filter((name) => JSON.stringify(values[name]) !== JSON.stringify(next[name]));
    values = next;
    if (!changed.length) return;
    entry ||= byReader && changed.some((name) => ENTRIES.includes(name));
    write();
    for (const listener of [...listeners]) {
      const { wanted, fn } = listener;
      // a listener may have removed other listeners, because a change of the language builds the page again
      if (listeners.includes(listener) && wanted.some((name) => changed.includes(name))) fn(changed);
    }
  }

  // Replace invalid values; if they are from the address, report them
  function amended(read, instead) {
    for (const name of Object.keys(instead))
      if (named.has(name) && !unfit.has(name)) unfit.set(name, () => say("fits-elsewhere"));
    return { ...read, ...instead };
  }

  // the reader typed or pasted an address, or went back in the history
  window.addEventListener("hashchange", () => {
    const read = valuesIn(location.hash);
    ({ named, unfit } = read);
    entry = false;
    const next = { ...read.values, language: read.values.language || values.language };
    changedTo(amended(next, correct(next)), false);
  });
  return {
    get: (name) => values[name],
    // a change by the reader, with an entry in the history; and a change by the page
    set: (some) => changedTo({ ...values, ...some }, true),
    settle: (some) => changedTo({ ...values, ...some }, false),
    // fn(changed names) is called after a change of one of `names` (a name or several)
    on: (names, fn) => void listeners.push({ wanted: [names].flat(), fn }),
    silence: () => void listeners.splice(0),
    amend: (instead) => changedTo(amended(values, instead), false),
    // fn(values): the replacements of some values of this address and of later addresses
    correctBy: (fn) => {
      correct = fn;
      changedTo(amended(values, fn(values)), false);
    },
    says: (name) => named.has(name), // whether the address sets it, until the first result
    // invalid values of the address and the reasons, reported once
    takeUnfit: () => {
      const told = [...unfit].map(([name, why]) => say("fits", { name, what: why() }));
      [named, unfit] = [new Set(), new Map()];
      return told;
    },
  };
}
