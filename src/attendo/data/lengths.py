"""How long the rows of a store are, computed from where each begins when asked for: nothing is held per row."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Offsets = NDArray[np.int64]

_PIECE = 1 << 18  # rows looked at together
_BLOCK = 1 << 10  # documents that share one count


class RowLengths:
    """Tokens of rows that stand one after the other: those at `rows`, an array or a slice, as int32.

    offsets: where each row begins, and the end of the last, [rows + 1], perhaps in a file. most: none counts longer.

    >>> lengths = RowLengths(np.array([0, 3, 3, 10]))
    >>> lengths[:], lengths[np.array([2, 0])], lengths.sum(), lengths.capped(5).sum()
    (array([3, 0, 7], dtype=int32), array([7, 3], dtype=int32), 10, 8)
    """

    def __init__(self, offsets: Offsets, most: int | None = None) -> None:
        self._offsets = offsets
        self._most = most

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, rows: slice | NDArray[np.integer]) -> NDArray[np.int32]:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            assert step == 1, "a slice of lengths has no step"
            found = np.diff(self._offsets[start : max(start, stop) + 1])
        else:
            found = self._offsets[rows + 1] - self._offsets[rows]
        return (found if self._most is None else np.minimum(found, self._most)).astype(np.int32)

    def pieces(self) -> Iterator[NDArray[np.int32]]:
        """All lengths, a bounded number at a time."""
        for start in range(0, len(self), _PIECE):
            yield self[start : start + _PIECE]

    def sum(self) -> int:
        """Tokens of all rows."""
        if self._most is None:
            return int(self._offsets[-1] - self._offsets[0])
        return sum(int(piece.sum(dtype=np.int64)) for piece in self.pieces())

    def capped(self, most: int) -> "RowLengths":
        """The same rows, none of which counts longer than `most`."""
        return RowLengths(self._offsets, most)


class Stretches:
    """Documents that stand one after the other, cut into stretches of at most `most` tokens; as lengths, theirs.

    A document of more is cut into as few as hold it, of equal length up to one token; an empty one gives none. offsets:
    where each document begins, and the end of the last, [documents + 1], perhaps in a file. One number is held for
    each 1,024 documents.

    >>> stretches = Stretches(np.array([0, 3, 3, 10]), 4)
    >>> stretches.edges(np.arange(len(stretches))), stretches[:]
    ((array([0, 3, 6]), array([ 3,  6, 10])), array([3, 3, 4]))
    """

    def __init__(self, offsets: Offsets, most: int) -> None:
        self._offsets = offsets
        self._most = most
        counts = [int(self._counts(block)[1].sum()) for block in range(-(-(len(offsets) - 1) // _BLOCK))]
        self._before = np.cumsum([0, *counts])

    def __len__(self) -> int:
        return int(self._before[-1])

    def __getitem__(self, rows: slice | NDArray[np.integer]) -> Numbers:
        wanted = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        starts, ends = self.edges(wanted)
        return ends - starts

    def sum(self) -> int:
        """Tokens of all stretches."""
        return int(self._offsets[-1] - self._offsets[0])

    def edges(self, rows: NDArray[np.integer]) -> tuple[Numbers, Numbers]:
        """Where these stretches begin and end among the tokens."""
        starts, ends = np.empty((2, len(rows)), np.int64)
        if not len(rows):
            return starts, ends
        blocks = np.searchsorted(self._before, rows, side="right") - 1
        order = np.argsort(blocks, kind="stable")
        found, firsts = np.unique(blocks[order], return_index=True)
        for block, places in zip(found.tolist(), np.split(order, firsts[1:]), strict=True):
            bounds, at = self._bounds(block), rows[places] - self._before[block]
            starts[places], ends[places] = bounds[at], bounds[at + 1]
        return starts, ends

    def _counts(self, block: int) -> tuple[Offsets, NDArray[Any]]:
        """Where a block's documents begin, with the end of the last, and how many stretches each has."""
        offsets = self._offsets[block * _BLOCK : (block + 1) * _BLOCK + 1]
        return offsets, -(-np.diff(offsets) // self._most)

    def _bounds(self, block: int) -> Numbers:
        """Where a block's stretches begin, and the end of the last: there is nothing between two of them."""
        offsets, counts = self._counts(block)
        document = np.repeat(np.arange(len(counts)), counts)
        piece = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = offsets[document] + piece * np.diff(offsets)[document] // counts[document]
        return np.append(starts, offsets[-1])
