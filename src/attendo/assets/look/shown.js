// @ts-check
// The displayed values of the open head, and their colors in every image.
import { byteOf, clear, el, formatted, pieceText } from "../shared/dom.js";
import { say } from "../shared/words.js";
import { divergingPalette, palette, wordsOf } from "./colors.js";
import { betaNumber } from "./numbers.js";

export const MANY = 48; // number of keys in a row above which small weights have their own scale
// Whether a layer has too many tokens for ribbons and for labels of all cells
export function isLong({ q_len: qLen, k_len: kLen }) {
  return qLen > MANY || kLen > MANY;
}
const lastShown = new WeakMap(); // numbers of a layer → latest displayed values

// The displayed values of the open head, or null before its numbers are loaded: weights at the slider's β, and
// `values`, which are the weights, α·‖v Wᵒ‖ or the scores; share(i) is a value relative to the largest, 0 to 1
// (scores: −1 to 1).
export function shownMatrix(app) {
  const { state } = app;
  const numbers = app.numbersNow(state.get("layer"));
  if (!numbers) return null;
  const head = Math.min(state.get("head"), numbers.layer.heads - 1);
  const beta = betaNumber(state.get("beta"));
  const [kind, ends] = [state.get("shows"), state.get("hideEnds")];
  const own = ownScale(app, numbers.layer);
  const name = [head, beta, kind, ends, own].join(" ");
  if (lastShown.get(numbers)?.name !== name) {
    const hidden = ends ? app.ends(numbers.layer.keys) : new Set();
    lastShown.set(numbers, { name, ...matrixOf(numbers, head, beta, kind, hidden, own) });
  }
  return lastShown.get(numbers);
}

// The query that the page selects by itself: the query with the largest weight on a word
export function strongestQuery(app) {
  const shown = shownMatrix(app);
  if (!shown) return 0;
  shown.strongest ??= strongestOf(app, shown);
  return shown.strongest;
}

// A long word says more than an article or a particle, and a token itself explains little
function strongestOf(app, { layer, weights }) {
  const letters = (token) =>
    /^<.*>$/.test(token?.piece ?? "") ? 0 : ((token?.text ?? "").match(/[\p{L}\p{N}]/gu)?.length ?? 0);
  const [rows, keys] = [
    app.rowTokens(layer).map(letters),
    app.tokensOf(layer.keys).map((token) => Math.min(5, letters(token))),
  ];
  const apart = (i, j) => layer.queries !== layer.keys || i !== j;
  let [best, most] = [layer.q_len >> 1, 0];
  const prompt = app.look.family === "language-model" && app.look.target.length > app.look.prompt_tokens;
  for (let i = prompt ? app.look.prompt_tokens - 1 : 0; i < layer.q_len; i++) {
    for (let j = 0; rows[i] && j < layer.k_len; j++) {
      const value = weights[i * layer.k_len + j] ** 2 * keys[j];
      if (value > most && apart(i, j)) [best, most] = [i, value];
    }
  }
  return best;
}

// The displayed text of each token; a letter of several bytes is at its first byte, and "·" is at its other bytes
export function labelsOf(tokens) {
  const last = tokens.length - 1;
  const isMark = ({ piece = "", text }) => text === "" && /^(<.+>|\[.+\])$/.test(piece);
  const mark = (i) => (last > 0 && i === 0 ? "mark-start" : i === last ? "mark-end" : "");
  const labels = tokens.map((token, i) =>
    mark(i) && isMark(token) && byteOf(token) === null ? say(mark(i)) : pieceText(token),
  );
  for (let i = 0; i <= last; i++) {
    const bytes = tokens.slice(i, i + lettersBytes(byteOf(tokens[i]))).map(byteOf);
    if (bytes.length < 2 || bytes.some((byte, n) => n > 0 && !(byte >> 6 === 2))) continue;
    labels[i] = new TextDecoder().decode(Uint8Array.from(bytes));
    labels.fill("·", i + 1, i + bytes.length);
    i += bytes.length - 1;
  }
  return labels;
}

// The number of bytes of a letter in UTF-8, by its first byte
function lettersBytes(byte) {
  return byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 0;
}

// Tokens as one text; spaced: whether the tokens of the model contain the spaces between words
export function joinedText(tokens, spaced) {
  const labels = labelsOf(tokens);
  const parts = tokens.map(({ piece = "", text = "" }, i) =>
    piece.startsWith("▁") ? ` ${labels[i]}` : text.startsWith(" ") ? text : labels[i] === "·" ? "" : labels[i],
  );
  return parts.join(spaced ? "" : " ").trim();
}

export function isSpaced(tokens) {
  return tokens.some(({ piece = "", text = "" }) => piece.startsWith("▁") || text.startsWith(" "));
}

function matrixOf(numbers, head, beta, kind, hidden, own) {
  const { layer, kLen, qLen } = numbers;
  const weights = numbers.weights(head, beta);
  const values =
    kind === "scores" ? numbers.scores(head) : kind === "weighted" ? numbers.weighted(head, beta) : weights;
  const most = (from, to) => {
    let found = 0;
    for (let i = from; i < to; i++) {
      const end = numbers.reach(i);
      for (let j = 0; j < end; j++)
        if (!hidden.has(j) && values[i * kLen + j] !== -Infinity)
          found = Math.max(found, Math.abs(values[i * kLen + j]));
    }
    return found;
  };
  // as for thumbnails (`darkest` in answers.py): rows with few keys are ignored, uniform attention has a light color
  const first = own && layer.causal && kind !== "scores" ? Math.max(0, MANY - kLen + qLen) : 0;
  let top = kind === "weights" && !own ? 1 : most(first, qLen);
  if (kind === "weights" && own) top = Math.min(1, Math.max(top, 4 / kLen));
  const above = most(0, first) > top;
  return { numbers, layer, head, beta, kind, weights, values, top: top || 1, above, hidden };
}

// Whether the small weights of long rows have their own color scale
function ownScale(app, layer) {
  return app.state.get("root") === "auto" && layer.k_len > MANY;
}

// The colors of a thumbnail on this scale: the color of each byte (a fraction of `darkest`), and the weight with
// the darkest color
export function thumbScale(app, layer, darkest) {
  const top = ownScale(app, layer) ? darkest : 1;
  const root = rootScale(app, layer);
  const color = (byte) => {
    const share = Math.min(1, ((byte / 255) * darkest) / top);
    return Math.round(255 * (root ? Math.sqrt(share) : share));
  };
  return { top, root, color };
}

// The largest weight of a scale, as text
export function topText(top) {
  return top === 1 ? "1" : formatted(top, top < 0.1 ? 3 : 2);
}

// √ makes small weights visible; it is the default if there are many keys
function rootScale(app, layer) {
  const chosen = app.state.get("root");
  return chosen === "auto" ? layer.k_len > MANY : chosen === "root";
}

// The legend of the colors; on the √ scale, the middle color is a quarter of the largest value
export function showRamp(ramp, app, { layer, kind, top, above }) {
  const both = kind === "scores";
  const bar = el("span", { class: both ? "ramp diverging" : "ramp" });
  clear(ramp).append(both ? `−${formatted(top, 2)}` : "0", bar, (above ? "≥ " : "") + topText(top));
  if (!both && rootScale(app, layer)) ramp.append(el("span", {}, say("color-middle", { x: topText(top / 4) })));
}

// The palette of the displayed values, and the index of a value in the palette
function shading(app, { layer, kind, top }) {
  if (kind === "scores")
    return [divergingPalette(), (value) => Math.round(127.5 * (1 + Math.min(1, Math.max(-1, value / top))))];
  const root = rootScale(app, layer);
  const share = (value) => Math.min(1, Math.max(0, value / top));
  return [palette(), (value) => Math.round(255 * (root ? Math.sqrt(share(value)) : share(value)))];
}

// The color of a value, or null for a cell that is masked, has a score of −∞ or is hidden by the reader
export function cellColor(app, shown) {
  const { numbers, layer, hidden } = shown;
  const [colors, shade] = shading(app, shown);
  const columns = layer.k_len;
  return (value, i) => {
    const j = i % columns;
    const may = value !== -Infinity && numbers.allowed((i - j) / columns, j);
    return hidden.has(j) || !may ? null : colors[shade(value)];
  };
}

// Draw all cells, one pixel each, on a canvas; an earlier canvas of the same size is reused
export function cellsPicture(before, app, shown) {
  const { numbers, layer, values, hidden } = shown;
  const [rows, columns] = [layer.q_len, layer.k_len];
  const [colors, shade] = shading(app, shown);
  const words = wordsOf(colors);
  const fits = before?.image.width === columns && before.image.height === rows;
  const image = fits ? before.image : new ImageData(columns, rows);
  const dots = new Uint32Array(image.data.buffer);
  for (let i = 0, at = 0; i < rows; i++) {
    const end = numbers.reach(i);
    for (let j = 0; j < columns; j++, at++)
      dots[at] = j >= end || hidden.has(j) || values[at] === -Infinity ? 0 : words[shade(values[at])];
  }
  const canvas = fits ? before.canvas : new OffscreenCanvas(columns, rows);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return { canvas, image };
}
