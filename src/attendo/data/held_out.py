"""The choice of validation rows by a hash of each row's source text, in one streaming pass.

Each run stores the hashes of its training rows. A run that starts from an earlier run can therefore validate on rows
that are new to the model.
"""

import hashlib
import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from attendo.errors import AttendoError
from attendo.files import write_atomic

MOST = 2_000
LEAST = 100
FEWEST_ROWS = 20
"""With fewer rows, none are held out, and training requires a validation file."""


@dataclass(frozen=True)
class HeldOut:
    """The source texts that are held out for validation, as hashes that are equal in every process."""

    hashes: frozenset[int]
    n_rows: int
    n_held_out: int

    def __contains__(self, source: str) -> bool:
        return source_hash(source) in self.hashes


def source_hash(source: str) -> int:
    """Return a 64-bit hash of a text (BLAKE2b), which is the same in every process and on every machine."""
    return int.from_bytes(hashlib.blake2b(source.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def held_out(
    sources: Iterable[str],
    name: str = "the training data",
    share: float = 0.01,
    trained: Callable[[int], bool] = lambda key: False,
) -> HeldOut:
    """Choose validation rows: a share of the rows, at least 100, at most 2,000, and at most a fifth of all rows.

    Rows with equal source texts stay in the same split. Source texts are chosen in the order of their hashes while
    their rows fit. If none fits, the source text with the fewest rows is chosen. `trained` returns whether an earlier
    run was trained on a row with the given hash. Rows of earlier runs are not held out, and at least half of the new
    rows remain for training. With fewer than 20 new rows, no row is held out. Memory is constant. Raises AttendoError
    for a single source or fewer than 20 rows.

    >>> held = held_out(f"sentence {i}" for i in range(1000))
    >>> held.n_held_out, sum(f"sentence {i}" in held for i in range(1000))
    (100, 100)
    """
    n_rows, n_new, rows_of, largest_first = _smallest_hashes(sources, trained)
    if n_rows < FEWEST_ROWS:
        raise AttendoError(
            f"{name}: {n_rows} usable rows are too few to hold out validation rows (expected at least "
            f"{FEWEST_ROWS}). Give more rows, or a validation file with `valid`"
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
            f"{name}: all {n_rows:,} rows have the same source, so no validation rows can be held out. Check "
            "the columns, or give a validation file with `valid`"
        )
    if not taken:
        fewest = min(rows_of, key=lambda key: (rows_of[key], key))
        taken, n_held_out = [fewest], rows_of[fewest]
    return HeldOut(frozenset(taken), n_rows, n_held_out)


def _smallest_hashes(
    sources: Iterable[str], trained: Callable[[int], bool]
) -> tuple[int, int, dict[int, int], list[int]]:
    """Return the numbers of rows and new rows, the rows per hash of the MOST smallest hashes, and a heap of these."""
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
            # a hash that leaves the heap never returns, so all counts are exact
            del rows_of[-heapq.heappushpop(heap, -key)]
    return n_rows, n_new, rows_of, heap


NAME = "trained_rows.safetensors"
"""The name of the file in a run folder, with 8 bytes per different text. Texts of the initial run are stored twice."""


class TrainedRows:
    """A set of training texts as sorted 64-bit hashes.

    >>> rows = TrainedRows.of(["it rains", "it snows"])
    >>> "it rains" in rows, "it pours" in rows, len(rows)
    (True, False, 2)
    """

    def __init__(self, hashes: NDArray[np.uint64] | None = None) -> None:
        self.hashes = np.empty(0, np.uint64) if hashes is None else hashes

    @classmethod
    def of(cls, texts: Iterable[str]) -> "TrainedRows":
        return cls(np.unique(np.fromiter(map(source_hash, texts), np.uint64)))

    def __len__(self) -> int:
        return len(self.hashes)

    def __contains__(self, text: str) -> bool:
        return len(self) > 0 and self.has(source_hash(text))

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.hashes.tobytes()).hexdigest()

    def has(self, key: int) -> bool:
        """Return whether the set contains a text with this hash."""
        place = int(np.searchsorted(self.hashes, np.uint64(key)))
        return place < len(self) and int(self.hashes[place]) == key


def save_trained_rows(folder: Path, before: TrainedRows, own: TrainedRows) -> None:
    """Save hashes of training rows in a run folder: those of earlier runs ("before"), and those of all runs ("all")."""
    every = np.union1d(before.hashes, own.hashes)
    write_atomic(folder / NAME, save({"before": before.hashes, "all": every}))


def trained_rows(folder: Path, part: Literal["before", "all"]) -> TrainedRows | None:
    """Return one of the two sets that `save_trained_rows` has saved, or None if the run folder has no such file."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        hashes = load_file(path)[part]
    except (SafetensorError, KeyError) as error:
        raise AttendoError(f"{path} is damaged ({error}). Restore the file") from None
    if hashes.dtype != np.uint64 or (hashes[1:] <= hashes[:-1]).any():
        raise AttendoError(f"{path} is damaged (expected sorted 64-bit hashes). Restore the file")
    return TrainedRows(hashes)
