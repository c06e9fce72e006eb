// @ts-check
// Curves over the β scale of the slider.
import { say } from "../shared/words.js";
import { clear, el, formatted, signed, svgEl } from "../shared/dom.js";
import { entropy, softmaxRow } from "./numbers.js";

const CURVE_ROWS = 48; // number of rows in the entropy curve
export const MEASURED = [0, 0.25, 0.5, 1, 2, 4, 16, Infinity];
const [WIDE, HIGH, EDGE] = [640, 200, 58]; // width, height and margin of a plot

const xOf = (place) => EDGE + place * (WIDE - EDGE - 12);
const pathOf = (points) => points.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// The slider's position, 0 to 1, and β: the scale is symmetric around 1, so β and 1/β mirror each other
export function betaAt(place) {
  return place >= 1 ? Infinity : place / (1 - place);
}

export function placeOf(beta) {
  return beta === Infinity ? 1 : beta / (1 + beta);
}

// Entropy of the rows (a sample, if there are many) and of one row over the slider's scale
export function entropies(numbers, head, query) {
  const { qLen, kLen } = numbers;
  const scores = numbers.scores(head);
  const step = Math.max(1, Math.ceil(qLen / CURVE_ROWS));
  const at = (i, beta) =>
    entropy(softmaxRow(scores.subarray(i * kLen, (i + 1) * kLen), (j) => numbers.allowed(i, j), beta));
  const points = Array.from({ length: 41 }, (_, n) => n / 40).map((place) => {
    const beta = betaAt(place);
    let [sum, rows] = [0, 0];
    for (let i = 0; i < qLen; i += step) [sum, rows] = [sum + at(i, beta), rows + 1];
    return { place, mean: sum / rows, row: at(query, beta) };
  });
  return { points, top: Math.max(0.1, Math.log(kLen)) };
}

export function showEntropy(box, { points, top }, beta) {
  const place = placeOf(beta);
  const value = (name) => {
    const n = Math.min(points.length - 2, Math.floor(place * (points.length - 1)));
    const part = place * (points.length - 1) - n;
    return points[n][name] * (1 - part) + points[n + 1][name] * part;
  };
  const y = (height) => 10 + (1 - height / top) * (HIGH - 40);
  const svg = plotFrame([0, top], y, place);
  for (const [name, second] of Object.entries({ mean: "", row: " second" })) {
    const d = pathOf(points.map((point) => [xOf(point.place), y(point[name])]));
    svg.append(svgEl("path", { class: `curve${second}`, d }));
    svg.append(svgEl("circle", { class: `dot${second}`, cx: xOf(place), cy: y(value(name)), r: 5 }));
  }
  const told = { x: formatted(value("mean")), beta: formatted(beta, 2) };
  svg.setAttribute("aria-label", say("beta-entropy-name", told));
  clear(box).append(
    svg,
    el(
      "p",
      { class: "note" },
      el("span", { class: "swatch" }),
      say("beta-mean", told),
      el("span", { class: "swatch second" }),
      say("beta-row", { x: formatted(value("row")) }),
    ),
  );
}

// Axes of a plot over the slider's scale; heights: the numbers of the grid lines; y(number): their place
function plotFrame(heights, y, place) {
  const svg = svgEl("svg", { class: "plot", viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img" });
  for (const beta of MEASURED) {
    const at = xOf(placeOf(beta));
    svg.append(
      svgEl("line", { class: "rule", x1: at, x2: at, y1: 10, y2: HIGH - 30 }),
      svgEl("text", { x: at, y: HIGH - 12, "text-anchor": "middle" }, beta === Infinity ? "∞" : String(beta)),
    );
  }
  for (const number of heights)
    svg.append(
      svgEl("line", { class: "axis", x1: EDGE, x2: WIDE - 12, y1: y(number), y2: y(number) }),
      svgEl("text", { x: EDGE - 6, y: y(number) + 4, "text-anchor": "end" }, formatted(number, 2)),
    );
  svg.append(svgEl("line", { class: "axis", x1: xOf(place), x2: xOf(place), y1: 10, y2: HIGH - 30 }));
  return svg;
}

export function curvePlot(points, beta) {
  const sorted = [...points].sort((a, b) => a[0] - b[0]);
  const values = sorted.map(([, value]) => value);
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const span = high - low || 1;
  const y = (value) => 10 + ((high - value) / span) * (HIGH - 40);
  const heights = [...new Set([low, 0, high])].filter((value) => value === 0 || Math.abs(y(value) - y(0)) > 16);
  const svg = plotFrame(heights, y, placeOf(beta));
  svg.append(svgEl("path", { class: "curve", d: pathOf(sorted.map(([b, value]) => [xOf(placeOf(b)), y(value)])) }));
  for (const [b, value] of sorted) {
    const dot = svgEl("circle", { class: "dot", cx: xOf(placeOf(b)), cy: y(value), r: 4 });
    dot.append(svgEl("title", {}, `β = ${formatted(b, 2)}: ${signed(value)}`));
    svg.append(dot);
  }
  const told = sorted.map(([b, value]) => `${formatted(b, 2)}: ${signed(value)}`).join(", ");
  svg.setAttribute("aria-label", say("beta-curve-name", { n: sorted.length, told }));
  return svg;
}
