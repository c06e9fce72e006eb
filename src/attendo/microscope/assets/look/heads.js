// A map of all heads: a thumbnail and one measure of each, by stack, layer and head.
import { addWords, pathName, say } from "./words.js";
import { clear, el, field, formatted, oncePerFrame, select, sized } from "./dom.js";
import { ink, palette, rgbText, wordsOf } from "./colors.js";
import { bytesOf } from "./numbers.js";
import { thumbScale, topText } from "./shown.js";

const HEADS_WORDS = {
  heads: ["All heads", "すべてのヘッド"],
  measure: ["Measure", "指標"],
  "measure-entropy": ["entropy (nats)", "エントロピー（ナット）"],
  "measure-maximum": ["largest weight", "最大の重み"],
  "measure-distance": ["distance (tokens)", "距離（トークン）"],
  "measure-previous": ["to the previous token", "直前のトークンへ"],
  "measure-next": ["to the next token", "直後のトークンへ"],
  "measure-first": ["to the first token", "先頭のトークンへ"],
  "measure-diagonal": ["to the same place", "同じ位置へ"],
  "measure-duplicate": ["to the same token", "同じトークンへ"],
  "measure-induction": ["behind the same token", "同じトークンの次へ"],
  "measure-alignment": ["along the diagonal", "対角線に沿う"],
  off: ["off", "オフ"],
  "head-scale": ["strongest color: weight {top}", "最も強い色：重み {top}"],
  "head-scale-root": ["strongest color: weight {top}, on a scale of √", "最も強い色：重み {top}（√ の目盛り）"],
  "head-title-long": ["{name}. {scale}", "{name}。{scale}"],
  "head-name": ["{path}, head {n}: {measure} {x}", "{path}、ヘッド {n}：{measure} {x}"],
};

const MEASURES = [
  "entropy",
  "maximum",
  "distance",
  "previous",
  "next",
  "first",
  "diagonal",
  "duplicate",
  "induction",
  "alignment",
];

export function makeHeads(app, root) {
  addWords(HEADS_WORDS);
  const { state } = app;
  const chooser = el("span");
  const stacks = el("div", { id: "stacks" });
  root.append(el("div", { class: "bar" }, root.heading, chooser), stacks);
  let buttons = new Map(); // "path head" → its button
  let grids = []; // the canvas of the thumbnails of each stack
  let shape = ""; // the shape for which the buttons were built
  const resized = new ResizeObserver(
    oncePerFrame(() => grids.forEach((one, n) => one.room !== one.grid.clientWidth && drawThumbs(n))),
  );

  function update() {
    const { look } = app;
    stacks.inert = false;
    build(look.stacks.map(({ name, layers }) => [name, layers.map(({ path, heads }) => [path, heads])]));
    const here = new Set(
      look.stacks.flatMap((stack) => stack.layers.flatMap((layer) => Object.keys(layer.measures))),
    );
    const options = MEASURES.filter((name) => here.has(name)).map((name) => [name, say(`measure-${name}`)]);
    const chosen = here.has(state.get("measure")) ? state.get("measure") : options[0][0];
    clear(chooser).append(
      field(
        say("measure"),
        select(options, chosen, (measure) => state.set({ measure }), { id: "measure" }),
      ),
    );
  }

  // all: [name, [[path, heads]…]] of each stack
  function build(all) {
    if (shape === JSON.stringify(all)) return;
    shape = JSON.stringify(all);
    buttons = new Map();
    grids = [];
    resized.disconnect();
    clear(stacks);
    const rows = all.reduce((sum, [, layers]) => sum + layers.length, 0);
    for (const [name, layers] of all) {
      const widest = Math.max(...layers.map(([, heads]) => heads));
      const grid = el("div", { class: "grid", role: "group", "aria-label": say(`stack-${name}`) });
      const size = widest <= 4 && rows <= 6 ? 3.8 : widest <= 8 ? 2.9 : 2.05;
      grid.style.gridTemplateColumns = `1.5rem repeat(${widest}, minmax(0, ${size}rem))`;
      grid.append(
        el("span"),
        ...range(widest).map((h) =>
          el("span", { class: "name column", "aria-hidden": "true" }, String(h + 1)),
        ),
      );
      layers.forEach(([path, heads], n) => {
        grid.append(el("span", { class: "name", "aria-hidden": "true" }, String(n + 1)));
        grid.append(...range(heads).map((head) => headButton(path, head)));
        grid.append(...range(widest - heads).map(() => el("span")));
      });
      // one canvas per stack, because each canvas costs memory and time in every frame
      const canvas = el("canvas", { class: "thumbs", "aria-hidden": "true", dataset: { name: "thumb" } });
      grid.append(canvas);
      grids.push({ grid, canvas, room: 0 });
      stacks.append(el("div", { class: "stack" }, el("h3", {}, say(`stack-${name}`)), grid));
      resized.observe(grid);
    }
  }

  function headButton(path, head) {
    const made = el(
      "button",
      {
        type: "button",
        class: "head",
        tabIndex: -1,
        dataset: { path, head },
        onclick: () => app.choose(path, head),
        ondblclick: () => app.setOff(path, head, !app.isOff(path, head)),
        onkeydown: (event) => onKey(event, path, head),
      },
      el("span", { class: "thumb" }),
      el("span", { class: "measure" }, "\u00a0"), // reserves the height
    );
    buttons.set(`${path} ${head}`, made);
    return made;
  }

  // Arrow keys move the focus over the map, also across stacks
  function onKey(event, path, head) {
    if (!app.look) return;
    const layers = app.look.stacks.flatMap((stack) => stack.layers);
    const at = layers.findIndex((layer) => layer.path === path);
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key === "x" || event.key === "X" || event.key === "Delete") app.setOff(path, head, !app.isOff(path, head));
    else if (event.key in steps) {
      const to = layers[Math.min(layers.length - 1, Math.max(0, at + steps[event.key][0]))];
      const column = Math.min(to.heads - 1, Math.max(0, head + steps[event.key][1]));
      app.choose(to.path, column);
      buttons.get(`${to.path} ${column}`).focus();
    } else return;
    event.preventDefault();
  }

  function draw() {
    const colors = palette();
    const measure = root.querySelector("#measure").value;
    const all = app.look.stacks.flatMap((stack) =>
      stack.layers.flatMap((layer) => layer.measures[measure] ?? []),
    );
    const most =
      Math.max(measure === "entropy" || measure === "distance" ? 0 : 1, ...all.filter(Number.isFinite)) || 1;
    const { look } = app;
    look.stacks.forEach((stack, n) => {
      for (const layer of stack.layers)
        app.late.add(() => look === app.look && nameLayer(layer, measure, most, colors));
      app.late.add(() => look === app.look && drawThumbs(n));
    });
    markChosen();
    app.late.add(drawn);
  }
  const drawn = () => app.drew("heads");

  function nameLayer(layer, measure, most, colors) {
    for (let head = 0; head < layer.heads; head++) {
      const made = buttons.get(`${layer.path} ${head}`);
      const badge = made.lastChild;
      const scale = thumbScale(app, layer, layer.thumb.darkest[head]);
      const off = layer.off.includes(head);
      const x = layer.measures[measure]?.[head];
      const known = Number.isFinite(x);
      const color = colors[known ? Math.round((255 * Math.max(0, x)) / most) : 0];
      badge.textContent = off ? say("off") : known ? formatted(x, layer.heads > 8 ? 1 : 2) : "–";
      badge.style.background = off ? "" : rgbText(color);
      badge.style.color = off ? "" : ink(color);
      made.classList.toggle("off", off);
      const said = say("head-name", {
        path: pathName(layer.path),
        n: head + 1,
        measure: say(`measure-${measure}`),
        x: formatted(x),
      });
      made.setAttribute("aria-label", off ? say("both", { a: said, b: say("off") }) : said);
      const key = scale.root ? "head-scale-root" : "head-scale";
      const least = layer.causal && scale.top < 1 ? "≥ " : ""; // the first rows may have larger weights
      made.title = say("head-title-long", {
        name: made.getAttribute("aria-label"),
        scale: say(key, { top: least + topText(scale.top) }),
      });
    }
  }

  // Draw the thumbnails of a stack, each inside its button
  function drawThumbs(n) {
    const { grid, canvas } = grids[n];
    grids[n].room = grid.clientWidth;
    if (!app.look || !grid.clientWidth) return;
    const corner = grid.getBoundingClientRect();
    const boxes = [...grid.querySelectorAll(".thumb")].map((thumb) => thumb.getBoundingClientRect());
    const pen = sized(canvas, corner.width, corner.height);
    pen.imageSmoothingEnabled = false;
    for (const layer of app.look.stacks[n].layers) {
      const { rows, columns } = layer.thumb;
      const small = thumbsOf(app, layer);
      for (let head = 0; head < layer.heads; head++) {
        const { x, y, width, height } = boxes.shift();
        pen.globalAlpha = layer.off.includes(head) ? 0.25 : 1;
        const place = [x - corner.x, y - corner.y, width, height];
        pen.drawImage(small, head * columns, 0, columns, rows, ...place);
      }
    }
  }

  function markChosen() {
    for (const made of buttons.values()) {
      const chosen =
        made.dataset.path === state.get("layer") && Number(made.dataset.head) === state.get("head");
      made.setAttribute("aria-pressed", chosen);
      made.tabIndex = chosen ? 0 : -1;
      if (chosen) bringIntoView(made);
    }
  }

  // Scroll the map, but never the page
  function bringIntoView(made) {
    if (root.scrollHeight <= root.clientHeight) return;
    const lowest = made.offsetTop + made.offsetHeight + 12 - root.clientHeight;
    root.scrollTop = Math.min(Math.max(root.scrollTop, lowest), made.offsetTop - 12);
  }

  app.on("answer", update);
  app.on("look", draw);
  app.on("theme", () => app.look && draw());
  state.on(["measure", "root"], () => chooser.hasChildNodes() && draw());
  state.on(["layer", "head"], () => app.look && markChosen());
  // before the first result, the model is known, but its heads have no buttons
  stacks.inert = true;
  build(app.model.stacks.map(({ name, paths, heads }) => [name, paths.map((path) => [path, heads])]));
}

function range(n) {
  return Array.from({ length: n }, (_, i) => i);
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
