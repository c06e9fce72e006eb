// The label of a text while the reader types, with a bar per label.
import { afterPause, clear, el } from "./dom.js";
import { say } from "./words.js";
import { percent } from "./sentences.js";
import { makeLatest } from "./asking.js";
import { makeReading } from "./reading.js";
import { clearButton, lookLink } from "./around.js";

const CLASSIFYING_PAUSE = 250; // ms without typing before a request is sent

export function makeClassifying(app, model) {
  const { settings, server } = app;
  const latest = makeLatest(app.failed);
  const reading = makeReading({
    id: "source",
    label: say("source-text"),
    placeholder: say("type-here"),
    most: app.facts.characters,
    onText: typed,
  });
  const target = el("div", { id: "target", class: "bars" });
  const link = lookLink(app, model);
  const clearing = clearButton(reading, typed);

  async function classify(signal) {
    const text = reading.text;
    app.tellLate(say("classifying"));
    target.setAttribute("aria-busy", "true");
    const { results } = await server.ask("classify", { model: model.id, text }, signal);
    app.tell("");
    show(results[0]);
    link.lookAt(text);
    app.announce(`${results[0].label}: ${percent(results[0].probability)}`);
  }

  function show(result) {
    target.setAttribute("aria-busy", "false");
    clear(target).append(barsOf(result));
    if (result.cut) target.append(el("p", { class: "note" }, say("cut")));
  }

  const soon = afterPause(() => reading.text.trim() && latest.run(classify), CLASSIFYING_PAUSE);
  function typed(text) {
    settings.set({ text });
    begin();
  }
  function begin() {
    latest.stop();
    app.tell("");
    clearing.hidden = !reading.text;
    link.hidden = true;
    target.setAttribute("aria-busy", String(Boolean(reading.text.trim())));
    if (!reading.text.trim()) clear(target);
    soon();
  }

  const heading = (key, ...more) => el("div", { class: "bar" }, el("h2", {}, say(key)), ...more);
  const root = el(
    "div",
    { class: "pair" },
    el(
      "section",
      { class: "card", "aria-label": say("source-text") },
      heading("source-text", el("span", { class: "end" }, clearing)),
      reading.root,
    ),
    el(
      "section",
      { class: "card", "aria-label": say("labels") },
      heading("labels"),
      target,
      el("div", { class: "bar foot" }, link),
    ),
  );
  reading.text = settings.get("text");
  return { root, start: () => (begin(), reading.box), end: () => latest.end() };
}

// A table, so screen readers announce pairs; the bars are only visual
function barsOf({ label, probabilities }) {
  const rows = Object.entries(probabilities).sort(([, a], [, b]) => b - a);
  const head = el(
    "tr",
    {},
    el("th", { scope: "col" }, say("label")),
    el("td", {}),
    el("th", { scope: "col" }, say("probability")),
  );
  return el(
    "table",
    {},
    el("thead", { class: "aside" }, head),
    el(
      "tbody",
      {},
      ...rows.map(([name, share]) =>
        el(
          "tr",
          { class: name === label ? "best" : "" },
          el("th", { scope: "row" }, el("bdi", { dir: "auto" }, name)),
          el("td", { class: "track" }, el("span", { style: { width: `${100 * share}%` } })),
          el("td", { class: "number" }, percent(share)),
        ),
      ),
    ),
  );
}
