// @ts-check
// The label of each line while the reader types: bars and the words that decided for one line, a table for several.
import { afterPause, button, clear, el, percent } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { makeLatest } from "../shared/asking.js";
import { barOf, shareTable, tableHead, tableRow } from "../shared/bars.js";
import { saveCsv } from "../shared/files.js";
import { lookLink, makeCounter, makeUnder } from "./tools.js";
import { inChunks, linesOf, makeKept } from "./lines.js";
import { makeReading } from "./reading.js";
import { makeDecided } from "./decided.js";
import { makeRequest } from "./request.js";

const CLASSIFYING_PAUSE = 250; // ms without typing before a request is sent
const MOST_TEXTS = 64; // maximum number of lines per request
const results = makeKept(60_000); // of every model, by model and line
// if no label reached its threshold, the details are those of the most probable label
const withGiven = ({ label, ...of }) => {
  return { ...of, given: label ?? say("serve-no-label"), label: label ?? Object.keys(of.probabilities)[0] };
};

export function makeClassifying(app, model) {
  const latest = makeLatest(app.failed);
  const keyOf = (text) => JSON.stringify([model.id, text]);
  const resultOf = (text) => results.get(keyOf(text));
  const box = { id: "source", label: say("source-text"), placeholder: say("type-here") };
  const reading = makeReading(app, box, { onText: typed });
  const texts = () => linesOf(reading.text).flatMap(({ text }) => text || []);
  const target = el("div", { id: "target", class: "bars" });
  const link = lookLink(app, model);
  const decided = makeDecided(app, model);
  const counter = makeCounter(app, reading, typed);
  const csv = button(say("serve-csv"), save, { id: "csv", class: "quiet" });
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
      const answer = await app.server.ask("classify", { model: model.id, texts: some }, signal);
      some.forEach((text, n) => results.set(keyOf(text), withGiven(answer.results[n])));
    }
    app.tell("");
    show(all);
    const { given, probability } = resultOf(all[0]);
    app.announce(all.length > 1 ? say("serve-lines", { n: all.length }) : `${given}: ${percent(probability)}`);
  }

  function show(all) {
    target.setAttribute("aria-busy", "false");
    const rows = all.map((text) => ({ text, ...resultOf(text) }));
    clear(target).append(rows.length > 1 ? tableOf(rows, open, detailOf, toggle) : detailOf(rows[0]));
    csv.hidden = rows.length < 2;
    link.lookAt(all[open ?? 0]);
    function toggle(n) {
      open = n === open ? null : n;
      show(all);
      target.querySelectorAll("[aria-expanded]")[n].focus({ preventScroll: true });
    }
  }

  function detailOf(result) {
    const shares = Object.entries(result.probabilities).sort(([, a], [, b]) => b - a);
    const bars = shareTable(shares.map(([name, share]) => ({ name, share, best: name === result.label })));
    const note = result.cut && el("p", { class: "note" }, say("cut"));
    const none = result.given !== result.label && el("p", { class: "note" }, say("serve-no-label-why"));
    return el("div", { class: "detail" }, bars, none, note, decided.of(result));
  }

  function save() {
    const all = texts().map((text) => ({ text, ...resultOf(text) }));
    const names = Object.keys(all[0].probabilities);
    const rows = all.map(({ text, given, probabilities: of }) => [text, given, ...names.map((name) => of[name])]);
    saveCsv(`${model.id}.csv`, [["text", "label", ...names], ...rows]);
  }

  const soon = afterPause(() => latest.run(classify), CLASSIFYING_PAUSE);
  function typed(text) {
    app.keep({ text });
    open = null;
    begin(soon);
  }
  function begin(when = () => void latest.run(classify)) {
    latest.stop();
    app.tell("");
    const all = texts();
    const waits = all.some((text) => !resultOf(text));
    link.hidden = csv.hidden = true;
    target.setAttribute("aria-busy", String(waits));
    counter.update();
    under.update(!reading.text);
    request.update();
    if (waits) when();
    else if (all.length) show(all);
    else clear(target).append(el("p", { class: "note" }, say("serve-one-line")));
  }

  const halves = [
    ["source-text", reading.root, el("div", { class: "foot" }, counter.count, counter.clearing)],
    ["labels", target, el("div", { class: "foot" }, csv, link)],
  ].map(([name, ...parts]) => el("section", { class: "half", "aria-label": say(name) }, ...parts));
  reading.text = app.state.get("text");
  return {
    root: el("div", { class: "classify" }, el("div", { class: "desk halves" }, ...halves), ...under.root),
    start: () => (begin(), reading.box),
    end: () => (latest.end(), decided.end()),
  };
}

// A row per line; under the open one, its details
function tableOf(rows, open, detailOf, onToggle) {
  const made = rows.flatMap((row, n) => {
    const { text, given, probability } = row;
    const isOpen = n === open;
    const toggle = () => onToggle(n);
    const name = button(text, toggle, { class: "link", dir: "auto", "aria-expanded": String(isOpen) });
    const cells = [el("bdi", { dir: "auto" }, given), [barOf(probability), " ", percent(probability)]];
    const onclick = ({ target }) => target !== name && toggle();
    const details = isOpen && el("tr", {}, el("td", { colSpan: 3, class: "inside" }, detailOf(row)));
    return [tableRow(name, cells, { class: isOpen ? "row open" : "row", onclick }), details];
  });
  const head = tableHead([[say("serve-line")], [say("label")], [say("probability")]]);
  return el("table", { class: "rows" }, head, el("tbody", {}, made));
}
