// The box that a text is typed into: it grows with the text, and words in it can light up.
import { clear, el } from "./dom.js";

const LONGEST_LIT = 20000; // characters; in longer texts nothing lights up

// onText(text) after every change; onPlace(place or null): the caret was moved there without typing
export function makeReading({ id, label, placeholder, most, onText, onPlace = () => {} }) {
  // behind the box lies the same text, which makes the box as high as it needs to be, and carries the light
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
    mirror.append(`${text.slice(at)}\n`); // a last line without a character would have no height
  }

  box.addEventListener("input", () => (reflect(), onPlace(null), onText(box.value)));
  const moved = (event) => {
    if (event.type === "keyup" && !/^(Arrow|Home|End|Page)/.test(event.key)) return;
    if (box.selectionStart === box.selectionEnd) onPlace(box.selectionStart);
  };
  box.addEventListener("keyup", moved);
  box.addEventListener("click", moved);
  // where the browser tells which character is under the mouse
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
