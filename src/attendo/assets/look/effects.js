// @ts-check
// The effects of heads and layers: each is switched off alone, layer by layer. The model column, the ranking and the
// sentences use the results.
import { button, el } from "../shared/dom.js";
import { say } from "../shared/words.js";

/** @import { App } from "../types/page.js" */

// The page has one measurement; effectsOf(app).on(fn) calls fn after every change
/** @param {App} app @returns {ReturnType<typeof makeEffects>} */
export function effectsOf(app) {
  app.effects ??= makeEffects(app);
  return app.effects;
}

/** @param {App} app */
function makeEffects(app) {
  const listeners = [];
  const effects = {
    key: "",
    rows: [], // { path, head or null, kind: "head" | "layer" | "net", value }
    done: 0,
    total: 0,
    running: false,
    stopped: false,
    on: (fn) => void listeners.push(fn),
    tell: () => listeners.forEach((fn) => fn()),
    stop: () => (effects.stopped = true),
    start: () => measure(app, effects),
    isStale: () => effects.key !== app.look?.key,
    rowOf: (path, head) =>
      effects.isStale() ? undefined : effects.rows.find((row) => row.path === path && row.head === head),
  };
  // without a request of the reader, only where it takes no time
  app.on("look", () => {
    if (effects.isStale()) effects.rows = [];
    effects.tell();
    const saved = !app.source.live && hasEffects(app);
    if ((app.look.quick && app.source.live) || saved) app.late.add(effects.start);
  });
  return effects;
}

/** @param {App} app @param {ReturnType<typeof makeEffects>} effects */
async function measure(app, effects) {
  const paths = app.model.effects ?? [];
  const { key } = app.look ?? {};
  if (!app.look || (effects.running && effects.key === key)) return;
  Object.assign(effects, { key, rows: [], done: 0, total: paths.length, running: true, stopped: false });
  effects.tell();
  const isMine = () => effects.key === key && app.look?.key === key && !effects.stopped;
  try {
    for (const path of paths) {
      const answer = await app.source.ask("effects", { key, path });
      if (!isMine()) break;
      const kind = path.endsWith("feed_forward") ? "net" : "layer";
      for (const { head, delta } of answer.heads ?? []) effects.rows.push({ path, head, kind: "head", value: delta });
      effects.rows.push({ path, head: null, kind, value: answer.layer.delta });
      effects.done += 1;
      if (effects.done < effects.total && effects.done % 4 === 0) effects.tell();
    }
  } catch (error) {
    if (isMine()) app.fail(error);
  }
  if (effects.key !== key) return;
  effects.running = false;
  effects.tell();
  app.drew("effects");
}

function hasEffects({ model, source, look }) {
  return (model.effects ?? []).every((path) => source.has("effects", { key: look.key, path }));
}

// The button that starts or stops the measurement, and its progress
export function effectControls(app) {
  const effects = effectsOf(app);
  const start = button("", () => (effects.running ? effects.stop() : effects.start()), { class: "measure-effects" });
  const progress = el("progress", { max: 1, value: 0, "aria-label": say("effects-progress") });
  const how = el("span", { class: "note", role: "status" });
  const node = el("div", { class: "bar" }, start, progress, how);
  const update = () => {
    start.textContent = say(effects.running ? "effects-stop" : "effects-start");
    start.disabled = !app.look;
    const can = app.source.live || (app.look && hasEffects(app));
    progress.hidden = !effects.running;
    progress.value = effects.total ? effects.done / effects.total : 0;
    const whole = effects.rows.length > 0 && effects.done === effects.total && !effects.isStale();
    node.hidden = whole || !can;
    how.textContent = effects.running ? say("effects-done", { n: effects.done, of: effects.total }) : "";
  };
  return { node, update };
}
