// @ts-check
// The guided first minute: bubbles that explain the page once, and the list of keys.
import { button, el } from "../shared/dom.js";
import { placeBelow } from "../shared/sheet.js";
import { say } from "../shared/words.js";

const DONE = "attendo-guided"; // in the local storage
const KEYS = ["enter", "newline", "arrows", "hold", "escape", "x", "tabs"];

// [the key of the text, the element that it explains]
function stepsOf(app) {
  return [
    ["guide-words", app.isWriter && "#ribbons .tokens:not(:empty)"],
    ["guide-hover", "#sentence"],
    ["guide-off", "#head-on"],
    ["guide-change", "#output"],
  ].filter(([, place]) => place && document.querySelector(place)?.getClientRects().length);
}

function isDone() {
  try {
    return localStorage.getItem(DONE) !== null;
  } catch {
    return true; // storage is not allowed: the page could not remember that the guide is done
  }
}

function setDone() {
  try {
    localStorage.setItem(DONE, "yes");
  } catch {
    // storage is not allowed
  }
}

// An invitation below the text, until the reader took or skipped the guide
export function makeGuide(app) {
  if (!app.source.live || app.source.framed || isDone()) return;
  const invitation = el(
    "span",
    { class: "guide-offer" },
    button(say("guide-start"), () => begin(), { class: "pill main", id: "guide-start" }),
    button("×", () => end(), { class: "quiet", "aria-label": say("guide-skip") }),
  );
  document.querySelector(".below-text")?.prepend(invitation);
  function begin() {
    end();
    app.state.set({ view: app.model.family === "classification" ? "label" : "attention" });
    showStep(app, stepsOf(app), 0);
  }
  function end() {
    invitation.remove();
    setDone();
  }
}

function showStep(app, steps, n) {
  document.querySelector(".bubble")?.remove();
  const step = steps[n];
  if (!step) return;
  const target = document.querySelector(step[1]);
  const last = n === steps.length - 1;
  const next = button(say(last ? "guide-end" : "guide-next"), () => showStep(app, steps, n + 1), { class: "main" });
  const bubble = el(
    "div",
    { class: "bubble", role: "dialog", "aria-label": say("guide-start") },
    el("p", {}, say(step[0])),
    el(
      "div",
      { class: "bar" },
      el("span", { class: "note" }, `${n + 1} / ${steps.length}`),
      el(
        "span",
        { class: "end bar" },
        button(say("guide-skip"), () => bubble.remove(), { class: "quiet" }),
        next,
      ),
    ),
  );
  bubble.addEventListener("keydown", (event) => event.key === "Escape" && bubble.remove());
  document.body.append(bubble);
  target.scrollIntoView({ block: "nearest" });
  placeBelow(bubble, target, 8);
  next.focus();
}

export function keysSheet(app, sheet, from) {
  const rows = KEYS.flatMap((name) => [el("dt", {}, say(`key-${name}`)), el("dd", {}, say(`does-${name}`))]);
  const again = button(say("guide-start"), () => {
    sheet.close();
    showStep(app, stepsOf(app), 0);
  });
  sheet.open(from, say("keys"), el("dl", {}, ...rows), app.look ? el("p", {}, again) : "");
}
