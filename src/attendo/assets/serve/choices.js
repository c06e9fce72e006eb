// @ts-check
// Choices as buttons: a first line, and the whole text with the differences from another text in bold.
import { clear, el, percent } from "../shared/dom.js";
import { compared, marked } from "../shared/diff.js";
import { makeLatest } from "../shared/asking.js";
import { makeSheet } from "../shared/sheet.js";
import { say } from "../shared/words.js";

// A sheet whose content is requested; closing it cancels the request
export function makeAskingSheet(app) {
  const asking = makeLatest((error) => (sheet.close(), app.failed(error)));
  const sheet = makeSheet(() => asking.stop());
  return { asking, sheet, end: () => (sheet.close(), sheet.root.remove(), asking.end()) };
}

// rows: [{ head, share, current }…]; each gets item, its element, and tell(text, current, word), which fills it
export function makeChoices(rows, language, onTake, className = "choices") {
  const list = el("ul", { class: className });
  for (const row of rows) {
    const whole = el("bdi", { class: "whole", dir: "auto" });
    const head = row.head && el("bdi", { class: "head-word", dir: "auto" }, row.head);
    const share = row.share !== undefined && el("span", { class: "number" }, percent(row.share));
    const properties = { type: "button", onclick: () => onTake(row), "aria-current": row.current ? "true" : null };
    row.tell = (text, current, word) => {
      clear(whole).append(...marked(compared(current, text, language)[1], "b"));
      if (word) head.textContent = word;
    };
    row.item = el("li", {}, el("button", properties, head, share, whole));
    list.append(row.item);
  }
  return list;
}

// An input line for a word of the reader
export function makeOwnWord(onTake) {
  const named = { "aria-label": say("own-words"), placeholder: say("own-words") };
  const input = el("input", { type: "text", autocomplete: "off", dir: "auto", ...named });
  const form = el("form", { class: "own" }, input, el("button", { type: "submit" }, say("go-on")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (input.value.trim()) onTake(input.value.trim());
  });
  return form;
}

// A word that opens a sheet of others by click, Enter and the space bar
export function wordButton(text, properties, onOpen) {
  const made = el("span", { role: "button", "aria-haspopup": "dialog", ...properties }, text);
  made.addEventListener("click", () => getSelection().isCollapsed && onOpen(made));
  made.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    onOpen(made);
  });
  return made;
}
