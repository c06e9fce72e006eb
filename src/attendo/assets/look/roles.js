// @ts-check
// What a head does, in words: its role from its measures, the effect of its removal, and the sentence about one cell.
import { el, formatted, percent } from "../shared/dom.js";
import { term } from "../shared/sheet.js";
import { say, sayWith } from "../shared/words.js";
import { effectsOf } from "./effects.js";
import { labelsOf, shownMatrix } from "./shown.js";
/** @import { App, Layer } from "../types/page.js" */

const CLEAR = 0.5; // a pattern with this share of the weights names the role
const LEAST_EFFECT = 0.005; // nats; smaller effects are none
const SPREAD = 0.3; // with a smaller largest weight, a query has no clear target
const PATTERNS = ["induction", "previous", "next", "diagonal", "duplicate", "first"];

// The key on which a head rests, or null: an attention sink gets most of the attention of most queries
/** @param {App} app @param {Layer} layer @param {number} head */
function sinkOf(app, layer, head) {
  const { key, share } = layer.sinks[head];
  return share > CLEAR ? { key, share, label: labelsOf(app.tokensOf(layer.keys))[key] } : null;
}

// The role of a head: the key of a text, and its values
/** @param {App} app @param {Layer} layer @param {number} head @returns {{ key: string, values: Record<string, string> }} */
function roleOf(app, layer, head) {
  const sink = sinkOf(app, layer, head);
  if (sink) return { key: "role-sink", values: { piece: sink.label } };
  const share = (name) => layer.measures[name]?.[head] ?? 0;
  if (layer.queries !== layer.keys) return { key: share("maximum") > CLEAR ? "role-aligns" : "role-mixes", values: {} };
  const name = PATTERNS.find((pattern) => share(pattern) > CLEAR);
  return { key: name ? `role-${name}` : share("maximum") > CLEAR ? "role-picks" : "role-mixes", values: {} };
}

// The change of the answer without a head, in words, or "" if it is not measured
function effectText(app, path, head) {
  const row = effectsOf(app).rowOf(path, head);
  if (!row) return "";
  const size = formatted(Math.abs(row.value), Math.abs(row.value) < 0.1 ? 3 : 2);
  return say(row.value < -LEAST_EFFECT ? "effect-loses" : row.value > LEAST_EFFECT ? "effect-gains" : "effect-none", {
    x: size,
  });
}

export function headText(app, layer, head) {
  const { key, values } = roleOf(app, layer, head);
  return [say(key, values), layer.off.includes(head) ? say("off") : effectText(app, layer.path, head)]
    .filter(Boolean)
    .join(" · ");
}

// The sentence about the query and the key under the pointer, as text and elements
export function sentenceOf(app) {
  const shown = shownMatrix(app);
  const { layer, head, weights, hidden } = shown;
  const { query, key, by } = app.spot();
  if (query >= layer.q_len || key >= layer.k_len) return [];
  const word = (label) => el("bdi", { class: "hot", dir: "auto" }, label);
  const from = word(labelsOf(app.rowTokens(layer))[query]);
  const to = word(labelsOf(app.tokensOf(layer.keys))[key]);
  const weight = weights[query * layer.k_len + key];
  const most = hidden.has(key) ? weight : weights[query * layer.k_len + app.strongestKey(query)];
  const share = el("strong", {}, weight > 0.99 ? say("share-over-99") : percent(weight));
  const cross = layer.queries !== layer.keys;
  const kind = cross ? "writes" : layer.causal ? "after" : "at";
  if (layer.off.includes(head)) return [say("sentence-off")];
  if (by === "key" || weight < most) return sayWith(`sentence-${kind}-given`, { from, to, share });
  if (weight < SPREAD) return sayWith(`sentence-${kind}-spread`, { from, to, share });
  return sayWith(`sentence-${kind}`, { from, to, share });
}

// The grey line below the sentence: the head, its role and its effect
/** @param {App} app @param {Layer} layer @param {number} head @param {Node} name */
export function headLine(app, layer, head, name) {
  const { key, values } = roleOf(app, layer, head);
  const row = effectsOf(app).rowOf(layer.path, head);
  const sink = () => sayWith("role-sink-line", { ...values, sink: term("sink") });
  const parts = [[name], key === "role-sink" ? sink() : [say(key, values)]];
  if (row && Math.abs(row.value) <= LEAST_EFFECT) parts.push([say("effect-none")]);
  else if (row && !layer.off.includes(head))
    parts.push(
      sayWith(row.value < 0 ? "line-loses" : "line-gains", {
        x: formatted(Math.abs(row.value), 2),
        nats: term("nats"),
      }),
    );
  return parts.flatMap((part, n) => (n ? [" · ", ...part] : part));
}

