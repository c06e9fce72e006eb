// @ts-check
// The text, the answer, and what changed: the row at the top, with examples, the search, and the edits of the model.
import { shareTable } from "../shared/bars.js";
import { compared, comparedLine, marked } from "../shared/diff.js";
import { afterPause, button, clear, el, field, formatted, percent, select, signed } from "../shared/dom.js";
import { makeSheet, term } from "../shared/sheet.js";
import { inJapanese, say } from "../shared/words.js";
import { answerText, editName } from "./app.js";
import { saysSomething, searchOf } from "./opening.js";
import { isSpaced, joinedText } from "./shown.js";
import { onlyLive } from "./views.js";

const TYPING_PAUSE = 400; // ms without typing before a quick model looks again
const QUICK = 0.3; // seconds of the last look up to which the page looks while the reader types
const MOST_LABELS = 4;

export function makeText(app, root) {
  const { state, model, source } = app;
  const box = el("textarea", {
    id: "text",
    rows: 1,
    value: state.get("text"),
    dir: "auto",
    spellcheck: false,
    readOnly: !source.live,
    placeholder: say("type-here"),
    "aria-label": say(`input-text-${model.family}`),
  });
  const answer = el("div", { id: "answer", "aria-live": "polite" });
  const hint = el("span", { class: "note", id: "enter-hint", hidden: true }, say("enter-hint"));
  const search = searchButton(app, () => ask());
  const tries = el("div", { class: "bar tries" });
  const edits = el("div", { class: "bar edits" });
  root.append(
    el(
      "section",
      { id: "input", class: "card", "aria-label": say("look") },
      el("div", { class: "half" }, box, el("div", { class: "bar end" }, hint, search.node)),
      el("div", { class: "half", id: "output" }, answer),
    ),
    el("div", { class: "bar below-text" }, tries, edits),
  );

  const later = afterPause(() => ask({}, state.settle), TYPING_PAUSE);
  function typed() {
    const other = box.value !== state.get("text");
    app.root.classList.toggle("stale", other);
    const quick = !app.look || app.look.quick || app.look.seconds < QUICK;
    hint.hidden = !other || quick;
    if (other && quick) later();
  }
  // change: state.set for an entry in the history, and state.settle while the reader types
  function ask(more = /** @type {Record<string, any>} */ ({}), change = state.set) {
    const text = more.text ?? box.value;
    const other = text !== state.get("text");
    change({
      text,
      ...(other ? { query: null, key: null, locked: false, position: null, prefix: [], why: "" } : {}),
      ...more,
    });
    app.relookIfOther();
  }
  box.addEventListener("input", typed);
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    ask();
    if (!saysSomething(app)) app.tell(say("no-text"));
  });

  function update() {
    if (!app.look) return;
    const other = box.value !== app.look.ask.text;
    app.root.classList.toggle("stale", other);
    hint.hidden ||= !other;
    clear(answer).append(...answerOf(app));
    clear(edits).append(...editChips(app));
    tries.hidden = edits.childElementCount > 0;
    search.update();
  }
  const examples = model.examples ?? [];
  if (examples.length && source.live)
    tries.append(
      el("span", { class: "note" }, say("try")),
      // an example opens with the head that it needs most
      ...examples.map((text) =>
        button(text, () => ask({ text, layer: "", edits: [] }), { class: "pill", title: text }),
      ),
    );
  app.on("answer", update);
  app.on("asked", () => app.look && app.root.classList.add("stale"));
  state.on("text", () => {
    box.value = state.get("text");
  });
  state.on(["search", "beam", "max_tokens"], search.update);
  // a text that was typed before the page was built again
  function resume(draft) {
    box.value = draft;
    typed();
  }
  return { box, resume };
}

// The search as one button, whose sheet has its settings
function searchButton(app, ask) {
  const { state, model } = app;
  const made = button("", open, { id: "search-button", class: "quiet", "aria-haspopup": "dialog" });
  const sheet = makeSheet();
  if (!app.isWriter) made.hidden = true;
  function update() {
    const name = searchOf(app);
    made.textContent = `${name === "beam" ? say("beam-n", { n: state.get("beam") || model.beam }) : say(`search-${name}`)} ▾`;
  }
  function open() {
    const ways = ["greedy", "beam", "forced"].map((name) => [name, say(`search-${name}`)]);
    const set = (some) => {
      state.set(some);
      show();
      if (searchOf(app) !== "forced" || state.get("target")) ask();
    };
    const way = select(ways, searchOf(app), (name) => set({ search: name === model.search ? "" : name, prefix: [] }), {
      id: "search",
    });
    const number = (id, least, most, value, onchange) =>
      el("input", {
        type: "number",
        id,
        min: least,
        max: most,
        value,
        onchange: (event) => onchange(whole(event.target, least, most)),
      });
    const beam = field(
      say("beam-size"),
      number("beam-size", 1, 16, state.get("beam") || model.beam || 4, (n) => set({ beam: n === model.beam ? 0 : n })),
    );
    const most = field(
      say("max-tokens"),
      number("max-tokens", 0, 1024, state.get("max_tokens"), (n) => set({ max_tokens: n })),
    );
    const target = el("textarea", {
      id: "target",
      rows: 2,
      value: state.get("target"),
      dir: "auto",
      spellcheck: false,
      onchange: () => set({ target: target.value }),
      onkeydown: (event) =>
        event.key === "Enter" &&
        !event.shiftKey &&
        !event.isComposing &&
        (event.preventDefault(), set({ target: target.value })),
    });
    const forced = el(
      "label",
      { class: "forced-text" },
      el("span", { class: "note" }, say(`forced-${model.family}`)),
      target,
    );
    const parts = { beam: el("p", {}, beam), forced, greedy: el("p", {}, most) };
    function show() {
      const name = searchOf(app);
      parts.beam.hidden = name !== "beam";
      forced.hidden = name !== "forced";
      parts.greedy.hidden = model.family !== "language-model" || name === "forced";
    }
    show();
    sheet.open(made, say("search"), el("p", {}, field(say("search-by"), way)), parts.beam, parts.greedy, forced);
  }
  update();
  return { node: onlyLive(app, made), update };
}

function whole(input, least, most) {
  return Math.min(most, Math.max(least, Math.round(Number(input.value)) || least));
}

// The answer; with edits, the answers before and after, and what changed
function answerOf(app) {
  const { look, model } = app;
  const { outcome, baseline } = look;
  const note = inJapanese() ? look.note_ja : look.note;
  const notes = note ? [el("p", { class: "note warning" }, note)] : [];
  if (outcome.labels) return [labelBars(look), ...notes];
  if (!baseline || !look.ask.edits.length) {
    const given = model.family === "language-model" ? el("span", { class: "given" }, look.ask.text) : "";
    const text = el(
      "p",
      { class: "output-text", dir: "auto" },
      given,
      el("bdi", { class: "written" }, outcome.text ?? ""),
    );
    return [text, outcomeFacts(look), ...notes];
  }
  const [old, now] = compared(baseline.text ?? "", outcome.text ?? "");
  const same = baseline.text === outcome.text;
  const lines = [comparedLine(say("before"), marked(old, "del")), comparedLine(say("after"), marked(now, "ins"))];
  return [
    el("div", { class: "before-after" }, ...lines),
    el(
      "p",
      { class: "note" },
      same ? `${say("same-answer")} ` : "",
      say("change-total", { x: signed(baseline.total, 2) }),
      " ",
      term("nats"),
    ),
    ...notes,
  ];
}

function outcomeFacts({ outcome }) {
  const facts = [
    outcome.log_prob !== undefined && [term("log-prob"), ` ${formatted(outcome.log_prob, 2)}`],
    outcome.score !== undefined && [term("score"), ` ${formatted(outcome.score, 2)}`],
    outcome.finished === false && [say("unfinished")],
    outcome.filled !== undefined && [say(outcome.filled ? "filled" : "likeliest", { n: outcome.filled })],
  ].filter(Boolean);
  return el("p", { class: "note facts" }, ...facts.map((parts) => el("span", {}, ...parts)));
}

function labelBars(look) {
  const rows = look.outcome.labels.slice(0, MOST_LABELS).map(({ label, probability }, n) => {
    const delta = look.baseline?.deltas?.[label];
    return {
      name: label,
      share: probability,
      best: n === 0,
      note: delta === undefined ? "" : `(${signed(100 * delta, 1)})`,
    };
  });
  const was = look.baseline && look.ask.edits.length > 0 && answerText(look.baseline) !== answerText(look.outcome);
  return el(
    "div",
    { id: "labels" },
    shareTable(rows),
    was
      ? el(
          "p",
          { class: "note" },
          say("label-was", { label: answerText(look.baseline), x: percent(look.baseline.labels[0].probability) }),
        )
      : "",
  );
}

// A chip per edit and per forced beginning; a click undoes it
function editChips(app) {
  const { state, look } = app;
  const edits = state.get("edits");
  const chip = (text, undo) =>
    onlyLive(
      app,
      button(`${text} ×`, undo, { class: "pill edit", title: say("undo"), "aria-label": `${say("undo")}: ${text}` }),
    );
  const made = edits.map((edit) =>
    chip(editName(edit), () => app.edit(state.get("edits").filter((one) => one !== edit))),
  );
  const prefix = state.get("prefix");
  if (prefix.length) {
    const first = look.family === "translation" ? 1 : look.prompt_tokens;
    const tokens = prefix.map((id, n) => look.target[first + n] ?? { id, piece: `#${id}` });
    const undo = () => {
      state.set({ prefix: [] });
      app.relook();
    };
    const made_ = chip(say("begins-with", { text: joinedText(tokens, isSpaced(look.target)) }), undo);
    made_.id = "forced";
    made.push(made_);
  }
  if (edits.length > 1)
    made.push(
      onlyLive(
        app,
        button(say("undo-all"), () => app.edit([]), { id: "undo-all", class: "link" }),
      ),
    );
  return made.length ? [el("span", { class: "note" }, say("changed")), ...made] : [];
}
