// Alternatives of a text: a sheet of choices beside the clicked element.
import { button, clear, el } from "./dom.js";
import { say } from "./words.js";
import { differing } from "./lines.js";
import { percent } from "./sentences.js";

const GAP = 6; // pixels between the clicked element and the sheet

// One sheet for the whole page; opening it again closes the previous sheet. Escape and a click outside close it.
export function makeSheet(onClose) {
  const root = el("div", { class: "sheet", popover: "auto", role: "dialog" });
  let anchor = null;
  root.addEventListener("toggle", ({ newState }) => {
    if (newState === "open" || anchor === null) return;
    const inside = root.contains(document.activeElement) || document.activeElement === document.body;
    anchor.classList.remove("open");
    if (inside && anchor.isConnected) anchor.focus({ preventScroll: true });
    anchor = null;
    onClose();
  });

  // On a narrow screen, the sheet is at the bottom, and the clicked element is scrolled above it
  function place() {
    if (getComputedStyle(root).position === "fixed") return anchor.scrollIntoView({ block: "start" });
    const { left, bottom } = anchor.getBoundingClientRect();
    const room = document.documentElement.clientWidth - root.offsetWidth - 8;
    root.style.left = `${Math.max(8, Math.min(left, room)) + scrollX}px`;
    root.style.top = `${bottom + GAP + scrollY}px`;
  }

  return {
    root,
    get isOpen() {
      return anchor !== null;
    },
    open(from, title, ...content) {
      if (anchor) root.hidePopover();
      const end = button("×", () => root.hidePopover(), { class: "plain end", "aria-label": say("close") });
      root.setAttribute("aria-label", title);
      clear(root).append(el("div", { class: "bar" }, el("h3", {}, title), end), ...content);
      anchor = from;
      anchor.classList.add("open");
      root.showPopover();
      place();
      (root.querySelector("li button, input") ?? end).focus({ preventScroll: true });
    },
    close: () => anchor && root.hidePopover(),
  };
}

// A list of choices as buttons: a first line, and the whole text with differences from `current` in bold
export function makeChoices(rows, language, onTake) {
  const list = el("ul", { class: "choices" });
  for (const row of rows) {
    const whole = el("bdi", { class: "whole", dir: "auto" });
    const head = el("bdi", { class: "head-word", dir: "auto" }, row.head ?? "");
    const share = row.share === undefined ? null : el("span", { class: "number" }, percent(row.share));
    const made = el(
      "button",
      { type: "button", onclick: () => onTake(row) },
      row.head ? head : null,
      share,
      whole,
    );
    row.tell = (text, current, word) => {
      const stretches = differing(text, current, language);
      clear(whole).append(...stretches.map(([part, same]) => (same ? part : el("b", {}, part))));
      if (word) head.textContent = word;
    };
    row.item = el("li", {}, made);
    list.append(row.item);
  }
  return list;
}

// An input line for a word of the reader
export function makeOwnWord(onTake) {
  const input = el("input", {
    type: "text",
    autocomplete: "off",
    dir: "auto",
    "aria-label": say("own-words"),
    placeholder: say("own-words"),
  });
  const form = el("form", { class: "own" }, input, el("button", { type: "submit" }, say("go-on")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (input.value.trim()) onTake(input.value.trim());
  });
  return form;
}
