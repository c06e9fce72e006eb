"""A cache of the keys and values of finished texts, whose beginnings later texts do not read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor

from attendo.decoding.native.compiled import SlotKVCache

MOST_BYTES = 2**28
"""The default memory limit of a `PrefixCache`: 256 MiB."""


def row_state(cache: Any, row: int, n: int) -> list[Tensor]:
    """Return the keys and values of the first `n` positions of a row, with the positions in dimension 1.

    They are a copy if the cache has further rows. The only row of a cache is not copied, so it must not be continued.
    """
    if isinstance(cache, SlotKVCache):
        is_alone = cache.cache.shape[1] == 1  # otherwise, the memory of other slots would stay allocated
        return [cache.cache[:, 0, :n] if is_alone else cache.past(row, n)]
    parts = [part[row, :, :n] for block in cache.blocks for part in (block.key, block.value)]
    return parts if cache.rows == 1 else [part.clone() for part in parts]


def fill_row(cache: Any, row: int, state: Sequence[Tensor], n: int) -> None:
    """Copy the first `n` positions of the result of `row_state` into an empty row. Call `cache.advance(n)` afterwards.

    The cache must be of the same model.
    """
    if isinstance(cache, SlotKVCache):
        cache.cache[:, int(cache.own[row]), :n] = state[0][:, :n]
        cache.slots[row, :n] = cache.own[row]
        return
    parts = [part for block in cache.blocks for part in (block.key, block.value)]
    for part, past in zip(parts, state, strict=True):
        part[row, :, :n] = past[:, :n]


@dataclass(frozen=True)
class _Known:
    ids: Int[np.ndarray, " positions"]
    state: list[Tensor]

    @property
    def bytes(self) -> int:
        return sum(part.untyped_storage().nbytes() for part in self.state)


class PrefixCache:
    """The keys and values of texts by their token ids. The least recently used texts are dropped first.

    `most_bytes` limits the memory for the keys and values of all texts. With 0, nothing is stored.

    >>> import torch
    >>> prefixes = PrefixCache()
    >>> prefixes.add([2, 5, 6], [torch.zeros(1, 3, 8)])
    >>> prefixes.find([2, 5, 7, 8])[0], prefixes.find([3])[0], prefixes.bytes
    (2, 0, 96)
    >>> prefixes.add([2, 5, 6, 9], [torch.zeros(1, 4, 8)])  # replaces its own beginning
    >>> len(prefixes)
    1
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._known: list[_Known] = []  # in the order of their last use

    def __len__(self) -> int:
        return len(self._known)

    @property
    def bytes(self) -> int:
        """The memory of all stored keys and values in bytes."""
        return sum(known.bytes for known in self._known)

    def find(self, ids: Sequence[int]) -> tuple[int, list[Tensor]]:
        """Return the length of the longest prefix that a stored text shares, and the whole `row_state` of this text."""
        wanted = np.asarray(ids, dtype=np.int64)
        shared = [(_n_shared(known.ids, wanted), known) for known in self._known]
        n, best = max(shared, key=lambda pair: pair[0], default=(0, None))
        if best is None or n == 0:
            return 0, []
        self._known = [*(known for known in self._known if known is not best), best]
        return n, best.state

    def add(self, ids: Sequence[int], state: list[Tensor]) -> None:
        """Store a text, unless a stored text begins with it. Stored texts that are its beginnings are dropped.

        `state` is the `row_state` of the text, which is not copied.
        """
        new = _Known(np.asarray(ids, dtype=np.int64), state)
        shared = [_n_shared(known.ids, new.ids) for known in self._known]
        if new.bytes > self.most_bytes or len(new.ids) in (0, *shared):
            return
        kept = [known for known, n in zip(self._known, shared, strict=True) if n < len(known.ids)] + [new]
        while sum(known.bytes for known in kept) > self.most_bytes:
            del kept[0]
        self._known = kept


def _n_shared(one: Int[np.ndarray, " n"], other: Int[np.ndarray, " m"]) -> int:
    n = min(len(one), len(other))
    different = np.flatnonzero(one[:n] != other[:n])
    return int(different[0]) if len(different) else n
