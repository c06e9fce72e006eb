"""Batches with a maximum number of tokens: the choice of the rows in each batch of an epoch, and the batch tensors.

The list of batches depends only on the row lengths, the token limit, the seed and the epoch. A position in this list is
therefore enough to resume a run. If there are too many rows to sort at once, they are divided into contiguous shards,
whose order depends on the seed and the epoch. A few shards at a time are shuffled together and cut into batches. A
batch can therefore contain rows from distant places of a file, although only a few shards are in memory at a time.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import chain, islice
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attendo.data.store import PairStore, RowLengths, StoreFacts, Stretches
from attendo.data.tokenizers import OWN, SpecialTokens

Rows = NDArray[np.int64]
Cut = Callable[[Rows, np.random.Generator], Sequence[Rows]]
"""A function that divides rows in ascending order into batches, and returns the batches in random order."""


@dataclass(frozen=True)
class Grouping:
    """Limits for shuffling. Above `at_once` rows, groups of about `shards` shards of `shard` rows are shuffled."""

    at_once: int = 1 << 22
    shard: int = 1 << 15
    shards: int = 16


GROUPING = Grouping()


class EpochRows(Sequence[Rows]):
    """The row numbers of each batch in an epoch. A slice without an end is also an EpochRows object.

    `cut` forms batches from the rows of shuffled shards. The first access to a batch generates all earlier groups of
    shards, and `len` generates all groups. The last group and the sizes of all batches are cached.
    """

    def __init__(self, n_rows: int, seeds: tuple[int, ...], cut: Cut, grouping: Grouping = GROUPING) -> None:
        self._n_rows = n_rows
        self._seeds = seeds
        self._cut = cut
        self._shard = grouping.shard
        n_shards = -(-n_rows // grouping.shard)
        order = np.random.default_rng(seeds).permutation(n_shards)
        self._groups = np.array_split(order, max(1, n_shards // grouping.shards))
        self._start = 0
        self._last: tuple[int, Sequence[Rows]] = -1, ()
        # slices share the following
        self._sizes: list[NDArray[np.int32]] = []
        self._ends: list[int] = []  # cumulative numbers of batches, for the groups counted so far
        self._counting = threading.Lock()  # a prefetching thread also counts

    def __len__(self) -> int:
        return max(0, self._counted(len(self._groups) - 1) - self._start)

    def __iter__(self) -> Iterator[Rows]:
        number, place = self._find(self._start)
        groups = map(self._group, range(number, len(self._groups)))
        yield from islice(chain.from_iterable(groups), place, None)

    @overload
    def __getitem__(self, index: int) -> Rows: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Rows]: ...

    def __getitem__(self, index: int | slice) -> "Rows | Sequence[Rows]":
        if isinstance(index, slice):
            first = index.start or 0
            if index.stop is None and index.step in (None, 1) and first >= 0:
                rest = copy(self)  # nothing is counted
                rest._start += first
                return rest
            return [self[i] for i in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        number, at = self._find(self._start + place)
        if place < 0 or number == len(self._groups):
            raise IndexError(f"no batch {index}")
        return self._group(number)[at]

    def sizes(self) -> NDArray[np.int32]:
        """Return the number of rows in each batch."""
        self._counted(len(self._groups) - 1)
        return np.concatenate(self._sizes)[self._start :]

    def _group(self, number: int) -> Sequence[Rows]:
        last, batches = self._last
        if last != number:
            shard = self._shard
            parts = [np.arange(i * shard, min((i + 1) * shard, self._n_rows)) for i in sorted(self._groups[number])]
            # the seed has one more number than that of the shard order, so the two are independent
            random = np.random.default_rng((*self._seeds, len(self._seeds), number))
            batches = self._cut(np.concatenate(parts), random)
            self._last = number, batches
        return batches

    def _find(self, place: int) -> tuple[int, int]:
        """Return the group of a batch and its index in the group, or the number of groups if there is no such batch."""
        number = 0
        while number < len(self._groups) and self._counted(number) <= place:
            number += 1
        return number, place - (self._ends[number - 1] if number else 0)

    def _counted(self, number: int) -> int:
        """Return the number of batches in all groups up to this group."""
        with self._counting:
            while len(self._ends) <= number:
                sizes = np.array([len(rows) for rows in self._group(len(self._ends))], np.int32)
                self._sizes.append(sizes)
                self._ends.append((self._ends[-1] if self._ends else 0) + len(sizes))
        return self._ends[number]


Lengths = NDArray[np.integer] | RowLengths | Stretches

_WIDTHS = (1, 2, 4)  # source lengths per bucket; wide buckets are for few rows and large batches
_GOOD_SHARE = 0.025  # share of padding below which no wider bucket is tried
_TOGETHER = 1 << 8  # number of batches whose padding is counted together


@dataclass(frozen=True)
class Batch:
    """The input of one training step.

    Attributes:
        inputs: The keyword arguments of the model's `forward`, as tensors.
        targets: The ids to predict: tokens `[batch, tgt_len]` or classes `[batch]`. Other positions contain `pad_id`.
            Floats `[batch, decisions]` are 0 (no) or 1 (yes).
        n_targets: The number of positions with a target.
        ids: The number of each row in the data set `[batch]`.
        pad_id: The value in `targets` that marks a position without a target.
        weights: The weight of each target in the loss (default: 1).
        reference: For preferences, whose inputs are `[pairs, 2, len]`: the difference of the log-probabilities of both
            answers under the reference model `[pairs]`. The targets are then the pairs, and `weights` contains β.
        n_tokens: The number of tokens from which the displayed speed is computed (default: `n_targets`).
        contrastive: Whether the loss compares the vectors of the rows.
        rewards: For sampled answers, the reward of each row `[batch]`. The targets are then the rows, and `weights`
            contains their advantages.
        sample: A function that returns the batch to use in place of this batch. It is called immediately before the
            update, when the model has the weights from which answers are sampled.
    """

    inputs: dict[str, Tensor]
    targets: Tensor
    n_targets: int
    ids: Rows
    pad_id: int = 0
    weights: Tensor | None = None
    n_tokens: int | None = None
    contrastive: bool = False
    reference: Tensor | None = None
    rewards: Tensor | None = None
    sample: "Callable[[], Batch] | None" = None

    def part(self, rows: slice) -> "Batch":
        """Return a batch of the selected rows only. The padding is unchanged, and `n_targets` is counted again.

        Args:
            rows: The slice of rows to select.
        """
        part = self._with_each(lambda tensor: tensor[rows])
        n_targets = len(part.targets)
        if self.reference is None and self.rewards is None:
            all_real = self.n_targets == self.targets.numel()
            n_targets = part.targets.numel() if all_real else int((part.targets != self.pad_id).sum())
        return replace(part, n_targets=n_targets, ids=self.ids[rows], n_tokens=None)

    def share(self, rank: int, world: int) -> tuple["Batch", float]:
        """Return the rows for one process, with loss weight 1. If there are none, return the first row with weight 0.

        Args:
            rank: The number of the process, from 0.
            world: The number of processes.
        """
        if world == 1:
            return self, 1.0
        if rank < len(self.ids):
            return self.part(slice(rank, None, world)), 1.0
        return self.part(slice(0, 1)), 0.0

    def pinned(self) -> "Batch":
        """Return the batch in pinned memory, which a GPU can copy while it computes."""
        return self._with_each(Tensor.pin_memory)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device. A batch that is already on the device is returned unchanged.

        Args:
            device: The target device.
        """
        if self.targets.device == device:
            return self
        return self._with_each(lambda tensor: tensor.to(device, non_blocking=True))

    def _with_each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with a function applied to each tensor."""
        changed: dict[str, Any] = {
            name: change(value) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        inputs = {name: change(tensor) for name, tensor in self.inputs.items()}
        return replace(self, inputs=inputs, **changed)


@dataclass(frozen=True, eq=False)
class EpochBatches(Sequence[Batch]):
    """The batches of an epoch. Each batch is built on access by `collate`. A slice builds no batch."""

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
        """The number of rows in each batch, computed without building the batches."""
        if isinstance(self.rows, EpochRows):
            return self.rows.sizes()
        return np.array([len(rows) for rows in self.rows], np.int64)

    def __iter__(self) -> Iterator[Batch]:  # the default ends at any IndexError
        return map(self.collate, self.rows)


class TokenDataset(ABC):
    """The training rows of a run as token ids. A row is a sentence pair, a text or a window of a text.

    Attributes:
        store: The token store.
    """

    store: Any

    @property
    def facts(self) -> StoreFacts:
        """Facts about the token store, such as its key, which depends on the files, the options and the tokenizer."""
        return self.store.facts

    @property
    def n_rows(self) -> int:
        """The number of training rows."""
        return len(self.store)

    @property
    @abstractmethod
    def n_tokens(self) -> int:
        """The number of tokens per epoch, with special tokens. For sentence pairs, only target tokens are counted."""

    def batches(self, batch_tokens: int, seed: int, epoch: int) -> EpochBatches:
        """Return the batches of an epoch. Each batch is built on access, and the lists of two epochs are cached.

        Args:
            batch_tokens: The maximum number of tokens per batch.
            seed: The seed of the run.
            epoch: The number of the epoch, from 0.
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
    """Return the batches of one epoch as arrays of row numbers. Every row is in exactly one batch.

    Rows of similar length share a batch. Random numbers that depend on `seed` and `epoch` determine which rows are
    grouped and the order of the batches.

    Args:
        source_lengths: The number of tokens of each source, without special tokens. One special token per row is added.
        target_lengths: The number of tokens of each target, without special tokens, or None if there are no targets.
        batch_tokens: The maximum size of a batch: its number of rows times the tokens of its longest source or target.
            A row above the limit forms a batch alone.
        seed: The seed of the run.
        epoch: The number of the epoch, from 0.
        grouping: The limits on the rows that are shuffled together, which also limit the memory (see `EpochRows`).

    Raises:
        ValueError: The numbers of source and target lengths differ, or `batch_tokens` is below 1.
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
    return EpochRows(n_rows, (seed, epoch), cut, grouping)


def padding_share(batches: Sequence[Rows], *sides: Lengths) -> float:
    """Return the share of padding among all positions of batches, in [0, 1). `sides` are the source and target lengths.

    >>> padding_share([np.array([0, 1])], np.array([1, 3]), np.array([3, 3]))
    0.125
    """
    return _padding_share(batches, [partial(_positions, side) for side in sides])


def pair_batch(store: PairStore, rows: Rows, specials: SpecialTokens = OWN) -> Batch:
    """Return the padded tensors of sentence pairs: `src` = source + eos, `tgt` = bos + target, targets = target + eos.

    If `specials` has other special tokens, they surround the texts instead. If there are several begin tokens, only the
    last one predicts a token. The tensors `src` `[batch src_len]`, `tgt` and targets `[batch tgt_len]` are int64.
    `src_lengths` `[batch]` is omitted if no source is padded.
    """
    sources = [store.sources[int(row)] for row in rows]
    targets = [store.targets[int(row)] for row in rows]
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
    """Return rows of ids as one tensor `[batch longest]`, padded at the end, and the row lengths `[batch]`.

    The lengths are None if no row is padded.

    >>> pad_rows([[5, 6], [7]], 0)
    (tensor([[5, 6],
            [7, 0]]), tensor([2, 1]))
    """
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    padded = torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows], device=device)
    return padded, None if min(lengths) == longest else torch.tensor(lengths, device=device)


def _positions(lengths: Lengths, rows: Rows | slice) -> NDArray[np.int32]:
    """Return the number of positions of each row in a batch: its tokens and one special token."""
    return lengths[rows].astype(np.int32) + np.int32(1)


def _cut(
    source: NDArray[np.int32], target: NDArray[np.int32], batch_tokens: int, random: np.random.Generator
) -> list[Rows]:
    """Return batches in random order, as arrays of indices into `source`, the number of positions of each row."""
    if not len(source):
        return []
    shuffled = random.permutation(len(source))
    best: list[Rows] = []
    best_share = np.inf
    for width in _WIDTHS:
        order = shuffled[_bucketed(source[shuffled], target[shuffled], width)]
        batches = np.split(order, _cuts(np.maximum(source, target)[order], batch_tokens))
        share = _padding_share(batches, [source.__getitem__, target.__getitem__])
        if share < best_share:
            best, best_share = batches, share
        if share < _GOOD_SHARE:
            break
    return [best[i] for i in random.permutation(len(best))]


def _bucketed(source: NDArray[np.int32], target: NDArray[np.int32], width: int) -> Rows:
    """Return the order that sorts rows into buckets by source length, and by target length within each bucket."""
    bucket = (source // width).astype(np.int64)
    span = int(target.max()) + 1
    # every second bucket is in descending order, so neighboring rows remain similar across bucket borders
    key = bucket * (span + 1) + np.where(bucket % 2 == 0, target, span - target)
    return np.argsort(key, kind="stable")


def _cuts(longest: NDArray[np.int32], batch_tokens: int) -> list[int]:
    """Cut ordered rows greedily into batches within the budget. `longest` `[rows]` is the larger side of each row."""
    cuts: list[int] = []
    start = 0
    while True:
        window = longest[start : start + max(1, batch_tokens // int(longest[start])) + 1]
        taken = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
        start += max(1, int(np.searchsorted(taken, batch_tokens, side="right")))
        if start >= len(longest):
            return cuts
        cuts.append(start)


def _padding_share(batches: Sequence[Rows], sides: Sequence[Callable[[Rows], NDArray[np.int32]]]) -> float:
    """Return the share of padding. Each function in `sides` returns the numbers of positions of rows."""
    real = places = 0
    remaining = iter(batches)
    while some := list(islice(remaining, _TOGETHER)):
        order = np.concatenate(some)
        sizes = np.array([len(batch) for batch in some], np.int64)
        for positions in (side(order) for side in sides):
            longest = np.maximum.reduceat(positions, np.cumsum(sizes) - sizes)
            real += int(positions.sum(dtype=np.int64))
            places += int((sizes * longest).sum())
    return 1 - real / places if places else 0.0


def _padded(
    rows: Sequence[NDArray[np.integer]], before: Sequence[int], behind: Sequence[int], nothing: int
) -> tuple[Rows, Rows]:
    """Return the rows with the ids `before` and `behind` as an array `[batch longest]`, and their lengths `[batch]`."""
    first = len(before)
    ends = np.array([len(row) + first for row in rows], np.int64)
    padded = np.full((len(rows), int(ends.max()) + len(behind)), nothing, np.int64)
    padded[:, :first] = before
    places = np.arange(padded.shape[1])
    padded[(places >= first) & (places < ends[:, None])] = np.concatenate(rows)
    for number, token in enumerate(behind):
        padded[np.arange(len(rows)), ends + number] = token
    return padded, ends + len(behind)
