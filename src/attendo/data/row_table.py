"""A table of one short record per row, held in memory up to a fixed size and in temporary files beyond it.

Rows are spread over buckets by the hash of their normalized source, so rows that could be copies of each
other always meet in one bucket, and the checks that compare rows can go bucket by bucket in bounded memory.
"""

import tempfile
from collections.abc import Iterator
from itertools import pairwise
from types import TracebackType
from typing import IO, Self

import numpy as np

N_BUCKETS = 64
HELD_ROWS = 1 << 19
"""Records kept in memory before they are written to the bucket files: 2**19 of 51 bytes are 27 MB."""

RECORD = np.dtype(
    [
        ("near_source", "i8"),  # hashes of the normalized and of the exact texts
        ("source", "i8"),
        ("near_target", "i8"),
        ("target", "i8"),
        ("line", "i8"),
        ("source_length", "u4"),  # in characters
        ("target_length", "u4"),
        ("source_script", "u1"),  # codes of scripts.SCRIPTS
        ("target_script", "u1"),
        ("flags", "u1"),  # what the row alone shows: the bits below
    ]
)
NOT_NFC, ODD_CHARACTERS, SOUNDS_SWAPPED, HAS_LETTERS, SOURCE_APART, TARGET_APART = 1, 2, 4, 8, 16, 32


class RowTable:
    """Append-only table of records (dtype RECORD); a context manager, which removes its temporary files."""

    def __init__(self) -> None:
        self._held: list[np.ndarray] = []
        self._n_held = 0
        self._files: list[IO[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for file in self._files:
            file.close()

    def append(self, records: np.ndarray) -> None:
        """Add a batch of records, [rows] of dtype RECORD."""
        self._held.append(records)
        self._n_held += len(records)
        if self._n_held >= HELD_ROWS:
            self._spill()

    def buckets(self) -> Iterator[np.ndarray]:
        """All records, bucket by bucket; the same bucket number holds the same sources in every table."""
        if not self._files:
            records = self._gather()
            which = _bucket(records)
            order = np.argsort(which, kind="stable")
            edges = np.searchsorted(which[order], np.arange(N_BUCKETS + 1))
            for first, last in pairwise(edges):
                yield records[order[first:last]]
        else:
            self._spill()
            for file in self._files:
                file.seek(0)
                yield np.frombuffer(file.read(), RECORD)

    def _gather(self) -> np.ndarray:
        records = np.concatenate([np.empty(0, RECORD), *self._held])
        self._held, self._n_held = [records], len(records)
        return records

    def _spill(self) -> None:
        if not self._files:
            self._files = [tempfile.TemporaryFile() for _ in range(N_BUCKETS)]  # noqa: SIM115 (closed by __exit__)
        records = self._gather()
        self._held, self._n_held = [], 0
        which = _bucket(records)
        for number, file in enumerate(self._files):
            file.seek(0, 2)
            file.write(records[which == number].tobytes())


def _bucket(records: np.ndarray) -> np.ndarray:
    return records["near_source"] & (N_BUCKETS - 1)
