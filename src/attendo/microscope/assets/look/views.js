// What the views have in common: when to draw, how to ask, bars beside numbers.
import { pathName, say } from "./words.js";
import { clear, el, field, select } from "./dom.js";

const SOON = 150; // ms: an answer within them needs no word of patience

// A function that draws now, or when the part is next shown: a hidden tab costs nothing
export function drawWhenShown(root, draw) {
  let waiting = false;
  const shown = () => root.getClientRects().length > 0;
  new ResizeObserver(() => {
    if (!waiting || !shown()) return;
    waiting = false;
    draw();
  }).observe(root);
  return () => {
    waiting = !shown();
    if (!waiting) draw();
  };
}

// ask(name, body) of one view → the answer, or null when a newer question was put or there is no answer:
// then the reason stands in `place`, and `part`, which would show the answer, is hidden
export function questions(app, place, part) {
  let newest = 0;
  return async (name, body) => {
    const mine = ++newest;
    // about a look that is gone: the view asks anew when it is next shown
    const wanted = () => mine === newest && body.key === app.look?.key;
    const wait = setTimeout(() => wanted() && (place.textContent = say("loading")), SOON);
    try {
      const answer = await app.busy(app.source.ask(name, body));
      if (!wanted()) return null;
      place.textContent = "";
      part.hidden = false;
      return answer;
    } catch (error) {
      if (wanted()) {
        place.textContent = error.message;
        part.hidden = true;
        app.fail(error);
      }
      return null;
    } finally {
      clearTimeout(wait);
    }
  };
}

// A choice of stacks, where there are several
export function stackChoice(place, names, chosen, onchange) {
  clear(place);
  if (names.length < 2) return;
  const options = names.map((name) => [name, say(`stack-${name}`)]);
  place.append(field(say("stack"), select(options, chosen, onchange)));
}

// "Encoder self-attention, layer 2, head 3"; without a head: the whole layer
export function partName(path, head) {
  return head === null || head === undefined
    ? pathName(path)
    : say("part-name", { name: pathName(path), n: head + 1 });
}

// A bar for a number from 0 to most
export function barOf(number, most) {
  const width = `${(100 * Math.min(1, Math.max(0, number / (most || 1)))).toFixed(2)}%`;
  return el(
    "span",
    { class: "v-bar", "aria-hidden": "true" },
    el("span", { class: "bar-fill", style: { width } }),
  );
}

// A bar that goes left from the middle for less than 0, right for more
export function signedBarOf(number, most) {
  const part = 50 * Math.min(1, Math.abs(number) / (most || 1));
  const style = { width: `${part.toFixed(2)}%`, left: `${(number < 0 ? 50 - part : 50).toFixed(2)}%` };
  return el(
    "span",
    { class: "v-bar signed", "aria-hidden": "true" },
    el("span", { class: `bar-fill ${number < 0 ? "less" : "more"}`, style }),
  );
}

// The head of a table, of [text, class] for each column
export function tableHead(columns) {
  const cells = columns.map(([text, name = ""]) => el("th", { scope: "col", class: name }, text));
  return el("thead", {}, el("tr", {}, cells));
}

// A part that scrolls sideways where there is no room, by keys too
export function scrolled(name, ...children) {
  return el("div", { class: "view-scroll", tabIndex: 0, role: "region", "aria-label": name }, ...children);
}

export function withNumber(made, text, size = "") {
  return el("span", { class: `bar-and-number ${size}` }, made, el("span", { class: "number" }, text));
}

// Decimals with which numbers of this size keep two digits that differ
export function decimals(most) {
  return most > 0 ? Math.max(2, Math.min(4, 2 - Math.floor(Math.log10(most)))) : 2;
}

export function largest(numbers) {
  return numbers.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
}
