// @ts-check
// Positions: their encodings as a heat map, and the similarity of their encodings.
import { partName, say } from "../shared/words.js";
import { el, field, formatted, pieceText, select } from "../shared/dom.js";
import { biasOf, floatsOf } from "./numbers.js";
import { drawWhenShown, questions } from "./views.js";
import { cellMap, colorScale } from "./cells.js";

const BY_DISTANCE = ["alibi", "relative", "own"];
const isBiased = (layer) => layer.queries === layer.keys && (layer.slopes || layer.biases);

// The view

export function makePositions(app, root) {
  const view = positionParts(app, root);
  const load = drawWhenShown(root, () => loadPositions(app, view));
  view.onchange.load = load;
  view.onchange.draw = () => drawPositions(app, view);
  app.on("look", load);
  app.state.on(["layer", "head"], () => view.answer?.layers.length && view.onchange.draw());
  app.on("theme", () => {
    view.encodings.redraw();
    view.products.redraw();
  });
  load();
}

function positionParts(app, root) {
  const onchange = { load: null, draw: null };
  // the address contains the choice
  const choice = (name, words, done) =>
    select(
      words.map((word) => [word, say(`positions-${word}`)]),
      words.includes(app.state.get(name)) ? app.state.get(name) : words[0],
      (word) => {
        app.state.set({ [name]: word });
        done();
      },
    );
  const view = { onchange, answer: null, encodings: cellMap("positions"), products: cellMap("position-dots") };
  view.side = choice("positionsSide", ["source", "target"], () => onchange.load());
  view.like = choice("positionsLike", ["dots", "cosine"], () => onchange.draw());
  view.sideField = field(say("positions-side"), view.side);
  view.kind = el("h3");
  view.beyond = el("p", { class: "note" });
  view.note = el("p", { class: "note" });
  view.said = el("p", { class: "note" });
  view.scales = [colorScale(), colorScale()];
  view.axes = el("p", { class: "note" });
  view.alike = el("h3");
  view.likeField = field(say("positions-like"), view.like);
  view.products.node.prepend(el("div", { class: "bar" }, view.likeField, view.scales[1].node));
  view.all = el(
    "div",
    { hidden: true }, // until the first answer
    el("div", { class: "bar" }, view.sideField),
    el(
      "div",
      { class: "view-columns" },
      el("div", {}, view.kind, view.axes, view.scales[0].node, view.encodings.node),
      el("div", {}, view.alike, view.products.node),
    ),
    view.beyond,
    view.note,
  );
  view.ask = questions(app, view.said, view.all);
  root.append(view.said, view.all);
  return view;
}

async function loadPositions(app, view) {
  const { look } = app;
  if (!look) return;
  const both = look.source.length > 0 && look.target.length > 0;
  const side = both ? view.side.value : look.source.length > 0 ? "source" : "target";
  view.sideField.hidden = !both;
  const answer = await view.ask("positions", { key: look.key, side });
  if (!answer) return;
  const within = look.stacks.flatMap(({ layers }) => layers.filter((layer) => layer.keys === side && isBiased(layer)));
  const note = say(`positions-note-${answer.note}`, { n: answer.trained });
  view.all.hidden = !answer.n || !answer.d;
  if (view.all.hidden) return void (view.said.textContent = note || say("positions-nothing"));
  view.note.textContent = note;
  view.answer = {
    ...answer,
    tokens: look[side],
    layers: BY_DISTANCE.includes(answer.kind) ? within : [],
    data: floatsOf(answer.data),
    dots: answer.dots ? floatsOf(answer.dots) : null,
  };
  drawPositions(app, view);
}

// The position bias of a layer: a value per distance of the key and head, and the matrix of the open head
function addedBy(app, { layers, n, d }) {
  const open = layers.findIndex(({ path }) => path === app.state.get("layer"));
  const [layer, head] = [layers[Math.max(0, open)], open < 0 ? 0 : app.state.get("head")];
  return {
    whole: partName(layer.path, null),
    name: partName(layer.path, head),
    data: Float32Array.from({ length: n * d }, (_, i) => biasOf(layer, i % d, -Math.floor(i / d))),
    dots: Float32Array.from({ length: n * n }, (_, i) => biasOf(layer, head, (i % n) - Math.floor(i / n))),
  };
}

function drawPositions(app, view) {
  if (!view.answer) return;
  const { kind, n, d, trained, tokens } = view.answer;
  const byDistance = view.answer.layers.length > 0; // added to scores instead of an encoding
  const { data, dots, whole, name: part } = byDistance ? addedBy(app, view.answer) : view.answer;
  const name = (i) => `${say("positions-row", { n: i })}${tokens[i] ? ` ${pieceText(tokens[i])}` : ""}`;
  const most = (numbers) => numbers.reduce((high, x) => (x === -Infinity ? high : Math.max(high, Math.abs(x))), 0);
  const called = say(`position-${kind}`, { name: view.answer.name });
  view.kind.textContent = say(byDistance ? "positions-heads" : "positions-kind", { kind: called, n, d });
  view.axes.textContent = say(byDistance ? "positions-added" : "positions-encodings", { name: whole });
  view.alike.textContent = say(byDistance ? "positions-whole" : "positions-products", { name: part });
  view.likeField.hidden = byDistance;
  const drawn = { rows: n, diverging: true, trained };
  const draw = (map, scale, more) => {
    scale.set(formatted(-most(more.data), 2), formatted(most(more.data), 2));
    map.show({ ...drawn, ...more, most: most(more.data) });
  };
  const column = (j) => (byDistance ? say("positions-head", { n: j + 1 }) : say("positions-column", { n: j }));
  draw(view.encodings, view.scales[0], {
    columns: d,
    data,
    rowName: byDistance ? (i) => say("positions-distance", { n: i }) : name,
    columnName: column,
    label: view.axes.textContent,
  });
  view.products.node.parentElement.hidden = !dots;
  if (dots) {
    const lengths = Float32Array.from({ length: n }, (_, i) => Math.sqrt(Math.max(0, dots[i * n + i])) || 1);
    const plain = byDistance || view.like.value === "dots";
    const shown = plain ? dots : dots.map((x, i) => x / lengths[Math.floor(i / n)] / lengths[i % n]);
    draw(view.products, view.scales[1], {
      columns: n,
      data: shown,
      square: true,
      rowName: name,
      columnName: name,
      label: view.alike.textContent,
    });
  }
  view.beyond.textContent = trained && trained < n ? say("positions-beyond", { n: trained }) : "";
  app.drew("positions");
}
