// @ts-check
// The view of the open head: a sentence, ribbons, the matrix, and the value under the pointer.
import {
  afterPause,
  button,
  checkbox,
  clear,
  el,
  field,
  formatted,
  ordinal,
  percent,
  pieceElement,
  select,
} from "../shared/dom.js";
import { scrolled, tableHead, tableRow } from "../shared/bars.js";
import { makeSheet, term } from "../shared/sheet.js";
import { partName, say } from "../shared/words.js";
import { headLine, sentenceOf } from "./roles.js";
import { isLong, MANY, shownMatrix, showRamp } from "./shown.js";
import { saveHeat } from "./saving.js";
import { makeHeat } from "./heat.js";
import { makeRibbons } from "./ribbons.js";
import { effectsOf } from "./effects.js";

export function makeAttention(app, root) {
  const { state } = app;
  const sentence = el("h2", { id: "sentence" }, "\u00a0"); // reserves the height
  const line = el("p", { class: "note", id: "head-line" }, "\u00a0");
  const readout = el("p", { class: "note readout", id: "readout" }, "\u00a0");
  const [ribbonBox, heatBox] = [el("div", { id: "ribbons" }), el("div", { id: "heat" })];
  const ramp = el("span", { class: "scale", "aria-hidden": "true" });
  const pictures = pictureChoice(app);
  const settings = button("⋯", () => openSettings(), {
    id: "picture-settings",
    class: "quiet",
    "aria-label": say("picture-settings"),
  });
  const full = button("⤢", () => root.requestFullscreen().catch(app.fail), {
    id: "full-screen",
    hidden: !document.fullscreenEnabled,
    class: "quiet",
    title: say("full-screen"),
    "aria-label": say("full-screen"),
  });
  const table = el("details", { id: "row-table" }, el("summary", {}, say("row-table")));
  const rows = el("div");
  table.append(rows);
  const foot = el("div", { class: "bar heat-foot" }, ramp, readout);
  root.append(
    sentence,
    line,
    el("div", { class: "bar picture-bar" }, pictures.node, settings, full),
    ribbonBox,
    el("div", { class: "heat-part" }, heatBox, foot),
    table,
    el("p", { class: "note" }, say("honest")),
  );
  const ribbons = makeRibbons(app, ribbonBox);
  const heat = makeHeat(app, heatBox);
  app.saving = () => saveHeat(app, heat, ribbons, () => shownMatrix(app));
  const sheet = makeSheet();
  const openSettings = () => sheet.open(settings, say("picture-settings"), ...pictureSettings(app));

  function tellSpot() {
    const shown = app.look && shownMatrix(app);
    if (!shown) return;
    clear(sentence).append(...sentenceOf(app));
    showReadout(app, shown, readout);
  }
  function tellHead() {
    const shown = app.look && shownMatrix(app);
    if (!shown) return;
    const { layer, head } = shown;
    const parts = headLine(app, layer, head, term("head", partName(layer.path, head)));
    const text = parts.map((part) => (part instanceof Node ? part.textContent : part)).join("");
    if (text !== line.textContent) clear(line).append(...parts); // a focused term keeps its element
  }
  const tellRow = afterPause(() => table.open && app.look && fillRow(app, rows), 100);
  function update() {
    const shown = shownMatrix(app);
    if (!shown) return;
    pictures.update(shown.layer);
    heatBox.parentElement.hidden = pictures.current(shown.layer) === "ribbons";
    showRamp(ramp, app, shown);
    tellHead();
    tellSpot();
    tellRow();
  }
  app.on("map", () => {
    tellHead();
    tellSpot();
  });
  app.on("numbers", update);
  app.on("theme", update);
  app.on("point", tellSpot);
  effectsOf(app).on(tellHead);
  state.on(["layer", "head", "shows", "beta", "hideEnds", "root", "picture"], update);
  state.on(["query", "key", "locked"], tellSpot);
  state.on(["query"], tellRow);
  table.addEventListener("toggle", tellRow);
}

// Ribbons, matrix or both; a long text has the matrix only
function pictureChoice({ state }) {
  const names = ["ribbons", "matrix", "both"];
  const buttons = names.map((name) =>
    button(say(`picture-${name}`), () => state.set({ picture: name }), { id: `picture-${name}` }),
  );
  const current = (layer) => (isLong(layer) ? "matrix" : state.get("picture"));
  return {
    node: el("span", { class: "segments", role: "group", "aria-label": say("picture") }, ...buttons),
    current,
    update: (layer) =>
      names.forEach((name, n) => {
        buttons[n].setAttribute("aria-pressed", String(name === current(layer)));
        buttons[n].disabled = isLong(layer) && name !== "matrix";
        buttons[n].title = buttons[n].disabled ? say("picture-long", { n: MANY }) : "";
      }),
  };
}

function pictureSettings({ state, openLayer }) {
  const layer = openLayer();
  const biased = layer && (layer.slopes || layer.biases) ? " + b" : "";
  const shows = ["weights", "weighted", "scores"].map((name) => [
    name,
    say(`shows-${name}`) + (name === "scores" ? biased : ""),
  ]);
  const colors = ["auto", "linear", "root"].map((name) => [name, say(`color-${name}`)]);
  const hide = checkbox("hide-ends", state.get("hideEnds"), (hideEnds) => state.set({ hideEnds }));
  const choices = [
    field(say("shows"), select(shows, state.get("shows"), (name) => state.set({ shows: name }), { id: "shows" })),
    field(say("color"), select(colors, state.get("root"), (root) => state.set({ root }), { id: "color" })),
    el("label", { class: "field" }, hide, el("span", {}, say("hide-ends"))),
  ];
  return choices.map((choice) => el("p", {}, choice));
}

// b: the position bias
const scoreName = (layer) => (layer.slopes || layer.biases ? "q·k·scale + b" : "q·k·scale");

// The value under the pointer, with four digits
function showReadout(app, shown, readout) {
  const { numbers, layer, head, weights } = shown;
  const { query, key } = app.spot();
  clear(readout);
  const { state } = app;
  const selected = app.pointed() || state.get("locked") || state.get("query") !== null;
  if (!selected || query >= layer.q_len || key >= layer.k_len) return;
  const weight = weights[query * layer.k_len + key];
  const score = numbers.scores(head)[query * layer.k_len + key];
  const may = numbers.allowed(query, key) && score !== -Infinity;
  readout.append(
    `${ordinal(query)} → ${ordinal(key)} · α `,
    el("b", { id: "value" }, formatted(weight)),
    may ? "" : ` (${say("masked")})`,
    ` · ${scoreName(layer)} ${may ? formatted(score) : "−∞"}`,
    ` · α·‖v Wᵒ‖ ${formatted(weight * numbers.valueNorm(head, key))}`,
  );
  if (state.get("locked")) readout.append(" ", button(`${say("held")} ×`, app.letGo, { class: "pill", id: "let-go" }));
}

// The row of the chosen query as a table, with the strongest keys first
function fillRow(app, box) {
  const shown = shownMatrix(app);
  if (!shown) return;
  const { numbers, layer, head, weights } = shown;
  const { query } = app.chosen();
  const rows = app.tokensOf(layer.keys).map((token, j) => {
    const weight = weights[query * layer.k_len + j];
    const score = numbers.allowed(query, j) ? formatted(numbers.scores(head)[query * layer.k_len + j]) : "−∞";
    const cells = [percent(weight), formatted(weight), score, formatted(weight * numbers.valueNorm(head, j))];
    return tableRow([`${ordinal(j)} `, pieceElement(token)], cells);
  });
  const names = [say("token"), "%", say("weight"), scoreName(layer), "α·‖v Wᵒ‖"].map((name) => [name]);
  const caption = el("caption", { class: "note" }, pieceElement(app.rowTokens(layer)[query]), ` ${ordinal(query)}`);
  clear(box).append(scrolled(say("row-table"), el("table", {}, caption, tableHead(names), el("tbody", {}, rows))));
}
