// @ts-check
// The settings of completions.
import { el, field } from "../shared/dom.js";
import { say } from "../shared/words.js";

const NUMBERS = {
  max_tokens: { inputMode: "numeric", range: "whole-from-1", fits: (n) => Number.isInteger(n) && n >= 1 },
  temperature: { inputMode: "decimal", range: "at-least-0", fits: (n) => n >= 0 },
  top_p: { inputMode: "decimal", range: "above-0-to-1", fits: (n) => n > 0 && n <= 1 },
  seed: { inputMode: "numeric", range: "whole-or-none", fits: (n) => Number.isSafeInteger(n) && n >= 0 },
};

// The fields of a request. Throws an error that names the first invalid setting
export function settingsOf(state) {
  const found = {};
  for (const [name, { range, fits }] of Object.entries(NUMBERS)) {
    const text = state.get(name).trim();
    if (name === "seed" && !text) continue;
    found[name] = text ? Number(text) : NaN;
    const isValid = Number.isFinite(found[name]) && fits(found[name]);
    if (!isValid) throw new Error(say("bad-setting", { name: say(name), range: say(range) }));
  }
  const stop = state.get("stop").replaceAll("\\n", "\n");
  return stop ? { ...found, stop } : found;
}

// onChange() is called after each change
export function makeOptions(app, onChange) {
  const box = (name, label, properties) => {
    const own = { type: "text", id: name, value: app.state.get(name), autocomplete: "off" };
    const input = el("input", { ...own, ...properties });
    input.addEventListener("input", () => (app.keep({ [name]: input.value }), onChange()));
    return field(label, input);
  };
  const boxes = Object.entries(NUMBERS).map(([name, { inputMode }]) =>
    box(name, say(name), { inputMode, placeholder: name === "seed" ? say("random") : "" }),
  );
  const stop = box("stop", say("stop-text"), { id: "stop-text", placeholder: say("stop-hint") });
  const card = el("div", { class: "card bar" }, ...boxes, stop);
  return el("details", { class: "options" }, el("summary", {}, say("options")), card);
}
