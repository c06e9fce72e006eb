"""The validation set split off a corpus that has none: by a hash of the source, in one streaming pass."""

import hashlib
import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from attendo.errors import AttendoError

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
