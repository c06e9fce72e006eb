// From soft to hard attention: weights = softmax(β·scores), β from 0 (uniform) over 1 (the model) to ∞ (argmax).
import { addWords, say } from "./words.js";
import { afterPause, button, clear, el, field, formatted, oncePerFrame, select, signed } from "./dom.js";
import { betaJson, betaNumber } from "./numbers.js";
import { onlyLive } from "./locks.js";
import { betaAt, curvePlot, entropies, MEASURED, placeOf, showEntropy } from "./curves.js";

const RERUN_PAUSE = 250; // ms

const SLIDER_WORDS = {
  "slider-intro": [
    "β multiplies the scores before softmax. 0 looks everywhere alike, 1 is the model as it is," +
      " ∞ looks only at the key with the highest score.",
    "β は softmax の前にスコアに掛かります。0 は一様、1 は訓練したままのモデル、∞ はスコアが最大のキーだけを使います。",
  ],
  "slider-beta": ["inverse temperature β", "逆温度 β"],
  "slider-soft": ["soft", "ソフト"],
  "slider-hard": ["hard", "ハード"],
  "slider-scope": ["Change", "変える範囲"],
  "slider-head": ["this head", "このヘッド"],
  "slider-layer": ["this layer", "この層"],
  "slider-all": ["all attention", "すべてのアテンション"],
  "slider-reset": ["Back to β = 1", "β = 1 に戻す"],
  "slider-entropy": ["Entropy of the open head", "開いているヘッドのエントロピー"],
  "slider-entropy-name": [
    "Entropy against β: {x} nats at β = {beta}",
    "β に対するエントロピー：β = {beta} で {x} ナット",
  ],
  "slider-mean": ["mean of the rows: {x} nats", "行の平均：{x} ナット"],
  "slider-row": ["chosen query: {x} nats", "選んだクエリ：{x} ナット"],
  "slider-effect": ["What it does to the answer", "出力への影響"],
  "slider-none": ["β = 1: the model as it is.", "β = 1：元のモデルのままです。"],
  "slider-total": [
    "Change in the log-probability of the unedited answer: {x}",
    "変更前の出力の対数確率の変化：{x}",
  ],
  "slider-total-class": [
    "Change in the probability of the unedited answer: {x}",
    "変更前のラベルの確率の変化：{x}",
  ],
  "slider-same": ["The answer stays the same.", "出力は変わりません。"],
  "slider-was": ["The answer was: {text}", "変更前の出力：{text}"],
  "slider-now": ["It is now: {text}", "変更後の出力：{text}"],
  "slider-measure": ["Run the model at 8 values of β", "8 個の β でモデルを実行"],
  "slider-running": ["β = {beta}…", "β = {beta}…"],
  "slider-curve": ["Change in log-probability against β", "β に対する対数確率の変化"],
  "slider-curve-name": [
    "Change in log-probability at {n} values of β: {told}",
    "{n} 個の β での対数確率の変化：{told}",
  ],
  "slider-saved": [
    "In this saved page the slider redraws the open head. To run the model again: {again}",
    "保存したページでは、スライダーで描き直されるのは開いているヘッドだけです。モデルを実行し直すときは、次を実行してください：{again}",
  ],
};

export function makeSlider(app, root) {
  addWords(SLIDER_WORDS);
  const { state } = app;
  const measured = new Map(); // edit → Map of β → change in log-probability
  const input = el("input", {
    type: "range",
    id: "beta",
    min: 0,
    max: 1,
    step: 0.005,
    "aria-label": say("slider-beta"),
  });
  const told = el("output", { class: "number", id: "beta-value", htmlFor: "beta" });
  const scopes = ["head", "layer", "all"].map((name) => [name, say(`slider-${name}`)]);
  const scope = select(scopes, state.get("betaScope"), (name) => rescope(name), {
    id: "beta-scope",
  });
  onlyLive(app, scope);
  const ticks = el(
    "div",
    { class: "ticks" },
    ...MEASURED.map((beta) =>
      button(beta === Infinity ? "∞" : String(beta), () => slide(beta), {
        class: [0.25, 0.5, 4, 16].includes(beta) ? "minor" : "",
        style: { left: `${100 * placeOf(beta)}%` },
        "aria-label": `β = ${beta === Infinity ? "∞" : beta}`,
      }),
    ),
  );
  const [entropyBox, effectBox, curveBox] = [
    el("div", { id: "beta-entropy" }),
    el("div", { id: "beta-effect", "aria-live": "polite" }),
    el("div", { id: "beta-curve" }),
  ];
  const sweep = onlyLive(app, button(say("slider-measure"), measure, { id: "beta-sweep" }));
  root.append(
    el("p", { class: "note" }, say("slider-intro")),
    el(
      "div",
      { class: "slide" },
      el("span", { class: "note" }, say("slider-soft")),
      input,
      el("span", { class: "note" }, say("slider-hard")),
      ticks,
    ),
    el(
      "div",
      { class: "bar" },
      el("strong", {}, "β = ", told),
      field(say("slider-scope"), scope),
      button(say("slider-reset"), () => slide(1), { id: "beta-reset" }),
      sweep,
    ),
    el(
      "div",
      { class: "columns" },
      el("div", {}, el("h3", {}, say("slider-entropy")), entropyBox),
      el("div", {}, el("h3", {}, say("slider-effect")), effectBox, curveBox),
    ),
  );

  const rerun = afterPause(() => {
    app.sliding = false;
    state.set({ edits: editsWith(state) });
    app.relook();
  }, RERUN_PAUSE);

  // Reset the previous part to β = 1, and apply the slider's β to the newly chosen part
  function rescope(name) {
    const { path, head } = targetOf(state);
    const old = (edit) => edit.kind === "beta" && edit.path === path && (edit.head ?? null) === head;
    state.set({ edits: state.get("edits").filter((edit) => !old(edit)), betaScope: name });
    if (state.get("beta") !== 1) slide(betaNumber(state.get("beta")));
  }

  function slide(beta) {
    app.sliding = app.source.live;
    state.set({ beta: betaJson(beta) });
    if (app.source.live) rerun();
  }
  input.addEventListener("input", () => {
    const place = Number(input.value);
    slide(Math.abs(place - 0.5) < 0.004 ? 1 : Number(betaAt(place).toPrecision(4)));
  });

  function showBeta() {
    const beta = betaNumber(state.get("beta"));
    const place = placeOf(beta);
    if (Math.abs(Number(input.value) - place) > 0.0026) input.value = place;
    told.value = formatted(beta, beta < 10 ? 3 : 1);
    input.setAttribute("aria-valuetext", `β = ${told.value}`);
    drawEntropy();
  }

  let curve = null; // the entropies of the open head for all β, which do not depend on the slider
  const drawEntropy = oncePerFrame(() => {
    const numbers = app.look && state.get("view") === "slider" && app.numbersNow(state.get("layer"));
    if (!numbers) return;
    const head = Math.min(state.get("head"), numbers.layer.heads - 1);
    const { query } = app.chosen();
    const name = `${app.look.key} ${numbers.layer.path} ${head} ${query}`;
    if (curve?.name !== name) curve = { name, ...entropies(numbers, head, query) };
    showEntropy(entropyBox, curve, betaNumber(state.get("beta")));
    app.drew("slider");
  });

  function showEffect() {
    const { look } = app;
    const total = look.baseline?.total;
    const edit = look.ask.edits.length === 1 && look.ask.edits[0].kind === "beta" ? look.ask.edits[0] : null;
    if (edit) pointsOf(measured, app, edit).set(betaNumber(edit.beta), total);
    clear(effectBox).append(...effectOf(app, look));
    drawCurve();
  }
  function drawCurve() {
    const points = app.look && measured.get(curveName(app, targetOf(state)));
    clear(curveBox);
    if (points?.size > 1)
      curveBox.append(el("h3", {}, say("slider-curve")), curvePlot(points, betaNumber(state.get("beta"))));
  }

  // The change at several β by this edit alone, without a change of the displayed page
  async function measure() {
    sweep.disabled = true;
    const target = targetOf(state);
    const points = pointsOf(measured, app, target);
    const ask = app.look.ask;
    try {
      for (const beta of MEASURED) {
        if (beta === 1) points.set(1, 0);
        if (points.has(beta)) continue;
        const edits = [{ ...target, beta: betaJson(beta) }];
        const look = await app.busy(
          app.source.ask("look", { ...ask, edits }),
          say("slider-running", { beta: formatted(beta, 2) }),
        );
        points.set(beta, look.baseline.total);
        if (!app.look) return; // the page was built again
        drawCurve();
      }
    } catch (error) {
      app.fail(error);
    }
    sweep.disabled = false;
    drawCurve();
  }

  state.on(["beta", "query", "view", "layer", "head"], showBeta);
  state.on(["betaScope", "layer", "head", "beta"], () => {
    scope.value = state.get("betaScope");
    drawCurve();
  });
  app.on("numbers", showBeta);
  app.on("look", () => {
    showBeta();
    showEffect();
  });
  showBeta();
}

// The edit of the slider without its β
function targetOf(state) {
  const [scope, path] = [state.get("betaScope"), state.get("layer")];
  return {
    kind: "beta",
    path: scope === "all" ? "*" : path,
    head: scope === "head" ? state.get("head") : null,
  };
}

// The edits with the slider's edit, which replaces narrower edits; β = 1 is only needed below a wider edit
function editsWith(state) {
  const target = targetOf(state);
  const covers = (edit) =>
    edit.kind === "beta" &&
    (target.path === "*" || edit.path === target.path) &&
    (target.head === null || edit.head === target.head);
  const others = state.get("edits").filter((edit) => !covers(edit));
  const wider = others.some(
    (edit) =>
      edit.kind === "beta" && (edit.path === "*" || (edit.path === target.path && edit.head === null)),
  );
  return state.get("beta") === 1 && !wider ? others : [...others, { ...target, beta: state.get("beta") }];
}

function curveName(app, { path, head }) {
  return JSON.stringify([{ ...app.look.ask, edits: [] }, path, head]);
}

function pointsOf(measured, app, edit) {
  const name = curveName(app, edit);
  if (!measured.has(name)) measured.set(name, new Map([[1, 0]]));
  return measured.get(name);
}

function effectOf(app, look) {
  if (!app.source.live) return [el("p", { class: "note" }, say("slider-saved"))];
  if (!look.baseline) return [el("p", { class: "note" }, say("slider-none"))];
  const kind = look.family === "classification" ? "slider-total-class" : "slider-total";
  const made = [el("p", {}, say(kind, { x: signed(look.baseline.total) }))];
  const [was, now] = [answerText(look.baseline), answerText(look.outcome)];
  if (was === now) made.push(el("p", { class: "note" }, say("slider-same")));
  else
    made.push(el("p", {}, say("slider-was", { text: was })), el("p", {}, say("slider-now", { text: now })));
  return made;
}

function answerText(outcome) {
  return outcome.labels ? outcome.labels[0].label : outcome.text;
}
