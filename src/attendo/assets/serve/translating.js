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
  const textOf = () =>
    lines.map(({ before, shown, after }) => before + (shown?.candidate.text ?? "") + after).join("\n");

  const names = {
    source: languageName(model.source) || say("source-text"),
    target: languageName(model.target) || say("translation"),
  };
  const reading = makeReading({
    id: "source",
    label: names.source,
    placeholder: say("type-here"),
    most: app.facts.characters,
    onText: typed,
    onPlace: (place) => writing.lightFrom(place),
  });
  const target = el("div", { id: "target", class: "writing", role: "group", "aria-label": names.target });
  if (model.source) reading.box.lang = model.source;
  if (model.target) target.lang = model.target;
  const others = makeOthers({
    app,
    known,
    isCurrent: (line) => line.shown && line === lines[line.n],
    several: () => full().length > 1,
    take,
  });
  const writing = makeWriting(target, { point, choose: others.atWord, others: others.ofLine });
  const counter = makeCounter(reading, app.facts.characters, typed);
  const copy = copyButton(app, textOf);
  const more = button(say("other-translations"), () => others.ofLine(full()[0], more), { id: "others", class: "quiet" });
  const link = lookLink(app, model);
  const hint = el("p", { class: "note hint" }, say("words-hint"));
  const lossBar = makeLossBar(() => bySegment("sentence"));
  const request = makeRequest(app, () => {
    const { text } = reading;
    return text.trim() ? { path: "translate", body: { model: model.id, q: text, ...known.options() } } : null;
  });

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
    showAround(waits, full());
    return waits;
  }

  function showAround(waits, some) {
    for (const control of [copy, more, link]) control.hidden = waits || !some.length;
    more.hidden ||= some.length > 1;
    const own = some.length === 1 && known.isTaken(some[0].text) ? some[0].shown.candidate.text : null;
    if (!waits && some.length) link.lookAt(reading.text, own);
    others.offer(!waits && some.length === 1 ? some[0] : null);
    hint.hidden = !some.length;
    counter.update();
    under.update(!reading.text);
    request.update();
  }

  async function translate(signal) {
    app.tellLate(say("translating"));
    const texts = full().map((line) => line.text);
    await known.complete(texts, signal, draw);
    app.tell("");
    const text = textOf();
    if (text.length <= MOST_SPOKEN) app.announce(text, model.target ?? "");
  }

  const soon = afterPause(() => latest.run(translate), TRANSLATING_PAUSE);
  function typed(text) {
    app.keep({ text });
    begin(soon);
  }
  // Earlier requests are no longer needed
  function begin(when = () => latest.run(translate)) {
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

  function makeSwap() {
    const back = app.models.find(
      (one) => one.source && one.source === model.target && one.target === model.source,
    );
    const title = back ? say("swap") : say("serve-no-way-back", names);
    const swapped = () => back && state.set({ model: back.id, text: textOf() });
    const made = button("", swapped, { id: "swap", class: "quiet", title, "aria-label": title });
    if (!back) made.setAttribute("aria-disabled", "true"); // focusable, so everybody can learn the reason
    made.append(icon("swap"));
    return made;
  }

  const beams = [["", say("beam-own")], ["1", say("beam-1")], ...["2", "4", "8"].map((n) => [n, n])];
  const beam = select(beams, state.get("beam"), (n) => (app.keep({ beam: n }), begin()), { id: "beam" });
  const segment = select(
    [["", say("segment-own")], ...["sentence", "paragraph"].map((name) => [name, say(`segment-${name}`)])],
    state.get("segment"),
    (name) => bySegment(name),
    { id: "segment" },
  );
  function bySegment(name) {
    segment.value = name;
    app.keep({ segment: name });
    begin();
  }

  const options = el(
    "details",
    { class: "options" },
    el("summary", {}, say("options")),
    el("div", { class: "card bar" }, field(say("beam"), beam), field(say("segment"), segment)),
  );
  const under = makeUnder(model, counter.replace, options, request.root);
  const half = (name, ...parts) => el("section", { class: "half", "aria-label": name }, ...parts);
  const root = el(
    "div",
    { class: "translate" },
    el(
      "div",
      { class: "desk" },
      el("div", { class: "heads" }, el("h2", {}, names.source), makeSwap(), el("h2", {}, names.target)),
      el(
        "div",
        { class: "halves" },
        half(names.source, reading.root, el("div", { class: "foot" }, counter.count, counter.clearing)),
        half(say("translation"), target, hint, el("div", { class: "foot" }, copy, more, link)),
      ),
      lossBar.root,
    ),
    others.also,
    ...under.root,
  );
  reading.text = state.get("text");
  return { root, start: () => (begin(), reading.box), end: () => (latest.end(), others.end()) };
}
