// Translation while the reader types: one request per changed line.
import { afterPause, button, el, field, select } from "./dom.js";
import { say } from "./words.js";
import { languageName } from "./sentences.js";
import { inChunks, linesOf, makeKept, wordsOf } from "./lines.js";
import { makeLatest } from "./asking.js";
import { makeReading } from "./reading.js";
import { makeWriting } from "./writing.js";
import { makeOthers } from "./others.js";
import { clearButton, copyButton, lookLink } from "./around.js";

const TRANSLATING_PAUSE = 250; // ms without typing before a request is sent
const MOST_LINES = 16; // maximum number of lines per request
const MOST_SPOKEN = 300; // maximum characters that a screen reader announces automatically
const EMPTY = { candidate: { text: "" }, words: [], chosen: [] };

// The answers of every model, by request; and the reader's choices, { candidate, chosen }
const answers = makeKept(400);
const taken = makeKept(100);

// The cache of answers for lines, and the requests that fill it
function makeAnswers(app, model) {
  const languages = { source: model.source, target: model.target };
  const beam = () => Number(app.settings.get("beam")) || undefined;
  const segment = () => app.settings.get("segment") || undefined;
  const keyOf = (text) => JSON.stringify([model.id, beam(), segment(), text]);
  const bestOf = (text) => answers.get(keyOf(text))?.candidates[0];

  async function found(texts, more, signal) {
    const body = { model: model.id, q: texts, beam: beam(), segment: segment(), details: true, ...more };
    return (await app.server.ask("translate", body, signal)).details;
  }
  return {
    languages,
    bestOf,
    found,
    // Requests the missing answers, a few lines at a time
    async complete(texts, signal, onSome) {
      for (const some of inChunks(new Set(texts.filter((text) => !bestOf(text))), MOST_LINES)) {
        const told = await found(some, {}, signal);
        some.forEach((text, n) => answers.set(keyOf(text), told[n]));
        onSome();
      }
    },
    take: (text, candidate, chosen) => taken.set(keyOf(text), { candidate, chosen }),
    isTaken: (text) => Boolean(taken.get(keyOf(text))?.candidate),
    // The displayed candidate of a line: the reader's choice, or otherwise the best; null: no answer yet
    shownOf(text) {
      if (!text) return EMPTY;
      const own = taken.get(keyOf(text));
      const candidate = own?.candidate ?? bestOf(text);
      if (!candidate) return null;
      const omission = own ? "none" : answers.get(keyOf(text)).omission;
      const words = wordsOf(candidate, text, languages);
      return { candidate, chosen: own?.chosen ?? EMPTY.chosen, words, omission };
    },
  };
}

export function makeTranslating(app, model) {
  const { settings } = app;
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
    ...known,
    isCurrent: (line) => line.shown && line === lines[line.n],
    several: () => full().length > 1,
    take,
  });
  const writing = makeWriting(target, { point, choose: others.atWord, others: others.ofLine });

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
    around.show(waits);
    return waits;
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
    settings.set({ text });
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
    const spans =
      line === null ? [] : word.sources.map(([start, end]) => [start + line.start, end + line.start]);
    reading.light(spans);
  }

  function take(line, candidate, chosen) {
    const isBest = !chosen.length && candidate.text === known.bestOf(line.text)?.text;
    known.take(line.text, isBest ? undefined : candidate, chosen);
    draw();
    writing.elementAt(line.n, chosen.at(-1)?.[0] ?? 0)?.focus({ preventScroll: true });
  }

  function swapped(back) {
    settings.set({ model: back.id, text: textOf() });
    app.rebuild();
  }

  const around = makeAround();
  function makeAround() {
    const copy = copyButton(app, textOf);
    const more = button(say("other-translations"), () => others.ofLine(full()[0], more), { id: "others" });
    const link = lookLink(app, model);
    const hint = el("p", { class: "note" }, say("words-hint"));
    const count = el("span", { class: "note number" });
    const clearing = clearButton(reading, typed);
    const back = app.models.find(
      (one) => one.source && one.source === model.target && one.target === model.source,
    );
    const named = { id: "swap", class: "plain", title: say("swap"), "aria-label": say("swap") };
    const swap = back && button("⇄", () => swapped(back), named);
    return {
      head: el("span", { class: "end" }, swap, clearing),
      foot: [el("div", { class: "bar foot" }, copy, more, link), hint],
      count,
      show(waits) {
        const some = full();
        for (const control of [copy, more, link]) control.hidden = waits || !some.length;
        more.hidden ||= some.length > 1;
        const own = some.length === 1 && known.isTaken(some[0].text) ? some[0].shown.candidate.text : null;
        if (!waits && some.length) link.lookAt(reading.text, own);
        clearing.hidden = !reading.text;
        hint.hidden = !some.length;
        const [n, most] = [reading.text.length, app.facts.characters];
        count.textContent =
          2 * n > most ? say("characters", { n: n.toLocaleString(), most: most.toLocaleString() }) : "";
      },
    };
  }

  const beams = [["", say("beam-own")], ["1", say("beam-1")], ...["2", "4", "8"].map((n) => [n, n])];
  const beam = select(beams, settings.get("beam"), (n) => (settings.set({ beam: n }), begin()), {
    id: "beam",
  });
  const segments = [["", "segment-own"], ...["sentence", "paragraph"].map((n) => [n, `segment-${n}`])];
  const segment = select(
    segments.map(([value, key]) => [value, say(key)]),
    settings.get("segment"),
    (value) => (settings.set({ segment: value }), begin()),
    { id: "segment" },
  );
  const title = (name, ...more) => el("div", { class: "bar" }, el("h2", {}, name), ...more);
  const root = el(
    "div",
    { class: "pair" },
    el(
      "section",
      { class: "card", "aria-label": names.source },
      title(names.source, around.head),
      reading.root,
      around.count,
    ),
    el(
      "section",
      { class: "card", "aria-label": say("translation") },
      title(names.target),
      target,
      ...around.foot,
    ),
    el(
      "details",
      { class: "options" },
      el("summary", {}, say("options")),
      field(say("beam"), beam),
      field(say("segment"), segment),
    ),
    others.root,
  );
  reading.text = settings.get("text");
  return { root, start: () => (begin(), reading.box), end: () => (latest.end(), others.close()) };
}
