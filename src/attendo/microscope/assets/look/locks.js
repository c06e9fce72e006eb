// Controls whose question a saved page can't answer: they look so, and say why and what can.
import { say } from "./words.js";
import { el } from "./dom.js";

const LOCKS_NOTE = "saved-note"; // the element that says it to all of them

// locked: whether the page has no answer for what the control does
export function lock(control, locked = true) {
  const looks = { "aria-disabled": "true", "aria-describedby": LOCKS_NOTE, title: say("not-live") };
  for (const [name, value] of Object.entries(looks)) {
    if (locked) control.setAttribute(name, value);
    else control.removeAttribute(name);
  }
  if (control.matches("textarea, input")) control.readOnly = locked;
  else if (control.matches("select, option")) control.disabled = locked;
  return control;
}

// A control for a question of a new look, which only a live page answers
export function onlyLive(app, control) {
  return app.source.live ? control : lock(control);
}

export function lockNote(app) {
  return app.source.live ? null : el("p", { id: LOCKS_NOTE, class: "note" }, say("not-live"));
}

// A locked control can be reached, so that it can say why, but does nothing
export function heedLocks(appNow) {
  const stop = (event) => {
    if (!event.target.closest?.('[aria-disabled="true"]')) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    appNow().fail(new Error(say("not-live")));
  };
  document.addEventListener("click", stop, true);
}
