// @ts-check
// The object `app`, which all views share: the state, the model, the latest result, the numbers of its layers,
// and the query and key under the pointer.
import { formatted } from "../shared/dom.js";
import { partName, say } from "../shared/words.js";
import { makeLate } from "./late.js";
import { layerNumbers, numbersBytes } from "./numbers.js";
import { shownMatrix, strongestQuery } from "./shown.js";
import { misfitsOfLook } from "./misfits.js";
import { askOf, saysSomething } from "./opening.js";
import { fitting } from "./state.js";

const MANY_TOKENS = 200; // with more tokens, listing them takes too long before the map is drawn
const MANY_BYTES = 1e6; // maximum bytes of a layer's numbers that are requested at once
const KEPT_BYTES = 16e6; // maximum bytes of all cached numbers, including the matrices of heads

// Return the object that all views share
/** @import { App, Model, Source, State } from "../types/page.js" */
/** @param {Source} source @param {State & Record<string, any>} state @param {Model} model @returns {App} */
export function makeApp(source, state, model) {
  const listeners = {};
  let turn = 0; // number of the latest request
  let settled = 0; // number of the latest finished request
  let gone = false;
  let pointedAt = null;
  let status = null;

  const app = /** @type {App} */ ({
    state,
    source,
    model,
    look: null,
    sliding: false,
    on: (event, fn) => void (listeners[event] ??= []).push(fn),
    isLooking: () => turn !== settled,
    emit: (event) => (listeners[event] ?? []).forEach((fn) => guarded(app, fn)),
    showStatus: (element) => (status = element),
    layers: () => app.look.stacks.flatMap((stack) => stack.layers),
    layer: (path) => app.layers().find((layer) => layer.path === path),
    openLayer: () => app.look && app.layer(state.get("layer")),
    tokensOf: (side) => app.look[side],
    // The rows of a layer: predicted tokens in cross-attention, otherwise tokens that are read
    rowTokens: (layer) =>
      layer.queries === layer.keys
        ? app.tokensOf(layer.queries)
        : app.tokensOf(layer.queries).map((token) => token.out ?? { piece: "…" }),
    isWriter: ["translation", "language-model"].includes(model.family), // whether the model writes a text
    late: makeLate((fn) => !gone && guarded(app, fn)),
    drew: (name) => {
      window.attendo.drawn[name] = (window.attendo.drawn[name] ?? 0) + 1;
      if (name === "heat") app.late.release();
    },
  });
  const emitLate = (event) => (listeners[event] ?? []).forEach(app.late.add);

  addNumbers(app, source, emitLate, () => answer());

  let working = 0;
  app.busy = async (promise, text) => {
    working += 1;
    app.root.setAttribute("aria-busy", "true");
    if (text) tell(text);
    try {
      return await promise;
    } finally {
      working -= 1;
      if (!gone) app.root.setAttribute("aria-busy", String(working > 0));
      if (!working && text && status?.textContent === text) tell("");
    }
  };
  app.fail = (error) => tell(error.message, true);
  app.tell = (text) => tell(text);
  function tell(text, failed = false) {
    status.textContent = text;
    status.classList.toggle("failed", failed);
  }

  let asked = ""; // the latest request
  app.relookIfOther = () => (JSON.stringify(askOf(app)) === asked ? null : app.relook());
  app.relook = async () => {
    if (gone) return window.attendo.app.relook();
    const mine = ++turn;
    asked = JSON.stringify(askOf(app));
    app.emit("asked");
    if (!saysSomething(app)) {
      settled = mine;
      return tell(say("no-text"));
    }
    try {
      const look = await app.busy(source.ask("look", JSON.parse(asked)), say("looking"));
      if (mine !== turn) return;
      settled = mine;
      take(look);
    } catch (error) {
      if (mine !== turn) return;
      settled = mine;
      if (!app.look && (state.get("edits").length || state.get("prefix").length)) {
        state.amend({ edits: [], prefix: [] }); // the address contains edits that this model does not have
        await app.relook();
      }
      app.fail(error);
    }
  };

  function take(look) {
    app.look = look;
    pointedAt = null;
    const { opens } = look;
    const open = app.openLayer();
    const layer = open ?? app.layer(opens.layer);
    const head = open ? Math.min(state.get("head"), layer.heads - 1) : opens.head;
    // a saved page's slider changes no edits, so its β is only in the address
    const keep = app.sliding || (!source.live && state.says("beta"));
    state.settle({ layer: layer.path, head, ...(keep ? {} : { beta: layer.beta[head] }) });
    state.amend(misfitsOfLook(look, layer, state.get));
    app.show();
    tell(doneText(look, state.takeUnfit()));
  }
  // The page is built again: cancel everything in progress, and return whether a request was in progress
  app.retire = () => {
    const looking = app.isLooking();
    turn += 1;
    gone = true;
    app.look = null;
    return looking;
  };
  // "answer" is for parts above the map that are drawn with it, "look" for all other parts
  let answered = null;
  const answer = () => {
    if (answered === app.look || !app.look) return;
    answered = app.look;
    app.emit("answer");
  };
  app.show = () => {
    app.openNumbers();
    app.late.add(answer);
    emitLate("look");
    app.busy(app.late.settled());
  };

  addEdits(app);
  addPointing(
    app,
    () => pointedAt,
    (spot) => (pointedAt = spot),
  );
  return app;
}

// The status after a result: the numbers of tokens, the time, and invalid values of the address
function doneText(look, invalid) {
  const [q, k] = look.source.length
    ? [look.source.length, look.target.length]
    : [look.prompt_tokens, look.target.length - look.prompt_tokens];
  const done = say(k ? "done" : "done-in", { q, k, seconds: formatted(look.seconds, 2) });
  const unfit = invalid
    .map(([name, elsewhere]) => say("fits", { name, what: fitting(name, elsewhere) }))
    .reduce((a, b) => (a ? say("both", { a, b }) : b), "");
  return unfit ? `${done} · ${say("address-unfit", { unfit })}` : done;
}

// The numbers of the layers, which are requested when a layer is opened. answer(): draws the parts above the map
function addNumbers(app, source, emitLate, answer) {
  const { state } = app;
  const numbersKept = new Map(); // "key path" → { promise, value }

  // The request for the numbers of a layer, or only for those of the open head if the layer is large
  function numbersWanted(path) {
    const layer = app.layer(path);
    const { key } = app.look;
    return layer && numbersBytes(layer).end > MANY_BYTES
      ? { key, path, head: Math.min(state.get("head"), layer.heads - 1) }
      : { key, path };
  }

  function numbersOf(path) {
    const layer = app.layer(path);
    const wanted = numbersWanted(path);
    const name = JSON.stringify(wanted);
    const found = numbersKept.get(name) ?? { value: null };
    found.promise ??= source
      .ask("tensor", wanted, "head" in wanted ? numbersBytes(layer).of(wanted.head) : undefined)
      .then((buffer) => {
        found.bytes = buffer.byteLength + 8 * layer.q_len * layer.k_len;
        return (found.value = layerNumbers(layer, buffer, wanted.head));
      });
    found.promise.catch(() => numbersKept.delete(name));
    numbersKept.delete(name);
    numbersKept.set(name, found);
    forget();
    return found;
  }
  // Remove the oldest results, but keep the latest result, and the one before it while it may still be shown
  function forget() {
    const bytes = () => [...numbersKept.values()].reduce((sum, one) => sum + (one.bytes ?? 0), 0);
    while (numbersKept.size > 2 && bytes() > KEPT_BYTES) numbersKept.delete(numbersKept.keys().next().value);
  }

  // for a large layer, only the numbers of the open head
  app.numbers = (path) => numbersOf(path).promise;
  app.numbersNow = (path) => (app.look && numbersKept.get(JSON.stringify(numbersWanted(path)))?.value) ?? null;

  // The numbers of the open head: "map" for the map alone, then "numbers" for all other views
  let opening = null;
  app.openOther = () => app.look && !app.numbersNow(state.get("layer")) && app.openNumbers();
  app.openNumbers = () => {
    const path = state.get("layer");
    if (!app.look || !app.layer(path)) return;
    const name = JSON.stringify(numbersWanted(path));
    if (opening === name) return;
    opening = name;
    app.late.hold();
    const over = (act) => (value) => {
      if (opening === name) opening = null;
      act(value);
    };
    const came = () => {
      if (!app.look || name !== JSON.stringify(numbersWanted(state.get("layer")))) return;
      if (app.look.target.length + app.look.source.length < MANY_TOKENS) answer();
      app.emit("map");
      emitLate("numbers");
    };
    const failed = (error) => {
      app.late.release();
      app.fail(error);
    };
    app.numbers(path).then(over(came), over(failed));
  };
}

// The choice of a head, and the changes of the model
function addEdits(app) {
  const { state, source } = app;
  app.choose = (path, head) => {
    const layer = app.look && app.layer(path);
    if (layer) state.set({ layer: path, head, beta: layer.beta[head] });
  };
  // A head, or a whole layer (null)
  const isOf = (path, head) => (edit) => edit.kind === "off" && edit.path === path && (edit.head ?? null) === head;
  app.isOff = (path, head) => state.get("edits").some(isOf(path, head));
  // Replace the edits; a saved page cannot run the model again
  app.edit = (edits) => {
    if (!source.live) return app.fail(new Error(say("not-live")));
    state.set({ edits });
    app.relook();
  };
  app.setOff = (path, head, off, how = "zero") => {
    const others = state.get("edits").filter((edit) => !isOf(path, head)(edit));
    app.edit(off ? [...others, { kind: "off", path, head, how }] : others);
  };
}

// The query and the key under the pointer, or those that were fixed or chosen last
function addPointing(app, pointedAt, setPointed) {
  const { state } = app;
  app.point = (spot) => {
    if (state.get("locked") || JSON.stringify(spot) === JSON.stringify(pointedAt())) return;
    setPointed(spot);
    app.emit("point");
  };
  app.pointed = pointedAt;
  app.strongestKey = (query) => {
    const shown = shownMatrix(app);
    if (!shown) return 0;
    const { layer, weights, hidden } = shown;
    let best = 0;
    for (let j = 1; j < layer.k_len; j++) {
      if (!hidden.has(j) && weights[query * layer.k_len + j] > weights[query * layer.k_len + best]) best = j;
    }
    return best;
  };
  app.chosen = () => {
    const layer = app.openLayer();
    if (!layer) return { query: 0, key: 0 };
    const query = Math.min(state.get("query") ?? strongestQuery(app), layer.q_len - 1);
    const key = state.get("key") ?? app.strongestKey(query);
    return { query, key: Math.min(key, layer.k_len - 1) };
  };
  app.spot = () => pointedAt() ?? app.chosen();
  app.hold = ({ query, key }) => {
    setPointed(null);
    state.set({ query, key, locked: true });
  };
  app.letGo = () => state.set({ locked: false });
  // Positions at which a text begins or ends, without a word
  app.ends = (side) => {
    const last = app.look.source.length - 1;
    return new Set(side === "source" && app.look.family === "translation" ? [last] : [0]);
  };
}

export function guarded(app, fn) {
  try {
    fn();
  } catch (error) {
    console.error(error);
    app.fail(error);
  }
}

// The answer in words: the text, or the most probable label
export function answerText(outcome) {
  return outcome.labels ? outcome.labels[0].label : (outcome.text ?? "");
}

// An edit in words: "Cross-attention, layer 2, head 1 off"
export function editName({ kind, path, head = null, beta }) {
  const name = path === "*" ? say("beta-all") : partName(path, head);
  return kind === "off" ? say("edit-off", { name }) : say("edit-beta", { name, beta: beta === "inf" ? "∞" : beta });
}
