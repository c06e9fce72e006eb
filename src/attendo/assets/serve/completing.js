// One document: the text of the reader, and behind it the continuation by a language model while it is generated.
import { afterPause, button, clear, el, field } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { makeLatest } from "../shared/asking.js";
import { copyButton, lookLink, makeCounter, makeUnder } from "./tools.js";
import { makeReading } from "./reading.js";
import { makeOptions, settingsOf } from "./options.js";
import { drawWords, pieceOf, textOf, upTo, without } from "./continuation.js";
import { makeNextWords } from "./nextwords.js";
import { makeRequest } from "./request.js";

const COMPLETING_PAUSE = 700; // ms without typing before a completion starts automatically
const VARIANTS = 3;
const MOST_READ_OUT = 300; // maximum characters that a screen reader announces automatically

export function makeCompleting(app, model) {
  const { state, server } = app;
  const latest = makeLatest((error) => (app.failed(error), ended()));
  let texts = [[]]; // the pieces of each variant; see continuation.js
  let shown = 0; // the variant behind the text
  let before = ""; // the text before the last change
  let slots = []; // the elements of the variants' texts
  const accepted = []; // { text, pieces } before each acceptance
  const pieces = () => texts[shown];

  const written = el("span", { class: "written", role: "group", "aria-label": say("completion") });
  const reading = makeReading({
    id: "prompt",
    label: say("prompt"),
    placeholder: say("prompt-here"),
    most: app.facts.characters,
    onText: typed,
    behind: written,
    mirror: { id: "target" },
  });
  const counter = makeCounter(reading, app.facts.characters, (text) => typed(text));
  const write = button("", () => go(), { id: "write", class: "main" });
  const stop = button(say("stop"), halt, { id: "stop", class: "main" });
  const several = button(say("serve-three"), () => go([], VARIANTS), { id: "several", class: "quiet" });
  const keep = button(say("serve-accept"), accept, { id: "keep" });
  const drop = button(say("serve-discard"), discard, { id: "discard", class: "quiet" });
  const undo = button(say("serve-undo"), () => (reading.box.focus(), document.execCommand("undo")), {
    id: "undo",
    class: "quiet",
  });
  const copy = copyButton(app, () => reading.text + textOf(pieces()));
  const link = lookLink(app, model);
  const hint = el("p", { class: "note hint" }, el("span", { class: "by-key" }, `${say("serve-keys")} `), say("serve-tints"));
  const cards = el("ul", { class: "cards" });
  const variants = el("section", { class: "also", "aria-label": say("serve-three") }, cards);
  const live = el("input", {
    id: "live",
    type: "checkbox",
    class: "switch",
    checked: state.get("live") === "yes",
    onchange: () => (app.keep({ live: live.checked ? "yes" : "no" }), soon()),
  });
  const request = makeRequest(app, () => {
    try {
      return { path: "v1/completions", body: { model: model.id, prompt: reading.text, ...settingsOf(state) } };
    } catch {
      return null; // a setting is invalid
    }
  });
  const options = makeOptions(app, () => request.update());
  const under = makeUnder(model, counter.replace, options, request.root, field(say("begin-itself"), live));
  const nextWords = makeNextWords(app, model, (begun, word) => go([...begun, { text: word, logProb: null, chosen: true }]));

  // begun: the pieces that the continuation begins with; n: the number of variants
  function go(begun = [], n = 1) {
    latest.run(async (signal) => {
      const settings = settingsOf(state);
      nextWords.close();
      app.tellLate(say("writing"));
      texts = Array.from({ length: n }, () => [...begun]);
      shown = 0;
      const started = performance.now();
      slots = n > 1 ? showCards() : [];
      show(true);
      const body = { model: model.id, prompt: reading.text + textOf(begun), ...settings, stream: true, logprobs: 0 };
      let reason = "stop";
      for await (const { choices } of server.events("v1/completions", n > 1 ? { ...body, n } : body, signal)) {
        const [choice] = choices;
        if (choice?.finish_reason) reason = choice.finish_reason;
        if (!choice?.text) continue;
        const piece = pieceOf(choice);
        texts[choice.index].push(piece);
        if (choice.index === shown) written.append(piece.text);
        slots[choice.index]?.append(piece.text);
      }
      const seconds = ((performance.now() - started) / 1000).toFixed(1);
      ended(say(reason === "length" ? "ended-length" : "ended-stop", { seconds }));
      const text = textOf(pieces());
      if (text.length <= MOST_READ_OUT) app.announce(text);
    });
  }

  function ended(told) {
    if (told !== undefined) app.tell(told);
    slots.forEach((slot, n) => texts[n] && drawWords(slot, texts[n]));
    show(false);
  }

  function halt() {
    latest.stop();
    ended(say("stopped"));
  }

  function show(running) {
    drawWords(written, pieces(), running ? null : (word, element) => nextWords.open(reading.text, pieces(), word, element));
    const some = pieces().length > 0;
    written.classList.toggle("running", running);
    reading.root.lastChild.setAttribute("aria-busy", String(running));
    stop.hidden = !running;
    write.hidden = several.hidden = running;
    write.textContent = say(some ? "again" : "write");
    for (const control of [keep, drop, copy, link]) control.hidden = !some || running;
    undo.hidden = running || !accepted.length;
    hint.hidden = !some;
    variants.hidden = texts.length < 2;
    if (some && !running) link.lookAt(reading.text);
    counter.update();
    under.update(!reading.text && !some);
    request.update();
  }

  function showCards() {
    const slots = texts.map(() => el("bdi", { class: "whole", dir: "auto" }));
    const buttons = slots.map((slot, n) =>
      button("", () => choose(n), { "aria-pressed": String(n === shown), "aria-label": say("serve-variant", { n: n + 1 }) }),
    );
    function choose(n) {
      shown = n;
      buttons.forEach((one, place) => one.setAttribute("aria-pressed", String(place === n)));
      show(!stop.hidden);
    }
    buttons.forEach((one, n) => one.append(slots[n]));
    clear(cards).append(...buttons.map((one) => el("li", {}, one)));
    return slots;
  }

  // By the editor's own command, so that Ctrl+Z takes it back like typed text
  function accept() {
    const text = textOf(pieces());
    if (!text) return;
    latest.stop();
    accepted.push({ text: reading.text, pieces: pieces() });
    reading.box.focus();
    reading.box.setSelectionRange(reading.text.length, reading.text.length);
    if (!document.execCommand("insertText", false, text)) reading.text += text;
    if (reading.text !== before) typed(reading.text);
    if (live.checked) go();
  }

  function discard() {
    latest.stop();
    texts = [[]];
    shown = 0;
    ended("");
    reading.box.focus();
  }

  const soon = afterPause(() => live.checked && reading.text.trim() && !pieces().length && go(), COMPLETING_PAUSE);
  function typed(text, event) {
    const ahead = text.startsWith(before) ? text.slice(before.length) : "";
    const rest = textOf(pieces());
    const undone = event?.inputType === "historyUndo" && accepted.at(-1)?.text === text ? accepted.pop() : null;
    before = text;
    app.keep({ text });
    if (ahead && rest.length > ahead.length && rest.startsWith(ahead)) {
      texts[shown] = without(pieces(), ahead.length); // the reader types what the model has written
      return show(!stop.hidden);
    }
    latest.stop();
    nextWords.close();
    texts = [undone?.pieces ?? []];
    shown = 0;
    ended("");
    if (!undone) soon();
  }

  reading.box.addEventListener("keydown", (event) => {
    const { key, shiftKey, ctrlKey, metaKey, altKey } = event;
    const { selectionStart, value } = reading.box;
    if (key === "Enter" && (ctrlKey || metaKey)) go();
    else if (shiftKey || ctrlKey || metaKey || altKey) return;
    else if (key === "Tab" && pieces().length) accept();
    else if (key === "ArrowRight" && selectionStart === value.length && written.firstElementChild) {
      if (written.classList.contains("running")) return;
      written.firstElementChild.focus();
    } else return;
    event.preventDefault();
  });
  reading.root.addEventListener("keydown", (event) => {
    const isFirst = event.target === written.firstElementChild;
    if (event.key === "Escape" && !stop.hidden) halt();
    else if (event.key === "Escape" && pieces().length) discard();
    else if (event.key === "ArrowLeft" && isFirst) reading.box.focus();
    else return;
    event.preventDefault();
  });

  const root = el(
    "div",
    { class: "complete" },
    el(
      "section",
      { class: "desk", "aria-label": say("prompt") },
      reading.root,
      hint,
      el("div", { class: "foot" }, write, stop, keep, drop, several, undo, counter.clearing, copy, link),
    ),
    variants,
    ...under.root,
  );
  reading.text = before = state.get("text");
  show(false);
  return { root, start: () => (soon(), reading.box), end: () => (latest.end(), nextWords.end()) };
}
