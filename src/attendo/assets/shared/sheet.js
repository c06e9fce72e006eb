// @ts-check
// Sheets: a small window beside the element that opened it, or at the bottom of a narrow screen. Only one is open.
import { button, clear, el } from "./dom.js";
import { say } from "./words.js";

const GAP = 6; // pixels between the element and the sheet

// Place a small window below an element, inside the page
export function placeBelow(root, anchor, gap = GAP) {
  const { left, bottom } = anchor.getBoundingClientRect();
  const room = document.body.clientWidth - root.offsetWidth - 8;
  root.style.left = `${Math.max(8, Math.min(left, room)) + scrollX}px`;
  root.style.top = `${bottom + gap + scrollY}px`;
}

// Escape and a click outside close a sheet. onClose() is called after every closing
export function makeSheet(onClose = () => {}) {
  const root = el("div", { class: "sheet", popover: "auto", role: "dialog" });
  let anchor = null;
  root.addEventListener(
    "toggle",
    ({ newState }) => newState === "closed" && !root.matches(":popover-open") && closed(),
  );
  function closed() {
    if (anchor === null) return;
    const inside = root.contains(document.activeElement) || document.activeElement === document.body;
    anchor.classList.remove("open");
    if (inside && anchor.isConnected) anchor.focus({ preventScroll: true });
    anchor = null;
    onClose();
  }

  function place() {
    const { bottom } = anchor.getBoundingClientRect();
    if (getComputedStyle(root).position === "fixed") {
      if (bottom > root.getBoundingClientRect().top) anchor.scrollIntoView({ block: "start" }); // not behind the sheet
      return;
    }
    placeBelow(root, anchor);
  }

  new ResizeObserver(() => anchor && place()).observe(root); // the content may come later
  return {
    root,
    get isOpen() {
      return anchor !== null;
    },
    open(from, title, ...content) {
      if (anchor) root.hidePopover();
      closed(); // the browser tells of it later, and only once
      if (!root.isConnected) document.body.append(root);
      const end = button("×", () => root.hidePopover(), { class: "quiet end", "aria-label": say("close") });
      root.setAttribute("aria-label", title);
      clear(root).append(
        el("div", { class: "bar" }, el("h2", {}, title), end),
        ...content.flat().filter((part) => part !== null && part !== undefined && part !== false),
      );
      anchor = from;
      anchor.classList.add("open");
      root.showPopover();
      place();
      (root.querySelector("li button, input, select") ?? end).focus({ preventScroll: true });
    },
    close: () => anchor && root.hidePopover(),
  };
}

let explaining = null; // the sheet of explanations

// A word with a dotted line that explains itself: term("nats") has the texts "term-nats" and "about-nats"
export function term(name, text = say(`term-${name}`)) {
  const made = button(
    text,
    () => {
      explaining ??= makeSheet();
      explaining.root.classList.add("open-small");
      explaining.open(made, say(`term-${name}`), el("p", {}, say(`about-${name}`)));
    },
    { class: "term", "aria-haspopup": "dialog" },
  );
  return made;
}
