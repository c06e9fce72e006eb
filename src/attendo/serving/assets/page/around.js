// The controls beside a text: the copy button, and the link to the microscope.
import { button, el } from "./dom.js";
import { inJapanese, say } from "./words.js";

export function copyButton(app, text) {
  const made = button(
    say("copy"),
    async () => {
      const done = await copied(text());
      if (!done) return app.failed(new Error(say("not-copied")));
      made.textContent = say("copied");
      app.announce(say("copied"));
      setTimeout(() => (made.textContent = say("copy")), 1500);
    },
    { class: "copy" },
  );
  return made;
}

export function clearButton(reading, onText) {
  const done = () => {
    reading.text = "";
    reading.box.focus();
    onText("");
  };
  return button("×", done, { id: "clear", class: "plain", title: say("clear"), "aria-label": say("clear") });
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // a page over plain HTTP from another machine has no clipboard, but can copy the selection
  }
  const box = el("textarea", { class: "aside", value: text, "aria-hidden": "true" });
  const focused = document.activeElement;
  document.body.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  focused?.focus();
  return done;
}

// link.lookAt(text, target): the microscope opens with this text; target: the output to show, or null
export function lookLink(app, model) {
  const link = el(
    "a",
    { class: "look", target: "_blank", rel: "opener", title: say("microscope-title") }, // the tab gets the key
    `${say("microscope")} ↗`,
  );
  const offered = app.facts.look;
  link.lookAt = (text, target = null) => {
    const state = new URLSearchParams({ text, language: inJapanese() ? "ja" : "en" });
    if (target !== null)
      for (const [name, value] of Object.entries({ search: "forced", target })) state.set(name, value);
    link.href = `look/${encodeURIComponent(model.id)}/#${state}`;
    link.hidden = !offered;
  };
  link.hidden = true;
  return link;
}
