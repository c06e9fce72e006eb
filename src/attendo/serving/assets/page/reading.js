// The text box of the input: it grows with the text, and can highlight words.
import { clear, el } from "./dom.js";

const LONGEST_LIT = 20000; // characters; longer texts are not highlighted

// onText(text) after every change; onPlace(place or null): the caret moved without typing
export function makeReading({ id, label, placeholder, most, onText, onPlace = () => {} }) {
  // a copy of the text below the box sets the height of the box and shows the highlights
  const mirror = el("div", { class: "mirror", dir: "auto", "aria-hidden": "true" });
  const box = el("textarea", {
    id,
    dir: "auto",
    rows: 1,
    maxLength: most,
    placeholder,
    spellcheck: false,
    "aria-label": label,
  });
  const root = el("div", { class: "reading" }, mirror, box);
  let lit = "";

  function reflect(spans = []) {
    const text = box.value;
    const key = JSON.stringify(spans);
    if (key === lit && mirror.dataset.length === String(text.length) && spans.length) return;
    lit = key;
    mirror.dataset.length = text.length;
    clear(mirror);
    let at = 0;
    for (const [start, end] of text.length > LONGEST_LIT ? [] : spans) {
      if (start < at) continue;
      mirror.append(text.slice(at, start), el("mark", {}, text.slice(start, end)));
      at = end;
    }
    mirror.append(`${text.slice(at)}\n`); // an empty last line would have no height
  }

  box.addEventListener("input", () => (reflect(), onPlace(null), onText(box.value)));
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
    root,
    box,
    get text() {
      return box.value;
    },
    set text(text) {
      box.value = text;
      reflect();
    },
    light: reflect,
  };
}
