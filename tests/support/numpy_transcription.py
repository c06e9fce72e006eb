"""The sources' formulas written out once more, in NumPy float64 and with loops: what the models are held against.

Rows are tokens. Nothing here calls attendo; parameters come as arrays under the names of a model's state dict.
"""

import math

import numpy as np


def arrays(module):
    """Every parameter of a module, by its name, as a float64 array."""
    return {name: tensor.detach().double().numpy().copy() for name, tensor in module.state_dict().items()}


def part(parameters, prefix):
    """The parameters below a name."""
    start = prefix + "."
    return {name[len(start) :]: array for name, array in parameters.items() if name.startswith(start)}


def softmax(scores):
    """e^s / Σ e^s along the last axis; -∞ gives 0."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def linear(x, parameters):
    """Wx + b for each row, W [out, in]; b only where there is one."""
    return x @ parameters["weight"].T + parameters.get("bias", 0.0)


def layer_norm(x, parameters, eps):
    """(x - mean) / √(var + ε) ⊙ γ + β, row by row, var divided by the width."""
    rows = []
    for row in x:
        mean = sum(row) / len(row)
        variance = sum((row - mean) ** 2) / len(row)
        rows.append((row - mean) / math.sqrt(variance + eps))
    return np.array(rows) * parameters["weight"] + parameters["bias"]


def relu(x):
    return np.where(x > 0.0, x, 0.0)


def gelu(x):
    """x·Φ(x), exactly."""
    return x * np.vectorize(lambda v: 0.5 * (1.0 + math.erf(v / math.sqrt(2.0))))(x)


def gelu_tanh(x):
    """0.5x(1 + tanh(√(2/π)(x + 0.044715x³))), as GPT-2 was released."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def sinusoids(n, d):
    """PE[p, 2i] = sin(p/10000^(2i/d)), PE[p, 2i+1] = cos of the same, p and i from 0."""
    table = np.empty((n, d))
    for p in range(n):
        for column in range(d):
            angle = p / 10000.0 ** (2 * (column // 2) / d)
            table[p, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


def attention(query, key, value, scale, causal=False):
    """softmax(QKᵀ·scale)V, one query at a time: each sees all keys, or none behind it; (H, A)."""
    mixed, weights = [], []
    for t, q in enumerate(query):
        scores = np.array([q @ k * scale for k in key])
        if causal:
            scores[t + 1 :] = -math.inf
        weights.append(softmax(scores))
        mixed.append(sum(a * v for a, v in zip(weights[-1], value, strict=True)))
    return np.array(mixed), np.array(weights)


def multi_head(x, memory, parameters, n_heads, *, scale=None, causal=False, values=None):
    """Concat_h[softmax(Q_h K_hᵀ · scale) V_h] W_o, head by head; scale is 1/√d_k unless given."""
    values = memory if values is None else values
    inputs = {"q_proj": x, "k_proj": memory, "v_proj": values}
    query, key, value = (
        np.split(linear(rows, part(parameters, name)), n_heads, axis=1) for name, rows in inputs.items()
    )
    heads = []
    for q, k, v in zip(query, key, value, strict=True):
        used = 1.0 / math.sqrt(q.shape[1]) if scale is None else scale
        heads.append(attention(q, k, v, used, causal)[0])
    return linear(np.concatenate(heads, axis=1), part(parameters, "out_proj"))


def feed_forward(x, parameters, activation):
    """W₂ activation(W₁x + b₁) + b₂."""
    return linear(activation(linear(x, part(parameters, "in_proj"))), part(parameters, "out_proj"))


def stack(parameters):
    """The parameters of each block, bottom first."""
    n_blocks = 1 + max(int(name.split(".")[1]) for name in parameters if name.startswith("blocks."))
    return [part(parameters, f"blocks.{number}") for number in range(n_blocks)]
