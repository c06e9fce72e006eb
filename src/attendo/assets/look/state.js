// @ts-check
// The rules of the microscope's state: the defaults and the valid values of an address.
import { makeState } from "../shared/address.js";
import { say } from "../shared/words.js";

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
  view: "", // default: the first
  part: "predictions", // of the view "layers"
  picture: "both",
  beta: 1,
  betaScope: "head",
  language: "",
  theme: "auto",
  measure: "effect",
  shows: "weights",
  hideEnds: false,
  root: "auto",
  lensStack: "",
  influence: "rollout",
  influenceStack: "",
  otherText: "",
  position: null,
  tree: false, // whether it was requested
  treeBeam: null, // default: the model's own
  why: "",
  positionsSide: "",
  positionsLike: "",
  numbers: false, // whether the arithmetic shows all its numbers
  frame: null,
};
const CHOICES = {
  view: ["", "label", "attention", "arithmetic", "layers", "search", "off", "training"],
  search: ["", "greedy", "beam", "forced"],
  part: ["predictions", "influence", "attribution", "probes", "positions"],
  influence: ["rollout", "gradients", "patching"],
  picture: ["both", "ribbons", "matrix"],
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
const ENTRIES = "text target search beam max_tokens prefix edits layer head view".split(" ");

// β is "inf" in every spelling of the command
function read(name, text) {
  if (name === "beta" && HARD.includes(text.replace(/^"(.*)"$/, "$1").toLowerCase())) return "inf";
  return undefined;
}

function fits(name, value) {
  const whole = (number, least, most) => Number.isInteger(number) && number >= least && number <= most;
  if (Object.hasOwn(CHOICES, name)) return CHOICES[name].includes(value);
  if (Object.hasOwn(RANGES, name)) return whole(value, ...RANGES[name]);
  if (COUNTS.includes(name)) return whole(value, 0, Infinity);
  if (name === "beta") return value === "inf" || (typeof value === "number" && value >= 0);
  if (name === "prefix") return Array.isArray(value) && value.every((id) => whole(id, 0, Infinity));
  if (name === "edits") return Array.isArray(value);
  return typeof value === typeof DEFAULTS[name];
}

// What is valid for a name, for a message; elsewhere: the value is valid, but not for this model or result
export function fitting(name, elsewhere) {
  if (!Object.hasOwn(DEFAULTS, name)) return say("fits-nothing");
  if (elsewhere) return say("fits-elsewhere");
  if (Object.hasOwn(CHOICES, name)) return CHOICES[name].filter(Boolean).join(", ");
  if (Object.hasOwn(RANGES, name)) return RANGES[name].join("–");
  if (COUNTS.includes(name)) return say("fits-count");
  if (name === "beta") return say("fits-beta");
  return typeof DEFAULTS[name] === "boolean" ? "true, false" : say("fits-json");
}

export function makeLookState() {
  return makeState({ defaults: DEFAULTS, entries: ENTRIES, read, fits });
}
