// One query of the open head, step by step: q·k, scaled, masked, ×β, softmax, weighted values and their sum.
import { addWords, pathName, say } from "./words.js";
import { afterPause, button, clear, el, formatted, ordinal, pieceElement, pieceText } from "./dom.js";
import { divergingColor, ink, rgbText } from "./colors.js";
import { dot } from "./numbers.js";
import { shownMatrix } from "./shown.js";

const MOST_KEYS = 24;
const FIRST_NUMBERS = 8; // elements of a vector before "all"
const MOST_TERMS = 8; // terms of a dot product
const MOST_ADDENDS = 4; // terms of the sum before the rest

const STEPS_WORDS = {
  "steps-written": ["writes", "が書くトークン"],
  "steps-query": ["Query", "クエリ"],
  "steps-previous": ["previous query", "前のクエリ"],
  "steps-next": ["next query", "次のクエリ"],
  "steps-intro": [
    "What head {n} of this layer does at one position. The query asks, each key answers with a score," +
      " softmax makes weights of the scores, and the weights mix the values.",
    "この層のヘッド {n} が、一つの位置で行う計算です。クエリと各キーの内積からスコアを求め、softmax で重みに変え、その重みでバリューを混ぜます。",
  ],
  "steps-vectors": ["1. The vectors", "1. ベクトル"],
  "steps-weights": ["2. From scores to weights", "2. スコアから重みへ"],
  "steps-sum": ["3. The sum that the head passes on", "3. ヘッドが次へ渡す和"],
  "steps-all": ["all {n} numbers", "{n} 個すべて"],
  "steps-fewer": ["fewer", "減らす"],
  "steps-key": ["key", "キー"],
  "steps-masked": ["masked −∞", "マスク −∞"],
  "steps-kept": ["kept", "可"],
  "steps-mask": ["mask", "マスク"],
  "steps-all-keys": ["Show all {n} keys", "{n} 個のキーをすべて表示"],
  "steps-few-keys": ["Show the {n} heaviest keys", "重い順に {n} 個だけ表示"],
  "steps-total": ["sum over all keys", "全キーの和"],
  "steps-terms": ["q·k with {piece}, largest terms first:", "{piece} との q·k（大きい項から）："],
  "steps-rest": ["the other {n}: {x}", "残り {n} 項：{x}"],
  "steps-others": ["the other {n} keys", "残り {n} 個のキー"],
  "steps-off": [
    "This head is switched off: the sum is replaced before it is passed on.",
    "このヘッドはオフです。和は、次へ渡す前に置き換えられます。",
  ],
  "steps-table": ["Scores and weights of every key", "各キーのスコアと重み"],
};

export function makeSteps(app, root) {
  addWords(STEPS_WORDS);
  const { state } = app;
  let [allNumbers, allKeys] = [false, false];
  const body = el("div", { class: "steps" });
  root.append(body);

  function draw() {
    const shown = state.get("view") === "steps" && shownMatrix(app);
    if (!shown) return;
    const row = rowOf(app, shown);
    const focused = document.activeElement?.id;
    const products = el("div", { class: "products", id: "products" });
    clear(body).append(
      queryBar(app, row),
      el("p", { class: "note" }, say("steps-intro", { n: row.head + 1 })),
      el("h3", {}, say("steps-vectors")),
      vectors(row, allNumbers, flip),
      el("h3", {}, say("steps-weights")),
      products,
      weightTable(
        row,
        allKeys,
        (key) => showProducts(products, row, key),
        (key) => app.hold({ query: row.query, key }),
      ),
      keysButton(row),
      el("h3", {}, say("steps-sum")),
      sumOf(row, allNumbers),
    );
    showProducts(products, row, row.key);
    if (focused) root.querySelector(`#${CSS.escape(focused)}`)?.focus({ preventScroll: true });
    app.drew("steps");
  }
  function flip() {
    allNumbers = !allNumbers;
    draw();
  }
  function keysButton(row) {
    if (row.n <= MOST_KEYS) return "";
    const text = allKeys ? say("steps-few-keys", { n: MOST_KEYS }) : say("steps-all-keys", { n: row.n });
    return button(text, () => ((allKeys = !allKeys), draw()), { id: "steps-keys" });
  }

  const drawSoon = afterPause(draw, 60);
  app.on("numbers", draw);
  app.on("theme", draw);
  state.on(["query", "key", "layer", "head", "beta", "view"], drawSoon);
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
  return {
    numbers,
    layer,
    head,
    beta,
    query,
    key,
    n,
    keys,
    top,
    token: app.tokensOf(layer.queries)[query],
    written: layer.queries === layer.keys ? null : app.rowTokens(layer)[query],
    powers: may.reduce((sum, one) => sum + one.power, 0),
    mixed: numbers.mixed(head, query, beta),
    app,
  };
}

function queryBar(app, row) {
  const { layer, query } = row;
  const go = (to) => app.state.set({ query: Math.min(layer.q_len - 1, Math.max(0, to)), key: null });
  return el(
    "div",
    { class: "bar" },
    el("strong", {}, say("head-title", { path: pathName(layer.path), n: row.head + 1 })),
    el(
      "span",
      {},
      `${say("steps-query")} `,
      pieceElement(row.token),
      el("span", { class: "note" }, ` ${ordinal(query)}`),
      row.written && el("span", {}, ` ${say("steps-written")} `, pieceElement(row.written)),
    ),
    button("◀", () => go(query - 1), {
      id: "steps-previous",
      "aria-label": say("steps-previous"),
      disabled: query === 0,
    }),
    button("▶", () => go(query + 1), {
      id: "steps-next",
      "aria-label": say("steps-next"),
      disabled: query === layer.q_len - 1,
    }),
  );
}

function vectorTop(row) {
  const { numbers, head, query, key } = row;
  const vectors = [numbers.query(head, query), numbers.key(head, key), numbers.value(head, key), row.mixed];
  return Math.max(1e-9, ...vectors.map((vector) => vector.reduce((top, x) => Math.max(top, Math.abs(x)), 0)));
}

// q of the query, k and v of the chosen key: colored numbers
function vectors(row, all, flip) {
  const { numbers, layer, head, query, key } = row;
  const top = vectorTop(row);
  const other = row.keys[key].token;
  const lines = [
    ["q = x W_q", row.token, numbers.query(head, query)],
    ["k = x W_k", other, numbers.key(head, key)],
    ["v = x W_v", other, numbers.value(head, key)],
  ];
  const more = Math.max(layer.head_dim, layer.value_dim) > FIRST_NUMBERS;
  const text = all ? say("steps-fewer") : say("steps-all", { n: layer.head_dim });
  return el(
    "div",
    {},
    ...lines.map(([name, token, vector]) =>
      vectorLine([formula(name), " ", pieceElement(token)], vector, top, all),
    ),
    more && button(text, flip, { id: "steps-numbers", class: "plain" }),
  );
}

// A formula as text with its subscripts: "W_q" → W with a small q
function formula(text) {
  const parts = text.split(/_(\w+)/);
  return el("span", { class: "formula" }, ...parts.map((part, n) => (n % 2 ? el("sub", {}, part) : part)));
}

function vectorLine(name, vector, top, all, kind = "") {
  const some = all ? vector : vector.subarray(0, FIRST_NUMBERS);
  const cells = Array.from(some, (x, d) => {
    const color = divergingColor(x / top);
    return el(
      "span",
      { title: `d = ${d + 1}`, style: { background: rgbText(color), color: ink(color) } },
      formatted(x),
    );
  });
  if (some.length < vector.length)
    cells.push(el("span", { class: "rest" }, `… +${vector.length - some.length}`));
  return el(
    "div",
    { class: `vector-row ${kind}` },
    el("span", {}, ...name),
    el("div", { class: "strip" }, ...cells),
  );
}

// One row per key; the column headings are the formulas
function weightTable(row, all, point, hold) {
  const { layer, beta } = row;
  const heaviest = [...row.keys].sort((a, b) => b.weight - a.weight || a.j - b.j).slice(0, MOST_KEYS);
  const kept = new Set([...heaviest.map((one) => one.j), row.key]);
  const rows = row.keys.filter((one) => all || kept.has(one.j)).map((one) => keyRow(row, one, point, hold));
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
  const total = el(
    "tr",
    {},
    el("th", { scope: "row" }, say("steps-total")),
    added && el("td", {}),
    el("td", {}),
    el("td", {}),
    el("td", {}),
    el("td", {}),
    el("td", {}, formatted(row.powers)),
    el("td", {}, formatted(row.keys.reduce((sum, one) => sum + one.weight, 0))),
    el("td", {}),
  );
  return el(
    "div",
    { class: "scroll", tabIndex: 0, role: "region", "aria-label": say("steps-table") },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, ...heads)),
      el("tbody", {}, ...rows),
      el("tfoot", {}, total),
    ),
  );
}

// Whether the scale is 1/√head_dim
function isRoot({ scale, head_dim: width }) {
  return Math.abs(scale * Math.sqrt(width) - 1) < 1e-6;
}

function keyRow(row, one, point, hold) {
  const { layer } = row;
  const none = one.may ? null : say("steps-masked");
  const size = Math.sqrt(dot(row.numbers.value(row.head, one.j), row.numbers.value(row.head, one.j)));
  const fill = el("span", { style: { width: `${100 * one.weight}%` } });
  const name = button("", () => hold(one.j), {
    class: "plain",
    onfocus: () => point(one.j),
    id: `steps-key-${one.j}`,
  });
  name.append(pieceElement(one.token), ` ${ordinal(one.j)}`);
  return el(
    "tr",
    {
      class: `${one.may ? "" : "masked"} ${one.j === row.key ? "here" : ""}`,
      onpointerenter: () => point(one.j),
    },
    el("th", { scope: "row" }, name),
    el("td", {}, formatted(one.product)),
    (layer.slopes || layer.biases) && el("td", {}, one.bias === -Infinity ? "−∞" : formatted(one.bias)),
    el("td", {}, formatted(one.score)),
    el("td", {}, none ?? say("steps-kept")),
    el("td", {}, none ? "−∞" : row.beta === Infinity ? "∞·s" : formatted(one.tempered)),
    el("td", {}, formatted(one.power)),
    el("td", {}, formatted(one.weight), " ", el("span", { class: "meter", "aria-hidden": "true" }, fill)),
    el("td", {}, formatted(one.weight * size)),
  );
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
      { class: "term", title: `d = ${d + 1}`, style: { background: rgbText(color), color: ink(color) } },
      text,
    );
  });
  clear(box).append(el("span", {}, say("steps-terms", { piece: pieceText(row.keys[j].token) })), ...made);
  if (terms.length > MOST_TERMS)
    box.append(el("span", {}, say("steps-rest", { n: terms.length - MOST_TERMS, x: formatted(rest) })));
  box.append(el("strong", {}, `q·k = ${formatted(row.keys[j].product)}`));
}

// α·v of the keys with the largest weights, of all others together, and their sum; each column adds up
function sumOf(row, all) {
  const top = vectorTop(row);
  const heaviest = [...row.keys].sort((a, b) => b.weight - a.weight || a.j - b.j).slice(0, MOST_ADDENDS);
  const rest = Float32Array.from(row.mixed);
  const lines = heaviest.map(({ j, token, weight }) => {
    const part = Float32Array.from(row.numbers.value(row.head, j), (x) => weight * x);
    part.forEach((x, d) => (rest[d] -= x));
    return vectorLine([`${formatted(weight)} · `, formula("v"), " ", pieceElement(token)], part, top, all);
  });
  if (row.n > MOST_ADDENDS)
    lines.push(vectorLine([say("steps-others", { n: row.n - MOST_ADDENDS })], rest, top, all));
  const off = row.layer.off.includes(row.head);
  return el(
    "div",
    {},
    off && el("p", { class: "alert" }, say("steps-off")),
    ...lines,
    vectorLine([formula("o = Σ_j α_j v_j")], row.mixed, top, all, "sum"),
  );
}
