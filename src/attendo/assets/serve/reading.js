// @ts-check
// The text box of the input: it grows with the text, and words in it can be marked.
import { clear, el } from "../shared/dom.js";

const LONGEST_MARKED = 20000; // characters; in longer texts, no word is marked

// on.onText(text) after every change by the reader; on.onPlace(place or null): the caret moved without typing;
// after: an element that continues the text; mirror: properties of the element that contains both
export function makeReading(app, { id, label, placeholder }, { after = null, mirror = {}, ...on }) {
  const { onText, onPlace = () => {} } = on;
  // a copy of the text in the place of the box sets the height of the box and has the marks
  const given = el("span", { class: "given", "aria-hidden": "true" });
  // where the model continues inside a word, the line must break as it breaks in the box
  const copy = el("div", { class: "mirror", dir: "auto", ...mirror }, given, after && el("wbr"), after);
  const own = { id, dir: "auto", rows: 1, maxLength: app.facts.characters, spellcheck: false };
  const box = el("textarea", { ...own, placeholder, "aria-label": label });
  const marks = {}; // class → spans [[start, end]…]

  function reflect() {
    const text = box.value;
    let at = 0;
    clear(given);
    const kinds = text.length > LONGEST_MARKED ? [] : Object.entries(marks);
    const every = kinds.flatMap(([kind, spans]) => spans.map(([start, end]) => ({ start, end, kind })));
    for (const { start, end, kind } of every.sort((a, b) => a.start - b.start)) {
      if (start < at) continue;
      given.append(text.slice(at, start), el("mark", { class: kind }, text.slice(start, end)));
      at = end;
    }
    given.append(text.slice(at));
  }
  function mark(kind, spans) {
    if (JSON.stringify(marks[kind] ?? []) === JSON.stringify(spans)) return;
    marks[kind] = spans;
    reflect();
  }
  function replaced() {
    for (const kind of Object.keys(marks)) marks[kind] = []; // the words have moved
    reflect();
  }

  box.addEventListener("input", (event) => (replaced(), onPlace(null), onText(box.value, event)));
  const moved = (event) => {
    if (event.type === "keyup" && !/^(Arrow|Home|End|Page)/.test(event.key)) return;
    if (box.selectionStart === box.selectionEnd) onPlace(box.selectionStart);
  };
  box.addEventListener("keyup", moved);
  box.addEventListener("click", moved);
  // if the browser reports the character under the mouse
  box.addEventListener("pointermove", ({ clientX, clientY }) => {
    const place = document.caretPositionFromPoint?.(clientX, clientY);
    if (place?.offsetNode === box) onPlace(place.offset);
  });
  box.addEventListener("pointerleave", () => onPlace(null));
  box.addEventListener("blur", () => onPlace(null));
  return {
    root: el("div", { class: "reading" }, box, copy),
    mirror: copy,
    box,
    mark,
    get text() {
      return box.value;
    },
    set text(text) {
      box.value = text;
      replaced();
    },
  };
}
