// Controls that a saved page cannot support: they look disabled, and explain the reason and the alternative.
import { say } from "./words.js";
import { el } from "./dom.js";

const LOCKS_NOTE = "saved-note"; // the element with the explanation for all of them

// locked: whether the page has no answer for the control
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

// A control that sends a new look request, which only a live page can answer
export function onlyLive(app, control) {
  return app.source.live ? control : lock(control);
}

export function lockNote(app) {
  return app.source.live ? null : el("p", { id: LOCKS_NOTE, class: "note" }, say("not-live"));
}

// A locked control can be focused, so it can show its explanation, but it does nothing
export function heedLocks(appNow) {
  const stop = (event) => {
    if (!event.target.closest?.('[aria-disabled="true"]')) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    appNow().fail(new Error(say("not-live")));
  };
  document.addEventListener("click", stop, true);
}
