// The measurement of heads: each head is switched off alone, layer by layer. The ranking uses the results.
import { addWords, pathName, say } from "./words.js";
import { button, el } from "./dom.js";
import { partName } from "./views.js";
import { lock } from "./locks.js";

// The sweep switches off every head alone, layer by layer. The page has one sweep; views that show it call
// sweep.on.

export function sweepOf(app) {
  addSweepWords();
  app.sweep ??= {
    key: "",
    rows: [],
    done: 0,
    total: 0,
    running: false,
    stopped: false,
    told: [],
    on: (fn) => void app.sweep.told.push(fn),
    stop: () => (app.sweep.stopped = true),
    start: () => runSweep(app, app.sweep),
  };
  return app.sweep;
}

async function runSweep(app, sweep) {
  const paths = app.model.effects ?? [];
  if (sweep.running || !app.look) return;
  const { key } = app.look;
  Object.assign(sweep, { key, rows: [], done: 0, total: paths.length, running: true, stopped: false });
  const tell = () => sweep.told.forEach((fn) => fn());
  tell();
  try {
    for (const path of paths) {
      const answer = await app.source.ask("effects", { key, path });
      if (sweep.stopped || app.look?.key !== key) break;
      const kind = path.endsWith("feed_forward") ? "net" : "layer";
      for (const { head, delta } of answer.heads ?? []) sweep.rows.push({ path, head, kind: "head", delta });
      sweep.rows.push({ path, head: null, kind, delta: answer.layer.delta });
      sweep.done += 1;
      tell();
    }
  } catch (error) {
    app.fail(error);
  }
  sweep.running = false;
  tell();
}

function hasEffects({ model, source, look }) {
  return (model.effects ?? []).every((path) => source.has("effects", { key: look.key, path }));
}

// The button that starts or stops the sweep, and its progress
export function sweepControls(app, sweep) {
  const start = button("", () => (sweep.running ? sweep.stop() : sweep.start()), { class: "main" });
  const progress = el("progress", { max: 1, value: 0, "aria-label": say("sweep-progress") });
  const how = el("span", { class: "note", role: "status" });
  const node = el("div", { class: "view-controls" }, start, progress, how);
  const update = () => {
    start.textContent = say(sweep.running ? "sweep-stop" : "sweep-start");
    start.disabled = !app.look;
    const held = app.source.live || sweep.running || (app.look && hasEffects(app));
    lock(start, !held);
    progress.hidden = !sweep.running;
    progress.value = sweep.total ? sweep.done / sweep.total : 0;
    const stale = sweep.rows.length > 0 && sweep.key !== app.look?.key;
    how.textContent =
      sweep.running || (sweep.rows.length && sweep.done < sweep.total)
        ? say("sweep-done", { n: sweep.done, of: sweep.total })
        : stale
          ? say("sweep-stale")
          : "";
  };
  return { node, update };
}

// The name of a head, which opens the head in the heat map
export function rankedName(app, path, head, kind) {
  if (kind === "net") return partName(path, null);
  const name = head === null ? say("off-whole", { name: pathName(path) }) : partName(path, head);
  return button(name, () => app.choose(path, head ?? 0), { class: "link", title: say("ranking-choose") });
}

function addSweepWords() {
  addWords({
    "off-whole": ["{name}: all heads", "{name}：全ヘッド"],
    "sweep-start": ["Measure every head", "全ヘッドを測る"],
    "sweep-stop": ["Stop", "止める"],
    "sweep-progress": ["Progress of the measurement", "測定の進み"],
    "sweep-done": ["{n} of {of} layers measured", "{of} 層中 {n} 層を測定"],
    "sweep-stale": [
      "Measured before the last change; measure again for the model as it is now.",
      "最後の変更の前に測った値です。今の状態は測り直してください。",
    ],
    "ranking-choose": ["Show this one in the heat map", "ヒートマップに表示"],
  });
}
