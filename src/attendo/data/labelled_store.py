"""A token store of labelled texts: ids and classes in memory-mapped files, made once, as `store` makes pairs."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attendo.cache import cache_folder, opened_or_built
from attendo.data.accounting import Account
from attendo.data.labelled import LabelledRow, LabelSet
from attendo.data.lengths import RowLengths
from attendo.data.store import (
    id_type,
    mapped,
    row_place,
    row_starts,
    save_row_starts,
    verified_facts,
)
from attendo.data.tokenizers import Tokenizer
from attendo.files import write_manifest

_FORMAT = 1
_CHUNK = 2000  # rows encoded at a time; memory for a chunk is all that building a store takes


class LabelledStore:
    """Labelled texts as token ids, without bos and eos, read from memory-mapped files.

    `lengths` are those of the rows, in tokens, `labels` [rows] int32 class ids, `row_numbers` [rows] int64 the rows'
    numbers in the file they came from, counted on over several: see `place`. No row takes memory.
    """

    def __init__(self, folder: Path) -> None:
        """Open and check a store. Raises FileNotFoundError if there is none, DamagedFile if it isn't whole."""
        self.facts = verified_facts(folder, _FORMAT)
        self._ids = mapped(folder / "ids", self.facts.dtype)
        self._offsets = mapped(folder / "offsets", "<i8")
        self.labels: NDArray[np.int32] = mapped(folder / "labels", "<i4")
        self.row_numbers: NDArray[np.int64] = mapped(folder / "rows", "<i8")
        self.lengths = RowLengths(self._offsets)
        self._starts = row_starts(folder)

    def __len__(self) -> int:
        return len(self.labels)

    def place(self, i: int) -> tuple[int, int]:
        """Which of the files, counted from 0, row i came from, and its number there."""
        return row_place(self._starts, int(self.row_numbers[i]))

    def text(self, i: int) -> NDArray[Any]:
        """The ids of row i, a view into the file."""
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of a store of {len(self)}")
        return self._ids[self._offsets[i] : self._offsets[i + 1]]


def labelled_store(
    rows: Iterable[LabelledRow], account: Account, labels: LabelSet, tokenizer: Tokenizer, key: str
) -> LabelledStore:
    """The store of this key in the cache; `rows` are read only if it isn't there yet or is damaged.

    key: of `store_key`, with labels.names among its options. account: that of the rows. It is built in constant
    memory. Raises AttendoError for a label that is not in the set, and if the cache can't be written to.
    """
    folder = cache_folder() / f"labelled-{key}"

    def build(new: Path) -> None:
        _build(new, rows, account, labels, tokenizer)
        save_row_starts(new, account)
        write_manifest(new, {"format": _FORMAT, "key": key, "dtype": id_type(tokenizer.vocab_size)})

    return opened_or_built(folder, LabelledStore, build)


def _build(
    folder: Path, rows: Iterable[LabelledRow], account: Account, labels: LabelSet, tokenizer: Tokenizer
) -> None:
    dtype, end, remaining = id_type(tokenizer.vocab_size), 0, iter(rows)
    with (
        (folder / "ids").open("wb") as ids,
        (folder / "offsets").open("wb") as offsets,
        (folder / "labels").open("wb") as classes,
        (folder / "rows").open("wb") as numbers,
    ):
        offsets.write(np.zeros(1, "<i8").tobytes())
        while chunk := list(itertools.islice(remaining, _CHUNK)):
            found = tokenizer.encode_batch(row.text for row in chunk)
            positions = end + np.cumsum([len(row) for row in found], dtype="<i8")
            end = int(positions[-1])
            ids.write(np.fromiter(itertools.chain.from_iterable(found), dtype).tobytes())
            offsets.write(positions.tobytes())
            known = [labels.id_of(row.label, account.place(row.number)) for row in chunk]
            classes.write(np.array(known, "<i4").tobytes())
            numbers.write(np.array([row.number for row in chunk], "<i8").tobytes())
