// Functions that several views share: when to draw, how to send requests, bars beside numbers.
import { pathName, say } from "./words.js";
import { clear, el, field, select } from "./dom.js";

const SOON = 150; // ms: a faster answer requires no waiting message

// A function that draws now, or when the part is next visible: hidden tabs cost no time
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

// ask(name, body) of one view → the answer, or null after a newer request or an error. The error message is
// shown in `place`, and `part`, which would show the answer, is hidden
export function questions(app, place, part) {
  let newest = 0;
  return async (name, body) => {
    const mine = ++newest;
    // the result is no longer cached: the view sends the request again when it is next visible
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

// A menu of stacks, if there are several
export function stackChoice(place, names, chosen, onchange) {
  clear(place);
  if (names.length < 2) return;
  const options = names.map((name) => [name, say(`stack-${name}`)]);
  place.append(field(say("stack"), select(options, chosen, onchange)));
}

// "Encoder self-attention, layer 2, head 3"; without a head, the whole layer
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

// A bar from the middle: to the left for values below 0, otherwise to the right
export function signedBarOf(number, most) {
  const part = 50 * Math.min(1, Math.abs(number) / (most || 1));
  const style = { width: `${part.toFixed(2)}%`, left: `${(number < 0 ? 50 - part : 50).toFixed(2)}%` };
  return el(
    "span",
    { class: "v-bar signed", "aria-hidden": "true" },
    el("span", { class: `bar-fill ${number < 0 ? "less" : "more"}`, style }),
  );
}

// The header of a table, from [text, class] of each column
export function tableHead(columns) {
  const cells = columns.map(([text, name = ""]) => el("th", { scope: "col", class: name }, text));
  return el("thead", {}, el("tr", {}, cells));
}

// A part that scrolls sideways if there is no room, also by keyboard
export function scrolled(name, ...children) {
  return el("div", { class: "view-scroll", tabIndex: 0, role: "region", "aria-label": name }, ...children);
}

export function withNumber(made, text, size = "") {
  return el("span", { class: `bar-and-number ${size}` }, made, el("span", { class: "number" }, text));
}

// The decimal places with which numbers of this size have two different digits
export function decimals(most) {
  return most > 0 ? Math.max(2, Math.min(4, 2 - Math.floor(Math.log10(most)))) : 2;
}

export function largest(numbers) {
  return numbers.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
}
