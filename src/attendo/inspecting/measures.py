"""Measures of attention weights: entropy, distance, patterns, rollout through all layers, and word links."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attendo.errors import AttendoError

AT_HAND = 2**18
"""The number of weights per block, which is small enough for the cache of a CPU."""


def entropy(weights: Float[Tensor, "*batch q_len k_len"]) -> Float[Tensor, "*batch"]:
    """Return the entropy −Σ_j A_ij ln A_ij of attention weights, averaged over queries i, in nats.

    The entropy is 0 if all weight is on one key, and ln k_len if all weights are equal (Vig & Belinkov 2019).

    Args:
        weights: The attention weights, whose rows sum to 1.

    >>> entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))  # (0 + ln 2) / 2
    tensor(0.3466)
    """
    # clamping keeps 0 ln 0 = 0 finite; blocks of matrices are processed one after another, inside the CPU cache
    tiny = torch.finfo(weights.dtype).tiny
    flat = weights.flatten(0, -3) if weights.dim() > 2 else weights[None]
    parts = flat.split(max(1, AT_HAND // max(1, flat.shape[1] * flat.shape[2])))
    rows = [torch.linalg.vecdot(part, part.clamp_min(tiny).log_()).mean(-1) for part in parts]
    return -torch.cat(rows).view(weights.shape[:-2])


def sinks(weights: Float[Tensor, "heads q_len k_len"], *, causal: bool = False) -> list[tuple[int, float]]:
    """Return for each head the key with the largest mean weight over the queries, and this mean weight.

    With `causal`, the first of several queries is ignored, because it has only one key. A key with a large weight is an
    attention sink (Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks").

    >>> sinks(torch.tensor([[[1.0, 0.0], [0.25, 0.75]]]), causal=True)
    [(1, 0.75)]
    """
    counted = weights[:, 1:] if causal and weights.shape[1] > 1 else weights
    shares, keys = counted.float().mean(1).max(-1)
    return list(zip(keys.tolist(), shares.tolist(), strict=True))


def places(q_len: int, k_len: int, *, cross: bool = False) -> Float[Tensor, " q_len"]:
    """Return the position of each query among the keys.

    In self-attention, the queries are at the last key positions, as in decoding with a cache. With `cross`, the
    position is scaled: (i + ½) · k_len / q_len − ½.

    >>> places(2, 4), places(2, 4, cross=True)
    (tensor([2., 3.], dtype=torch.float64), tensor([0.5000, 2.5000], dtype=torch.float64))
    """
    queries = torch.arange(q_len, dtype=torch.double)
    return (queries + 0.5) * k_len / q_len - 0.5 if cross else queries + (k_len - q_len)


def distances(q_len: int, k_len: int, *, cross: bool = False) -> Float[Tensor, "q_len k_len"]:
    """Return the distance |position of query i − j| between each query and each key, in keys.

    >>> distances(2, 3)
    tensor([[1., 0., 1.],
            [2., 1., 0.]], dtype=torch.float64)
    """
    return (places(q_len, k_len, cross=cross)[:, None] - torch.arange(k_len)).abs()


def pattern_scores(
    weights: Float[Tensor, "*batch q_len k_len"], patterns: Float[Tensor, "patterns q_len k_len"]
) -> Float[Tensor, "*batch patterns"]:
    """Return Σ(A·P) / ΣA, the share of the attention weights A at the places where the pattern P is 1.

    This score is the error measure "mul" of the head detector in TransformerLens (Nanda & Bloom 2022). If P contains
    distances, the result is the mean attended distance (Vig & Belinkov 2019).

    >>> pattern_scores(torch.tensor([[1.0, 0.0], [0.25, 0.75]]), torch.eye(2)[None])
    tensor([0.8750])
    """
    flat = weights.flatten(-2)
    total = flat.sum(-1, keepdim=True)
    return flat @ patterns.to(flat).flatten(1).T / total.clamp_min(torch.finfo(flat.dtype).tiny)


def patterns(
    query_ids: Sequence[int], key_ids: Sequence[int], *, cross: bool = False
) -> dict[str, Bool[Tensor, "q_len k_len"]]:
    """Return a boolean matrix for each named attention pattern, in which each query marks its keys.

    For a query at position i, the patterns "previous", "diagonal" and "next" are the keys at j = i − 1, i and i + 1.
    The pattern "first" is the key at j = 0. The pattern "duplicate" is every other key with the query's token. The
    pattern "induction" is the key after an earlier occurrence of the query's token (Olsson et al. 2022, "In-context
    Learning and Induction Heads").

    Args:
        query_ids: The token ids of the queries.
        key_ids: The token ids of the keys.
        cross: Whether queries and keys are from different texts. For different texts, i is scaled to the number of
            keys. For different texts, the patterns "duplicate" and "induction" also accept the same and later
            positions. The result also contains the pattern "alignment", which is the band |j − i| ≤ max(1, k_len / 8).

    Returns:
        The boolean matrices `[q_len, k_len]` by name.

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
    # computed as integers on the CPU: ids may be larger than a float can represent
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


@lru_cache(maxsize=3)  # shared by all layers; 3 entries: encoder, decoder, cross
def _matrices(
    query_ids: tuple[int, ...], key_ids: tuple[int, ...], cross: bool, dtype: torch.dtype
) -> tuple[tuple[str, ...], Float[Tensor, "measures q_len k_len"]]:
    """Return the names of the patterns, and the matrix of distances and all pattern matrices as numbers."""
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
    """Return all measures of a layer's heads on one text: entropy, maximum, distance, and a score per pattern.

    Args:
        weights: The attention weights of the layer.
        query_ids: The token ids of the queries.
        key_ids: The token ids of the keys.
        cross: Whether queries and keys are from different texts. For different texts, distances are measured from the
            query position scaled to the number of keys, and the result also contains the measure "alignment".

    >>> found = head_measures(torch.eye(3)[None], [4, 5, 4], [4, 5, 4])
    >>> {name: round(value, 2) for name, (value,) in found.items() if value}
    {'maximum': 1.0, 'first': 0.33, 'diagonal': 1.0}
    """
    weights = weights if weights.dtype == torch.double else weights.float()
    masks, matrices = _matrices(tuple(query_ids), tuple(key_ids), cross, weights.dtype)
    matrices = matrices.to(weights.device)
    largest = weights.amax(-1).mean(-1)  # the confidence of a head (Voita et al. 2019)
    columns = [entropy(weights), largest, *pattern_scores(weights, matrices).unbind(-1)]
    names = ("entropy", "maximum", "distance", *masks)
    return dict(zip(names, torch.stack(columns).tolist(), strict=True))


def with_residual(weights: Float[Tensor, "*batch heads len len"]) -> Float[Tensor, "*batch len len"]:
    """Return ½(A + I) for mean weights A over heads and the residual connection I (Abnar & Zuidema 2020, section 3).

    >>> with_residual(torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]))
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    mean = weights.mean(-3)
    return 0.5 * (mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device))


def rollout(layers: Sequence[Float[Tensor, "*batch heads len len"]]) -> Float[Tensor, "*batch len len"]:
    """Approximate the share of each input in each output as Ã_L · … · Ã_1 (Abnar & Zuidema 2020, equation 1).

    Args:
        layers: The self-attention weights of each layer, first layer first.

    Returns:
        The shares `[*batch, len, len]`, whose rows sum to 1.

    >>> rollout([torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])] * 2)
    tensor([[1.0000, 0.0000],
            [0.7500, 0.2500]])
    """
    found = with_residual(layers[0])
    for weights in layers[1:]:
        found = with_residual(weights) @ found
    return found


def cross_rollout(
    self_layers: Sequence[Float[Tensor, "*batch heads tgt_len tgt_len"]],
    cross_layers: Sequence[Float[Tensor, "*batch heads tgt_len src_len"]],
    memory: Float[Tensor, "*batch src_len src_len"],
) -> tuple[Float[Tensor, "*batch tgt_len src_len"], Float[Tensor, "*batch tgt_len tgt_len"]]:
    """Approximate the shares of the source inputs and of the target inputs in each decoder output.

    The rule of `rollout` is applied to each sub-layer in turn. Self-attention mixes positions: S ← ÃS and T ← ÃT. In
    cross-attention, half of the output comes from the memory: S ← ½(S + C·memory) and T ← ½T, where C is the mean of
    the cross-attention weights over heads.

    Args:
        self_layers: The self-attention weights of each layer, first layer first.
        cross_layers: The cross-attention weights of each layer, first layer first.
        memory: The `rollout` of the encoder.

    Returns:
        The source shares S and the target shares T. In each row, the shares of S and T together sum to 1.

    >>> half = torch.full((1, 1, 2), 0.5)
    >>> cross_rollout([torch.ones(1, 1, 1)], [half], torch.eye(2))
    (tensor([[0.2500, 0.2500]]), tensor([[0.5000]]))
    """
    tgt_len = self_layers[0].shape[-1]
    source = torch.zeros_like(cross_layers[0].mean(-3))
    target = torch.eye(tgt_len, dtype=source.dtype, device=source.device)
    for own, cross in zip(self_layers, cross_layers, strict=True):
        mixing = with_residual(own)
        source = 0.5 * (mixing @ source + cross.mean(-3) @ memory)
        target = 0.5 * (mixing @ target)
    return source, target


Pair = tuple[int, int]
"""The numbers of a source word and of a target word, counted from 0."""

Span = tuple[int, int]

_LINK = re.compile(r"([0-9]+)([-?p])([0-9]+)")


@dataclass(frozen=True)
class GivenLinks:
    """Manual alignments of a sentence pair: the sure links, and the possible links, which include the sure links."""

    sure: frozenset[Pair]
    possible: frozenset[Pair]


def parse_links(lines: Iterable[str], name: str, lengths: Sequence[tuple[int, int]] | None = None) -> list[GivenLinks]:
    """Parse word alignments in Pharaoh format, with one sentence pair per line, for example `0-0 1-2 2?3`.

    A `?` or `p` marks a possible link. An empty line has no links.

    Args:
        lines: The lines of the file.
        name: The file name in error messages.
        lengths: The numbers of source and target words of each pair, which limit the word numbers (default: no limit).

    Returns:
        The sure and the possible links of each pair.

    Raises:
        AttendoError: A line is malformed, a word number is too large, or the numbers of lines and pairs differ.

    >>> given = parse_links(["0-0 1?2"], "gold")[0]
    >>> sorted(given.sure), sorted(given.possible)
    ([(0, 0)], [(0, 0), (1, 2)])
    >>> parse_links(["0-0", "1:1"], "gold")
    Traceback (most recent call last):
    attendo.errors.AttendoError: gold, line 2: '1:1' is not a link (expected 0-0 if sure, 0?0 if possible)
    """
    found = []
    for number, line in enumerate(lines, 1):
        where = f"{name}, line {number}"
        if lengths is not None and number > len(lengths):
            raise AttendoError(f"{where}: there are only {len(lengths):,} pairs of texts (expected one line per pair)")
        found.append(_parsed(line, where, None if lengths is None else lengths[number - 1]))
    if lengths is not None and len(found) < len(lengths):
        raise AttendoError(
            f"{name} has {len(found):,} lines for {len(lengths):,} pairs of texts (expected one line per pair)"
        )
    return found


def _parsed(line: str, where: str, lengths: tuple[int, int] | None) -> GivenLinks:
    sure, possible = set(), set()
    for word in line.split():
        match = _LINK.fullmatch(word)
        if match is None:
            raise AttendoError(f"{where}: {word[:40]!r} is not a link (expected 0-0 if sure, 0?0 if possible)")
        pair = int(match[1]), int(match[3])
        if lengths is not None and not (pair[0] < lengths[0] and pair[1] < lengths[1]):
            raise AttendoError(
                f"{where}: {word[:40]!r} is outside the {lengths[0]} and {lengths[1]} words (counted from 0)"
            )
        possible.add(pair)
        if match[2] == "-":
            sure.add(pair)
    return GivenLinks(frozenset(sure), frozenset(possible))


def alignment_error_rate(found: Sequence[Iterable[Pair]], given: Sequence[GivenLinks]) -> float:
    """Return AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), with the counts summed over all sentence pairs.

    See Och & Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models".

    Args:
        found: The predicted links A of each pair.
        given: The sure links S and possible links P of each pair.

    Returns:
        The alignment error rate. The best value is 0. Without any links, the error rate is also 0.

    Raises:
        AttendoError: The numbers of pairs differ.

    >>> alignment_error_rate([{(0, 0), (1, 2), (5, 5)}], parse_links(["0-0 1?2"], "gold"))  # 1 - (1 + 2) / (3 + 1)
    0.25
    """
    if len(found) != len(given):
        raise AttendoError(f"{len(found):,} alignments computed but {len(given):,} given (expected equal numbers)")
    hits = total = 0
    for pairs, links in zip(found, given, strict=True):
        own = frozenset(pairs)
        hits += len(own & links.sure) + len(own & links.possible)
        total += len(own) + len(links.sure)
    return 1.0 - hits / total if total else 0.0


def word_links(links: Iterable[tuple[Span, Span]], source: str, target: str) -> frozenset[Pair]:
    """Derive the links between words from links between tokens. Words are separated by white space.

    Args:
        links: The linked tokens, as pairs of character spans (start, end) in the source text and in the target text.
        source: The source text.
        target: The target text.

    Returns:
        The linked words, as pairs of word numbers. If a token spans several words, all these words are linked.

    >>> sorted(word_links([((0, 2), (0, 3)), ((3, 5), (4, 5)), ((3, 5), (5, 7))], "es regnet", "it rains"))
    [(0, 0), (1, 1)]
    """
    of_source, of_target = _words_at(source), _words_at(target)
    return frozenset(
        (i, j)
        for (source_start, source_end), (target_start, target_end) in links
        for i in set(of_source[source_start:source_end])
        for j in set(of_target[target_start:target_end])
        if i >= 0 and j >= 0
    )


def _words_at(text: str) -> list[int]:
    """Return the number of the word at each character, and −1 at white space."""
    found = [-1] * len(text)
    for number, word in enumerate(re.finditer(r"\S+", text)):
        found[word.start() : word.end()] = [number] * len(word[0])
    return found
