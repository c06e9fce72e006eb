"""Token stores: rows of token ids in memory-mapped files, built once per combination of files, options and tokenizer.

A store is a folder in the cache, named by its key. The folder contains a manifest, the concatenated ids (two bytes per
id, or four for a large vocabulary), the offsets of the rows, and each row's number in the data files. Pairs have ids
and offsets for each side, and labeled texts have a class for each row. Each of these arrays is one file of any size.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attendo.cache import cache_folder, discard, opened_or_built
from attendo.data.corpora import Pair
from attendo.data.labelled import LabelSet
from attendo.data.row_report import RowReport
from attendo.data.tokenizers import Tokenizer
from attendo.files import DamagedFile, manifest_hash, sha256_file, verify_manifest, write_manifest

_FORMAT = 1
_CHUNK = 2000  # rows encoded at a time; building a store only needs memory for one chunk

Numbers = NDArray[np.int64]

_PIECE = 1 << 18  # rows processed together
_BLOCK = 1 << 10  # documents that share one count


class RowLengths:
    """The lengths of rows in tokens (int32, at most `most`), computed from the row borders `offsets` `[rows + 1]`.

    >>> lengths = RowLengths(np.array([0, 3, 3, 10]))
    >>> lengths[:], lengths[np.array([2, 0])], lengths.sum(), lengths.capped(5).sum()
    (array([3, 0, 7], dtype=int32), array([7, 3], dtype=int32), 10, 8)
    """

    def __init__(self, offsets: Numbers, most: int | None = None) -> None:
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
        """Yield all lengths in chunks of limited size."""
        for start in range(0, len(self), _PIECE):
            yield self[start : start + _PIECE]

    def sum(self) -> int:
        if self._most is None:
            return int(self._offsets[-1] - self._offsets[0])
        return sum(int(piece.sum(dtype=np.int64)) for piece in self.pieces())

    def capped(self, most: int) -> "RowLengths":
        """Return the lengths of the same rows, limited to `most`."""
        return RowLengths(self._offsets, most)


class Stretches:
    """Parts of consecutive documents. Documents above `most` tokens are cut into as few nearly equal parts as possible.

    `offsets` `[documents + 1]` are the borders of the documents. Only one number per 1,024 documents is in memory.

    >>> stretches = Stretches(np.array([0, 3, 3, 10]), 4)
    >>> stretches.edges(np.arange(len(stretches))), stretches[:]
    ((array([0, 3, 6]), array([ 3,  6, 10])), array([3, 3, 4]))
    """

    def __init__(self, offsets: Numbers, most: int) -> None:
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
        return int(self._offsets[-1] - self._offsets[0])

    def edges(self, rows: NDArray[np.integer]) -> tuple[Numbers, Numbers]:
        """Return the start and the end (exclusive) of the parts with these numbers, as positions in all tokens."""
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

    def _counts(self, block: int) -> tuple[Numbers, NDArray[Any]]:
        offsets = self._offsets[block * _BLOCK : (block + 1) * _BLOCK + 1]
        return offsets, -(-np.diff(offsets) // self._most)

    def _bounds(self, block: int) -> Numbers:
        """Return the borders of the parts in a block. The parts are contiguous."""
        offsets, counts = self._counts(block)
        document = np.repeat(np.arange(len(counts)), counts)
        piece = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = offsets[document] + piece * np.diff(offsets)[document] // counts[document]
        return np.append(starts, offsets[-1])


@dataclass(frozen=True)
class StoreFacts:
    """The facts about a token store: its folder, its key, the numpy type of its ids, and the SHA-256 of its contents.

    `left_out` are the numbers of the first three rows that were skipped as too long, and the number of all skipped
    rows.
    """

    folder: Path
    key: str
    dtype: str
    content: str
    left_out: tuple[list[int], int] = ([], 0)

    def discard(self) -> None:
        """Delete the store from the cache. The store is built again when it is next needed."""
        discard(self.folder)


class TokenRows:
    """Consecutive rows of token ids, without bos and eos, in a memory-mapped file."""

    def __init__(self, folder: Path, prefix: str, dtype: str) -> None:
        self._ids = mapped(folder / f"{prefix}ids", dtype)
        self._offsets = mapped(folder / f"{prefix}offsets", "<i8")
        self.lengths = RowLengths(self._offsets)

    def __getitem__(self, i: int) -> NDArray[Any]:
        return self._ids[self.place(i)]

    def place(self, i: int) -> slice:
        """Return the place of row i among the ids of all rows. Raises IndexError if there is no such row."""
        if not 0 <= i < len(self.lengths):
            raise IndexError(f"row {i} of a store of {len(self.lengths)}")
        return slice(self._offsets[i], self._offsets[i + 1])


class _TokenRowsWriter:
    """A writer for the files that `TokenRows` reads."""

    def __init__(self, folder: Path, prefix: str, dtype: str, files: ExitStack) -> None:
        self._ids = files.enter_context((folder / f"{prefix}ids").open("wb"))
        self._offsets = files.enter_context((folder / f"{prefix}offsets").open("wb"))
        self._offsets.write(np.zeros(1, "<i8").tobytes())
        self._dtype = dtype
        self._end = 0

    def write(self, rows: Sequence[Sequence[int]]) -> None:
        """Append one or more rows."""
        ends = self._end + np.cumsum([len(row) for row in rows], dtype="<i8")
        self._end = int(ends[-1])
        self._ids.write(np.fromiter(itertools.chain.from_iterable(rows), self._dtype).tobytes())
        self._offsets.write(ends.tobytes())


class _RowStore:
    """Rows of a user's files as token ids. `row_numbers` `[rows]` (int64) are continuous across files."""

    def __init__(self, folder: Path) -> None:
        """Open and check a store. Raises FileNotFoundError if it does not exist, and DamagedFile if it is damaged."""
        self.facts = verified_facts(folder, _FORMAT)
        self.row_numbers: Numbers = mapped(folder / "rows", "<i8")

    def __len__(self) -> int:
        return len(self.row_numbers)


class PairStore(_RowStore):
    """Sentence pairs as token ids without bos and eos, in memory-mapped files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sources = TokenRows(folder, "source.", self.facts.dtype)
        self.targets = TokenRows(folder, "target.", self.facts.dtype)


class LabelledStore(_RowStore):
    """Labeled texts as token ids without bos and eos, in memory-mapped files, with class ids."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.texts = TokenRows(folder, "", self.facts.dtype)
        self.lengths = self.texts.lengths
        self.labels: NDArray[np.int32] = mapped(folder / "labels", "<i4")

    def tags(self, i: int) -> NDArray[np.int32]:
        """Return the class of each token of row i, if the store has a class per token."""
        return self.labels[self.texts.place(i)]


def pair_store(
    pairs: Iterable[Pair],
    tokenizer: Tokenizer,
    key: str,
    cache: Path | None = None,
    max_tokens: int | None = None,
) -> PairStore:
    """Return the token store with this key from the cache. If it is missing or damaged, it is built in constant memory.

    Args:
        pairs: The sentence pairs, which are only read to build the store.
        tokenizer: The tokenizer of the pairs.
        key: The key of the store; see `store_key`.
        cache: The cache folder (default: `cache_folder()`).
        max_tokens: The maximum number of tokens on a side (default: no limit). Longer pairs are skipped. The key must
            depend on this limit.

    Raises:
        AttendoError: The cache cannot be written.
    """

    def build(new: Path) -> None:
        encoders = {"source.": tokenizer, "target.": tokenizer.target}
        write_manifest(new, _write_rows(new, key, pairs, encoders, max_tokens))

    return opened_or_built((cache or cache_folder()) / f"pairs-{key}", PairStore, build)


def labelled_store(
    rows: Iterable[tuple[Any, ...]],
    row_report: RowReport,
    labels: LabelSet | Callable[[Any], Sequence[int]],
    encoder: Any,
    key: str,
) -> LabelledStore:
    """Return the token store of labeled texts with this key from the cache. If necessary, the store is built first.

    `labels` can also be a function that returns several classes of a row, for example one per token. `encoder` encodes
    the third field of each row. Raises AttendoError for an unknown label, or if the cache cannot be written.
    """

    def classes_of(row: Any) -> Sequence[int]:
        if isinstance(labels, LabelSet):
            return [labels.id_of(row.label, row_report.place(row.number))]
        return labels(row)

    def build(new: Path) -> None:
        with (new / "labels").open("wb") as file:

            def text_of(row: Any) -> tuple[int, Any]:
                file.write(np.array(classes_of(row), "<i4").tobytes())
                return row[0], row[2]

            facts = _write_rows(new, key, map(text_of, rows), {"": encoder})
        write_manifest(new, facts)

    return opened_or_built(cache_folder() / f"labelled-{key}", LabelledStore, build)


def _write_rows(
    folder: Path,
    key: str,
    rows: Iterable[tuple[Any, ...]],
    encoders: Mapping[str, Any],
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """Write the files of a store, whose names begin with the keys of `encoders`, and return the manifest's facts."""
    dtype = id_type(next(iter(encoders.values())).vocab_size)
    remaining = iter(rows)
    left_out: list[int] = []
    n_left_out = 0
    with ExitStack() as files:
        numbers = files.enter_context((folder / "rows").open("wb"))
        writers = [_TokenRowsWriter(folder, prefix, dtype, files) for prefix in encoders]
        while chunk := list(itertools.islice(remaining, _CHUNK)):
            row_numbers, *texts = zip(*chunk, strict=True)
            encoded = [encoder.encode_batch(column) for encoder, column in zip(encoders.values(), texts, strict=True)]
            every = list(zip(row_numbers, *encoded, strict=True))
            kept = [row for row in every if max_tokens is None or max(map(len, row[1:])) <= max_tokens]
            n_left_out += len(every) - len(kept)
            left_out += sorted({n for n, *_ in every} - {n for n, *_ in kept})[: 3 - len(left_out)]
            if kept:
                kept_numbers, *ids = zip(*kept, strict=True)
                numbers.write(np.array(kept_numbers, "<i8").tobytes())
                for writer, column in zip(writers, ids, strict=True):
                    writer.write(column)
    facts = {"left_out": (left_out, n_left_out)} if n_left_out else {}
    return {"format": _FORMAT, "key": key, "dtype": dtype, **facts}


def store_key(files: Sequence[Path], options: Mapping[str, Any], tokenizer: Tokenizer) -> str:
    """Return a SHA-256 of the contents of the files, the options for reading them (as JSON), and the tokenizer."""
    parts = {
        "format": _FORMAT,
        "files": [sha256_file(file) for file in files],
        "options": options,
        "tokenizer": tokenizer.sha256,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def verified_facts(folder: Path, wanted: int) -> StoreFacts:
    """Check the files of a store and return the facts in its manifest. Raises FileNotFoundError or DamagedFile."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such token store")
    facts = verify_manifest(folder)
    if facts.get("format") != wanted:
        raise DamagedFile(f"{folder} has format {facts.get('format')}, not {wanted}")
    left_out = facts.get("left_out", ([], 0))
    return StoreFacts(folder.resolve(), facts["key"], facts["dtype"], manifest_hash(folder), tuple(left_out))


def id_type(vocab_size: int) -> str:
    """Return the numpy type for ids of a vocabulary: two bytes per id, or four for a large vocabulary.

    >>> id_type(1 << 16), id_type((1 << 16) + 1)
    ('<u2', '<u4')
    """
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


def mapped(path: Path, dtype: str) -> NDArray[Any]:
    """Return a file as a read-only memory-mapped array. An empty file, which cannot be mapped, is an empty array."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, mode="r").view(np.ndarray)
