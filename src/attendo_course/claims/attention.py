"""Claims about attention: mixtures, heads, masks, sets, directions (C05, C06, C08, C09, C12, C13, C19, C40)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from attendo.inspecting.residual_stream import head_contributions, head_matrices
from attendo.nn.attention import Attention, attention, attention_scores, attention_weights, masked_softmax
from attendo.nn.masks import Mask, causal
from attendo.nn.positions import sinusoidal_encoding
from attendo_course.book import translated
from attendo_course.claims.claim import Finding, above, below, equals
from attendo_course.claims.samples import largest, normal, numbered, random_attention
from attendo_course.pictures import Picture

Layer = Callable[[Float[Tensor, "n d_model"]], Float[Tensor, "n d_out"]]
"""A function from a set of tokens to an equal number of outputs."""

Lookup = Callable[[Float[Tensor, "n d_model"], Float[Tensor, "m d_model"]], Float[Tensor, "n d_out"]]
"""A function from tokens, and from the tokens to which they attend, to outputs."""


def order_goes_through(layer: Layer | None = None, n: int = 6, seed: int = 0) -> Finding:
    """Check that MHA(PX) = P·MHA(X) for every permutation P, without positions or a mask.

    The source is Bishop & Bishop 2024, exercise 12.7. `layer` maps `[n, 8]` to `[n, d_out]` (default: self-attention
    with two heads and weights from N(0, 1)).

    >>> order_goes_through().holds
    True
    >>> order_goes_through(lambda x: x.cumsum(0)).holds
    False
    """
    heads = random_attention(seed, 8, 2, std=1.0)
    apply = layer or (lambda tokens: heads(tokens[None], tokens[None])[0])
    x, scores = normal(seed + 1, n, 8), normal(seed + 2, n, n)
    permutation = torch.arange(n).roll(2).flip(0)
    p = torch.eye(n, dtype=torch.float64)[permutation]
    places = sinusoidal_encoding(torch.arange(n), 8, dtype=torch.float64)
    past = Mask(causal=True)
    masked, masked_after = heads(x[None], x[None], past)[0], heads((p @ x)[None], (p @ x)[None], past)[0]
    weights = masked_softmax(scores)
    placed = translated("with positions E: |MHA(PX+E) - P·MHA(X+E)|")
    behind = translated("causal mask: |MHA(PX) - P·MHA(X)|")
    checks = (
        equals("largest |PᵀP - I|", largest(p.T @ p - torch.eye(n)), 0.0, 0.0),
        below("largest |σ(PA) - Pσ(A)|", largest(masked_softmax(p @ scores) - p @ weights), 1e-12),
        below("largest |σ(APᵀ) - σ(A)Pᵀ|", largest(masked_softmax(scores @ p.T) - weights @ p.T), 1e-12),
        below("largest |MHA(PX) - P·MHA(X)|", largest(apply(p @ x) - p @ apply(x)), 1e-12),
        above("not invariant: largest |MHA(PX) - MHA(X)|", largest(apply(p @ x) - apply(x)), 1.0),
        above(placed, largest(apply(p @ x + places) - p @ apply(x + places)), 1.0, counterexample=True),
        above(behind, largest(masked_after - p @ masked), 1.0, counterexample=True),
    )
    before, after = attention_weights(x, x), attention_weights(p @ x, p @ x)
    title = translated("A of X, and A of PX: the same rows and columns in another order")
    names = numbered("x", n)
    beside = torch.cat([before, after], dim=1).numpy()
    return Finding(checks, Picture("matrix", title, beside, names, names + tuple(names[i] for i in permutation)))


def set_distance(first: Float[Tensor, "n d"], second: Float[Tensor, "m d"]) -> float:
    """Return the Hausdorff distance: the largest distance of a row of one set from the other set.

    >>> set_distance(torch.tensor([[0.0], [3.0]]), torch.tensor([[3.0], [0.0]]))
    0.0
    """
    distances = (first[:, None] - second).norm(dim=-1)
    return float(torch.maximum(distances.amin(0).max(), distances.amin(1).max()))


def sets_to_sets(lookup: Lookup | None = None, seed: int = 0) -> Finding:
    """Check that attention maps a set of any size to a set of the same size and ignores the order of the memory.

    The source is NYU Deep Learning 2020, week 12-3. `lookup` maps tokens `[n, 8]` and a memory `[m, 8]` to `[n,
    d_out]` (default: attention with two heads).

    >>> sets_to_sets().holds
    True
    >>> sets_to_sets(lambda x, memory: x + memory[0]).holds
    False
    """
    heads = random_attention(seed, 8, 2, std=8**-0.5)
    apply = lookup or (lambda tokens, memory: heads(tokens[None], memory[None])[0])
    x = normal(seed + 1, 7, 8)
    shuffled = x[torch.tensor([3, 0, 6, 1, 5, 2, 4])]
    places = sinusoidal_encoding(torch.arange(7), 8, dtype=torch.float64)
    doubled = torch.cat([x, x[:1]])
    seen = [apply(tokens + places, tokens + places) for tokens in (shuffled, x)]
    memory = translated("memory shuffled: largest change of an output")
    as_set = translated("all shuffled: distance of the sets of outputs")
    twice = translated("x₁ twice in the memory: change of an output")
    sizes = {t: translated("outputs for {t} tokens", t=t) for t in (1, 2, 7)}
    checks = [
        *(equals(name, len(apply(x[:t], x[:t])), t, 0.0) for t, name in sizes.items()),
        below(memory, largest(apply(x, shuffled) - apply(x, x)), 1e-12),
        below(as_set, set_distance(apply(shuffled, shuffled), apply(x, x)), 1e-12),
        above("with positions, shuffled: the same distance", set_distance(*seen), 0.1, counterexample=True),
        above(twice, largest(apply(x, doubled) - apply(x, x)), 0.01, counterexample=True),
    ]
    same = torch.cdist(apply(x, x), apply(shuffled, shuffled)) < 1e-9
    title = translated("equal outputs: of the set (rows), of the set shuffled")
    picture = Picture("matrix", title, same.double().numpy(), numbered("h", 7), numbered("h", 7))
    return Finding(tuple(checks), picture)


def random_rotation(seed: int, d: int) -> Float[Tensor, "d d"]:
    """Return a random orthogonal matrix with determinant 1.

    >>> round(torch.linalg.det(random_rotation(0, 5)).item(), 12)
    1.0
    """
    q, _ = torch.linalg.qr(normal(seed, d, d))
    q[:, 0] *= torch.linalg.det(q).sign()
    return q


def only_orthogonal_maps_rotate(w: Float[Tensor, "d d"] | None = None, seed: int = 0) -> Finding:
    """Check that |Wx| = |x| for every x if and only if WᵀW = I, and that det W = 1 for a rotation.

    The source is NYU Deep Learning 2020, week 12-3. `w` is the matrix that must be a rotation (default: a random
    rotation of width 8).

    >>> only_orthogonal_maps_rotate().holds
    True
    >>> only_orthogonal_maps_rotate(random_attention(0, 8, 2, 0.5).q_proj.weight).holds
    False
    """
    w = random_rotation(seed, 8) if w is None else w
    d = len(w)
    x, y = normal(seed + 1, 100, d), normal(seed + 2, 100, d)
    drawn = normal(seed + 3, d, d) * d**-0.5  # as a projection starts out: lengths are kept on average
    stretch = torch.linalg.svdvals(drawn)
    excess, directions = torch.linalg.eigh(drawn.T @ drawn - torch.eye(d))
    worst = excess.abs().argmax()
    reached = (drawn @ directions[:, worst]).square().sum() - 1.0
    mirror = w.clone()
    mirror[0] = -mirror[0]
    lost = torch.linalg.svd(drawn[: d // 2]).Vh[-1]
    norm = torch.linalg.matrix_norm(drawn.T @ drawn - torch.eye(d), 2).item()
    only_if = translated("any W: largest ||Wx|² - 1| for |x| = 1, less ‖WᵀW - I‖")
    narrow = translated("W of d/2 rows: |Wx| for some x with |x| = 1")
    flipped = translated("a reflection keeps lengths; its determinant")
    checks = (
        below("largest |WᵀW - I|", largest(w.T @ w - torch.eye(d)), 1e-12),
        below("largest ||Wx| - |x||", largest((x @ w.T).norm(dim=-1) - x.norm(dim=-1)), 1e-12),
        below("largest |Wx·Wy - x·y|", largest(((x @ w.T) * (y @ w.T)).sum(-1) - (x * y).sum(-1)), 1e-12),
        equals("det W", torch.linalg.det(w).item(), 1.0),
        equals(only_if, abs(reached.item()) - norm, 0.0, 1e-12),
        above("W from N(0, 1/d): largest |Wx|/|x|", stretch[0].item(), 1.2, counterexample=True),
        below("W from N(0, 1/d): least |Wx|/|x|", stretch[-1].item(), 0.8, counterexample=True),
        equals(narrow, (drawn[: d // 2] @ lost).norm().item(), 0.0, 1e-12, counterexample=True),
        equals(flipped, torch.linalg.det(mirror).item(), -1.0, counterexample=True),
    )
    angles = torch.linspace(0.0, 2 * torch.pi, 37, dtype=torch.float64)
    circle = torch.stack([angles.cos(), angles.sin()])
    curves = torch.stack([(m @ circle).norm(dim=0) for m in (random_rotation(seed, 2), normal(seed, 2, 2))])
    title = translated("|Wx| for unit x by angle (degrees)")
    names = ("WᵀW = I", "W ~ N(0, 1)")
    return Finding(checks, Picture("curves", title, curves.numpy(), names, tuple(str(a) for a in range(0, 370, 10))))


Weigh = Callable[[Float[Tensor, "n d"], Float[Tensor, "m d"]], Float[Tensor, "n m"]]
"""A function from queries and keys to attention weights."""


def lengths_matter_too(weigh: Weigh = attention_weights, seed: int = 0) -> Finding:
    """Check that the weights change with the lengths of queries and keys, unless all are divided by their lengths.

    The source is NYU Deep Learning 2020, week 12-3. `weigh` maps queries and keys to weights.

    >>> lengths_matter_too().holds
    True
    >>> lengths_matter_too(lambda query, key: attention_weights(unit_rows(query), unit_rows(key))).holds
    False
    """
    query, keys = torch.tensor([[1.0]]).double(), torch.tensor([[1.0], [2.0]]).double()
    near, q, k, v = torch.eye(2).double(), normal(seed, 5, 4), normal(seed + 1, 6, 4), normal(seed + 2, 6, 3)
    near[1] = torch.tensor([3.0, 3.0])  # three times as long, and 45° off
    stretches = torch.rand(6, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5
    closest = (unit_rows(q) @ unit_rows(k).T).argmax(-1)
    by_angle = weigh(q, unit_rows(k)).argmax(-1)
    stretched, plain = (weigh(unit_rows(q), unit_rows(rows)) for rows in (stretches * k, k))
    checks = (
        equals(
            "q = 1, keys 1 and 2: second weight",
            weigh(query, keys)[0, 1].item(),
            0.7310586,
            1e-7,
            counterexample=True,
        ),
        equals(
            "q = 2, keys 1 and 2: second weight",
            weigh(2 * query, keys)[0, 1].item(),
            0.8807971,
            1e-7,
            counterexample=True,
        ),
        above(
            "q = (1, 0), keys (1, 0) and (3, 3): second weight",
            weigh(near[:1], near)[0, 1].item(),
            0.5,
            counterexample=True,
        ),
        equals(
            "keys of equal length: queries with the largest weight elsewhere than at the smallest angle",
            (closest != by_angle).sum().item(),
            0,
            0.0,
        ),
        below(
            "normalized queries and keys, keys stretched: change of a weight",
            largest(stretched - plain),
            1e-12,
        ),
        equals("values twice as long: output / output", ((plain @ (2 * v)) / (plain @ v)).mean().item(), 2.0),
    )
    lengths = torch.linspace(0.0, 4.0, 41, dtype=torch.float64)
    curve = torch.stack([weigh(query, torch.stack([query[0], length[None]]))[0, 1] for length in lengths])
    title = translated("weight of a key beside a key of length 1 in the same direction, by its length")
    labels = tuple(f"|k| = {length:g}" for length in lengths.tolist())
    return Finding(checks, Picture("curves", title, curve.numpy()[None], ("a",), labels))


def unit_rows(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return each row divided by its length.

    >>> unit_rows(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    return x / x.norm(dim=-1, keepdim=True)


Softmax = Callable[[Float[Tensor, "*batch q_len k_len"]], Float[Tensor, "*batch q_len k_len"]]
"""A function from scores to weights."""


def unscaled_attention(
    query: Float[Tensor, "n d_key"], key: Float[Tensor, "n d_key"], value: Float[Tensor, "n d_value"]
) -> Float[Tensor, "n d_value"]:
    """Return softmax(QKᵀ)V without the factor 1/√d (Kikuta 2025, exercise 3.4).

    >>> unscaled_attention(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 3))
    tensor([[1., 1., 1.]])
    """
    return attention(query, key, value, scale=1.0)


def rows_mix_values(
    mix: Callable[[Tensor, Tensor, Tensor], Tensor] = unscaled_attention,
    n: int = 5,
    d_value: int = 3,
    seed: int = 0,
) -> Finding:
    """Check that row k of softmax(QKᵀ)V is Σ_t a_kt v_t, with a softmax per row and without 1/√d.

    The source is Kikuta 2025, exercise 3.4. `mix` maps query `[n, 4]`, key `[n, 4]` and value `[n, d_value]` to `[n,
    d_value]`.

    >>> rows_mix_values().holds
    True
    >>> rows_mix_values(attention).holds
    False
    """
    (query, key), value = normal(seed, 2, n, 4), normal(seed + 1, n, d_value)
    weights, mixed = attention_weights(query, key, scale=1.0), mix(query, key, value)
    loops = torch.zeros_like(mixed)
    for k in range(n):
        for t in range(n):
            loops[k] += weights[k, t] * value[t]
    summed = torch.einsum("kt,td->kd", weights, value)
    by_column = attention_weights(key, query, scale=1.0).T
    rows, columns = translated("A: rows"), translated("A: columns")
    column = translated("softmax by column: largest |row sum - 1|")
    beyond = torch.maximum(mixed - value.amax(0), value.amin(0) - mixed).amax().clamp(min=0.0).item()
    checks = (
        equals(rows, weights.shape[0], n, 0.0),
        equals(columns, weights.shape[1], n, 0.0),
        equals("softmax(QKᵀ)V: columns = d_value", mixed.shape[1], d_value, 0.0),
        below("largest |matrix product - loop|", largest(mixed - loops), 1e-12),
        below("largest |matrix product - einsum|", largest(mixed - summed), 1e-12),
        below("largest |row sum of A - 1|", largest(weights.sum(-1) - 1.0), 1e-12),
        below("how far outputs leave [min v, max v]", beyond, 1e-12),
        above(column, largest(by_column.sum(-1) - 1.0), 0.1),
    )
    title = translated("A = softmax(QKᵀ): row k mixes the values")
    return Finding(checks, Picture("matrix", title, weights.numpy(), numbered("q", n), numbered("v", n)))


def weights_are_probabilities(
    softmax: Softmax = masked_softmax, n: int = 8, d_model: int = 16, draws: int = 100, seed: int = 0
) -> Finding:
    """Check that a_nm = exp(x_nᵀx_m) / Σ_m' exp(x_nᵀx_m') > 0 and Σ_m a_nm = 1.

    The source is Bishop & Bishop 2024, exercise 12.2. The check uses `draws` random sets of n vectors from N(0, I),
    and sets with all vectors stretched to length 1000.

    >>> weights_are_probabilities().holds
    True
    >>> weights_are_probabilities(lambda scores: scores / scores.sum(-1, keepdim=True)).holds
    False
    """
    x = normal(seed, draws, n, d_model)
    long = 1000.0 * x / x.norm(dim=-1, keepdim=True)
    scores, far = attention_scores(x, x, scale=1.0), attention_scores(long, long, scale=1.0)
    weights, far_weights = softmax(scores), softmax(far)
    unshifted = far.exp() / far.exp().sum(-1, keepdim=True)
    naive = translated("length 1000, maximum not subtracted: NaNs")
    underflow = translated("length 1000: least a_nm, underflown")
    checks = (
        below("largest |Σ_m a_nm - 1|", largest(weights.sum(-1) - 1.0), 1e-12),
        above("least a_nm", weights.min().item(), 0.0),
        below("length 1000: largest |Σ_m a_nm - 1|", largest(far_weights.sum(-1) - 1.0), 1e-12),
        equals("length 1000: NaNs", far_weights.isnan().sum().item(), 0.0, 0.0),
        above("length 1000: least log a_nm, finite", far.log_softmax(-1).min().item(), -2e6 - 1.0),
        above(naive, unshifted.isnan().sum().item(), 0.0, counterexample=True),
        equals(underflow, far_weights.min().item(), 0.0, 0.0, counterexample=True),
    )
    title = translated("weights a_nm of one random set")
    return Finding(checks, Picture("matrix", title, weights[0].numpy(), numbered("x", n), numbered("x", n)))


def heads_add_up(
    matrices: Callable[[Attention], Float[Tensor, "heads d_out d_model"]] = head_matrices,
    n: int = 6,
    d_model: int = 16,
    n_heads: int = 4,
    value_dim: int | None = None,
    seed: int = 0,
) -> Finding:
    """Check that Concat(H_1, ..., H_H) Wᵒ = Σ_h A_h X W^(h), where W^(h) = W_hᵛ W_hᵒ has rank ≤ D_v.

    The source is Bishop & Bishop 2024, exercise 12.5. `matrices` returns the transposed matrices W^(h) of a layer,
    which multiply column vectors. `value_dim` is D_v (default: d_model / n_heads).

    >>> heads_add_up().holds
    True
    >>> heads_add_up(lambda layer: head_matrices(layer).flip(0)).holds
    False
    """
    layer = random_attention(seed, d_model, n_heads, d_model**-0.5, value_dim)
    x = normal(seed + 1, 1, n, d_model)
    query = layer.q_proj(x).unflatten(-1, (n_heads, layer.head_dim)).transpose(1, 2)
    key, value = layer.keys_values(x)
    weights, w = attention_weights(query, key)[0], matrices(layer)  # [heads, n, n], [heads, d_model, d_model]
    parts = weights @ x @ w.mT
    split = head_contributions((weights @ value[0])[None], layer.out_proj.get_parameter("weight"))[0]
    ranks = torch.linalg.matrix_rank(w)
    rank = min(layer.value_dim, d_model)
    checks = (
        below("largest |Concat·Wᵒ - Σ_h A_h X W^(h)|", largest(layer(x, x)[0] - parts.sum(0)), 1e-12),
        below("each head: largest |head_h W_hᵒ - A_h X W^(h)|", largest(split - parts), 1e-12),
        equals("least rank of a W^(h): D_v", ranks.min().item(), rank, 0.0),
        equals("largest rank of a W^(h): D_v", ranks.max().item(), rank, 0.0),
    )
    title = translated("singular values of W^(h): D_v are not 0")
    values = torch.linalg.svdvals(w).numpy()
    return Finding(checks, Picture("matrix", title, values, numbered("h", n_heads), numbered("σ", d_model)))


def masked_weights_are_zero(
    softmax: Callable[[Tensor, Tensor], Tensor] = masked_softmax, n: int = 6, seed: int = 0
) -> Finding:
    """Check that a_qk is exactly 0 where the mask forbids it, and that masked keys have no effect.

    The source is NYU Deep Learning 2020, week 12-3. `softmax` maps scores `[n, n]` and a boolean mask (True = may
    attend) to weights.

    >>> masked_weights_are_zero().holds
    True
    >>> masked_weights_are_zero(lambda scores, mask: (scores - 9.0 * ~mask).softmax(-1)).holds
    False
    """
    scores, value, other = normal(seed, n, n), normal(seed + 1, n, 4), normal(seed + 2, n, 4)
    allowed = causal(n, n)
    weights, free = softmax(scores, allowed), masked_softmax(scores)
    half = n // 2
    changed = torch.cat([value[:half], other[half:]])
    moved_scores = torch.where(allowed, scores, scores + 100.0)
    effect = torch.maximum(
        (weights @ changed - weights @ value)[:half].abs().max(),
        (softmax(moved_scores, allowed) - weights).abs().max(),
    )
    far = masked_softmax(torch.tensor([[1000.0, 0.0]], dtype=torch.float64))
    unmasked = translated("no mask: least weight of a later token")
    checks = (
        equals("largest weight of a later token", weights[~allowed].max().item(), 0.0, 0.0),
        below("largest |row sum - 1|", largest(weights.sum(-1) - 1.0), 1e-12),
        above("least weight of an allowed token", weights[allowed].min().item(), 0.0),
        equals("effect of later values and scores", effect.item(), 0.0, 0.0),
        above(unmasked, free[~allowed].min().item(), 0.0, counterexample=True),
        equals("no mask, scores 1000 and 0: second weight", far[0, 1].item(), 0.0, 0.0, counterexample=True),
    )
    title = translated("A under the causal mask")
    return Finding(checks, Picture("matrix", title, weights.numpy(), numbered("q", n), numbered("k", n)))


CLAIMS = {
    "C09": order_goes_through,
    "C12": sets_to_sets,
    "C13": only_orthogonal_maps_rotate,
    "C05": rows_mix_values,
    "C06": weights_are_probabilities,
    "C08": heads_add_up,
    "C19": masked_weights_are_zero,
    "C40": lengths_matter_too,
}
