// @ts-check
// The sharpness β of attention: weights = softmax(β·scores), β from 0 (uniform) over 1 (the model) to ∞ (argmax).
import { afterPause, button, clear, el, formatted, oncePerFrame, select } from "../shared/dom.js";
import { term } from "../shared/sheet.js";
import { say } from "../shared/words.js";
import { betaAt, curvePlot, entropies, MEASURED, placeOf, showEntropy } from "./curves.js";
import { betaJson, betaNumber } from "./numbers.js";
import { onlyLive } from "./views.js";

const RERUN_PAUSE = 250; // ms

// The slider of the inspector: it redraws the open head at once, and the model runs again when it rests
export function makeSharpness(app) {
  const { state } = app;
  const input = el("input", { type: "range", id: "beta", min: 0, max: 1, step: 0.005, "aria-label": say("beta") });
  const told = el("output", { class: "number", id: "beta-value", htmlFor: "beta" });
  const reset = button("1", () => slide(1), {
    id: "beta-reset",
    class: "quiet",
    title: say("beta-reset"),
    "aria-label": say("beta-reset"),
  });
  const scopes = ["head", "layer", "all"].map((name) => [name, say(`beta-${name}`)]);
  const scope = select(scopes, state.get("betaScope"), rescope, { id: "beta-scope", "aria-label": say("beta-scope") });

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
    told.value = formatted(beta, beta < 10 ? 2 : 1);
    input.setAttribute("aria-valuetext", `β = ${told.value}`);
    reset.hidden = beta === 1;
    scope.value = state.get("betaScope");
  }
  state.on(["beta", "betaScope", "layer", "head"], showBeta);
  app.on("look", showBeta);
  showBeta();
  return el(
    "div",
    { class: "sharpness" },
    el("div", { class: "bar" }, term("beta"), told, reset, el("span", { class: "end" }, onlyLive(app, scope))),
    el(
      "div",
      { class: "slide" },
      el("span", { class: "note" }, say("beta-soft")),
      input,
      el("span", { class: "note" }, say("beta-hard")),
    ),
  );
}

// The curves of the view "Switch off": the entropy of the open head, and the effect of β on the answer
export function makeCurves(app, view) {
  const { state } = app;
  const measured = new Map(); // edit → Map of β → change in log-probability
  const [entropyBox, curveBox] = [el("div", { id: "beta-entropy" }), el("div", { id: "beta-curve" })];
  const sweep = onlyLive(app, button(say("beta-measure"), measure, { id: "beta-sweep" }));
  let curve = null; // the entropies of the open head for all β, which do not depend on the slider

  const drawEntropy = oncePerFrame(() => {
    const numbers = app.look && state.get("view") === view && app.numbersNow(state.get("layer"));
    if (!numbers) return;
    const head = Math.min(state.get("head"), numbers.layer.heads - 1);
    const { query } = app.chosen();
    const name = `${app.look.key} ${numbers.layer.path} ${head} ${query}`;
    if (curve?.name !== name) curve = { name, ...entropies(numbers, head, query) };
    showEntropy(entropyBox, curve, betaNumber(state.get("beta")));
    app.drew("entropy");
  });
  function drawCurve() {
    const points = app.look && measured.get(curveName(app, targetOf(state)));
    clear(curveBox);
    if (points?.size > 1) curveBox.append(curvePlot(points, betaNumber(state.get("beta"))));
  }
  function learn() {
    const { look } = app;
    const edit = look.ask.edits.length === 1 && look.ask.edits[0].kind === "beta" ? look.ask.edits[0] : null;
    if (edit) pointsOf(measured, app, edit).set(betaNumber(edit.beta), look.baseline?.total);
    drawCurve();
  }

  // The change at several β by this edit alone, without a change of the displayed page
  async function measure() {
    sweep.disabled = true;
    const target = targetOf(state);
    const points = pointsOf(measured, app, target);
    const ask = app.look.ask;
    try {
      for (const beta of MEASURED.filter((one) => !points.has(one))) {
        const edits = [{ ...target, beta: betaJson(beta) }];
        const told = say("beta-running", { beta: formatted(beta, 2) });
        const look = await app.busy(app.source.ask("look", { ...ask, edits }), told);
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

  state.on(["beta", "query", "view", "layer", "head"], drawEntropy);
  state.on(["betaScope", "layer", "head", "beta"], drawCurve);
  app.on("numbers", drawEntropy);
  app.on("look", learn);
  return el(
    "div",
    { class: "view-columns" },
    el("div", {}, el("h3", {}, say("beta-entropy")), entropyBox),
    el("div", {}, el("h3", {}, say("beta-curve")), sweep, curveBox),
  );
}

// The edit of the slider without its β
function targetOf(state) {
  const [scope, path] = [state.get("betaScope"), state.get("layer")];
  return { kind: "beta", path: scope === "all" ? "*" : path, head: scope === "head" ? state.get("head") : null };
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
    (edit) => edit.kind === "beta" && (edit.path === "*" || (edit.path === target.path && edit.head === null)),
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
