// The label of each line while the reader types: bars and the words that decided for one line, a table for several.
import { afterPause, button, clear, el, percent } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { makeLatest } from "../shared/asking.js";
import { barOf, shareTable, tableHead } from "../shared/bars.js";
import { saveCsv } from "../shared/files.js";
import { lookLink, makeCounter, makeUnder } from "./tools.js";
import { inChunks, linesOf, makeKept } from "./lines.js";
import { makeReading } from "./reading.js";
import { makeDecided } from "./decided.js";
import { makeRequest } from "./request.js";

const CLASSIFYING_PAUSE = 250; // ms without typing before a request is sent
const MOST_TEXTS = 64; // maximum number of lines per request
const results = makeKept(1000); // of every model, by model and line

export function makeClassifying(app, model) {
  const { state, server } = app;
  const latest = makeLatest(app.failed);
  const resultOf = (text) => results.get(JSON.stringify([model.id, text]));
  const reading = makeReading({
    id: "source",
    label: say("source-text"),
    placeholder: say("type-here"),
    most: app.facts.characters,
    onText: typed,
  });
  const target = el("div", { id: "target", class: "bars" });
  const link = lookLink(app, model);
  const decided = makeDecided(app, model);
  const counter = makeCounter(reading, app.facts.characters, typed);
  const csv = button(say("serve-csv"), save, { id: "csv", class: "quiet" });
  const texts = () => linesOf(reading.text).flatMap(({ text }) => text || []);
  const request = makeRequest(app, () => {
    const some = texts();
    return some.length ? { path: "classify", body: { model: model.id, texts: some } } : null;
  });
  const under = makeUnder(model, counter.replace, request.root);
  let open = null; // the number of the open row of the table

  async function classify(signal) {
    app.tellLate(say("classifying"));
    const all = texts();
    for (const some of inChunks(new Set(all.filter((text) => !resultOf(text))), MOST_TEXTS)) {
      const answer = await server.ask("classify", { model: model.id, texts: some }, signal);
      some.forEach((text, n) => results.set(JSON.stringify([model.id, text]), answer.results[n]));
    }
    app.tell("");
    show(all);
    const { label, probability } = resultOf(all[0]);
    app.announce(all.length > 1 ? say("serve-lines", { n: all.length }) : `${label}: ${percent(probability)}`);
  }

  function show(all) {
    target.setAttribute("aria-busy", "false");
    clear(target).append(all.length > 1 ? tableOf(all) : detailOf(all[0]));
    csv.hidden = all.length < 2;
    link.lookAt(all[open ?? 0] ?? all[0]);
  }

  function detailOf(text) {
    const { label, probabilities, cut } = resultOf(text);
    const rows = Object.entries(probabilities)
      .sort(([, a], [, b]) => b - a)
      .map(([name, share]) => ({ name, share, best: name === label }));
    const note = cut ? el("p", { class: "note" }, say("cut")) : "";
    return el("div", { class: "detail" }, shareTable(rows), note, decided.of(text, resultOf(text)));
  }

  function tableOf(all) {
    const rows = all.flatMap((text, n) => {
      const { label, probability } = resultOf(text);
      const isOpen = n === open;
      const toggle = () => {
        open = isOpen ? null : n;
        show(all);
        target.querySelector(`[data-row="${n}"]`).focus({ preventScroll: true });
      };
      const name = button(text, toggle, { class: "link", dir: "auto", "aria-expanded": String(isOpen) });
      name.dataset.row = n;
      const row = el(
        "tr",
        { class: isOpen ? "row open" : "row", onclick: (event) => event.target !== name && toggle() },
        el("th", { scope: "row" }, name),
        el("td", {}, el("bdi", { dir: "auto" }, label)),
        el("td", {}, barOf(probability), " ", percent(probability)),
      );
      return [row, isOpen && el("tr", {}, el("td", { colSpan: 3, class: "inside" }, detailOf(text)))];
    });
    const head = [[say("serve-line"), "line-text"], [say("label")], [say("probability")]];
    return el("table", { class: "rows" }, tableHead(head), el("tbody", {}, rows));
  }

  function save() {
    const all = texts();
    const names = Object.keys(resultOf(all[0]).probabilities);
    const rows = all.map((text) => {
      const { label, probabilities } = resultOf(text);
      return [text, label, ...names.map((name) => probabilities[name])];
    });
    saveCsv(`${model.id}.csv`, [["text", "label", ...names], ...rows]);
  }

  const soon = afterPause(() => latest.run(classify), CLASSIFYING_PAUSE);
  function typed(text) {
    app.keep({ text });
    open = null;
    begin(soon);
  }
  function begin(when = () => latest.run(classify)) {
    latest.stop();
    app.tell("");
    const all = texts();
    const waits = all.some((text) => !resultOf(text));
    for (const control of [link, csv]) control.hidden = true;
    target.setAttribute("aria-busy", String(waits));
    counter.update();
    under.update(!reading.text);
    request.update();
    if (waits) when();
    else if (all.length) show(all);
    else clear(target).append(el("p", { class: "note" }, say("serve-one-line")));
  }

  const root = el(
    "div",
    { class: "classify" },
    el(
      "div",
      { class: "desk halves" },
      el(
        "section",
        { class: "half", "aria-label": say("source-text") },
        reading.root,
        el("div", { class: "foot" }, counter.count, counter.clearing),
      ),
      el(
        "section",
        { class: "half", "aria-label": say("labels") },
        target,
        el("div", { class: "foot" }, csv, link),
      ),
    ),
    ...under.root,
  );
  reading.text = state.get("text");
  return { root, start: () => (begin(), reading.box), end: () => (latest.end(), decided.end()) };
}
