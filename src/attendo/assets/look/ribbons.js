// @ts-check
// The open head between lines of tokens. Cross-attention: ribbons from the source above to the written tokens below.
// Self-attention: arcs over one line of tokens. The width of a ribbon is the weight.
import { clear, el, ordinal, oncePerFrame, percent, roving, svgEl } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { isLong, labelsOf, shownMatrix } from "./shown.js";

const LEAST_RIBBON = 0.02; // weaker weights are not drawn
const RIBBON_STRENGTHS = 12; // ribbons of similar strength share a path
const WIDEST = 9; // pixels of a ribbon of weight 1
const RIBBON_HIGH = 176; // pixels between two lines of tokens

export function makeRibbons(app, root) {
  const { state } = app;
  const svg = svgEl("svg", { class: "ribbons", role: "img", "data-name": "ribbons" });
  const above = el("div", { class: "tokens" });
  const below = el("div", { class: "tokens" });
  const [nameAbove, nameBelow] = [el("p", { class: "small-caps" }), el("p", { class: "small-caps" })];
  const stage = el("div", { class: "ribbon-stage" }, above, svg, below);
  root.append(nameAbove, el("div", { class: "ribbon-scroll" }, stage), nameBelow);
  const [all, chosen] = [svgEl("g", { class: "all" }), svgEl("g", { class: "chosen" })];
  svg.append(all, chosen);
  let shown = null;
  let plan = null; // the middles of the tokens
  let laid = ""; // the tokens for which the lines were built

  const draw = oncePerFrame(() => {
    shown = shownMatrix(app);
    root.hidden = !shown || isLong(shown.layer) || state.get("picture") === "matrix";
    if (root.hidden) return;
    const { layer } = shown;
    const name = `${app.look.key} ${layer.path}`;
    if (laid !== name) layTokens(layer);
    laid = name;
    plan = ribbonPlan(layer, stage, svg);
    drawAll(clear(all));
    mark();
    app.drew("ribbons");
  });

  function layTokens(layer) {
    const cross = layer.queries !== layer.keys;
    svg.classList.toggle("arcs", !cross);
    const keys = tokenButtons(layer, layer.keys, cross ? "key" : "both");
    fill(above, keys, say(cross ? "ribbons-reads" : "ribbons-tokens"));
    fill(below, cross ? tokenButtons(layer, layer.queries, "query") : [], say("ribbons-writes"));
    nameAbove.textContent = cross ? say("ribbons-reads") : "";
    nameBelow.className = cross ? "small-caps" : "note";
    nameBelow.textContent = cross ? say("ribbons-writes-bar") : say("ribbons-arcs");
    below.hidden = nameAbove.hidden = !cross;
    stage.style.flexDirection = cross ? "column" : "column-reverse";
  }

  function fill(line, buttons, name) {
    clear(line).append(...buttons);
    line.setAttribute("role", "group");
    line.setAttribute("aria-label", name);
    roving(line, buttons);
  }

  // The tokens of a side as buttons; kind: whether they are keys, queries, or both
  function tokenButtons(layer, side, kind) {
    const tokens = kind === "query" ? app.rowTokens(layer) : app.tokensOf(side);
    const labels = labelsOf(tokens);
    return tokens.map((token, i) => {
      const made = el(
        "button",
        {
          type: "button",
          class: token.unknown ? "chip unknown" : "chip",
          dataset: { side, position: i },
          title: tokenTitle(token, i),
        },
        el("bdi", { class: "piece" }, labels[i]),
      );
      if (kind === "query" && token.log_prob !== undefined)
        made.append(el("span", { class: "sure", style: { width: `${100 * Math.exp(token.log_prob)}%` } }));
      return pointsAt(app, made, () => spotOf(layer, kind, i));
    });
  }

  function spotOf(layer, kind, i) {
    if (kind === "key") return { query: app.chosen().query, key: i, by: "key" };
    return i < layer.q_len ? { query: i, key: app.strongestKey(i) } : null;
  }

  function drawAll(group) {
    const { layer, weights, hidden } = shown;
    const paths = Array.from({ length: RIBBON_STRENGTHS }, () => []);
    for (let i = 0; i < layer.q_len; i++)
      for (let j = 0; j < layer.k_len; j++) {
        const weight = weights[i * layer.k_len + j];
        if (weight < LEAST_RIBBON || hidden.has(j)) continue;
        paths[Math.min(RIBBON_STRENGTHS - 1, Math.floor(weight * RIBBON_STRENGTHS))].push(ribbonPath(plan, i, j));
      }
    paths.forEach((some, n) => {
      const strength = (n + 0.5) / RIBBON_STRENGTHS;
      if (some.length)
        group.append(svgEl("path", { d: some.join(""), "stroke-width": Math.max(1, WIDEST * strength).toFixed(1) }));
    });
    const n = paths.reduce((sum, some) => sum + some.length, 0);
    svg.setAttribute("aria-label", say("ribbons-name", { n, x: percent(LEAST_RIBBON) }));
  }

  // The ribbons of the chosen query, or of the chosen key, in the highlight color
  function mark() {
    if (!plan || root.hidden || !shown) return;
    const { layer, weights, hidden } = shown;
    const { query, key, by } = app.spot();
    if (query >= layer.q_len || key >= layer.k_len) return;
    clear(chosen);
    const into = by === "key";
    for (let n = 0; n < (into ? layer.q_len : layer.k_len); n++) {
      const [i, j] = into ? [n, key] : [query, n];
      const weight = weights[i * layer.k_len + j];
      if (weight < 0.005 || hidden.has(j)) continue;
      const width = Math.max(1, WIDEST * weight).toFixed(1);
      const made = svgEl("path", { d: ribbonPath(plan, i, j), "stroke-width": width });
      if (!into && j !== key) made.classList.add("weak");
      chosen.append(made);
    }
    for (const one of stage.querySelectorAll(".here")) one.classList.remove("here");
    above.children[key]?.classList.add("here");
    (plan.cross ? below : above).children[query]?.classList.add("here");
  }

  app.on("numbers", draw);
  app.on("theme", draw);
  app.on("point", mark);
  state.on(["layer", "head", "hideEnds", "beta", "picture"], draw);
  state.on(["query", "key", "locked"], mark);
  new ResizeObserver(() => plan && !root.hidden && draw()).observe(root);
  return { svg: () => plan && !root.hidden && ribbonFile(stage, svg) };
}

// The middles of the tokens. The lines are as wide as their tokens; the drawing is as wide as the wider line
function ribbonPlan(layer, stage, svg) {
  const lines = stage.querySelectorAll(".tokens");
  const middles = (line) => [...line.children].map((one) => one.offsetLeft + one.offsetWidth / 2);
  const cross = layer.queries !== layer.keys;
  const keys = middles(lines[0]);
  const queries = cross ? middles(lines[1]) : keys;
  const width = stage.scrollWidth;
  const reach = Math.max(...keys, 1) - Math.min(...keys, 0);
  const high = cross ? RIBBON_HIGH : Math.min(RIBBON_HIGH, 48 + reach / 6);
  svg.setAttribute("viewBox", `0 0 ${width} ${high}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", high);
  return { keys, queries, high, cross };
}

function ribbonPath({ queries, keys, high, cross }, i, j) {
  const [x1, x2] = [queries[i], keys[j]].map((x) => x.toFixed(1));
  if (cross) return `M${x1} ${high}C${x1} ${high / 2} ${x2} ${high / 2} ${x2} 0`;
  const top = high - Math.min(high - 6, 14 + Math.abs(queries[i] - keys[j]) / 2.4);
  if (i === j) return `M${+x1 - 5} ${high}C${+x1 - 9} ${high - 22} ${+x1 + 9} ${high - 22} ${+x1 + 5} ${high}`;
  return `M${x1} ${high}C${x1} ${top} ${x2} ${top} ${x2} ${high}`;
}

// Pointer or focus selects a token's query or key, as in the matrix; a click or Enter fixes the selection
export function pointsAt(app, chip, spot) {
  const point = () => app.point(spot());
  const leave = () => app.point(null);
  const told = (live) => document.getElementById("sentence")?.setAttribute("aria-live", live);
  const handlers = {
    pointerenter: point,
    pointerleave: leave,
    focus: () => (point(), told("polite")), // announced for keyboard moves, but not for mouse moves
    blur: () => (leave(), told("off")),
    click: () => spot() && app.hold(spot()),
  };
  for (const [name, fn] of Object.entries(handlers)) chip.addEventListener(name, fn);
  return chip;
}

function tokenTitle(token, i) {
  const tip = say("token-tip", { piece: token.piece ?? "", i: ordinal(i), id: token.id ?? "–" });
  return token.unknown ? say("both", { a: tip, b: say("unknown") }) : tip;
}

// The drawing with its tokens as text, which does not require the page's style sheet
function ribbonFile(stage, svg) {
  const copy = svg.cloneNode(true);
  const [width, high] = [svg, svg].map((one, n) => Number(one.getAttribute(n ? "height" : "width")));
  const line = 28; // pixels of a line of tokens
  const paper = getComputedStyle(document.body).backgroundColor;
  for (const [name, value] of Object.entries({
    xmlns: "http://www.w3.org/2000/svg",
    viewBox: `0 ${-line} ${width} ${high + 2 * line}`,
    height: high + 2 * line,
    "font-family": "sans-serif",
    "font-size": 14,
  }))
    copy.setAttribute(name, value);
  const paths = [...svg.querySelectorAll("path")];
  copy.querySelectorAll("path").forEach((path, n) => {
    const style = getComputedStyle(paths[n]);
    for (const look of ["fill", "stroke", "stroke-opacity"]) path.setAttribute(look, style.getPropertyValue(look));
  });
  copy.prepend(svgEl("rect", { y: -line, width, height: high + 2 * line, fill: paper }));
  stage.querySelectorAll(".tokens").forEach((row) => {
    const y = row.offsetTop < svg.getBoundingClientRect().top - stage.getBoundingClientRect().top ? -8 : high + 20;
    for (const one of row.children)
      copy.append(
        svgEl(
          "text",
          { x: one.offsetLeft + one.offsetWidth / 2, y, "text-anchor": "middle", fill: getComputedStyle(one).color },
          one.textContent,
        ),
      );
  });
  return copy;
}
