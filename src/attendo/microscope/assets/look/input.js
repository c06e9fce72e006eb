// The input and the output: the text, the search method, and the tokens with their ids.
import { addWords, inJapanese, say } from "./words.js";
import { button, clear, el, field, formatted, ordinal, pieceElement, pieceText, select, signed } from "./dom.js";
import { searchOf } from "./app.js";
import { lockNote, onlyLive } from "./locks.js";
import { pointsAt, roving } from "./chips.js";

const INPUT_WORDS = {
  "input-text-translation": ["Text to translate", "翻訳するテキスト"],
  "input-text-classification": ["Text to classify", "分類するテキスト"],
  "input-text-language-model": ["Prompt", "プロンプト"],
  "input-text-masked-language-model": ["Text", "テキスト"],
  look: ["Look", "見る"],
  "look-tip": ["Ctrl+Enter", "Ctrl+Enter"],
  search: ["Answer by", "出力の作り方"],
  greedy: ["greedy search", "貪欲法"],
  beam: ["beam search", "ビームサーチ"],
  forced: ["a text I give", "指定した文"],
  "beam-size": ["Beam", "ビーム幅"],
  "max-tokens": ["Tokens", "トークン数"],
  "forced-translation": ["Translation to look at", "調べる訳文"],
  "forced-language-model": ["What follows the prompt", "プロンプトに続く文"],
  reads: ["reads", "入力"],
  writes: ["writes", "出力"],
  tokens: ["{n} tokens", "{n} トークン"],
  answer: ["answer", "結果"],
  "log-prob": ["log-probability {x}", "対数確率 {x}"],
  score: ["score {x}", "スコア {x}"],
  unfinished: ["cut before its end", "途中で打ち切り"],
  filled: ["filled in: {n}", "補ったトークン：{n}"],
  likeliest: [
    "the likeliest token at each place; write <mask> for one to find",
    "各位置で最も確率の高いトークン。予測させたい位置に <mask> と書いてください",
  ],
  before: ["without them:", "変更前："],
  "unchanged-model": ["none: the model as it is", "なし（元のモデルのまま）"],
  changed: ["{n} in the model", "モデルに {n} 件"],
  "changed-name": ["edits", "変更"],
  "undo-all": ["Undo all changes", "変更をすべて戻す"],
  "forced-start": ["forced start", "指定した先頭"],
  "forced-remove": [
    "Remove the forced token “{piece}” and those after it",
    "指定トークン「{piece}」以降を外す",
  ],
  "forced-clear": ["Remove the forced start", "先頭の指定を外す"],
  "token-tip": ["position {i}, id {id}", "位置 {i}、ID {id}"],
  unknown: ["unknown to the tokenizer", "未知語"],
  "space-mark": [
    "▁ is the space before a word; the first word of a text has one, too.",
    "▁ は単語の前の空白です。文の最初の単語にも付きます。",
  ],
  probability: ["probability", "確率"],
};

export function makeInput(app, root) {
  addWords(INPUT_WORDS);
  const { state, model } = app;
  const text = el("textarea", {
    id: "text",
    rows: 2,
    value: state.get("text"),
    dir: "auto",
    spellcheck: false,
  });
  const target = el("textarea", {
    id: "target",
    rows: 2,
    value: state.get("target"),
    dir: "auto",
    spellcheck: false,
  });
  const beam = el("input", {
    type: "number",
    id: "beam-size",
    min: 1,
    max: 16,
    value: state.get("beam") || model.beam || 4,
  });
  const most = el("input", {
    type: "number",
    id: "max-tokens",
    min: 0,
    max: 1024,
    value: state.get("max_tokens"),
  });
  const ways = ["greedy", "beam", "forced"].map((name) => [name, say(name)]);
  const search = select(ways, searchOf(app), show, { id: "search" });
  const go = button(say("look"), ask, { id: "look", class: "main", title: say("look-tip") });
  for (const control of [text, target, beam, most, search, go]) onlyLive(app, control);
  const forcedField = el("label", {}, el("span", { class: "note" }, say(`forced-${model.family}`)), target);
  const beamField = field(say("beam-size"), beam);
  const mostField = field(say("max-tokens"), most);
  const free = model.family === "translation" || model.family === "language-model";
  const textLabel = el("label", { class: "note", htmlFor: "text" }, say(`input-text-${model.family}`));
  const said = el("dl", { class: "said", id: "said" });

  root.append(
    el(
      "div",
      { class: "asking" },
      el("div", {}, textLabel, text, forcedField),
      el("div", { class: "bar" }, free && field(say("search"), search), beamField, mostField, go),
    ),
    lockNote(app) ?? "",
    said,
  );
  root.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) go.click();
  });

  function show() {
    forcedField.hidden = !free || search.value !== "forced";
    beamField.hidden = !free || search.value !== "beam";
    mostField.hidden = model.family !== "language-model" || search.value === "forced";
  }

  function ask() {
    const whole = (input, least, standard) => Math.max(least, Math.round(Number(input.value)) || standard);
    const size = Math.min(16, whole(beam, 1, 4));
    state.set({
      text: text.value,
      target: target.value,
      search: search.value === model.search ? "" : search.value,
      prefix: [],
      query: null,
      key: null,
      locked: false,
      beam: size === model.beam ? 0 : size,
      max_tokens: Math.min(1024, whole(most, 0, 0)),
      why: text.value === state.get("text") ? state.get("why") : "",
    });
    app.relook();
  }

  function update() {
    clear(said);
    const { look } = app;
    const row = (name, ...content) => said.append(el("dt", {}, say(name)), el("dd", {}, ...content));
    const begin = look.family === "language-model" ? look.prompt_tokens : 0;
    if (look.source.length) row("reads", chips(app, "source", 0));
    if (begin) row("reads", chips(app, "target", 0, begin));
    if (look.target.length > begin) row("writes", chips(app, "target", begin));
    if ([...look.source, ...look.target].some((token) => token.piece?.includes("▁")))
      said.append(el("dt", {}, ""), el("dd", { class: "note" }, say("space-mark")));
    if (state.get("prefix").length) row("forced-start", prefixChips(app));
    if (look.outcome.labels) row("answer", labelBars(look));
    else if (look.outcome.text !== undefined) row("answer", outcomeText(look.outcome));
    row("changed-name", changes(app));
    const note = inJapanese() ? look.note_ja : look.note;
    if (note) said.append(el("dt", {}, ""), el("dd", { class: "note" }, note));
  }

  app.on("answer", update);
  app.on("point", () => mark(app, said));
  state.on(["query", "key", "layer", "head"], () => app.look && mark(app, said));
  state.on(["text", "target", "search", "beam", "max_tokens"], (changed) => {
    if (changed.includes("text")) text.value = state.get("text");
    if (changed.includes("target")) target.value = state.get("target");
    search.value = searchOf(app);
    beam.value = state.get("beam") || model.beam || 4;
    most.value = state.get("max_tokens");
    show();
  });
  show();
}

// The tokens of a side from position `from`, each with its id
function chips(app, side, from, to) {
  const { look, state } = app;
  const begin = look.family === "translation" ? 1 : look.prompt_tokens;
  const forced = state.get("prefix").length;
  const tokens = look[side].slice(from, to);
  const made = tokens.map((token, n) => {
    const i = from + n;
    const kind = side === "target" && i >= begin && i < begin + forced ? "forced" : "";
    const tip = say("token-tip", { i: ordinal(i), id: token.id });
    const chip = el(
      "button",
      {
        type: "button",
        class: `chip ${kind} ${isUnknown(token) ? "unknown" : ""}`,
        dataset: { side, position: i },
        title: isUnknown(token) ? say("both", { a: tip, b: say("unknown") }) : tip,
      },
      pieceElement(token),
      el("span", { class: "id" }, String(token.id)),
    );
    return pointsAt(app, chip, side, i);
  });
  const name = say("labelled", {
    name: say(side === "source" || to ? "reads" : "writes"),
    text: say("tokens", { n: tokens.length }),
  });
  return roving(el("div", { class: "chips", role: "group", "aria-label": name }, ...made), made);
}

function isUnknown(token) {
  return Boolean(token.unknown);
}

// The tokens with which the output must begin: removing a token also removes all tokens after it
function prefixChips(app) {
  const { look, state } = app;
  const begin = look.family === "translation" ? 1 : look.prompt_tokens;
  const remove = (from) => {
    state.set({ prefix: state.get("prefix").slice(0, from) });
    app.relook();
  };
  const made = state.get("prefix").map((id, n) => {
    const token = look.target[begin + n] ?? { id, piece: `#${id}` };
    const label = say("forced-remove", { piece: pieceText(token) });
    return el(
      "span",
      { class: "chip forced" },
      pieceElement(token),
      onlyLive(app, button("×", () => remove(n), { "aria-label": label })),
    );
  });
  return el(
    "div",
    { class: "chips", id: "forced" },
    ...made,
    onlyLive(app, button(say("forced-clear"), () => remove(0), { class: "plain" })),
  );
}

function outcomeText(outcome) {
  const facts = [
    outcome.log_prob !== undefined && say("log-prob", { x: formatted(outcome.log_prob) }),
    outcome.score !== undefined && say("score", { x: formatted(outcome.score) }),
    outcome.finished === false && say("unfinished"),
    outcome.filled !== undefined && say(outcome.filled ? "filled" : "likeliest", { n: outcome.filled }),
  ].filter(Boolean);
  return el(
    "span",
    { class: "outcome" },
    el("bdi", { dir: "auto" }, outcome.text),
    ...facts.map((fact) => el("span", { class: "number" }, fact)),
  );
}

function labelBars(look) {
  const rows = look.outcome.labels.slice(0, 12).flatMap(({ label, probability }) => {
    const delta = look.baseline?.deltas?.[label];
    const text = formatted(probability) + (delta === undefined ? "" : ` (${signed(delta)})`);
    const fill = el("span", { style: { width: `${100 * probability}%` } });
    return [
      el("bdi", {}, label),
      el("span", { class: "track" }, fill),
      el("span", { class: "number" }, text),
    ];
  });
  return el("div", { class: "labels", id: "labels" }, ...rows);
}

// The list of edits, always in one line, so the layout below does not move
function changes(app) {
  const { state, look } = app;
  const undo = () => {
    state.set({ edits: [], beta: 1 });
    app.relook();
  };
  const n = look.ask.edits.length;
  if (!n) return el("span", { class: "edits note" }, say("unchanged-model"));
  const was = look.baseline?.text;
  return el(
    "span",
    { class: "edits" },
    el("span", {}, say("changed", { n })),
    onlyLive(app, button(say("undo-all"), undo, { id: "undo-all", class: "plain" })),
    was !== undefined &&
      el(
        "span",
        { class: "was note", title: was },
        say("before"),
        " ",
        el("bdi", {}, was),
        ` (${formatted(look.baseline.log_prob)})`,
      ),
  );
}

// The chips of the query and the key under the pointer
function mark(app, said) {
  for (const chip of said.querySelectorAll(".chip.here")) chip.classList.remove("here");
  const layer = app.openLayer();
  const { query, key } = app.spot();
  const at = (side, position) => said.querySelector(`[data-side="${side}"][data-position="${position}"]`);
  if (!layer) return;
  at(layer.queries, query)?.classList.add("here");
  at(layer.keys, key)?.classList.add("here");
}
