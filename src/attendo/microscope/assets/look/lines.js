// The open head as lines: queries on the left, keys on the right; the strength of a line shows the weight.
import { addWords, say } from "./words.js";
import { afterPause, clear, el, field, fitText, formatted, oncePerFrame, pieceText, svgEl } from "./dom.js";
import { shownMatrix } from "./shown.js";
import { svgText } from "./saving.js";
import { HEAT_FONT } from "./heat.js";

const MOST_LINES = 2000;
const STRENGTHS = 12; // lines of similar strength share a path

const LINES_WORDS = {
  "lines-name": [
    "Lines from queries (left) to keys (right), {n} with a weight of {x} or more",
    "クエリ（左）からキー（右）への線：重み {x} 以上が {n} 本",
  ],
  threshold: ["Lines from", "線の下限"],
  "lines-cut": ["The {n} strongest of {all} lines.", "{all} 本のうち強い {n} 本。"],
  "lines-count": ["{n} lines", "{n} 本"],
};

export function makeLines(app, root) {
  addWords(LINES_WORDS);
  const { state } = app;
  const range = el("input", {
    type: "range",
    id: "threshold",
    min: 0,
    max: 0.5,
    step: 0.01,
    value: state.get("threshold"),
  });
  const number = el("output", { class: "number", htmlFor: "threshold" });
  const count = el("span", { class: "note", id: "lines-count" });
  const svg = svgEl("svg", { class: "lines", role: "img", "data-name": "lines" });
  const frame = el("div", {}, svg);
  root.append(el("div", { class: "bar" }, field(say("threshold"), range), number, count), frame);
  let shown = null;
  let plan = null;
  const all = svgEl("g", { class: "all" });
  const chosen = svgEl("g", { class: "chosen" });
  const labels = svgEl("g", {});

  const draw = oncePerFrame(() => {
    shown = shownMatrix(app);
    const room = frame.clientWidth;
    plan = shown && room ? linePlan(room, app, shown.layer) : null;
    if (!plan) return;
    svg.setAttribute("viewBox", `0 0 ${room} ${plan.height}`);
    const lines = strongest(shown, state.get("threshold"));
    const unit = shown.kind === "scores" ? 1 : shown.top;
    number.value = formatted(state.get("threshold") * unit, unit < 0.2 ? 4 : 2);
    const told = {
      n: lines.shown.length.toLocaleString("en"),
      all: lines.total.toLocaleString("en"),
      x: number.value,
    };
    count.textContent = say(lines.total > MOST_LINES ? "lines-cut" : "lines-count", told);
    svg.setAttribute("aria-label", say("lines-name", told));
    clear(svg).append(all, chosen, labels);
    drawLines(clear(all), lines.shown, plan);
    drawTokens(clear(labels), plan);
    mark();
    app.drew("lines");
  });

  function mark() {
    if (!plan) return;
    const { query, key, by } = app.spot();
    const strong = app.pointed() !== null || state.get("locked");
    all.classList.toggle("dimmed", strong);
    if (query < shown.layer.q_len && key < shown.layer.k_len)
      drawChosen(clear(chosen), shown, plan, query, key, by);
  }

  function tokenAt(event) {
    const box = svg.getBoundingClientRect();
    const [x, y] = [
      ((event.clientX - box.left) / box.width) * plan.room,
      ((event.clientY - box.top) / box.height) * plan.height,
    ];
    const left = x < plan.room / 2;
    const i = Math.floor((y - 2) / (left ? plan.leftStep : plan.rightStep));
    if (i < 0 || i >= (left ? shown.layer.q_len : shown.layer.k_len)) return null;
    const { query } = app.chosen();
    return left ? { query: i, key: app.strongestKey(i) } : { query, key: i, by: "key" };
  }
  svg.addEventListener("pointermove", (event) => plan && app.point(tokenAt(event)));
  svg.addEventListener("pointerleave", () => app.point(null));
  svg.addEventListener("click", (event) => {
    const spot = plan && tokenAt(event);
    if (spot) app.hold(spot);
  });
  range.addEventListener("input", () => state.set({ threshold: Number(range.value) }));

  app.on("numbers", draw);
  app.on("theme", draw);
  app.on("point", mark);
  state.on(["layer", "head", "shows", "hideEnds", "threshold"], draw);
  const drawLater = afterPause(draw, 80); // drawing thousands of lines would slow down the slider
  state.on("beta", () => (plan && plan.left.length > 64 ? drawLater() : draw()));
  state.on("threshold", () => (range.value = state.get("threshold")));
  state.on(["query", "key", "locked"], mark);
  new ResizeObserver(() => plan && frame.clientWidth !== plan.room && draw()).observe(frame);
  return { svg: () => plan && svg };
}

// A value relative to the largest value; scores cannot be drawn as lines, so weights are drawn instead
function shareOf(shown) {
  return shown.kind === "scores" ? (i) => shown.weights[i] : (i) => Math.min(1, shown.values[i] / shown.top);
}

function strongest(shown, threshold) {
  const { layer, hidden } = shown;
  const share = shareOf(shown);
  const least = Math.max(threshold, 0.001);
  const places = [];
  for (let i = 0; i < layer.q_len * layer.k_len; i++)
    if (share(i) >= least && !hidden.has(i % layer.k_len)) places.push(i);
  const total = places.length;
  if (total > MOST_LINES) {
    const strengths = new Float64Array(total); // sorts numerically and fast
    for (let n = 0; n < total; n++) strengths[n] = share(places[n]);
    const last = strengths.sort().at(-MOST_LINES);
    const above = places.filter((i) => share(i) > last);
    const even = places.filter((i) => share(i) === last);
    places.splice(0, total, ...above, ...even.slice(0, MOST_LINES - above.length));
  }
  const line = (i) => ({ query: Math.floor(i / layer.k_len), key: i % layer.k_len, strength: share(i) });
  return { shown: places.map(line), total };
}

function linePlan(room, app, layer) {
  const most = Math.max(layer.q_len, layer.k_len);
  const height = Math.max(120, Math.min(most * 26, 640));
  const label = Math.min(130, room * 0.28);
  const pen = new OffscreenCanvas(1, 1).getContext("2d");
  pen.font = HEAT_FONT;
  return {
    pen,
    room,
    height: height + 4,
    label,
    leftStep: height / layer.q_len,
    rightStep: height / layer.k_len,
    left: app.rowTokens(layer),
    right: app.tokensOf(layer.keys),
  };
}

function middle(i, step) {
  return 2 + (i + 0.5) * step;
}

function curve(plan, query, key) {
  const [x1, x2] = [plan.label + 4, plan.room - plan.label - 4];
  const [y1, y2] = [middle(query, plan.leftStep).toFixed(1), middle(key, plan.rightStep).toFixed(1)];
  const bend = ((x1 + x2) / 2).toFixed(1);
  return `M${x1.toFixed(1)} ${y1}C${bend} ${y1} ${bend} ${y2} ${x2.toFixed(1)} ${y2}`;
}

function drawLines(group, lines, plan) {
  const paths = Array.from({ length: STRENGTHS }, () => []);
  for (const { query, key, strength } of lines) {
    paths[Math.min(STRENGTHS - 1, Math.floor(strength * STRENGTHS))].push(curve(plan, query, key));
  }
  paths.forEach((some, n) => {
    const strength = (n + 0.5) / STRENGTHS;
    if (some.length)
      group.append(
        svgEl("path", {
          d: some.join(""),
          "stroke-opacity": (0.12 + 0.8 * strength).toFixed(2),
          "stroke-width": (0.8 + 2 * strength).toFixed(1),
        }),
      );
  });
}

function drawTokens(group, plan) {
  const side = (tokens, step, x, anchor) => {
    const every = Math.max(1, Math.ceil(15 / step));
    for (let i = 0; i < tokens.length; i += every)
      group.append(tokenText(tokens[i], i, step, x, anchor, plan));
  };
  side(plan.left, plan.leftStep, plan.label - 2, "end");
  side(plan.right, plan.rightStep, plan.room - plan.label + 2, "start");
}

function tokenText(token, i, step, x, anchor, plan) {
  return svgText(fitText(plan.pen, pieceText(token), plan.label - 2), {
    x,
    y: middle(i, step) + 4.5,
    "text-anchor": anchor,
  });
}

// The lines of one query (or of one key), with the bands of both sides
function drawChosen(group, shown, plan, query, key, by) {
  const { layer } = shown;
  const share = shareOf(shown);
  const into = by === "key";
  const bands = [];
  for (let n = 0; n < (into ? layer.q_len : layer.k_len); n++) {
    const [i, j] = into ? [n, key] : [query, n];
    const strength = share(i * layer.k_len + j);
    if (strength < 0.005 || shown.hidden.has(j)) continue;
    const here = !into && j === key;
    group.append(
      svgEl("path", {
        d: curve(plan, i, j),
        "stroke-opacity": here ? 1 : (0.2 + 0.7 * strength).toFixed(2),
        "stroke-width": (0.8 + 3 * strength + (here ? 0.8 : 0)).toFixed(1),
      }),
    );
    bands.push(band(plan, into ? "left" : "right", n, strength));
  }
  bands.push(band(plan, into ? "right" : "left", into ? key : query, 1));
  group.append(...bands);
}

function band(plan, side, i, strength) {
  const step = side === "left" ? plan.leftStep : plan.rightStep;
  const wide = Math.max(2, plan.label * strength);
  const height = Math.max(step, 2);
  const x = side === "left" ? plan.label + 2 - wide : plan.room - plan.label - 2;
  return svgEl("rect", { x, y: middle(i, step) - height / 2, width: wide, height, rx: 3 });
}
