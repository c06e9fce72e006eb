"""What attention weights look like, in numbers: how wide, how far, and how near to patterns that heads are known for.

Weights are `[*batch, q_len, k_len]`, for instance those of all heads of a layer; each measure is one number a head. A
query that may attend to no key (a row of zeros) counts in none but entropy and maximum, where it gives 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

AT_HAND = 2**18
"""Numbers that stay in a processor's cache."""


def entropy(weights: Float[Tensor, "*batch q_len k_len"]) -> Float[Tensor, "*batch"]:
    """−Σ_j A_ij ln A_ij, the mean over queries, in nats: 0 when all weight is on one key, ln k_len when it is even.

    Vig & Belinkov 2019, "Analyzing the Structure of Attention in a Transformer Language Model".

    >>> entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))  # (0 + ln 2) / 2
    tensor(0.3466)
    """
    # 0 ln 0 = 0 by a logarithm that stays finite; some matrices after the others, in memory that is at hand
    tiny = torch.finfo(weights.dtype).tiny
    flat = weights.flatten(0, -3) if weights.dim() > 2 else weights[None]
    parts = flat.split(max(1, AT_HAND // max(1, flat.shape[1] * flat.shape[2])))
    rows = [torch.linalg.vecdot(part, part.clamp_min(tiny).log_()).mean(-1) for part in parts]
    return -torch.cat(rows).view(weights.shape[:-2])


def maximum(weights: Float[Tensor, "*batch q_len k_len"]) -> Float[Tensor, "*batch"]:
    """max_j A_ij, the mean over queries: the confidence of a head (Voita et al. 2019).

    >>> maximum(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor(0.7500)
    """
    return weights.amax(-1).mean(-1)


def places(q_len: int, k_len: int, *, cross: bool = False) -> Float[Tensor, " q_len"]:
    """Where each query stands among the keys.

    The queries of self-attention are the last of the keys, as with a cache. In cross-attention query i stands at the
    same share of its text: (i + ½) · k_len / q_len − ½.

    >>> places(2, 4), places(2, 4, cross=True)
    (tensor([2., 3.], dtype=torch.float64), tensor([0.5000, 2.5000], dtype=torch.float64))
    """
    queries = torch.arange(q_len, dtype=torch.double)
    return (queries + 0.5) * k_len / q_len - 0.5 if cross else queries + (k_len - q_len)


def distances(q_len: int, k_len: int, *, cross: bool = False) -> Float[Tensor, "q_len k_len"]:
    """|place of query i − j|, in keys.

    >>> distances(2, 3)
    tensor([[1., 0., 1.],
            [2., 1., 0.]], dtype=torch.float64)
    """
    return (places(q_len, k_len, cross=cross)[:, None] - torch.arange(k_len)).abs()


def pattern_scores(
    weights: Float[Tensor, "*batch q_len k_len"], patterns: Float[Tensor, "patterns q_len k_len"]
) -> Float[Tensor, "*batch patterns"]:
    """Σ(A·P) / ΣA: which share of the weight is where the pattern P is 1.

    The head detector of TransformerLens (Nanda & Bloom 2022), error measure "mul". With distances in place of a 0/1
    pattern it is the mean distance attended, Σ A_ij |i − j| / ΣA (Vig & Belinkov 2019).

    >>> pattern_scores(torch.tensor([[1.0, 0.0], [0.25, 0.75]]), torch.eye(2)[None])
    tensor([0.8750])
    """
    flat = weights.flatten(-2)
    total = flat.sum(-1, keepdim=True)
    return flat @ patterns.to(flat).flatten(1).T / total.clamp_min(torch.finfo(flat.dtype).tiny)


def patterns(
    query_ids: Sequence[int], key_ids: Sequence[int], *, cross: bool = False
) -> dict[str, Bool[Tensor, "q_len k_len"]]:
    """Where each pattern is 1, by its name; i is the place of the query among the keys, rounded.

    "previous", "next", "diagonal": j = i − 1, i + 1, i. "first": j = 0. "duplicate": the key is the same token as the
    query, at another place. "induction": the key stands behind an earlier token that is the query's (Olsson et al.
    2022, "In-context Learning and Induction Heads"). With `cross`, the tokens are those of two texts, which may share
    none: "duplicate" and "induction" then want no other and no earlier place, and "alignment" is the band around the
    diagonal, |place − j| ≤ max(1, k_len / 8).

    >>> found = patterns([5, 6, 5, 6], [5, 6, 5, 6])
    >>> found["induction"].int()
    tensor([[0, 0, 0, 0],
            [0, 0, 0, 0],
            [0, 1, 0, 0],
            [0, 0, 1, 0]], dtype=torch.int32)
    >>> found["duplicate"].int()[2]
    tensor([1, 0, 0, 0], dtype=torch.int32)
    """
    q_len, k_len = len(query_ids), len(key_ids)
    keys = torch.arange(k_len)
    at = places(q_len, k_len, cross=cross).round().long()[:, None]
    # as numbers of the host: ids are few, and may be larger than what a float holds
    same = torch.tensor(query_ids, dtype=torch.long)[:, None] == torch.tensor(key_ids, dtype=torch.long)
    behind = torch.zeros_like(same)
    behind[:, 1:] = same[:, :-1]
    found = {
        "previous": keys == at - 1,
        "next": keys == at + 1,
        "first": (keys == 0).expand(q_len, k_len),
        "diagonal": keys == at,
        "duplicate": same if cross else same & (keys != at),
        "induction": behind if cross else behind & (keys <= at),
    }
    if cross:
        found["alignment"] = distances(q_len, k_len, cross=True) <= max(1.0, k_len / 8)
    return found


@lru_cache(maxsize=3)  # the layers of a model share them: those of encoder, decoder and cross-attention
def _matrices(
    query_ids: tuple[int, ...], key_ids: tuple[int, ...], cross: bool, dtype: torch.dtype
) -> tuple[tuple[str, ...], Float[Tensor, "measures q_len k_len"]]:
    """The names of the patterns; the distances, and each pattern, as numbers."""
    masks = patterns(query_ids, key_ids, cross=cross)
    apart = distances(len(query_ids), len(key_ids), cross=cross)
    return tuple(masks), torch.stack([matrix.to(dtype) for matrix in (apart, *masks.values())])


def head_measures(
    weights: Float[Tensor, "heads q_len k_len"],
    query_ids: Sequence[int],
    key_ids: Sequence[int],
    *,
    cross: bool = False,
) -> dict[str, list[float]]:
    """All measures of the heads of a layer on one text: entropy, maximum, distance, and each of `patterns`.

    query_ids, key_ids: the tokens that stand at the queries and keys. With `cross` the distance is from the query's
    place among the keys, and "alignment" is there, too.

    >>> found = head_measures(torch.eye(3)[None], [4, 5, 4], [4, 5, 4])
    >>> {name: round(value, 2) for name, (value,) in found.items() if value}
    {'maximum': 1.0, 'first': 0.33, 'diagonal': 1.0}
    """
    weights = weights if weights.dtype == torch.double else weights.float()
    masks, matrices = _matrices(tuple(query_ids), tuple(key_ids), cross, weights.dtype)
    matrices = matrices.to(weights.device)
    columns = [entropy(weights), maximum(weights), *pattern_scores(weights, matrices).unbind(-1)]
    names = ("entropy", "maximum", "distance", *masks)
    return dict(zip(names, torch.stack(columns).tolist(), strict=True))
