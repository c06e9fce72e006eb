// A text that a language model continues, shown while it is generated.
import { afterPause, button, clear, el, field } from "./dom.js";
import { say } from "./words.js";
import { numberOf } from "./address.js";
import { makeLatest } from "./asking.js";
import { makeReading } from "./reading.js";
import { copyButton, lookLink } from "./around.js";

const COMPLETING_PAUSE = 700; // ms without typing before a completion starts automatically

// name: the format of the setting, its valid values, and when it applies
const NUMBERS = {
  max_tokens: ["numeric", "whole-from-1", (n) => Number.isInteger(n) && n >= 1],
  temperature: ["decimal", "at-least-0", (n) => n >= 0],
  top_p: ["decimal", "above-0-to-1", (n) => n > 0 && n <= 1],
  seed: ["numeric", "whole-or-none", (n) => Number.isSafeInteger(n) && n >= 0],
};

export function makeCompleting(app, model) {
  const { settings, server } = app;
  const latest = makeLatest((error) => (app.failed(error), ended()));
  let written = "";

  const reading = makeReading({
    id: "prompt",
    label: say("prompt"),
    placeholder: say("prompt-here"),
    most: app.facts.characters,
    onText: typed,
  });
  const target = el("div", {
    id: "target",
    class: "writing",
    role: "group",
    "aria-label": say("completion"),
    dir: "auto",
  });
  const write = button("", go, { id: "write", class: "main" });
  const stop = button(say("stop"), () => (latest.stop(), ended(say("stopped"))), {
    id: "stop",
    hidden: true,
  });
  const keep = button(say("take-over"), kept, { id: "keep" });
  const copy = copyButton(app, () => reading.text + written);
  const link = lookLink(app, model);
  const live = el("input", {
    id: "live",
    type: "checkbox",
    checked: settings.get("live") === "yes",
    onchange: () => settings.set({ live: live.checked ? "yes" : "no" }),
  });

  function asked() {
    const body = { model: model.id, prompt: reading.text, stream: true };
    for (const [name, [, range, fits]] of Object.entries(NUMBERS)) {
      const text = settings.get(name);
      if (name === "seed" && text.trim() === "") continue;
      const number = numberOf(text);
      if (number === undefined || !fits(number))
        throw new Error(say("bad-setting", { name: say(name), range: say(range) }));
      body[name] = number;
    }
    const before = settings.get("stop").replaceAll("\\n", "\n");
    if (before) body.stop = before;
    return body;
  }

  function go() {
    latest.run(async (signal) => {
      const body = asked();
      const begun = performance.now();
      written = "";
      show(true);
      app.tellLate(say("writing"));
      let reason = "stop";
      const events = server.events("v1/completions", body, signal);
      for await (const { choices } of events) {
        written += choices[0]?.text ?? "";
        reason = choices[0]?.finish_reason ?? reason;
        show(true);
      }
      const seconds = ((performance.now() - begun) / 1000).toFixed(1);
      ended(say(reason === "length" ? "ended-length" : "ended-stop", { seconds }));
    });
  }

  function ended(told) {
    if (told !== undefined) app.tell(told);
    show(false);
  }

  function show(running) {
    const prompt = el("span", { class: "given" }, reading.text);
    clear(target).append(written || running ? prompt : "", el("span", { class: "written" }, written));
    target.classList.toggle("running", running);
    target.setAttribute("aria-busy", String(running));
    stop.hidden = !running;
    write.hidden = running;
    write.textContent = say(written ? "again" : "write");
    for (const control of [keep, copy, link]) control.hidden = !written || running;
    if (!running && written) link.lookAt(reading.text);
  }

  function kept() {
    reading.text += written;
    written = "";
    settings.set({ text: reading.text });
    show(false);
    go();
  }

  const soon = afterPause(() => live.checked && reading.text.trim() && go(), COMPLETING_PAUSE);
  function typed(text) {
    settings.set({ text });
    latest.stop();
    written = "";
    ended("");
    soon();
  }

  reading.box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    go();
  });

  const root = el(
    "div",
    { class: "pair" },
    el(
      "section",
      { class: "card", "aria-label": say("prompt") },
      heading("prompt"),
      reading.root,
      makeControls(),
    ),
    el(
      "section",
      { class: "card", "aria-label": say("completion") },
      heading("completion"),
      target,
      el("div", { class: "bar foot" }, keep, copy, link),
    ),
    makeOptions(settings),
  );
  function makeControls() {
    return el(
      "div",
      { class: "bar foot" },
      write,
      stop,
      field(say("begin-itself"), live, { class: "field end" }),
    );
  }
  reading.text = settings.get("text");
  show(false);
  return { root, start: () => (soon(), reading.box), end: () => latest.end() };
}

function heading(key) {
  return el("div", { class: "bar" }, el("h2", {}, say(key)));
}

function makeOptions(settings) {
  const boxes = Object.entries(NUMBERS).map(([name, [inputMode]]) =>
    box(settings, name, say(name), {
      inputMode,
      class: "short",
      placeholder: name === "seed" ? say("random") : "",
    }),
  );
  const stop = box(settings, "stop", say("stop-text"), { id: "stop-text", placeholder: say("stop-hint") });
  return el(
    "details",
    { class: "options" },
    el("summary", {}, say("options")),
    el("div", { class: "bar" }, ...boxes, stop),
  );
}

function box(settings, name, label, properties) {
  const input = el("input", {
    type: "text",
    id: name,
    value: settings.get(name),
    autocomplete: "off",
    ...properties,
  });
  input.addEventListener("input", () => settings.set({ [name]: input.value }));
  return field(label, input);
}
