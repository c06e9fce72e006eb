// The dialog for the API key of the server, which is opened once for all requests.
import { button, el } from "./dom.js";
import { say } from "./words.js";
import { keepKey } from "./asking.js";

export function makeKeyAsker() {
  let asked = null; // a Promise while the dialog is open
  return (wrong) => (asked ??= dialog(wrong).finally(() => (asked = null)));
}

// Resolves when there is a key to try; rejects if the reader enters none
function dialog(wrong) {
  const input = el("input", {
    id: "key",
    type: "password",
    autocomplete: "off",
    required: true,
    maxLength: 500,
    "aria-describedby": "key-note",
  });
  const later = button(say("key-later"), () => root.close());
  const form = el(
    "form",
    {},
    el("h2", { id: "key-title" }, say("key-title")),
    wrong ? el("p", { class: "alert", role: "alert" }, say("key-wrong")) : null,
    el("label", { class: "wide" }, el("span", {}, say("key")), input),
    el("p", { class: "note", id: "key-note" }, say("key-note")),
    el("div", { class: "bar" }, el("button", { type: "submit", class: "main" }, say("key-use")), later),
  );
  const root = el("dialog", { "aria-labelledby": "key-title" }, form);
  document.body.append(root);
  root.showModal();
  input.focus();
  return new Promise((resolve, reject) => {
    let given = false;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      keepKey(input.value.trim());
      given = true;
      root.close();
    });
    root.addEventListener("close", () => {
      root.remove();
      if (given) resolve();
      else reject(new Error(say("key-missing")));
    });
  });
}
