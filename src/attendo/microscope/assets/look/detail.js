// The open head: the choice of values, its heat map and lines, and the value under the pointer.
import { addWords, pathName, say } from "./words.js";
import { afterPause, button, clear, el, field, formatted, ordinal, panel, pieceElement, select } from "./dom.js";
import { entropy } from "./numbers.js";
import { meanOf } from "./app.js";
import { shownMatrix, showRamp } from "./shown.js";
import { exportButtons } from "./saving.js";
import { makeHeat } from "./heat.js";
import { makeLines } from "./lines.js";

const DETAIL_WORDS = {
  honest: [
    "Attention says where a layer read from, not why the model decided as it did.",
    "アテンションは層がどこを読んだかを示すもので、モデルがなぜそう決めたかを示すものではありません。",
  ],
  shows: ["Shows", "表示"],
  "shows-weights": ["weights α", "重み α"],
  "shows-weighted": ["weighted values α·‖v Wᵒ‖", "重みつきバリュー α·‖v Wᵒ‖"],
  "shows-scores": ["scores q·k·scale", "スコア q·k·scale"],
  color: ["Color", "色"],
  "color-auto": ["automatic", "自動"],
  "color-linear": ["even", "等間隔"],
  "color-root": ["√, small ones brighter", "√（小さい値を明るく）"],
  "hide-ends": ["hide begin and end", "先頭・末尾を隠す"],
  held: ["held", "固定"],
  "row-table": ["This row as a table", "この行を表で見る"],
  token: ["token", "トークン"],
  weight: ["weight α", "重み α"],
  "mean-entropy": ["mean entropy {x}", "平均エントロピー {x}"],
  "is-off": ["switched off: what it mixes is not passed on", "オフ：バリューの重みつき和を次へ渡しません"],
  masked: ["masked", "マスク"],
};

// The open head: the choice of values, its heat map and lines, and the value under the pointer
export function makeDetail(app) {
  addWords(DETAIL_WORDS);
  const { state } = app;
  const root = panel("detail", "");
  const facts = el("p", { class: "note", id: "head-facts" }, "\u00a0"); // reserves the height
  const readout = el("p", { class: "readout", id: "readout" });
  const pictures = el("div", { class: "pictures" });
  const [left, right] = [el("div", { id: "heat" }), el("div", { id: "lines" })];
  const controls = el("div", { class: "bar" });
  const ramp = el("span", { class: "scale", "aria-hidden": "true" });
  const table = el(
    "details",
    { id: "row-table" },
    el("summary", {}, say("row-table")),
    el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": say("row-table") }),
  );
  pictures.append(left, right);
  root.append(facts, controls, readout, pictures, table, el("p", { class: "note" }, say("honest")));
  const [heat, lines] = [makeHeat(app, left), makeLines(app, right)];
  controls.append(
    ...detailControls(app),
    ramp,
    exportButtons(app, heat, lines, () => shownMatrix(app)),
  );

  const tellSpot = () => app.look && showSpot(app, readout);
  const tellRow = afterPause(() => table.open && app.look && fillRow(app, table.lastChild), 100);
  function tellHead() {
    const { layer, head } = shownMatrix(app);
    root.heading.textContent = say("head-title", { path: pathName(layer.path), n: head + 1 });
  }
  function update() {
    const shown = shownMatrix(app);
    if (!shown) return;
    const { layer, head, weights } = shown;
    tellHead();
    const rows = Array.from({ length: layer.q_len }, (_, i) =>
      entropy(weights.subarray(i * layer.k_len, (i + 1) * layer.k_len)),
    );
    const told = [
      `${layer.q_len} × ${layer.k_len}`,
      `scale ${formatted(layer.scale)}`,
      `β ${formatted(shown.beta, 2)}`,
      say("mean-entropy", { x: formatted(meanOf(rows)) }),
    ];
    if (layer.off.includes(head)) told.push(say("is-off"));
    facts.textContent = told.join(" · ");
    const ofScores = controls.querySelector('#shows [value="scores"]');
    ofScores.textContent = `${say("shows-scores")}${layer.slopes || layer.biases ? " + b" : ""}`;
    showRamp(ramp, app, shown);
    tellSpot();
    tellRow();
  }
  // announced for keyboard moves, but not for mouse moves
  heat.canvas.addEventListener("focus", () => readout.setAttribute("aria-live", "polite"));
  heat.canvas.addEventListener("blur", () => readout.removeAttribute("aria-live"));
  app.on("map", tellHead);
  app.on("numbers", update);
  app.on("theme", update);
  app.on("point", tellSpot);
  state.on(["layer", "head", "shows", "beta", "hideEnds", "root"], update);
  state.on(["query", "key", "locked"], tellSpot);
  state.on(["query"], tellRow);
  table.addEventListener("toggle", tellRow);
  return root;
}

function detailControls({ state }) {
  const shows = ["weights", "weighted", "scores"].map((name) => [name, say(`shows-${name}`)]);
  const colors = ["auto", "linear", "root"].map((name) => [name, say(`color-${name}`)]);
  const hide = el("input", {
    type: "checkbox",
    id: "hide-ends",
    checked: state.get("hideEnds"),
    onchange: () => state.set({ hideEnds: hide.checked }),
  });
  return [
    field(
      say("shows"),
      select(shows, state.get("shows"), (name) => state.set({ shows: name }), { id: "shows" }),
    ),
    field(
      say("color"),
      select(colors, state.get("root"), (name) => state.set({ root: name }), { id: "color" }),
    ),
    el("label", { class: "field" }, hide, el("span", {}, say("hide-ends"))),
  ];
}

// The query, the key and the weight under the pointer
function showSpot(app, readout) {
  const shown = shownMatrix(app);
  if (!shown) return;
  const { numbers, layer, head, weights } = shown;
  const { query, key } = app.spot();
  if (query >= layer.q_len || key >= layer.k_len) return;
  const place = (token, i) =>
    el("span", {}, pieceElement(token), el("span", { class: "note" }, ` ${ordinal(i)}`));
  const [from, to] = [app.rowTokens(layer)[query], app.tokensOf(layer.keys)[key]];
  const weight = weights[query * layer.k_len + key];
  const score = numbers.scores(head)[query * layer.k_len + key];
  const may = numbers.allowed(query, key) && score !== -Infinity;
  clear(readout).append(
    el("span", {}, place(from, query), " → ", place(to, key)),
    el("span", {}, "α ", el("b", { id: "value" }, formatted(weight)), may ? "" : ` (${say("masked")})`),
    el("span", { class: "note" }, `${scoreName(layer)} ${may ? formatted(score) : "−∞"}`),
    el("span", { class: "note" }, `α·‖v Wᵒ‖ ${formatted(weight * numbers.valueNorm(head, key))}`),
  );
  if (app.state.get("locked"))
    readout.append(button(`${say("held")} ×`, app.letGo, { class: "held", id: "let-go" }));
}

// b: the position bias
const scoreName = (layer) => (layer.slopes || layer.biases ? "q·k·scale + b" : "q·k·scale");

function fillRow(app, box) {
  const shown = shownMatrix(app);
  if (!shown) return;
  const { numbers, layer, head, weights } = shown;
  const { query } = app.chosen();
  const rows = app.tokensOf(layer.keys).map((token, j) => {
    const weight = weights[query * layer.k_len + j];
    const cells = [
      weight,
      numbers.scores(head)[query * layer.k_len + j],
      weight * numbers.valueNorm(head, j),
    ];
    const may = numbers.allowed(query, j);
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, `${ordinal(j)} `, pieceElement(token)),
      ...cells.map((x, n) => el("td", {}, n === 1 && !may ? "−∞" : formatted(x))),
    );
  });
  const names = [say("token"), say("weight"), scoreName(layer), "α·‖v Wᵒ‖"].map((name) =>
    el("th", { scope: "col" }, name),
  );
  clear(box).append(
    el(
      "table",
      {},
      el("caption", { class: "note" }, pieceElement(app.rowTokens(layer)[query]), ` ${ordinal(query)}`),
      el("thead", {}, el("tr", {}, ...names)),
      el("tbody", {}, ...rows),
    ),
  );
}
