// @ts-check
// Translation while the reader types: one request per changed line.
import { afterPause, button, el, field, select } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { makeLatest } from "../shared/asking.js";
import { copyButton, icon, languageName, lookLink, makeCounter, makeUnder } from "./tools.js";
import { linesOf } from "./lines.js";
import { makeAnswers } from "./answers.js";
import { makeReading } from "./reading.js";
import { makeWriting } from "./writing.js";
import { makeOthers } from "./others.js";
import { makeLossBar } from "./loss.js";
import { makeRequest } from "./request.js";

const TRANSLATING_PAUSE = 250; // ms without typing before a request is sent
const MOST_SPOKEN = 300; // maximum characters that a screen reader announces automatically

export function makeTranslating(app, model) {
  const { state } = app;
  const latest = makeLatest(app.failed);
  const known = makeAnswers(app, model);
  let lines = []; // see makeWriting
  const full = () => lines.filter((line) => line.text);
  const translation = () =>
    lines.map(({ before, shown, after }) => before + (shown?.candidate.text ?? "") + after).join("\n");

  const names = {
    source: languageName(model.source) || say("source-text"),
    target: languageName(model.target) || say("translation"),
  };
  const box = { id: "source", label: names.source, placeholder: say("type-here") };
  const reading = makeReading(app, box, { onText: typed, onPlace: (place) => writing.lightFrom(place) });
  const target = el("div", { id: "target", class: "writing", role: "group", "aria-label": names.target });
  reading.box.lang = model.source ?? "";
  target.lang = model.target ?? "";
  const isCurrent = (line) => line.shown && line === lines[line.n];
  const others = makeOthers({ app, known, isCurrent, several: () => full().length > 1, take });
  const writing = makeWriting(target, { point, choose: others.atWord, others: others.ofLine });
  const counter = makeCounter(app, reading, typed);
  const copy = copyButton(app, translation);
  const listed = () => others.ofLine(full()[0], more);
  const more = button(say("other-translations"), listed, { id: "others", class: "quiet" });
  const link = lookLink(app, model);
  const hint = el("p", { class: "note hint" }, say("words-hint"));
  const search = makeSearch(app, () => begin());
  const lossBar = makeLossBar(() => search.split());
  const request = makeRequest(app, () => {
    const body = { model: model.id, q: reading.text, ...known.options() };
    return reading.text.trim() ? { path: "translate", body } : null;
  });
  const under = makeUnder(model, counter.replace, search.root, request.root);

  // Lines without an answer keep the previous text, so the layout does not jump while typing
  function draw() {
    const old = lines;
    let start = 0;
    lines = linesOf(reading.text).map((line, n) => {
      const here = start + line.before.length;
      start = here + line.text.length + line.after.length + 1;
      const shown = known.shownOf(line.text);
      return { ...line, n, start: here, shown, was: shown ?? old[n]?.was ?? null };
    });
    writing.show(lines.map((line) => (line.shown ? line : { ...line, stale: true, shown: line.was })));
    const waits = lines.some((line) => line.shown === null);
    target.setAttribute("aria-busy", String(waits));
    reading.mark("missing", lossBar.show(lines, state.get("segment") === "sentence"));
    const some = full();
    for (const control of [copy, more, link]) control.hidden = waits || !some.length;
    more.hidden ||= some.length > 1;
    const own = some.length === 1 && known.isTaken(some[0].text) ? some[0].shown.candidate.text : null;
    if (!waits && some.length) link.lookAt(reading.text, own);
    others.offer(!waits && some.length === 1 ? some[0] : null);
    hint.hidden = !some.length;
    counter.update();
    under.update(!reading.text);
    request.update();
    return waits;
  }

  async function translate(signal) {
    app.tellLate(say("translating"));
    const texts = full().map((line) => line.text);
    await known.complete(texts, signal, draw);
    app.tell("");
    const text = translation();
    if (text.length <= MOST_SPOKEN) app.announce(text, model.target ?? "");
  }

  const soon = afterPause(() => latest.run(translate), TRANSLATING_PAUSE);
  function typed(text) {
    app.keep({ text });
    begin(soon);
  }
  // Earlier requests are no longer needed
  function begin(when = () => void latest.run(translate)) {
    latest.stop();
    others.close();
    app.tell("");
    if (draw()) when();
  }

  function point(line, word) {
    reading.mark("lit", line ? word.sources.map((span) => span.map((at) => at + line.start)) : []);
  }

  function take(line, candidate, chosen) {
    const isBest = !chosen.length && candidate.text === known.bestOf(line.text)?.text;
    known.take(line.text, isBest ? undefined : candidate, chosen);
    draw();
    writing.elementAt(line.n, chosen.at(-1)?.[0] ?? 0)?.focus({ preventScroll: true });
  }

  const swap = makeSwap(app, model, names, () => (lines.some(({ shown }) => !shown) ? reading.text : translation()));
  const halves = [
    [names.source, reading.root, el("div", { class: "foot" }, counter.count, counter.clearing)],
    [say("translation"), target, hint, el("div", { class: "foot" }, copy, more, link)],
  ].map(([name, ...parts]) => el("section", { class: "half", "aria-label": name }, ...parts));
  const heads = el("div", { class: "heads" }, el("h2", {}, names.source), swap, el("h2", {}, names.target));
  const desk = el("div", { class: "desk" }, heads, el("div", { class: "halves" }, ...halves), lossBar.root);
  reading.text = state.get("text");
  return {
    root: el("div", { class: "translate" }, desk, others.also, ...under.root),
    start: () => (begin(), reading.box),
    end: () => (latest.end(), others.end()),
  };
}

// The button that translates the translation back, or says why no model can; without a translation, the text stays
function makeSwap(app, model, names, translation) {
  const back = app.models.find(({ source, target }) => source && source === model.target && target === model.source);
  const title = back ? say("swap") : say("serve-no-way-back", names);
  const swapped = () => back && app.state.set({ model: back.id, text: translation() });
  const made = button(icon("swap"), swapped, { id: "swap", class: "quiet", title, "aria-label": title });
  if (!back) made.setAttribute("aria-disabled", "true"); // focusable, so everybody can learn the reason
  return made;
}

// The options of the search; split(): each sentence by itself
function makeSearch(app, onChange) {
  const choice = (id, values, prefix) => {
    const options = values.map(([value, key]) => [value, key ? say(key) : value]);
    const made = select(options, app.state.get(id), (value) => (app.keep({ [id]: value }), onChange()), { id });
    return { made, label: field(say(prefix), made) };
  };
  const beam = choice("beam", [["", "beam-own"], ["1", "beam-1"], ["2"], ["4"], ["8"]], "beam");
  const units = [["", "segment-own"], ...["sentence", "paragraph"].map((unit) => [unit, `segment-${unit}`])];
  const segment = choice("segment", units, "segment");
  const card = el("div", { class: "card bar" }, beam.label, segment.label);
  return {
    root: el("details", { class: "options" }, el("summary", {}, say("options")), card),
    split() {
      segment.made.value = "sentence";
      segment.made.dispatchEvent(new Event("change"));
    },
  };
}
