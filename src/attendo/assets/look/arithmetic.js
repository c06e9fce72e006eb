// @ts-check
// The view "Arithmetic": one query of the open head, step by step: scores, scaled, masked, softmax, mixed values. Colors
// show the numbers; a switch shows all of them.
import { barOf, largest, scrolled, signedBarOf, tableHead, tableRow } from "../shared/bars.js";
import {
  afterPause,
  button,
  checkbox,
  clear,
  el,
  formatted,
  ordinal,
  percent,
  pieceElement,
  pieceText,
} from "../shared/dom.js";
import { partName, say } from "../shared/words.js";
import { divergingColor, ink, rgbText } from "./colors.js";
import { dot } from "./numbers.js";
import { shownMatrix } from "./shown.js";

const MOST_KEYS = 24;
const LEAST_SHARE = 0.01; // keys with a smaller weight are one row together
const MOST_TERMS = 8; // terms of a dot product
const MOST_ADDENDS = 4; // terms of the sum before the rest

export function makeArithmetic(app, root) {
  const { state } = app;
  let allKeys = false;
  const body = el("div", { class: "steps" });
  root.append(body);

  function draw() {
    const shown = state.get("view") === "arithmetic" && shownMatrix(app);
    if (!shown) return;
    const row = rowOf(app, shown);
    const focused = document.activeElement?.id;
    const all = state.get("numbers");
    const vectors = el("div");
    const products = el("div", { class: "products", id: "products" });
    // the vectors and the product are those of the key under the pointer
    const point = (key) => {
      clear(vectors).append(...vectorsOf(row, key, all));
      if (all) showProducts(products, row, key);
    };
    const hold = (key) => app.hold({ query: row.query, key });
    clear(body).append(
      queryBar(app, row),
      el("p", { class: "note" }, say("steps-intro", { n: row.head + 1 })),
      el("h3", {}, say("steps-vectors")),
      vectors,
      el("h3", {}, say("steps-weights")),
      ...(all ? [products, weightTable(row, allKeys, point, hold), keysButton(row)] : [cardTable(row, point, hold)]),
      ...(all ? [el("h3", {}, say("steps-sum")), sumOf(row)] : []),
    );
    point(row.key);
    if (focused) root.querySelector(`#${CSS.escape(focused)}`)?.focus({ preventScroll: true });
    app.drew("arithmetic");
  }
  function keysButton(row) {
    if (row.n <= MOST_KEYS) return "";
    const text = allKeys ? say("steps-few-keys", { n: MOST_KEYS }) : say("steps-all-keys", { n: row.n });
    return button(text, () => ((allKeys = !allKeys), draw()), { id: "steps-keys" });
  }

  const drawSoon = afterPause(draw, 60);
  app.on("numbers", draw);
  app.on("theme", draw);
  state.on(["query", "key", "layer", "head", "beta", "view", "numbers"], drawSoon);
}

// All numbers of one row
function rowOf(app, shown) {
  const { numbers, layer, head, beta, weights } = shown;
  const { query, key } = app.chosen();
  const n = layer.k_len;
  const keys = app.tokensOf(layer.keys).map((token, j) => {
    const score = numbers.scores(head)[query * n + j];
    const product = dot(numbers.query(head, query), numbers.key(head, j));
    return {
      j,
      token,
      product,
      bias: numbers.bias(head, query, j),
      score,
      may: numbers.allowed(query, j) && score !== -Infinity,
      weight: weights[query * n + j],
    };
  });
  const may = keys.filter((one) => one.may);
  const top = Math.max(...may.map((one) => one.score));
  for (const one of keys) {
    one.tempered = beta === Infinity ? NaN : beta * one.score;
    one.power = !one.may ? 0 : beta === Infinity ? one.weight : Math.exp(beta * (one.score - top));
  }
  const mixed = numbers.mixed(head, query, beta);
  const vectors = [numbers.query(head, query), numbers.key(head, key), numbers.value(head, key), mixed];
  return {
    numbers,
    layer,
    head,
    beta,
    query,
    key,
    n,
    keys,
    largest: Math.max(1e-9, ...vectors.map(largest)), // of the vectors, for their colors
    token: app.tokensOf(layer.queries)[query],
    written: layer.queries === layer.keys ? null : app.rowTokens(layer)[query],
    powers: may.reduce((sum, one) => sum + one.power, 0),
    mixed,
    app,
  };
}

function queryBar(app, row) {
  const { layer, query } = row;
  const go = (to) => app.state.set({ query: Math.min(layer.q_len - 1, Math.max(0, to)), key: null });
  const show = (numbers) => app.state.set({ numbers });
  const numbers = checkbox("steps-numbers", app.state.get("numbers"), show, { class: "switch", role: "switch" });
  const step = (id, text, by, end) =>
    button(text, () => go(query + by), { id, class: "quiet", "aria-label": say(id), disabled: query === end });
  return el(
    "div",
    { class: "bar" },
    el("h2", {}, partName(layer.path, row.head)),
    step("steps-previous", "◀", -1, 0),
    el(
      "span",
      {},
      `${say("steps-query")} `,
      pieceElement(row.token, { class: "hot" }),
      el("span", { class: "note" }, ` ${ordinal(query)}`),
      row.written && el("span", {}, ` ${say("steps-written")} `, pieceElement(row.written, { class: "hot" })),
    ),
    step("steps-next", "▶", 1, layer.q_len - 1),
    el("label", { class: "field end" }, el("span", {}, say("steps-all-numbers")), numbers),
  );
}

// The keys with the largest weights
function heaviest({ keys }, most) {
  return keys.toSorted((a, b) => b.weight - a.weight || a.j - b.j).slice(0, most);
}

// α·v of a key
function weightedValue(row, { j, weight }) {
  return Float32Array.from(row.numbers.value(row.head, j), (x) => weight * x);
}

// q of the query, k and v of one key
function vectorsOf(row, key, all) {
  const { numbers, head, query } = row;
  const other = row.keys[key].token;
  return [
    ["q = x W_q", row.token, numbers.query(head, query)],
    ["k = x W_k", other, numbers.key(head, key)],
    ["v = x W_v", other, numbers.value(head, key)],
  ].map(([name, token, vector]) => vectorLine([formula(name), " ", pieceElement(token)], vector, row.largest, all));
}

// A formula as text with its subscripts: "W_q" → W with a small q
function formula(text) {
  const parts = text.split(/_(\w+)/);
  return el("span", { class: "formula" }, ...parts.map((part, n) => (n % 2 ? el("sub", {}, part) : part)));
}

function vectorLine(name, vector, top, all, kind = "") {
  return el("div", { class: `vector-row ${kind}` }, el("span", {}, ...name), stripOf(vector, top, all));
}

// A vector as colors; the number is the tooltip, or in the color if all numbers are shown
function stripOf(vector, top, all) {
  const cells = Array.from(vector, (x, d) => {
    const color = divergingColor(x / top);
    const style = { background: rgbText(color), color: ink(color) };
    return el("span", { title: `d = ${d + 1}: ${formatted(x)}`, style }, all ? formatted(x) : "");
  });
  return el("div", { class: all ? "strip numbered" : "strip" }, ...cells);
}

// The five steps from left to right, for each key with at least 1% of the attention
function cardTable(row, point, hold) {
  const { layer, head } = row;
  const heavy = row.keys.filter((one) => one.weight >= LEAST_SHARE || one.j === row.key);
  const kept = new Set(heaviest({ keys: heavy }, MOST_KEYS).map((one) => one.j));
  const rest = row.keys.filter((one) => !kept.has(one.j));
  const most = largest(row.keys.map((one) => one.product));
  const scaled = largest(row.keys.filter((one) => one.may).map((one) => one.score));
  const mixed = (vector) => stripOf(vector, row.largest, false);
  const names = ["card-product", "card-scaled", "card-mask", "card-softmax", "card-mix"];
  const columns = [[say("steps-key")], ...names.map((name, n) => [`${n + 1}. ${say(name)}`])];
  const rows = row.keys
    .filter((one) => kept.has(one.j))
    .map((one) => {
      const { product, score, may, weight } = one;
      const cells = [
        el("td", { title: formatted(product) }, signedBarOf(product, most), ` ${formatted(product, 1)}`),
        el("td", { title: formatted(score) }, may ? [signedBarOf(score, scaled), ` ${formatted(score, 1)}`] : ""),
        may ? "✓" : say("masked"),
        el("td", { title: formatted(weight) }, barOf(weight), ` ${percent(weight)}`),
        mixed(weightedValue(row, one)),
      ];
      return keyRow(row, one, cells, point, hold);
    });
  const share = rest.reduce((sum, one) => sum + one.weight, 0);
  const others = say("steps-rest-keys", { n: rest.length, p: percent(share) });
  if (rest.length) rows.push(el("tr", {}, el("td", { class: "note", colSpan: 6 }, others)));
  const name = el("th", { scope: "row", colSpan: 5 }, formula("o = Σ_j α_j v_j"));
  const sum = el("tr", {}, name, el("td", {}, mixed(row.mixed)));
  const off = layer.off.includes(head) ? el("p", { class: "alert" }, say("steps-off")) : "";
  const table = el("table", { class: "cards" }, tableHead(columns), el("tbody", {}, rows), el("tfoot", {}, sum));
  return el("div", {}, off, scrolled(say("steps-table"), table));
}

function keyButton(one, point, hold) {
  const made = button("", () => hold(one.j), { class: "link", onfocus: () => point(one.j), id: `steps-key-${one.j}` });
  made.append(pieceElement(one.token), el("span", { class: "note" }, ` ${ordinal(one.j)}`));
  return made;
}

// One row per key; the column headings are the formulas
function weightTable(row, all, point, hold) {
  const { layer, beta } = row;
  const kept = new Set([...heaviest(row, MOST_KEYS).map((one) => one.j), row.key]);
  const shown = row.keys.filter((one) => all || kept.has(one.j));
  const rows = shown.map((one) => keyRow(row, one, numbersOf(row, one), point, hold));
  const added = layer.slopes ? `−${formatted(layer.slopes[row.head])}·|i−j|` : layer.biases ? "b(j−i)" : "";
  const plus = added ? " + b" : "";
  const scaled = `= q·k × ${formatted(layer.scale)}${plus}`;
  const betaText = formatted(beta, 2);
  const columns = [
    [say("steps-key"), ""],
    ["q·k", "Σ_d q_d k_d"],
    ...(added ? [["b", added]] : []),
    [isRoot(layer) ? `s = q·k / √${layer.head_dim}${plus}` : "s", scaled],
    [say("steps-mask"), layer.causal ? "j ≤ i" : "—"],
    ["β·s", `β = ${betaText}`],
    ["e", beta === Infinity ? "argmax" : "exp(β·s − max)"],
    ["α", `e / ${formatted(row.powers)}`],
    ["α·‖v‖", "‖α v‖"],
  ];
  const heads = columns.map(([name, ...texts]) =>
    el("th", { scope: "col" }, el("span", { class: "formula" }, name), ...texts.map(formula)),
  );
  const sums = [row.powers, row.keys.reduce((sum, one) => sum + one.weight, 0)].map((sum) => formatted(sum));
  const total = tableRow(say("steps-total"), [...Array(added ? 5 : 4).fill(""), ...sums, ""]);
  const head = el("thead", {}, el("tr", {}, ...heads));
  return scrolled(say("steps-table"), el("table", {}, head, el("tbody", {}, ...rows), el("tfoot", {}, total)));
}

// Whether the scale is 1/√head_dim
function isRoot({ scale, head_dim: width }) {
  return Math.abs(scale * Math.sqrt(width) - 1) < 1e-6;
}

// A row of a table of keys, which selects the key
function keyRow(row, one, cells, point, hold) {
  const kind = `${one.may ? "" : "masked"} ${one.j === row.key ? "here" : ""}`;
  return tableRow(keyButton(one, point, hold), cells, { class: kind, onpointerenter: () => point(one.j) });
}

function numbersOf(row, one) {
  const { layer } = row;
  const none = one.may ? null : say("steps-masked");
  const size = Math.sqrt(dot(row.numbers.value(row.head, one.j), row.numbers.value(row.head, one.j)));
  return [
    formatted(one.product),
    ...(layer.slopes || layer.biases ? [formatted(one.bias)] : []),
    formatted(one.score),
    none ?? say("steps-kept"),
    none ? "−∞" : row.beta === Infinity ? "∞·s" : formatted(one.tempered),
    formatted(one.power),
    [formatted(one.weight), " ", barOf(one.weight)],
    formatted(one.weight * size),
  ];
}

// q·k of one key, with its largest terms
function showProducts(box, row, j) {
  const [q, k] = [row.numbers.query(row.head, row.query), row.numbers.key(row.head, j)];
  const terms = Array.from(q, (x, d) => ({ d, x, y: k[d], xy: x * k[d] })).sort(
    (a, b) => Math.abs(b.xy) - Math.abs(a.xy),
  );
  const top = Math.max(1e-9, Math.abs(terms[0].xy));
  const rest = terms.slice(MOST_TERMS).reduce((sum, term) => sum + term.xy, 0);
  const made = terms.slice(0, MOST_TERMS).map(({ d, x, y, xy }) => {
    const color = divergingColor(xy / top);
    const text = `${formatted(x)} × ${formatted(y)} = ${formatted(xy)}`;
    return el(
      "span",
      { class: "product", title: `d = ${d + 1}`, style: { background: rgbText(color), color: ink(color) } },
      text,
    );
  });
  clear(box).append(el("span", {}, say("steps-terms", { piece: pieceText(row.keys[j].token) })), ...made);
  if (terms.length > MOST_TERMS)
    box.append(el("span", {}, say("steps-rest", { n: terms.length - MOST_TERMS, x: formatted(rest) })));
  box.append(el("strong", {}, `q·k = ${formatted(row.keys[j].product)}`));
}

// α·v of the keys with the largest weights, of all others together, and their sum; each column adds up
function sumOf(row) {
  const top = row.largest;
  const rest = Float32Array.from(row.mixed);
  const lines = heaviest(row, MOST_ADDENDS).map((one) => {
    const part = weightedValue(row, one);
    part.forEach((x, d) => (rest[d] -= x));
    const name = [`${formatted(one.weight)} · `, formula("v"), " ", pieceElement(one.token)];
    return vectorLine(name, part, top, true);
  });
  if (row.n > MOST_ADDENDS) lines.push(vectorLine([say("steps-others", { n: row.n - MOST_ADDENDS })], rest, top, true));
  const off = row.layer.off.includes(row.head);
  return el(
    "div",
    {},
    off && el("p", { class: "alert" }, say("steps-off")),
    ...lines,
    vectorLine([formula("o = Σ_j α_j v_j")], row.mixed, top, true, "sum"),
  );
}
