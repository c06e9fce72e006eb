"""Batches under a token budget: the rows of each batch in an epoch, and their tensors.

The list of batches is a pure function of the lengths, the budget, the seed and the epoch, so a position in the list is
enough to resume a run. If there are too many rows to sort at once, contiguous shards are ordered by (seed, epoch), and
a few at a time are shuffled together and cut into batches. Batches then mix distant rows, memory holds one such group,
and files are read in contiguous parts.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, islice
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attendo.data.store import PairStore, RowLengths, StoreFacts, Stretches
from attendo.data.tokenizers import OWN, SpecialTokens

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
    """The groups of an epoch, computed on access; the last one is cached, with the batch sizes of all."""

    def __init__(self, n_rows: int, seeds: tuple[int, ...], cut: Cut, grouping: Grouping) -> None:
        self._n_rows = n_rows
        self._seeds = seeds
        self._cut = cut
        self._shard = grouping.shard
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
        """The group of a batch and its index there; one past the last group if there is none."""
        number = 0
        while number < len(self) and self._counted(number) <= place:
            number += 1
        return number, place - (self._ends[number - 1] if number else 0)

    def sizes(self) -> NDArray[np.int32]:
        for number in range(len(self)):
            self._counted(number)
        return np.concatenate(self._sizes)

    def total(self) -> int:
        return self._counted(len(self) - 1)

    def _counted(self, number: int) -> int:
        with self._counting:
            while len(self._ends) <= number:
                sizes = np.array([len(rows) for rows in self.group(len(self._ends))], np.int32)
                self._sizes.append(sizes)
                self._ends.append((self._ends[-1] if self._ends else 0) + len(sizes))
        return self._ends[number]


class EpochRows(Sequence[Rows]):
    """The row numbers of each batch of an epoch; a slice is a part of the epoch.

    To start in the middle, or for the length, all earlier groups are generated and counted.
    """

    def __init__(self, groups: _Groups, start: int = 0, stop: int | None = None) -> None:
        self._groups = groups
        self._start = start
        self._stop = stop

    @classmethod
    def of(cls, n_rows: int, seeds: tuple[int, ...], cut: Cut, grouping: Grouping = GROUPING) -> "EpochRows":
        """All batches of an epoch of n_rows rows; `seeds` seed its random numbers."""
        return cls(_Groups(n_rows, seeds, cut, grouping))

    def __len__(self) -> int:
        total = self._groups.total()
        stop = total if self._stop is None else min(self._stop, total)
        return max(0, stop - self._start)

    def __iter__(self) -> Iterator[Rows]:
        number, place = self._groups.find(self._start)
        end = None if self._stop is None else place + max(0, self._stop - self._start)
        groups = map(self._groups.group, range(number, len(self._groups)))
        yield from islice(chain.from_iterable(groups), place, end)

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
        return self._groups.sizes()[self._start : self._stop]

    def _part(self, index: slice) -> "Sequence[Rows]":
        if index.step in (None, 1) and index.stop is None and (index.start or 0) >= 0:
            return EpochRows(self._groups, self._start + (index.start or 0), self._stop)  # nothing is counted
        start, stop, step = index.indices(len(self))
        if step != 1:
            return [self[i] for i in range(start, stop, step)]
        return EpochRows(self._groups, self._start + start, self._start + max(start, stop))


Lengths = NDArray[np.integer] | RowLengths | Stretches

_WIDTHS = (1, 2, 4)  # how many source lengths share a bucket; wide ones are for few rows and large batches
_GOOD_SHARE = 0.025  # of padding: no other width is tried
_TOGETHER = 1 << 8  # batches whose padding is counted together


@dataclass(frozen=True)
class Batch:
    """The input of one training step.

    Attributes:
        inputs: The arguments of the model's `forward`.
        targets: The ids to predict `[batch, tgt_len]`; pad_id where there is no target.
        n_targets: The number of targets.
        ids: The row numbers `[batch]`.
        weights: The weight of each target in the loss (default: 1).
        n_tokens: The number of tokens read, for the displayed speed, if it differs from the targets.
    """

    inputs: dict[str, Tensor]
    targets: Tensor
    n_targets: int
    ids: Rows
    pad_id: int = 0
    weights: Tensor | None = None
    n_tokens: int | None = None

    def part(self, rows: slice) -> "Batch":
        """Return some rows of the batch with unchanged padding; only targets are counted again.

        Args:
            rows: The rows.
        """
        targets = self.targets[rows]
        all_real = self.n_targets == self.targets.numel()
        return replace(
            self,
            inputs={name: tensor[rows] for name, tensor in self.inputs.items()},
            targets=targets,
            n_targets=targets.numel() if all_real else int((targets != self.pad_id).sum()),
            ids=self.ids[rows],
            weights=None if self.weights is None else self.weights[rows],
            n_tokens=None,
        )

    def share(self, rank: int, world: int) -> tuple["Batch", float]:
        """Return the rows of one process and their weight: 1, or 0 for a process without rows, which gets another's.

        Args:
            rank: The number of the process.
            world: The number of processes.
        """
        if world == 1:
            return self, 1.0
        if rank < len(self.ids):
            return self.part(slice(rank, None, world)), 1.0
        return self.part(slice(0, 1)), 0.0

    def pinned(self) -> "Batch":
        """Return the batch in pinned memory, from which a GPU can copy while it computes."""
        return self._with_each(Tensor.pin_memory)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device; the batch itself if it is already there.

        Args:
            device: The device.
        """
        if self.targets.device == device:
            return self
        return self._with_each(lambda tensor: tensor.to(device, non_blocking=True))

    def _with_each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with a function applied to each tensor."""
        return replace(
            self,
            inputs={name: change(tensor) for name, tensor in self.inputs.items()},
            targets=change(self.targets),
            weights=None if self.weights is None else change(self.weights),
        )


@dataclass(frozen=True, eq=False)
class EpochBatches(Sequence[Batch]):
    """The batches of an epoch, collated on access from the row numbers of each; a slice is a part of the epoch."""

    rows: Sequence[Rows]
    collate: Callable[[Rows], Batch]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Batch: ...

    @overload
    def __getitem__(self, index: slice) -> "EpochBatches": ...

    def __getitem__(self, index: int | slice) -> "Batch | EpochBatches":
        if isinstance(index, slice):
            return EpochBatches(self.rows[index], self.collate)
        return self.collate(self.rows[index])

    @property
    def sizes(self) -> NDArray[np.integer]:
        """Rows of each batch, none of which is collated."""
        if isinstance(self.rows, EpochRows):
            return self.rows.sizes()
        return np.array([len(rows) for rows in self.rows], np.int64)

    def __iter__(self) -> Iterator[Batch]:  # Sequence's own would take an IndexError of collate for the end
        return map(self.collate, self.rows)


class TokenDataset(ABC):
    """The training rows of a run as token ids: pairs, texts or windows."""

    @property
    @abstractmethod
    def facts(self) -> StoreFacts:
        """The facts of the store; other files, options or tokenizers have another key."""

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """The number of rows."""

    @property
    @abstractmethod
    def n_tokens(self) -> int:
        """The number of tokens per epoch that determine its batches, including special tokens."""

    def batches(self, batch_tokens: int, seed: int, epoch: int) -> EpochBatches:
        """Return the batches of an epoch, which are built on access; a pure function that caches two epochs.

        Args:
            batch_tokens: The maximum number of tokens per batch.
            seed: The seed of the run.
            epoch: The number of the epoch.
        """
        return self._epochs(batch_tokens, seed, epoch)

    @cached_property
    def _epochs(self) -> Callable[[int, int, int], EpochBatches]:
        return lru_cache(maxsize=2)(self._epoch)

    @abstractmethod
    def _epoch(self, batch_tokens: int, seed: int, epoch: int) -> EpochBatches: ...


def token_batches(
    source_lengths: Lengths,
    target_lengths: Lengths | None,
    batch_tokens: int,
    seed: int,
    epoch: int,
    grouping: Grouping = GROUPING,
) -> Sequence[Rows]:
    """Return the batches of one epoch as arrays of row numbers; every row is in exactly one batch.

    Rows of similar length share a batch. Their grouping and the order of the batches are drawn from (seed, epoch).

    Args:
        source_lengths: Source lengths without special tokens; each row takes one position more.
        target_lengths: Target lengths in the same way; None if there are no targets.
        batch_tokens: The maximum of rows times the longest row, on the larger side. A longer row is a batch of its own.
        seed: The seed of the run.
        epoch: The number of the epoch.
        grouping: How rows are sorted. Memory is bounded above `grouping.at_once` rows; see `EpochRows`.

    Raises:
        ValueError: The numbers of lengths differ, or `batch_tokens` is below 1.
    """
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens={batch_tokens} must be at least 1")
    n_rows = len(source_lengths)
    if target_lengths is not None and len(target_lengths) != n_rows:
        raise ValueError(f"{n_rows} source lengths but {len(target_lengths)} target lengths")

    def cut(rows: Rows | slice, random: np.random.Generator) -> list[Rows]:
        source = _positions(source_lengths, rows)
        target = np.ones_like(source) if target_lengths is None else _positions(target_lengths, rows)
        batches = _cut(source, target, batch_tokens, random)
        return batches if isinstance(rows, slice) else [rows[batch] for batch in batches]

    if n_rows <= grouping.at_once:
        return cut(slice(None), np.random.default_rng((seed, epoch)))
    return EpochRows.of(n_rows, (seed, epoch), cut, grouping)


def padding_share(batches: Sequence[Rows], *sides: Lengths) -> float:
    """Return the share of padding, in [0, 1), among all positions of these batches, for all sides together.

    >>> padding_share([np.array([0, 1])], np.array([1, 3]), np.array([3, 3]))
    0.125
    """
    real = places = 0
    for some in _pieces(batches):
        order = np.concatenate(some)
        counts = [_counted(some, _positions(side, order)) for side in sides]
        real, places = real + sum(c[0] for c in counts), places + sum(c[1] for c in counts)
    return 1 - real / places if places else 0.0


def pair_batch(store: PairStore, rows: Rows, specials: SpecialTokens = OWN) -> Batch:
    """Return the padded tensors of rows: `src` = source + eos, `tgt` = bos + target, targets = target + eos.

    Other special tokens surround the text accordingly, and only the last begin token predicts one. `src` `[batch
    src_len]`, `tgt` and targets `[batch tgt_len]` are int64; `src_lengths` `[batch]` is None without padding.
    """
    sources = [store.source(int(row)) for row in rows]
    targets = [store.target(int(row)) for row in rows]
    pad_id = specials.pad_id
    nothing = specials.no_target
    begin = specials.begin
    src, src_lengths = _padded(sources, *specials.around_source, pad_id)
    tgt, tgt_lengths = _padded(targets, begin, (), pad_id)
    wanted, _ = _padded(targets, (nothing,) * (len(begin) - 1), (specials.eos_id,), nothing)
    inputs = {"src": torch.from_numpy(src), "tgt": torch.from_numpy(tgt)}
    if (src_lengths != src.shape[1]).any():
        inputs["src_lengths"] = torch.from_numpy(src_lengths)
    n_targets = int((tgt_lengths - len(begin) + 1).sum())
    return Batch(inputs, torch.from_numpy(wanted), n_targets, np.asarray(rows), nothing)


def pad_rows(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor | None]:
    """Rows of ids as one tensor [batch longest], padded at the end, and their lengths [batch]; None if all are full.

    >>> pad_rows([[5, 6], [7]], 0)
    (tensor([[5, 6],
            [7, 0]]), tensor([2, 1]))
    """
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    padded = torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows], device=device)
    return padded, None if min(lengths) == longest else torch.tensor(lengths, device=device)


def _positions(lengths: Lengths, rows: Rows | slice) -> NDArray[np.int32]:
    """Positions in a batch: the tokens and one special."""
    return lengths[rows].astype(np.int32) + np.int32(1)


def _cut(
    source: NDArray[np.int32], target: NDArray[np.int32], batch_tokens: int, random: np.random.Generator
) -> list[Rows]:
    """Batches of rows with that many positions, each the places of its rows, in a random order."""
    if not len(source):
        return []
    shuffled = random.permutation(len(source))
    best: list[Rows] = []
    best_share = np.inf
    for width in _WIDTHS:
        order = shuffled[_bucketed(source[shuffled], target[shuffled], width)]
        batches = np.split(order, _cuts(np.maximum(source, target)[order], batch_tokens))
        share = _share(batches, source, target)
        if share < best_share:
            best, best_share = batches, share
        if share < _GOOD_SHARE:
            break
    return [best[i] for i in random.permutation(len(best))]


def _bucketed(source: NDArray[np.int32], target: NDArray[np.int32], width: int) -> Rows:
    """The order that sorts rows into buckets of source length, and by target length within each bucket.

    Every other bucket is in descending order, which keeps rows similar across bucket borders.
    """
    bucket = source // width
    span = int(target.max()) + 1
    key = bucket.astype(np.int64)
    key *= span + 1
    key += np.where(bucket % 2 == 0, target, span - target)
    return np.argsort(key, kind="stable")


def _cuts(longest: NDArray[np.int32], batch_tokens: int) -> list[int]:
    """Cut ordered rows greedily into batches within the budget; `longest` `[rows]` is each row's larger side."""
    cuts: list[int] = []
    start = 0
    while True:
        window = longest[start : start + max(1, batch_tokens // int(longest[start])) + 1]
        taken = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
        start += max(1, int(np.searchsorted(taken, batch_tokens, side="right")))
        if start >= len(longest):
            return cuts
        cuts.append(start)


def _share(batches: Sequence[Rows], source: NDArray[np.int32], target: NDArray[np.int32]) -> float:
    real = places = 0
    for some in _pieces(batches):
        order = np.concatenate(some)
        for side in (source, target):
            counted = _counted(some, side[order])
            real, places = real + counted[0], places + counted[1]
    return 1 - real / places


def _pieces(batches: Sequence[Rows]) -> Iterator[list[Rows]]:
    """The batches, a bounded number at a time."""
    remaining = iter(batches)
    while some := list(islice(remaining, _TOGETHER)):
        yield some


def _counted(batches: Sequence[Rows], positions: NDArray[np.int32]) -> tuple[int, int]:
    """The real and the padded positions of these batches; `positions` are those of their rows, concatenated."""
    sizes = np.array([len(batch) for batch in batches], np.int64)
    longest = np.maximum.reduceat(positions, np.cumsum(sizes) - sizes)
    return int(positions.sum(dtype=np.int64)), int((sizes * longest).sum())


def _padded(
    rows: Sequence[NDArray[np.integer]], before: Sequence[int], behind: Sequence[int], nothing: int
) -> tuple[Rows, Rows]:
    """The rows with these ids around each, as one array [batch longest], and their lengths [batch] with them."""
    first = len(before)
    ends = np.array([len(row) + first for row in rows], np.int64)
    padded = np.full((len(rows), int(ends.max()) + len(behind)), nothing, np.int64)
    padded[:, :first] = before
    places = np.arange(padded.shape[1])
    padded[(places >= first) & (places < ends[:, None])] = np.concatenate(rows)
    for number, token in enumerate(behind):
        padded[np.arange(len(rows)), ends + number] = token
    return padded, ends + len(behind)
