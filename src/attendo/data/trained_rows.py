"""Which rows a run was trained on, as hashes of their texts, so that a run that starts from it validates on others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from attendo.data.held_out import HeldOut, source_hash
from attendo.display.formats import plural
from attendo.errors import AttendoError
from attendo.files import write_atomic

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
        """The set of these texts."""
        return cls(np.unique(np.fromiter(map(source_hash, texts), np.uint64)))

    def __len__(self) -> int:
        return len(self.hashes)

    def __contains__(self, text: str) -> bool:
        return len(self) > 0 and self.has(source_hash(text))

    @property
    def sha256(self) -> str:
        """A SHA-256 over all hashes."""
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
