// @ts-check
// One document: the text of the reader, and after it the continuation by a language model while it is written.
import { afterPause, button, el, field } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { copyButton, lookLink, makeCounter, makeUnder } from "./tools.js";
import { makeReading } from "./reading.js";
import { makeOptions, settingsOf } from "./options.js";
import { drawWords, makeCards } from "./continuation.js";
import { makeDraft } from "./draft.js";
import { makeNextWords } from "./nextwords.js";
import { makeRequest } from "./request.js";

const COMPLETING_PAUSE = 700; // ms without typing before a completion starts automatically
const VARIANTS = 3;

export function makeCompleting(app, model) {
  const { state } = app;
  let before = state.get("text"); // the text before the last change
  const accepted = []; // { text, pieces } before each acceptance
  const written = el("span", { class: "written", role: "group", "aria-label": say("completion") });
  const place = { id: "prompt", label: say("prompt"), placeholder: say("prompt-here") };
  const reading = makeReading(app, place, { onText: typed, after: written, mirror: { id: "target" } });
  const draft = makeDraft(app, model, {
    onPiece: (n, piece) => (n === draft.shown && written.append(piece.text), cards.add(n, piece)),
    onChange: show,
  });
  const cards = makeCards(draft.choose);
  const nextWords = makeNextWords(app, model, (begun, text) => go([...begun, { text, logProb: null, chosen: true }]));
  const request = makeRequest(app, () => {
    try {
      const body = draft.body ?? { model: model.id, prompt: reading.text, ...settingsOf(state) };
      return { path: "v1/completions", body };
    } catch {
      return null; // a setting is invalid
    }
  });
  const quiet = (id) => ({ id, class: "quiet" });
  const write = button("", () => go(), { id: "write" });
  const stop = button(say("stop"), draft.stop, { id: "stop", class: "main" });
  const several = button(say("serve-three"), () => go([], VARIANTS), quiet("several"));
  const keep = button(say("serve-accept"), accept, { id: "keep", class: "main" });
  const drop = button(say("serve-discard"), discard, quiet("discard"));
  const undo = button(say("serve-undo"), () => (reading.box.focus(), document.execCommand("undo")), quiet("undo"));
  const copy = copyButton(app, () => reading.text + draft.text);
  const link = lookLink(app, model);
  const chat = app.facts.chat && model.chat && { class: "button quiet", href: `chat?model=${encodeURIComponent(model.id)}` };
  const counter = makeCounter(app, reading, typed);
  const byKey = el("span", { class: "by-key" }, `${say("serve-keys")} `);
  const hint = el("p", { class: "note hint" }, byKey, say("serve-tints"));
  const live = el("input", { id: "live", type: "checkbox", class: "switch", checked: state.get("live") === "yes" });
  live.onchange = () => (app.keep({ live: live.checked ? "yes" : "no" }), soon());
  const options = makeOptions(app, () => request.update());
  const under = makeUnder(model, counter.replace, options, request.root, field(say("begin-itself"), live));

  function go(begun = [], n = 1) {
    nextWords.close();
    draft.write(reading.text, begun, n);
  }

  function show() {
    const { running, pieces } = draft;
    const some = pieces.length > 0;
    drawWords(written, pieces, running ? null : (word, made) => nextWords.open(reading.text, draft.keep, word, made));
    cards.show(draft);
    written.classList.toggle("running", running);
    reading.mirror.setAttribute("aria-busy", String(running));
    stop.hidden = !running;
    write.hidden = several.hidden = running;
    write.textContent = say(some ? "again" : "write");
    write.className = some ? "" : "main";
    for (const control of [keep, drop, copy, link]) control.hidden = !some || running;
    undo.hidden = running || !accepted.length;
    hint.hidden = !some;
    if (some && !running) link.lookAt(reading.text, draft.text);
    counter.update();
    under.update(!reading.text && !some);
    request.update();
  }

  // By the editor's own command, so that Ctrl+Z takes it back like typed text
  function accept() {
    const { box, text } = reading;
    accepted.push({ text, pieces: draft.pieces });
    box.focus();
    box.setSelectionRange(text.length, text.length);
    if (!document.execCommand("insertText", false, draft.text)) reading.text += draft.text;
    if (reading.text !== before) typed(reading.text); // the command is unknown, or it told nobody
    if (matchMedia("(pointer: coarse)").matches) box.blur(); // the keyboard would hide the text
    if (live.checked) go();
  }

  function discard() {
    draft.replace();
    reading.box.focus();
  }

  const soon = afterPause(() => {
    if (live.checked && reading.text.trim() && !draft.pieces.length) go();
  }, COMPLETING_PAUSE);
  function typed(text, event) {
    const ahead = text.startsWith(before) ? text.slice(before.length) : "";
    const isUndone = event?.inputType === "historyUndo" && accepted.at(-1)?.text === text;
    before = text;
    app.keep({ text });
    // the reader types what the model has written
    if (ahead && ahead !== draft.text && draft.text.startsWith(ahead)) return draft.skip(ahead.length);
    nextWords.close();
    draft.replace(isUndone ? accepted.pop().pieces : []);
    if (!isUndone) soon();
  }

  reading.box.addEventListener("keydown", (event) => {
    const { key, shiftKey, ctrlKey, metaKey, altKey } = event;
    const first = written.querySelector("[role=button]");
    const isAtEnd = reading.box.selectionStart === reading.text.length;
    if (key === "Enter" && (ctrlKey || metaKey)) go();
    else if (shiftKey || ctrlKey || metaKey || altKey) return;
    else if (key === "Tab" && draft.text) accept();
    else if (key === "ArrowRight" && isAtEnd && first) first.focus();
    else return;
    event.preventDefault();
  });
  reading.root.addEventListener("keydown", (event) => {
    const isFirst = event.target === written.firstElementChild;
    if (event.key === "Escape" && draft.running) draft.stop();
    else if (event.key === "Escape" && draft.text) discard();
    else if (event.key === "ArrowLeft" && isFirst) reading.box.focus();
    else return;
    event.preventDefault();
  });

  const foot = el("div", { class: "foot" }, stop, keep, write, drop, several, undo, counter.clearing, copy, link);
  if (chat) foot.append(el("a", chat, say("serve-chat")));
  const desk = el("section", { class: "desk", "aria-label": say("prompt") }, reading.root, hint, foot);
  reading.text = before;
  show();
  return {
    root: el("div", { class: "complete" }, desk, cards.root, ...under.root),
    start: () => (soon(), reading.box),
    end: () => (draft.end(), nextWords.end()),
  };
}
