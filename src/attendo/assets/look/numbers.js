// @ts-check
// The attention formula on the numbers of one layer: scores = q·k·scale, weights = softmax(β·scores),
// mixed = Σ weights·v. The page computes attention only here.
const KEPT_HEADS = 2;

// JSON has no infinity: "inf" means argmax
export function betaNumber(beta) {
  return beta === "inf" ? Infinity : Number(beta);
}

export function betaJson(beta) {
  return beta === Infinity ? "inf" : beta;
}

export function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}

export function floatsOf(base64) {
  const bytes = bytesOf(base64);
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

// softmax(β·scores) over the keys with allowed(j) (null: all); the largest score is subtracted first, so no β
// overflows. β = Infinity: 1 at the first maximum. Masked keys, and keys with the score −∞, have exactly 0. If
// no key is left, all weights are 0.
export function softmaxRow(scores, allowed, beta = 1, out = new Float32Array(scores.length)) {
  const open = (j) => scores[j] !== -Infinity && (!allowed || allowed(j));
  let top = -1;
  for (let j = 0; j < scores.length; j++) {
    out[j] = 0;
    if (open(j) && (top < 0 || scores[j] > scores[top])) top = j;
  }
  if (top < 0) return out;
  if (beta === Infinity) {
    out[top] = 1;
    return out;
  }
  let sum = 0;
  for (let j = 0; j < scores.length; j++) {
    if (!open(j)) continue;
    const power = Math.exp(beta * (scores[j] - scores[top]));
    out[j] = power;
    sum += power;
  }
  for (let j = 0; j < scores.length; j++) out[j] /= sum;
  return out;
}

// −Σ w ln w in nats; 0 ln 0 = 0
export function entropy(row) {
  let sum = 0;
  for (let j = 0; j < row.length; j++) if (row[j] > 0) sum -= row[j] * Math.log(row[j]);
  return sum;
}

export function dot(left, right) {
  let sum = 0;
  for (let d = 0; d < left.length; d++) sum += left[d] * right[d];
  return sum;
}

// out[j] = scale · query·key j, for consecutive keys; four partial sums are faster than one
function products(query, keys, scale, out) {
  const width = query.length;
  const even = width - (width % 4);
  for (let j = 0, k = 0; j < out.length; j++) {
    let [a, b, c, e] = [0, 0, 0, 0];
    let d = 0;
    for (; d < even; d += 4, k += 4) {
      a += query[d] * keys[k];
      b += query[d + 1] * keys[k + 1];
      c += query[d + 2] * keys[k + 2];
      e += query[d + 3] * keys[k + 3];
    }
    for (; d < width; d++, k++) a += query[d] * keys[k];
    out[j] = scale * (a + b + c + e);
  }
}

// The parts of a buffer of little-endian float32, with the given sizes
function partsOf(path, buffer, sizes) {
  const all = new Float32Array(buffer);
  const wanted = sizes.reduce((sum, size) => sum + size, 0);
  if (all.length !== wanted) throw new Error(`${path}: ${all.length} numbers came, ${wanted} were awaited`);
  let from = 0;
  return sizes.map((size) => all.subarray(from, (from += size)));
}

// A function of (head, β) that caches its latest results
function kept(make) {
  const answers = new Map();
  return (...asked) => {
    const name = asked.join(" ");
    const answer = answers.get(name) ?? make(...asked);
    answers.delete(name);
    answers.set(name, answer);
    if (answers.size > KEPT_HEADS) answers.delete(answers.keys().next().value);
    return answer;
  };
}

// The size of each part for one head (query, key, value, norms), and the number of heads in each part
function sizesOfHead({ q_len: qLen, k_len: kLen, head_dim: width, value_dim: valueWidth }) {
  return [qLen * width, kLen * width, kLen * valueWidth, kLen];
}
function partsIn({ heads, kv_heads: kvHeads }) {
  return [heads, kvHeads, kvHeads, heads];
}

// The ends of the parts of a layer's numbers in bytes, and the ranges [from, to) of one head
export function numbersBytes(layer) {
  const [sizes, parts] = [sizesOfHead(layer), partsIn(layer)];
  const starts = [0];
  sizes.forEach((size, n) => starts.push(starts[n] + 4 * size * parts[n]));
  const place = (head, n) => starts[n] + 4 * sizes[n] * Math.floor((head * parts[n]) / layer.heads);
  const of = (head) => sizes.map((size, n) => [place(head, n), place(head, n) + 4 * size]);
  return { end: starts.at(-1), of };
}

// The position bias of a score: ALiBi's slope, or a table in which null means −∞, because JSON has no infinity
export function biasOf(layer, head, apart) {
  if (layer.slopes) return -layer.slopes[head] * Math.abs(apart);
  return layer.biases ? (layer.biases[head][apart + layer.k_len - 1] ?? -Infinity) : 0;
}

// layer: an entry of look.stacks[].layers; only: the head if the buffer contains only its numbers, otherwise
// undefined. Matrices are rows one after another, [q_len × k_len].
export function layerNumbers(layer, buffer, only) {
  const { heads, kv_heads: kvHeads, q_len: qLen, k_len: kLen, head_dim: width, value_dim: valueWidth } = layer;
  const sizes = sizesOfHead(layer).map((size, n) => size * (only === undefined ? partsIn(layer)[n] : 1));
  const [queries, keys, values, norms] = partsOf(layer.path, buffer, sizes);
  const place = (head) => (only === undefined ? head : 0);
  const kvPlace = (head) => (only === undefined ? Math.floor((head * kvHeads) / heads) : 0);
  const vector = (all, row, size) => all.subarray(row * size, (row + 1) * size);
  const query = (head, i) => vector(queries, place(head) * qLen + i, width);
  const key = (head, j) => vector(keys, kvPlace(head) * kLen + j, width);
  const value = (head, j) => vector(values, kvPlace(head) * kLen + j, valueWidth);
  const valueNorm = (head, j) => norms[place(head) * kLen + j];
  // the number of keys that a query can attend to
  const reach = (i) => (layer.causal ? Math.max(0, i + kLen - qLen + 1) : kLen);
  const allowed = (i, j) => j < reach(i);
  const bias = (head, i, j) => biasOf(layer, head, j - (i + kLen - qLen));
  const biased = layer.slopes || layer.biases;

  // The scores of a head: first those of allowed keys; the scores of masked keys are computed on request
  const scored = kept((head) => {
    const out = new Float32Array(qLen * kLen);
    fill(head, out, () => 0, reach);
    return { out, whole: !layer.causal };
  });
  function fill(head, out, from, to) {
    for (let i = 0; i < qLen; i++) {
      const row = out.subarray(i * kLen + from(i), i * kLen + to(i));
      const some = vector(keys, kvPlace(head), kLen * width).subarray(from(i) * width, to(i) * width);
      products(query(head, i), some, layer.scale, row);
      if (biased) for (let j = from(i); j < to(i); j++) out[i * kLen + j] += bias(head, i, j);
    }
  }
  const scores = (head) => {
    const found = scored(head);
    if (!found.whole) fill(head, found.out, reach, () => kLen);
    found.whole = true;
    return found.out;
  };

  const weightsAt = kept((head, beta) => {
    const from = scored(head).out;
    const out = new Float32Array(qLen * kLen);
    for (let i = 0; i < qLen; i++) {
      const end = i * kLen + reach(i);
      softmaxRow(from.subarray(i * kLen, end), null, beta, out.subarray(i * kLen, end));
    }
    return out;
  });
  const weights = (head, beta = betaNumber(layer.beta[head])) => weightsAt(head, beta);

  // α·‖v Wᵒ‖: the contribution of each value to the output (Kobayashi et al. 2020)
  const weighted = (head, beta) => {
    const out = Float32Array.from(weights(head, beta));
    for (let i = 0; i < out.length; i++) out[i] *= valueNorm(head, i % kLen);
    return out;
  };

  const mixed = (head, i, beta) => {
    const out = new Float32Array(valueWidth);
    const row = vector(weights(head, beta), i, kLen);
    for (let j = 0; j < kLen; j++) {
      if (row[j] === 0) continue;
      const from = value(head, j);
      for (let d = 0; d < valueWidth; d++) out[d] += row[j] * from[d];
    }
    return out;
  };
  const vectors = { query, key, value, valueNorm, mixed };
  return { layer, qLen, kLen, allowed, reach, bias, ...vectors, scores, weights, weighted };
}
