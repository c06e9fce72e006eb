"""The interface of a model for a search (a step and a cache of rows), and its result, a hypothesis.

A batch of `n` sources is decoded on `n * rows_per_source` rows. Row `i` belongs to source `i // rows_per_source`. All
state is in the cache that `Start` returns; `Step` advances it by one token per row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from attendo.nn.cache import DecoderCache

TokenRows = Sequence[Sequence[int]]
"""The token ids of several texts, a row for each."""


class Cache(Protocol):
    """Rows in progress. A search moves rows; it never looks inside."""

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """Make row `i` continue old row `rows[i]`; both belong to the same source."""
        ...

    def keep(self, rows: Int[Tensor, " kept_rows"]) -> None:
        """Make row `i` continue old row `rows[i]`, and drop the sources that have no row any more."""
        ...


Step = Callable[[Tensor, Any], Tensor]
"""Feeds one more token to every row, `[rows, 1]`, advances the cache and returns the logits `[rows, vocab]`."""

Start = Callable[[TokenRows, int, int], Any]
"""Reads the sources and makes a cache of `len(sources) * rows_per_source` rows: from sources, rows_per_source and
capacity, the largest number of tokens that will be fed to any row."""

AttendingStep = Callable[[Tensor, Any], tuple[Tensor, Tensor]]
"""A `Step` that also returns where every row looks in its source while it predicts the next token, `[rows, src_len]`.

The weights of a row are a distribution over the positions of its source, for instance the mean over the heads of one
cross-attention. Positions of padding hold 1: there is nothing to cover. All steps of one batch have the same src_len.
"""


@dataclass(frozen=True)
class Hypothesis:
    """One decoded text.

    Attributes:
        token_ids: The tokens without the end token.
        token_log_probs: One log-probability per generated token, including the end token.
        log_prob: The sum of `token_log_probs`.
        score: `log_prob` normalized by length.
        finished: False if the text stopped before its end token, at the length limit or because no token was possible.
    """

    token_ids: tuple[int, ...]
    log_prob: float
    score: float
    token_log_probs: tuple[float, ...]
    finished: bool


def join_rows(cache: Any, other: Any) -> None:
    """Append the rows and sources of `other`, of the same model, to `cache`, by its method `join` if it has one.

    >>> memory = torch.zeros(1, 2, 5, 4)
    >>> cache, other = (
    ...     DecoderCache([(memory, memory)], None, n, 8, n_kv_heads=2, head_dim=4, value_dim=4) for n in (3, 2)
    ... )
    >>> join_rows(cache, other)
    >>> cache.rows, cache.row_sources
    (5, [0, 0, 0, 1, 1])
    """
    if not isinstance(cache, DecoderCache):
        cache.join(other)
        return
    if not cache.rows:
        vars(cache).update(vars(other))
        return
    src_len = max(cache.src_len, other.src_len)
    capacity = max(cache.capacity, other.capacity)
    n_sources = cache.blocks[0].memory_key.shape[0]
    padded = cache.memory_lengths is not None or other.memory_lengths is not None
    if padded or cache.src_len != other.src_len:
        cache.memory_lengths = torch.cat([_memory_lengths(cache), _memory_lengths(other)])
    for mine, theirs in zip(cache.blocks, other.blocks, strict=True):
        mine.key = _cat(mine.key, theirs.key, capacity)
        mine.value = _cat(mine.value, theirs.value, capacity)
        mine.memory_key = _cat(mine.memory_key, theirs.memory_key, src_len)
        mine.memory_value = _cat(mine.memory_value, theirs.memory_value, src_len)
    cache.src_len = src_len
    cache.lengths = torch.cat([cache.lengths, other.lengths])
    cache.row_lengths = cache.row_lengths + other.row_lengths
    cache.row_sources = cache.row_sources + [source + n_sources for source in other.row_sources]
    cache.look_at_rows()


def _memory_lengths(cache: DecoderCache) -> Int[Tensor, " sources"]:
    if cache.memory_lengths is not None:
        return cache.memory_lengths
    n_sources = cache.blocks[0].memory_key.shape[0]
    return torch.full((n_sources,), cache.src_len, device=cache.lengths.device)


def _cat(mine: Tensor, theirs: Tensor, length: int) -> Tensor:
    """Both tensors concatenated, with the shorter one zero-padded at the end."""
    return torch.cat([F.pad(x, (0, 0, 0, length - x.shape[2])) for x in (mine, theirs)])
