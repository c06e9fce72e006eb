"""Which rows validate: a split by a hash of the source, in one streaming pass.

Rows that another run was trained on are known by their hashes, so that a run that starts from it validates on others.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from attendo.display.formats import plural
from attendo.errors import AttendoError
from attendo.files import write_atomic

MOST = 2_000
LEAST = 100
FEWEST_ROWS = 20
"""Below this many rows nothing is split off: training then needs a validation file."""


@dataclass(frozen=True)
class HeldOut:
    """Which sources are held out. `source in held_out` is the same for equal texts, in every process.

    `n_rows` rows were seen, `n_held_out` of them are held out.
    """

    hashes: frozenset[int]
    n_rows: int
    n_held_out: int

    def __contains__(self, source: str) -> bool:
        return source_hash(source) in self.hashes


def source_hash(source: str) -> int:
    """A 64-bit hash of a text, the same in every process and on every machine (BLAKE2b)."""
    return int.from_bytes(
        hashlib.blake2b(source.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big"
    )


def held_out(
    sources: Iterable[str],
    name: str = "the training data",
    share: float = 0.01,
    trained: Callable[[int], bool] = lambda key: False,
) -> HeldOut:
    """Choose a share of the rows, 100 at least and 2,000 at most but never over a fifth of them, for validation.

    Rows with the same source fall on the same side. In the order of their hashes, sources are taken while
    their rows fit into the number wanted, so the number held out is met exactly unless many rows share a
    source; where not one source fits, the one with fewest rows is taken. trained: whether another run, which this one
    starts from, was trained on a source of this hash; it is not held out, and half of the new rows at least train; with
    fewer than 20 new ones nothing is held out.
    Memory is constant: only the 2,000 smallest hashes seen so far are kept.

    Raises AttendoError, naming `name`, for fewer than 20 rows or when there is only one source.

    >>> held = held_out(f"sentence {i}" for i in range(1000))
    >>> held.n_held_out, sum(f"sentence {i}" in held for i in range(1000))
    (100, 100)
    """
    n_rows, n_new, rows_of, largest_first = _smallest_hashes(sources, trained)
    if n_rows < FEWEST_ROWS:
        raise AttendoError(
            f"{name}: {n_rows} usable rows are too few to split off validation rows, "
            f"which takes {FEWEST_ROWS}; give more rows, or a validation file with `valid`"
        )
    wanted = min(max(LEAST, int(round(n_rows * share, 6))), MOST, n_rows // 5)
    wanted = wanted if n_new == n_rows else min(wanted, n_new // 2)
    if n_new < min(n_rows, FEWEST_ROWS) or (len(rows_of) < 2 and n_new < n_rows):
        return HeldOut(frozenset(), n_rows, 0)
    taken: list[int] = []
    n_held_out = 0
    for negative in sorted(largest_first, reverse=True):
        if n_held_out + rows_of[-negative] <= wanted:
            taken.append(-negative)
            n_held_out += rows_of[-negative]
    if len(rows_of) < 2:
        raise AttendoError(
            f"{name}: all of its {n_rows:,} rows share one source, so no validation rows can be split off; "
            "give a validation file with `valid`"
        )
    if not taken:
        fewest = min(rows_of, key=lambda key: (rows_of[key], key))
        taken, n_held_out = [fewest], rows_of[fewest]
    return HeldOut(frozenset(taken), n_rows, n_held_out)


def _smallest_hashes(
    sources: Iterable[str], trained: Callable[[int], bool]
) -> tuple[int, int, dict[int, int], list[int]]:
    """Number of rows, and of new ones; of these, rows per hash for the MOST smallest hashes, and those, negated, as a
    heap.

    A hash that falls out of the heap can never come back, because the largest one kept only ever shrinks; so
    the row counts of those kept are exact.
    """
    n_rows = n_new = 0
    rows_of: dict[int, int] = {}
    heap: list[int] = []
    for source in sources:
        n_rows += 1
        key = source_hash(source)
        if trained(key):
            continue
        n_new += 1
        if key in rows_of:
            rows_of[key] += 1
        elif len(heap) < MOST:
            rows_of[key] = 1
            heapq.heappush(heap, -key)
        elif key < -heap[0]:
            rows_of[key] = 1
            del rows_of[-heapq.heappushpop(heap, -key)]
    return n_rows, n_new, rows_of, heap


NAME = "trained_rows.safetensors"
"""The file in a run folder: 8 bytes for each different text; those of the start twice."""

FINAL = 10
"""The last choice uses at most this many times the rows of each evaluation."""

KNOWN = "are among the training rows of the run that this one starts from"
"""Why a validation row is left out."""

Row = TypeVar("Row")


class TrainedRows:
    """A set of texts by their 64-bit hashes, sorted.

    >>> rows = TrainedRows.of(["it rains", "it snows"])
    >>> "it rains" in rows, "it pours" in rows, len(rows)
    (True, False, 2)
    """

    def __init__(self, hashes: NDArray[np.uint64] | None = None) -> None:
        self.hashes = np.empty(0, np.uint64) if hashes is None else hashes

    @classmethod
    def of(cls, texts: Iterable[str]) -> TrainedRows:
        return cls(np.unique(np.fromiter(map(source_hash, texts), np.uint64)))

    def __len__(self) -> int:
        return len(self.hashes)

    def __contains__(self, text: str) -> bool:
        return len(self) > 0 and self.has(source_hash(text))

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.hashes.tobytes()).hexdigest()

    def has(self, key: int) -> bool:
        """Whether it holds a text of this hash."""
        place = int(np.searchsorted(self.hashes, np.uint64(key)))
        return place < len(self) and int(self.hashes[place]) == key


def split_of_new(
    split: Callable[[Callable[[int], bool]], HeldOut], trained: TrainedRows, say: Callable[[str], None]
) -> HeldOut:
    """What `split` holds out, given which hashes are trained rows'; of all rows, with a warning, if few are new."""
    if not len(trained):
        return split(lambda key: False)
    held = split(trained.has)
    if held.n_held_out:
        return held
    say(f"warning: all rows, or nearly all, {KNOWN}: scores will be inflated")
    return split(lambda key: False)


def save_trained_rows(folder: Path, before: TrainedRows, own: TrainedRows) -> None:
    """Keeps what a run's start was trained on, and what the two were, in the run's folder."""
    every = np.union1d(before.hashes, own.hashes)
    write_atomic(folder / NAME, save({"before": before.hashes, "all": every}))


def trained_rows(folder: Path, part: Literal["before", "all"]) -> TrainedRows | None:
    """What `save_trained_rows` kept there; None where nothing is kept."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        hashes = load_file(path)[part]
    except (SafetensorError, KeyError) as error:
        raise AttendoError(f"{path} is damaged ({error}); copy it back") from None
    if hashes.dtype != np.uint64 or (hashes[1:] <= hashes[:-1]).any():
        raise AttendoError(f"{path} is damaged (expected sorted 64-bit hashes); copy it back")
    return TrainedRows(hashes)


def validation_rows(
    read: Callable[[], Iterator[Row]],
    most: int,
    noun: str,
    say: Callable[[str], None],
    left_out: dict[str, Callable[[Row], bool]],
) -> tuple[list[Row], list[Row]]:
    """The rows of each evaluation, at most `most` (0: all), and those of the last choice, FINAL times as many.

    Both are at equal distances over all there are. left_out: which rows are not used, by the words that say why; where
    that would be all, they are used.
    """
    rows = list(read())
    for why, is_out in left_out.items():
        kept = [row for row in rows if not is_out(row)]
        if rows and not kept:
            say(f"warning: all {plural(len(rows), f'validation {noun}')} {why}: scores will be inflated")
        elif len(kept) < len(rows):
            say(f"{len(rows) - len(kept):,} of {len(rows):,} validation {noun}s {why}: they are left out")
            rows = kept
    step = max(1, -(-len(rows) // most)) if most else 1
    last = max(1, step // FINAL)
    each, final = rows[::step], rows[::last]
    if len(each) < len(final):
        at_end = "all" if last == 1 else f"{len(final):,}"
        say(
            f"{len(each):,} of {len(rows):,} validation {noun}s are used at each evaluation, {at_end} at the end"
        )
    return each, final
