// @ts-check
// The state of a page: plain values that are mirrored in the address after the "#", which browsers never send to a
// server. A link restores the view.
import { afterPause } from "./dom.js";

const ADDRESS_PAUSE = 200; // ms

/*
 * rules: {
 *   defaults: name → value; a value whose default is a text is in the address as plain text, all others as JSON
 *   read(name, text): the value of a text of the address, before the rules for JSON apply; undefined: no own rule
 *   fits(name, value): whether a value is valid
 *   entries: names whose changes by the reader are entries in the history of the browser
 *   longest: the maximum characters of a value in the address; longer values are left out
 * }
 */
export function makeState(rules) {
  const { defaults, entries = [], longest = Infinity } = rules;
  let correct = (/** @type {any} */ _) => ({}); // values of an address → replacements of some values
  let { values, named, unfit } = valuesIn(location.hash);
  let entry = false; // whether the next address gets an entry in the history
  const listeners = [];

  function addressOf() {
    const out = new URLSearchParams();
    for (const [name, value] of Object.entries(values)) {
      if (value === undefined || JSON.stringify(value) === JSON.stringify(defaults[name])) continue;
      const text = typeof value === "string" ? value : JSON.stringify(value);
      if (text.length <= longest) out.set(name, text);
    }
    return out.toString();
  }

  // The values of an address; unfit: name → whether the value is valid, but not for this model or result
  function valuesIn(hash) {
    const [found, names, wrong] = [{ ...defaults }, new Set(), new Map()];
    for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
      const value = rules.read?.(name, text) ?? (typeof defaults[name] === "string" ? text : parsed(text));
      names.add(name);
      const fits = Object.hasOwn(defaults, name) && value !== undefined;
      if (fits && (value === defaults[name] || rules.fits(name, value))) found[name] = value;
      else wrong.set(name, false);
    }
    return { values: found, named: names, unfit: wrong };
  }

  let seen = location.hash; // as this page wrote or read it
  const write = afterPause(() => {
    if (location.protocol === "about:") return; // a page inside a notebook has no address
    if (location.hash !== seen) return; // the reader has just opened another address, which is read next
    const hash = addressOf();
    const way = entry ? "pushState" : "replaceState";
    entry = false;
    if (`#${hash}` === location.hash) return;
    try {
      history[way](null, "", hash ? `#${hash}` : location.pathname + location.search);
      seen = location.hash;
    } catch {
      // a browser may reject an address that is very long or changes very often; the page continues without it
    }
  }, ADDRESS_PAUSE);

  function changedTo(next, byReader) {
    const names = new Set([...Object.keys(values), ...Object.keys(next)]);
    const changed = [...names].filter((name) => JSON.stringify(values[name]) !== JSON.stringify(next[name]));
    values = next;
    if (!changed.length) return;
    entry ||= byReader && changed.some((name) => entries.includes(name));
    write();
    for (const listener of [...listeners]) {
      const { wanted, fn } = listener;
      // a listener may have removed other listeners, because a change of the language builds the page again
      if (listeners.includes(listener) && wanted.some((name) => changed.includes(name))) fn(changed);
    }
  }

  // Replace values; those that are from the address are reported as invalid
  function amended(read, instead) {
    for (const name of Object.keys(instead)) if (named.has(name) && !unfit.has(name)) unfit.set(name, true);
    return { ...read, ...instead };
  }

  // the reader typed or pasted an address, or went back in the history
  window.addEventListener("hashchange", () => {
    seen = location.hash;
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
    // [name, whether it is valid in itself] of each invalid value of the address, reported once
    takeUnfit: () => {
      const told = [...unfit];
      [named, unfit] = [new Set(), new Map()];
      return told;
    },
  };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
