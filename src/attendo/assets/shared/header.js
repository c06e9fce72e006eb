// @ts-check
// The header of the pages: the name, the modes, and the buttons for language and theme.
import { button, el, hasModifier } from "./dom.js";
import { inJapanese, say } from "./words.js";

const THEMES = ["auto", "light", "dark"];

// The theme of the address, or that of the system
export function applyTheme(state) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = state.get("theme");
  document.documentElement.dataset.theme = theme === "dark" || (theme !== "light" && dark) ? "dark" : "light";
}

export function browserLanguage() {
  return document.documentElement.lang === "ja" || navigator.language.startsWith("ja") ? "ja" : "en";
}

// parts: elements after the name; actions: elements before the buttons; home: an address, or null
export function makeHeader(state, { parts = [], actions = [], home = null }) {
  const other = inJapanese() ? "en" : "ja";
  const name = other === "ja" ? "日本語" : "English";
  const language = button(name, () => state.set({ language: other }), { id: "language", class: "quiet", lang: other });
  const theme = button("◐", turn, { id: "theme", class: "quiet" });
  function turn() {
    state.set({ theme: THEMES[(THEMES.indexOf(state.get("theme")) + 1) % THEMES.length] });
    nameTheme();
  }
  function nameTheme() {
    theme.title = say("labeled", { name: say("theme"), text: say(state.get("theme")) });
    theme.setAttribute("aria-label", theme.title);
  }
  nameTheme();
  return el(
    "header",
    { class: "top" },
    el("h1", {}, home === null ? "attendo" : el("a", { href: home }, "attendo")),
    ...parts,
    el("span", { class: "end" }, ...actions, language, theme),
  );
}

// Tabs: options [[name, text]…]; chosen() is the current name; onChoose(name). Returns the list and update()
export function makeTabs(options, chosen, onChoose, controls) {
  const names = options.map(([name]) => name);
  const tabs = options.map(([name, text]) => {
    const ids = controls ? { id: `tab-${name}`, "aria-controls": `view-${name}` } : { id: `tab-${name}` };
    return el("button", { type: "button", role: "tab", ...ids, onclick: () => onChoose(name) }, text);
  });
  const list = el("div", { class: "modes", role: "tablist", "aria-label": say("modes") }, ...tabs);
  list.addEventListener("keydown", (event) => {
    if (hasModifier(event)) return;
    const at = names.indexOf(chosen());
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    onChoose(names[(to + names.length) % names.length]);
    list.querySelector('[aria-selected="true"]')?.focus();
  });
  function update() {
    names.forEach((name, n) => {
      tabs[n].setAttribute("aria-selected", String(name === chosen()));
      tabs[n].tabIndex = name === chosen() ? 0 : -1;
    });
  }
  update();
  return { list, update };
}
