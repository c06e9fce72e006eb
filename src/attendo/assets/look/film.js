// @ts-check
// The film: the attention of one head on this text, at each checkpoint of the training.
import { partName, say } from "../shared/words.js";
import { button, clear, el, formatted, svgEl } from "../shared/dom.js";
import { floatsOf } from "./numbers.js";
import { drawWhenShown, questions } from "./views.js";
import { cellMap, colorScale, showAttention } from "./cells.js";

const FILM_PACE = 700; // ms per frame
const FEW_CHECKPOINTS = 6; // with fewer checkpoints, the page says how to keep more
const FILM_CHART = { width: 180, height: 52, edge: 6 };

export function makeFilm(app, root) {
  const view = filmParts(app, root);
  const update = drawWhenShown(root, () => updateFilm(app, view));
  app.on("look", update);
  app.on("theme", () => view.film && showFrame(app, view, view.frame));
  app.state.on(["layer", "head", "frame"], (changed) => {
    const same = view.film && changed.join() === "frame" && app.state.get("frame") === view.frame;
    // a film is loaded on request, or if the address asks for it
    if (app.state.get("frame") !== null && !changed.includes("frame")) app.state.settle({ frame: null });
    else if (!same) update();
  });
  update();
}

function filmParts(app, root) {
  const view = { film: null, name: "", asked: "", frame: 0, timer: 0, map: cellMap("film") };
  view.said = el("p", { class: "note" });
  view.go = button(say("film-go"), () => loadFilm(app, view), { class: "main", id: "film-go" });
  const attributes = { type: "range", id: "film-frame", min: 0, value: 0, "aria-label": say("film-slider") };
  view.slider = el("input", attributes);
  view.slider.oninput = () => {
    stopFilm(view);
    showFrame(app, view, Number(view.slider.value));
  };
  view.play = button(say("film-play"), () => (view.timer ? stopFilm(view) : playFilm(app, view)), { id: "film-play" });
  view.step = el("output", { class: "number film-step" });
  const go = (by) => () => {
    stopFilm(view);
    showFrame(app, view, Math.max(0, Math.min(view.film.length - 1, view.frame + by)));
  };
  view.title = el("h2");
  view.charts = el("div", { class: "film-charts" });
  const bar = el(
    "div",
    { class: "bar film-bar" },
    view.play,
    button("←", go(-1), { "aria-label": say("film-earlier") }),
    view.slider,
    button("→", go(1), { "aria-label": say("film-later") }),
    view.step,
  );
  view.scale = colorScale();
  view.scale.set("0", "1", "0.25");
  view.still = el("p", { class: "note" }, say("film-still"));
  view.all = el(
    "div",
    {},
    bar,
    view.still,
    el("div", { class: "view-columns" }, el("div", {}, view.scale.node, view.map.node), view.charts),
  );
  view.ask = questions(app, view.said, view.all);
  root.append(view.title, el("div", { class: "bar" }, view.go), view.said, view.all);
  return view;
}

function quietly() {
  return window.matchMedia("(prefers-reduced-motion: reduce)").matches;
}

function filmName(app) {
  return `${app.look?.key} ${app.state.get("layer")} ${app.state.get("head")}`;
}

function updateFilm(app, view) {
  const steps = app.model.checkpoints ?? [];
  const ready = Boolean(app.look) && steps.length > 0;
  view.go.hidden = !ready || view.name === filmName(app);
  view.title.hidden = !ready;
  view.title.textContent = ready ? partName(app.state.get("layer"), app.state.get("head")) : "";
  const held = app.state.get("frame");
  if (view.film && view.name === filmName(app)) return void showFrame(app, view, view.film[held] ? held : view.frame);
  stopFilm(view);
  if (view.film && held !== null) app.state.settle({ frame: null }); // the frame belonged to another result
  view.film = null;
  view.name = "";
  view.go.hidden = !ready;
  view.all.hidden = true;
  const few = steps.length < FEW_CHECKPOINTS ? ` ${say("film-few")}` : "";
  view.said.textContent = !app.look ? "" : ready ? say("film-press", { n: steps.length }) + few : say("film-none");
  const [path, head] = [app.state.get("layer"), app.state.get("head")];
  const has = ready && app.source.has("film", { key: app.look.key, path, head });
  view.go.hidden ||= !has;
  if (ready && !has) view.said.textContent = say("film-other");
  if (has && app.state.get("frame") !== null && view.asked !== filmName(app)) loadFilm(app, view);
}

async function loadFilm(app, view) {
  const name = (view.asked = filmName(app));
  const [path, head] = [app.state.get("layer"), app.state.get("head")];
  const answer = await view.ask("film", { key: app.look.key, path, head });
  if (answer) view.all.hidden = name !== filmName(app) || !answer.frames.length;
  if (!answer || view.all.hidden) return;
  view.name = name;
  const layer = app.layer(path);
  view.sides = [app.rowTokens(layer), app.tokensOf(layer.keys)];
  view.shape = [answer.q_len, answer.k_len];
  view.film = answer.frames.map((frame) => ({ ...frame, numbers: floatsOf(frame.weights) }));
  view.slider.max = view.film.length - 1;
  view.go.hidden = true;
  view.play.hidden = quietly() || view.film.length < 2;
  view.still.hidden = !quietly();
  drawCharts(view);
  const held = app.state.get("frame");
  showFrame(app, view, view.film[held] ? held : view.film.length - 1);
}

function showFrame(app, view, at) {
  view.frame = at;
  if (app.state.get("frame") !== at) app.state.set({ frame: at });
  const { step, final, numbers } = view.film[at];
  const told = say(final ? "film-final" : "film-step", { n: step.toLocaleString("en") });
  view.slider.value = at;
  view.slider.setAttribute("aria-valuetext", told);
  view.step.textContent = told;
  const [rows, columns] = view.shape;
  const label = say("both", { a: view.title.textContent, b: view.step.textContent });
  showAttention(view.map, ...view.sides, { rows, columns, data: numbers, most: 1, label });
  for (const chart of view.charts.children) chart.show(at);
  app.drew("film");
}

function playFilm(app, view) {
  if (view.frame === view.film.length - 1) showFrame(app, view, 0);
  view.play.textContent = say("film-pause");
  view.timer = setInterval(() => {
    const hidden = view.all.getClientRects().length === 0;
    if (!view.film || hidden || view.frame >= view.film.length - 1) return void stopFilm(view);
    showFrame(app, view, view.frame + 1);
  }, FILM_PACE);
}

function stopFilm(view) {
  clearInterval(view.timer);
  view.timer = 0;
  view.play.textContent = say("film-play");
}

// One small chart per measure: a line over the checkpoints, with a dot at the shown checkpoint

function drawCharts(view) {
  const names = Object.keys(view.film[0].measures).filter((name) =>
    view.film.some((frame) => Number.isFinite(frame.measures[name])),
  );
  clear(view.charts).append(...names.map((name) => filmChart(view, name)));
}

function filmChart(view, name) {
  const { width, height, edge } = FILM_CHART;
  const numbers = view.film.map((frame) => frame.measures[name]);
  const steps = view.film.map((frame) => frame.step);
  const known = numbers.filter(Number.isFinite);
  const [low, high] = [Math.min(0, ...known), Math.max(...known, 1e-6)];
  // equal steps, as on the slider, because the trained weights may be older than the last checkpoint
  const x = (i) => edge + (i / Math.max(1, numbers.length - 1)) * (width - 2 * edge);
  const y = (number) => height - edge - ((number - low) / (high - low || 1)) * (height - 2 * edge);
  const points = numbers
    .map((number, i) => (Number.isFinite(number) ? `${x(i).toFixed(1)},${y(number).toFixed(1)}` : null))
    .filter(Boolean);
  const dot = svgEl("circle", { r: 4, class: "dot" });
  const cursor = svgEl("line", { y1: edge, y2: height - edge, class: "rule" });
  const picture = svgEl(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "film-chart plot", role: "img" },
    svgEl("line", { x1: edge, x2: width - edge, y1: y(low), y2: y(low), class: "axis" }),
    cursor,
    svgEl("polyline", { points: points.join(" "), class: "curve" }),
    dot,
  );
  const told = numbers.map((number, i) => `${steps[i]} ${formatted(number, 2)}`);
  const said = say("labeled", { name: say(`measure-${name}`), text: told.join(", ") });
  picture.setAttribute("aria-label", said);
  const number = el("span", { class: "number" });
  const made = el("figure", {}, el("figcaption", {}, el("span", {}, say(`measure-${name}`)), number), picture);
  made.show = (at) => {
    number.textContent = formatted(numbers[at], 2);
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(at));
    dot.setAttribute("cx", x(at));
    dot.setAttribute("cy", Number.isFinite(numbers[at]) ? y(numbers[at]) : -9);
  };
  return made;
}
