"""Which rows go together in an epoch over more of them than should be sorted at once, computed when asked for.

The rows are divided into contiguous shards, which come in an order drawn from (seed, epoch); a few of them at a time
are shuffled together and cut into batches. So a batch mixes rows from places far apart, memory holds one such group,
and a file is read in stretches. All is a pure function of the seeds: a run is resumed by its position, and what
is before it is counted, not collated.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Cut = Callable[[Rows, np.random.Generator], Sequence[Rows]]
"""Divides rows, given in ascending order, into batches in a random order."""


@dataclass(frozen=True)
class Grouping:
    """Up to `at_once` rows are shuffled all together; of more, some `shards` shards of `shard` rows at a time."""

    at_once: int = 1 << 22
    shard: int = 1 << 15
    shards: int = 16


GROUPING = Grouping()


class _Groups:
    """The groups of an epoch, each made when it is asked for; the last one is kept, and all their batches' sizes."""

    def __init__(self, n_rows: int, seeds: tuple[int, ...], cut: Cut, grouping: Grouping) -> None:
        self._n_rows, self._seeds, self._cut, self._shard = n_rows, seeds, cut, grouping.shard
        n_shards = -(-n_rows // grouping.shard)
        order = np.random.default_rng(seeds).permutation(n_shards)
        self._shards = np.array_split(order, max(1, n_shards // grouping.shards))
        self._last: tuple[int, Sequence[Rows]] = -1, ()
        self._sizes: list[NDArray[np.int32]] = []
        self._ends: list[int] = []  # batches up to the end of each group counted so far
        self._counting = threading.Lock()  # a thread that loads ahead counts too

    def __len__(self) -> int:
        return len(self._shards)

    def group(self, number: int) -> Sequence[Rows]:
        """The batches of one group."""
        last, batches = self._last
        if last != number:
            shard = self._shard
            parts = [
                np.arange(i * shard, min((i + 1) * shard, self._n_rows)) for i in sorted(self._shards[number])
            ]
            # one number more than for the order of the shards, which keeps the two apart
            random = np.random.default_rng((*self._seeds, len(self._seeds), number))
            batches = self._cut(np.concatenate(parts), random)
            self._last = number, batches
        return batches

    def find(self, place: int) -> tuple[int, int]:
        """In which group the batch of this number is, and where in it; one past the last group if there is none."""
        number = 0
        while number < len(self) and self._counted(number) <= place:
            number += 1
        return number, place - (self._ends[number - 1] if number else 0)

    def sizes(self) -> NDArray[np.int32]:
        """Rows of every batch."""
        for number in range(len(self)):
            self._counted(number)
        return np.concatenate(self._sizes)

    def total(self) -> int:
        """Batches of all groups."""
        return self._counted(len(self) - 1)

    def _counted(self, number: int) -> int:
        with self._counting:
            while len(self._ends) <= number:
                sizes = np.array([len(rows) for rows in self.group(len(self._ends))], np.int32)
                self._sizes.append(sizes)
                self._ends.append((self._ends[-1] if self._ends else 0) + len(sizes))
        return self._ends[number]


class EpochRows(Sequence[Rows]):
    """The row numbers of each batch of an epoch; a slice is the same for a part of them.

    Every row is in one batch. To begin somewhere, the groups before are made and counted; so are all of them for the
    length, once.
    """

    def __init__(self, groups: _Groups, start: int = 0, stop: int | None = None) -> None:
        """Use `EpochRows.of`."""
        self._groups, self._start, self._stop = groups, start, stop

    @classmethod
    def of(cls, n_rows: int, seeds: tuple[int, ...], cut: Cut, grouping: Grouping = GROUPING) -> "EpochRows":
        """All batches of an epoch of n_rows rows; seeds: what its random numbers are drawn from."""
        return cls(_Groups(n_rows, seeds, cut, grouping))

    def __len__(self) -> int:
        total = self._groups.total()
        stop = total if self._stop is None else min(self._stop, total)
        return max(0, stop - self._start)

    def __iter__(self) -> Iterator[Rows]:
        number, place = self._groups.find(self._start)
        left = None if self._stop is None else max(0, self._stop - self._start)
        for group in range(number, len(self._groups)):
            batches = self._groups.group(group)
            yield from batches[place:] if left is None else batches[place : place + left]
            if left is not None:
                left -= max(0, min(left, len(batches) - place))
                if not left:
                    return
            place = 0

    @overload
    def __getitem__(self, index: int) -> Rows: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Rows]: ...

    def __getitem__(self, index: int | slice) -> "Rows | Sequence[Rows]":
        if isinstance(index, slice):
            return self._part(index)
        place = index + len(self) if index < 0 else index
        if place < 0 or (self._stop is not None and self._start + place >= self._stop):
            raise IndexError(f"no batch {index}")
        number, at = self._groups.find(self._start + place)
        if number == len(self._groups):
            raise IndexError(f"no batch {index}")
        return self._groups.group(number)[at]

    def sizes(self) -> NDArray[np.int32]:
        """Rows of each batch."""
        return self._groups.sizes()[self._start : self._stop]

    def _part(self, index: slice) -> "Sequence[Rows]":
        if index.step in (None, 1) and index.stop is None and (index.start or 0) >= 0:
            return EpochRows(self._groups, self._start + (index.start or 0), self._stop)  # nothing is counted
        start, stop, step = index.indices(len(self))
        if step != 1:
            return [self[i] for i in range(start, stop, step)]
        return EpochRows(self._groups, self._start + start, self._start + max(start, stop))
