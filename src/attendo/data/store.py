"""A token store: pairs of sentences as ids in memory-mapped files, made once for given files, options and tokenizer.

A store is a folder in the cache, named by its key. It holds flat ids (two bytes each, four if the vocabulary
needs them) with the offsets of the rows for each side, the row numbers in the file, where those of each of several
files begin, and a manifest. Each kind is one file of any size: a memory map needs no smaller ones.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from attendo.cache import cache_folder, discard, opened_or_built
from attendo.data.accounting import Account
from attendo.data.lengths import RowLengths
from attendo.data.tokenizers import Tokenizer
from attendo.files import DamagedFile, manifest_hash, sha256_file, verify_manifest, write_manifest

_FORMAT = 1
_CHUNK = 2000  # rows encoded at a time; memory for a chunk is all that building takes
_SIDES = ("source", "target")

Pair = tuple[int, str, str]  # row number in the file, source text, target text


@dataclass(frozen=True)
class StoreFacts:
    """What a store says of itself. key: of what it was made from; content: a SHA-256 over what it holds.

    left_out: numbers of the rows that had too many tokens, the first three, and how many they are.
    """

    folder: Path
    key: str
    dtype: str
    content: str
    left_out: tuple[list[int], int] = ([], 0)

    def discard(self) -> None:
        """Takes the store out of the cache; asked for again, it is made anew."""
        discard(self.folder)


class PairStore:
    """Pairs of token ids, without bos and eos, read from memory-mapped files.

    `source_lengths` and `target_lengths` are those of the rows, in tokens; `row_numbers` an int64 array [rows] of the
    rows' numbers in the file they came from, counted on over several: see `place`. No row takes memory.
    """

    def __init__(self, folder: Path) -> None:
        """Open and check a store. Raises FileNotFoundError if there is none, DamagedFile if it isn't whole."""
        self.facts = verified_facts(folder, _FORMAT)
        self._ids = {side: mapped(folder / f"{side}.ids", self.facts.dtype) for side in _SIDES}
        self._offsets = {side: mapped(folder / f"{side}.offsets", "<i8") for side in _SIDES}
        self.row_numbers: NDArray[np.int64] = mapped(folder / "rows", "<i8")
        self.source_lengths = RowLengths(self._offsets["source"])
        self.target_lengths = RowLengths(self._offsets["target"])
        self._starts = row_starts(folder)

    def __len__(self) -> int:
        return len(self.row_numbers)

    def source(self, i: int) -> NDArray[Any]:
        """The source ids of row i, a view into the file."""
        return self._row("source", i)

    def target(self, i: int) -> NDArray[Any]:
        """The target ids of row i, a view into the file."""
        return self._row("target", i)

    def place(self, i: int) -> tuple[int, int]:
        """Which of the files, counted from 0, row i came from, and its number there."""
        return row_place(self._starts, int(self.row_numbers[i]))

    def _row(self, side: str, i: int) -> NDArray[Any]:
        offsets = self._offsets[side]
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of a store of {len(self)}")
        return self._ids[side][offsets[i] : offsets[i + 1]]


def store_key(files: Sequence[Path], options: Mapping[str, Any], tokenizer: Tokenizer) -> str:
    """The key of a store: a SHA-256 over the files' contents, how they are read, and the tokenizer.

    `options` are JSON values: everything besides the files' contents that decides which pairs are read from
    them. The files' names and places don't count.
    """
    parts = {
        "format": _FORMAT,
        "files": [sha256_file(file) for file in files],
        "options": options,
        "tokenizer": tokenizer.sha256,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def pair_store(
    pairs: Iterable[Pair],
    tokenizer: Tokenizer,
    key: str,
    cache: Path | None = None,
    account: Account | None = None,
    max_tokens: int | None = None,
) -> PairStore:
    """The store of this key in the cache; `pairs` are read only if it isn't there yet or is damaged.

    account: that of the pairs, which knows their files once they are read. max_tokens: pairs with more on a side are
    left out; it belongs into the key. It is built in constant memory. Raises AttendoError if the cache can't be written
    to.
    """
    folder = (cache or cache_folder()) / f"pairs-{key}"
    return opened_or_built(
        folder, PairStore, lambda new: _build(new, pairs, tokenizer, key, account, max_tokens)
    )


def verified_facts(folder: Path, wanted: int) -> StoreFacts:
    """The facts in a store's manifest, once its files are found whole and its format the wanted one.

    Raises FileNotFoundError if there is no such folder, DamagedFile if it isn't whole.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such token store")
    facts = verify_manifest(folder)
    if facts.get("format") != wanted:
        raise DamagedFile(f"{folder} has format {facts.get('format')}, not {wanted}")
    left_out = facts.get("left_out", ([], 0))
    return StoreFacts(folder.resolve(), facts["key"], facts["dtype"], manifest_hash(folder), tuple(left_out))


def id_type(vocab_size: int) -> str:
    """The numpy type that ids of a vocabulary are kept in: two bytes each, four if it needs them.

    >>> id_type(1 << 16), id_type((1 << 16) + 1)
    ('<u2', '<u4')
    """
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


def save_row_starts(folder: Path, account: Account | None) -> None:
    """Keeps where the row numbers of each file begin, if the rows came from several."""
    if account is not None and len(account.parts) > 1:
        starts = np.array([part.start for part in account.parts], "<i8")
        (folder / "starts").write_bytes(starts.tobytes())


def row_starts(folder: Path) -> NDArray[np.int64]:
    """The number of the last row before each file, [files]; that of one file is 0."""
    path = folder / "starts"
    return mapped(path, "<i8") if path.exists() else np.zeros(1, np.int64)


def row_place(starts: NDArray[np.int64], number: int) -> tuple[int, int]:
    """Which file a row number means, counted from 0, and its number there.

    >>> row_place(np.array([0, 100, 100]), 100), row_place(np.array([0, 100, 100]), 101)
    ((0, 100), (2, 1))
    """
    file = int(np.searchsorted(starts, number, side="left")) - 1
    return file, number - int(starts[file])


def _build(
    folder: Path,
    pairs: Iterable[Pair],
    tokenizer: Tokenizer,
    key: str,
    account: Account | None,
    max_tokens: int | None,
) -> None:
    dtype, left_out, n_left_out = id_type(tokenizer.vocab_size), [], 0
    remaining = iter(pairs)
    ends = dict.fromkeys(_SIDES, 0)
    with (
        (folder / "rows").open("wb") as rows,
        (folder / "source.ids").open("wb") as source,
        (folder / "target.ids").open("wb") as target,
        (folder / "source.offsets").open("wb") as source_offsets,
        (folder / "target.offsets").open("wb") as target_offsets,
    ):
        files: dict[str, tuple[IO[bytes], IO[bytes]]] = {
            "source": (source, source_offsets),
            "target": (target, target_offsets),
        }
        for _, offsets in files.values():
            offsets.write(np.zeros(1, "<i8").tobytes())
        while chunk := list(itertools.islice(remaining, _CHUNK)):
            _, *texts = zip(*chunk, strict=True)
            encoded = tokenizer.encode_batch(texts[0]), tokenizer.target.encode_batch(texts[1])
            kept = [
                (n, *ids) for (n, *_), *ids in zip(chunk, *encoded, strict=True) if _fits(ids, max_tokens)
            ]
            if len(kept) < len(chunk):
                n_left_out += len(chunk) - len(kept)
                left_out += sorted({n for n, *_ in chunk} - {n for n, *_ in kept})[: 3 - len(left_out)]
            if not kept:
                continue
            numbers, *columns = zip(*kept, strict=True)
            rows.write(np.array(numbers, "<i8").tobytes())
            for side, found in zip(_SIDES, columns, strict=True):
                ids, offsets = files[side]
                positions = ends[side] + np.cumsum([len(row) for row in found], dtype="<i8")
                ends[side] = int(positions[-1])
                ids.write(np.fromiter(itertools.chain.from_iterable(found), dtype).tobytes())
                offsets.write(positions.tobytes())
    facts = {"left_out": (left_out, n_left_out)} if n_left_out else {}
    save_row_starts(folder, account)
    write_manifest(folder, {"format": _FORMAT, "key": key, "dtype": dtype, **facts})


def _fits(sides: Iterable[Sequence[int]], max_tokens: int | None) -> bool:
    return max_tokens is None or all(len(ids) <= max_tokens for ids in sides)


def mapped(path: Path, dtype: str) -> NDArray[Any]:
    """A file as a read-only array, without reading it; an empty file can't be mapped."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, mode="r").view(np.ndarray)
