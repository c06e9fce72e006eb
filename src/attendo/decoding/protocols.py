"""The functions and the cache by which a search runs a model, and the hypothesis that a search returns.

A batch of `n` sources is decoded on `n * rows_per_source` rows. Row `i` belongs to source `i // rows_per_source`. The
cache that `Start` returns contains the state of all rows. `Step` advances the cache by one token per row.
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
"""The token ids of several texts, one sequence per text."""


class Cache(Protocol):
    """The decoder state of all rows. A search reorders and drops rows, and does not read their contents."""

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """Reorder the rows: new row `i` continues old row `rows[i]` of the same source."""
        ...

    def keep(self, rows: Int[Tensor, " kept_rows"]) -> None:
        """Select rows: new row `i` continues old row `rows[i]`. Sources that have no row left are dropped."""
        ...


Step = Callable[[Tensor, Any], Tensor]
"""A function that feeds one token to each row (`[rows, 1]`), advances the cache, and returns logits `[rows, vocab]`."""

Start = Callable[[TokenRows, int, int], Any]
"""A function that reads sources and returns a cache of `len(sources) * rows_per_source` rows.

Its arguments are the sources, `rows_per_source`, and the largest number of tokens that will be fed to a row."""

AttendingStep = Callable[[Tensor, Any], tuple[Tensor, Tensor]]
"""A `Step` that also returns the attention weights of the predicted tokens over their sources, `[rows, src_len]`.

The weights of a row are a distribution over the positions of its source, for example the mean over the heads of one
cross-attention. The weight of padding positions is 1, so the coverage penalty ignores padding. `src_len` is equal in
all steps of a batch.
"""


@dataclass(frozen=True)
class Hypothesis:
    """A decoded text with its log-probabilities and its score.

    Attributes:
        token_ids: Token ids of the text, without the end token.
        token_log_probs: Log-probability of each generated token in nats, including the end token.
        log_prob: Sum of `token_log_probs`.
        score: `log_prob` divided by the length normalization, plus the coverage penalty of the text.
        finished: Whether the text ends with the end token (False: length limit reached, or no token possible).
    """

    token_ids: tuple[int, ...]
    log_prob: float
    score: float
    token_log_probs: tuple[float, ...]
    finished: bool


def join_rows(cache: Any, other: Any) -> None:
    """Append the rows and sources of the cache `other` to `cache`. Both caches must be of the same model.

    A cache that is not a `DecoderCache` is extended by its own method `join`.

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
    """Concatenate two tensors of rows, with dimension 2 zero-padded at its end to `length`."""
    return torch.cat([F.pad(x, (0, 0, 0, length - x.shape[2])) for x in (mine, theirs)])
