// @ts-check
// The model in computing order: a card per attention layer with a thumbnail of each head. The bar below a thumbnail is
// a measure of the head; by default, how much the answer loses without the head.
import { clear, el, field, formatted, hasModifier, oncePerFrame, select, sized } from "../shared/dom.js";
import { partName, pathName, say } from "../shared/words.js";
import { palette, wordsOf } from "./colors.js";
import { effectsOf, effectControls } from "./effects.js";
import { bytesOf } from "./numbers.js";
import { headText } from "./roles.js";
import { thumbScale, topText } from "./shown.js";
import { decimals } from "./views.js";

const MANY_LAYERS = 7; // with more attention layers, only the open layer has large thumbnails
const MEASURES = "effect entropy maximum distance previous next first diagonal duplicate induction alignment".split(
  " ",
);

export function makeModel(app, root) {
  const { state } = app;
  const cards = el("div", { id: "stacks", class: "layers" });
  const chooser = el("span");
  const told = el("p", { class: "note", id: "head-told" }, "\u00a0");
  const controls = effectControls(app);
  const canvas = el("canvas", { class: "thumbs", "aria-hidden": "true", dataset: { name: "thumb" } });
  root.append(
    el("div", { class: "bar" }, el("h2", { class: "small-caps", id: "model-name" }, say("model"))),
    cards,
    el("div", { class: "model-foot" }, told, controls.node, chooser),
  );
  let buttons = new Map(); // "path head" → its button
  let shape = ""; // the shape for which the buttons were built
  let room = ""; // the size for which the thumbnails were drawn

  // layers: [path, heads] of each attention layer, in computing order
  function build(layers) {
    if (shape === JSON.stringify(layers)) return;
    shape = JSON.stringify(layers);
    buttons = new Map();
    cards.classList.toggle("many", layers.length >= MANY_LAYERS);
    clear(cards).append(canvas, ...layers.map(([path, heads]) => card(path, heads)));
  }

  function card(path, heads) {
    const [name, layer] = layerNames(path);
    const grid = el("div", { class: "heads", role: "group", "aria-label": pathName(path) });
    grid.style.gridTemplateColumns = `repeat(${Math.min(heads, 16)}, minmax(0, 40px))`;
    for (let head = 0; head < heads; head++) grid.append(headButton(app, buttons, tell, path, head));
    return el(
      "div",
      { class: "layer", dataset: { path } },
      el("p", { class: "layer-name" }, el("span", {}, name), el("span", { class: "end" }, layer)),
      grid,
    );
  }

  // The role and the effect of the head under the pointer, or of the open head
  function tell(path = state.get("layer"), head = state.get("head")) {
    const layer = app.look && app.layer(path);
    if (layer)
      told.textContent = `${say("head", { n: head + 1 })}: ${headText(app, layer, Math.min(head, layer.heads - 1))}`;
  }

  function update() {
    build(inOrder(app.layers().map((layer) => [layer.path, layer.heads])));
    const here = new Set(["effect", ...app.layers().flatMap((layer) => Object.keys(layer.measures))]);
    const options = MEASURES.filter((name) => here.has(name)).map((name) => [name, say(`measure-${name}`)]);
    const choose = (measure) => state.set({ measure });
    clear(chooser).append(field(say("bar"), select(options, state.get("measure"), choose, { id: "measure" })));
  }

  function draw() {
    const { look } = app;
    app.late.add(() => look === app.look && showMeasure());
    app.late.add(() => look === app.look && drawThumbs());
    markChosen();
    app.late.add(() => app.drew("heads"));
  }

  function nameLayer(layer) {
    for (let head = 0; head < layer.heads; head++) {
      const made = buttons.get(`${layer.path} ${head}`);
      const scale = thumbScale(app, layer, layer.thumb.darkest[head]);
      const least = layer.causal && scale.top < 1 ? "≥ " : ""; // the first rows may have larger weights
      const name = say("labeled", { name: partName(layer.path, head), text: headText(app, layer, head) });
      made.classList.toggle("off", layer.off.includes(head));
      made.setAttribute("aria-label", name);
      const key = scale.root ? "head-scale-root" : "head-scale";
      made.title = `${name}. ${say(key, { top: least + topText(scale.top) })}`;
    }
  }

  // The bars of the chosen measure, relative to the largest value of all heads
  function showMeasure() {
    if (!app.look) return;
    const measure = state.get("measure");
    const value = (layer, head) =>
      measure === "effect" ? effectsOf(app).rowOf(layer.path, head)?.value : layer.measures[measure]?.[head];
    const all = app.layers().flatMap((layer) => Array.from({ length: layer.heads }, (_, head) => value(layer, head)));
    const known = all.filter(Number.isFinite).map(Math.abs);
    const most = Math.max(["effect", "entropy", "distance"].includes(measure) ? 0 : 1, ...known) || 1;
    for (const layer of app.layers())
      for (let head = 0; head < layer.heads; head++) {
        const track = buttons.get(`${layer.path} ${head}`).lastChild;
        const x = value(layer, head);
        track.firstChild.style.width = Number.isFinite(x) ? `${(100 * Math.abs(x)) / most}%` : "0";
        track.title = `${say(`measure-${measure}`)}: ${formatted(x, decimals(most))}`;
      }
    for (const layer of app.layers()) nameLayer(layer);
    tell();
    controls.update();
  }

  // The right and the lower end of the last card: the canvas itself must not count
  function ends() {
    const last = cards.lastElementChild;
    return [last.offsetLeft + last.offsetWidth, last.offsetTop + last.offsetHeight];
  }
  const size = () => `${cards.clientWidth} ${ends()}`;

  function drawThumbs() {
    room = size();
    if (app.look && cards.clientWidth) paintThumbs(app, cards, canvas, ends(), buttons);
  }

  function markChosen() {
    for (const one of cards.querySelectorAll(".layer"))
      one.classList.toggle("open", one.dataset.path === state.get("layer"));
    for (const made of buttons.values()) {
      const chosen = made.dataset.path === state.get("layer") && Number(made.dataset.head) === state.get("head");
      made.setAttribute("aria-pressed", String(chosen));
      made.tabIndex = chosen ? 0 : -1;
      if (chosen) bringIntoView(made.closest(".layer"));
    }
    if (room !== size()) drawThumbs();
    tell();
  }

  // Scroll the column, but never the page
  function bringIntoView(one) {
    const lowest = one.offsetTop + one.offsetHeight + 8 - cards.clientHeight;
    if (cards.scrollHeight > cards.clientHeight)
      cards.scrollTop = Math.min(Math.max(cards.scrollTop, lowest), one.offsetTop - 8);
  }

  app.on("answer", update);
  app.on("look", draw);
  app.on("theme", () => app.look && drawThumbs());
  effectsOf(app).on(() => app.late.add(showMeasure));
  state.on("measure", showMeasure);
  state.on("root", () => app.look && draw());
  state.on(["layer", "head"], () => app.look && markChosen());
  new ResizeObserver(oncePerFrame(() => room !== size() && drawThumbs())).observe(cards);
  // before the first result, the model is known, but its heads have no thumbnails
  build(inOrder(app.model.stacks.flatMap(({ paths, heads }) => paths.map((path) => [path, heads]))));
}

function headButton(app, buttons, tell, path, head) {
  const made = el(
    "button",
    {
      type: "button",
      class: "head chip",
      tabIndex: -1,
      dataset: { path, head },
      "aria-label": partName(path, head),
      onclick: () => app.choose(path, head),
      ondblclick: () => app.setOff(path, head, !app.isOff(path, head)),
      onkeydown: (event) => walkHeads(app, buttons, event, path, head),
      onpointerenter: () => tell(path, head),
      onpointerleave: () => tell(),
      onfocus: () => tell(path, head),
    },
    el("span", { class: "thumb" }),
    el("span", { class: "track" }, el("span", { style: { width: "0" } })),
  );
  buttons.set(`${path} ${head}`, made);
  return made;
}

// Arrow keys move over the heads, also across layers
function walkHeads(app, buttons, event, path, head) {
  if (!app.look || hasModifier(event)) return;
  const layers = inOrder(app.layers().map((layer) => [layer.path, layer.heads]));
  const at = layers.findIndex(([one]) => one === path);
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  if (["x", "X", "Delete"].includes(event.key)) app.setOff(path, head, !app.isOff(path, head));
  else if (event.key in steps) {
    const [down, across] = steps[event.key];
    const [to, heads] = layers[Math.min(layers.length - 1, Math.max(0, at + down))];
    const column = Math.min(heads - 1, Math.max(0, head + across));
    app.choose(to, column);
    buttons.get(`${to} ${column}`).focus();
  } else return;
  event.preventDefault();
}

// The layers of the encoder, then those of the decoder block by block: self-attention before cross-attention
function inOrder(layers) {
  const place = ([path]) => {
    const { side, block, isCross } = partsOfPath(path);
    return [side === "encoder" ? 0 : 1, block, isCross ? 1 : 0];
  };
  const by = (a, b) => a.reduce((found, x, n) => found || x - b[n], 0);
  return layers.toSorted((a, b) => by(place(a), place(b)));
}

// What a layer does, and its number: "Encoder" or "Decoder" reads its own text, cross-attention reads the source
function layerNames(path) {
  const { side, block, isCross } = partsOfPath(path);
  return [say(isCross ? "layer-cross" : `layer-${side}`), say("layer", { n: block + 1 })];
}

// The parts of a module path such as decoder.blocks.2.cross_attention
function partsOfPath(path) {
  const [, side, block, kind] = /^(\w+)\.blocks\.(\d+)\.(\w+)$/.exec(path) ?? [null, "", "0", ""];
  return { side, block: Number(block), isCross: kind === "cross_attention" };
}

// One canvas for all thumbnails, because each canvas costs memory and time in every frame
function paintThumbs(app, cards, canvas, ends, buttons) {
  const corner = cards.getBoundingClientRect();
  const pen = sized(canvas, ...ends);
  pen.imageSmoothingEnabled = false;
  for (const layer of app.layers()) {
    const { rows, columns } = layer.thumb;
    const small = thumbsOf(app, layer);
    for (let head = 0; head < layer.heads; head++) {
      const thumb = buttons.get(`${layer.path} ${head}`).firstChild;
      const { x, y, width, height } = thumb.getBoundingClientRect();
      pen.globalAlpha = layer.off.includes(head) ? 0.25 : 1;
      const place = [x - corner.x + cards.scrollLeft, y - corner.y + cards.scrollTop, width, height];
      pen.drawImage(small, head * columns, 0, columns, rows, ...place);
    }
  }
}

// Draw the thumbnails of a layer side by side
function thumbsOf(app, layer) {
  const { rows, columns, data, darkest } = layer.thumb;
  const bytes = bytesOf(data);
  const image = new ImageData(layer.heads * columns, rows);
  const dots = new Uint32Array(image.data.buffer);
  const all = wordsOf(palette());
  for (let head = 0; head < layer.heads; head++) {
    const { color } = thumbScale(app, layer, darkest[head]);
    const words = all.map((_, byte) => all[color(byte)]);
    for (let i = 0, from = head * rows * columns; i < rows * columns; i++) {
      const to = (Math.floor(i / columns) * layer.heads + head) * columns + (i % columns);
      dots[to] = words[bytes[from + i]];
    }
  }
  const small = new OffscreenCanvas(image.width, rows);
  small.getContext("2d").putImageData(image, 0, 0);
  return small;
}
