"""Documents as one stream of token ids, in a memory-mapped file or in memory, and its training windows.

In a window, each document is bos + ids as input and ids + eos as target. Documents are consecutive, and attention never
crosses their borders. In each epoch the borders and the order of the windows are drawn from (seed, epoch), so a
position in the list is enough to resume a run.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attendo.cache import cache_folder, opened_or_built
from attendo.data.batches import GROUPING, Batch, EpochBatches, EpochRows, Grouping, Rows
from attendo.data.store import StoreFacts, id_type, mapped, verified_facts
from attendo.data.texts import Chunk
from attendo.data.tokenizers import OWN, SpecialTokens, Tokenizer, well_formed
from attendo.errors import AttendoError
from attendo.files import write_manifest

_FORMAT = 1
_AT_ONCE = 1 << 20  # characters encoded together
_FILES = ("ids", "offsets", "bytes", "characters")

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Document:
    """A document: its ids without bos and eos, and their characters and bytes; `ended` is False for a truncated one."""

    ids: NDArray[Any]
    n_characters: int
    n_bytes: int
    ended: bool = True

    @property
    def n_targets(self) -> int:
        """Tokens to predict: all of them, and eos where the document ends."""
        return len(self.ids) + self.ended

    def beginning(self, n_tokens: int, tokenizer: Tokenizer) -> "Document":
        """The first tokens of a longer document, without its end.

        Characters and bytes are those of their text; the bytes of a split character are not counted.
        """
        if n_tokens >= self.n_targets:
            return self
        ids = self.ids[:n_tokens]
        text = tokenizer.decode(ids.tolist()).rstrip("\ufffd")
        return Document(ids, len(text), len(text.encode()), ended=False)


@dataclass(frozen=True, eq=False)
class TokenStream:
    """Concatenated documents as token ids, without bos and eos.

    Attributes:
        ids: All ids `[tokens]`.
        offsets: The start of each document, and the end of the last `[documents + 1]`.
        n_bytes, n_characters: The length of each document's text in UTF-8 bytes and characters `[documents]`.
        facts: The facts of the store.
    """

    ids: NDArray[Any]
    offsets: Counts
    n_bytes: Counts
    n_characters: Counts
    facts: StoreFacts | None = None

    @classmethod
    def of(cls, texts: Iterable[str], tokenizer: Tokenizer) -> "TokenStream":
        """Return a stream of whole texts in memory.

        Args:
            texts: The documents.
            tokenizer: The tokenizer.

        >>> from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
        >>> stream = TokenStream.of(["ab", "ü"], train_tokenizer(["ab"], TokenizerConfig(kind="byte")))
        >>> stream.ids.tolist(), stream.offsets.tolist(), stream.n_characters.tolist()
        ([101, 102, 199, 192], [0, 2, 4], [2, 1])
        """
        return cls.of_chunks((Chunk(text, True) for text in texts), tokenizer)

    @classmethod
    def of_chunks(cls, chunks: Iterable[Chunk], tokenizer: Tokenizer) -> "TokenStream":
        """Return a stream of documents in chunks, as `read_documents` yields them, with the ids in memory.

        Args:
            chunks: The chunks of the documents.
            tokenizer: The tokenizer.
        """
        parts = list(_encoded(chunks, tokenizer))
        empty = [np.empty(0, id_type(tokenizer.vocab_size)), *[np.empty(0, np.int64)] * 3]
        ids, offsets, n_bytes, n_characters = map(np.concatenate, zip(empty, *parts, strict=True))
        return cls(ids, offsets, n_bytes, n_characters)

    @classmethod
    def open(cls, folder: Path) -> "TokenStream":
        """Open and check a store, and return its stream.

        Args:
            folder: The folder of the store.

        Raises:
            FileNotFoundError: There is no store.
            DamagedFile: The store is incomplete or damaged.
        """
        facts = verified_facts(folder, _FORMAT)
        types = (facts.dtype, "<i8", "<i8", "<i8")
        ids, offsets, n_bytes, n_characters = (
            mapped(folder / name, dtype) for name, dtype in zip(_FILES, types, strict=True)
        )
        return cls(ids, offsets, n_bytes, n_characters, facts)

    def __len__(self) -> int:
        return len(self.n_bytes)

    @property
    def n_tokens(self) -> int:
        return len(self.ids)

    @property
    def n_positions(self) -> int:
        """The number of tokens to predict: all ids, and the end of each document."""
        return self.n_tokens + len(self)

    def begins(self, documents: NDArray[np.integer]) -> Counts:
        """Return the positions at which documents begin, where each document takes one position more than its ids.

        Args:
            documents: The numbers of the documents.
        """
        return self.offsets[documents] + documents

    def documents_at(self, positions: NDArray[np.int64]) -> Counts:
        """Return the document of each position.

        Args:
            positions: Positions `[windows, positions]`, ascending within each window.
        """
        found = np.empty_like(positions)
        firsts, lasts = self._document_at(positions[:, 0]), self._document_at(positions[:, -1])
        for window, first, last in zip(range(len(found)), firsts.tolist(), lasts.tolist(), strict=True):
            begins = self.begins(np.arange(first, last + 1))
            found[window] = first - 1 + np.searchsorted(begins, positions[window], side="right")
        return found

    def _document_at(self, positions: NDArray[np.int64]) -> Counts:
        """The same by bisection, for a few arbitrary positions, without a table of document starts."""
        low, high = np.zeros_like(positions), np.full_like(positions, len(self))
        while (high - low > 1).any():
            middle = (low + high) // 2
            before = self.begins(middle) <= positions
            low, high = np.where(before, middle, low), np.where(before, high, middle)
        return low

    def document(self, i: int) -> Document:
        """Return a document, whose ids are a view into the file.

        Args:
            i: The number of the document.

        Raises:
            IndexError: There is no such document.
        """
        if not 0 <= i < len(self):
            raise IndexError(f"document {i} of a stream of {len(self)}")
        ids = self.ids[self.offsets[i] : self.offsets[i + 1]]
        return Document(ids, int(self.n_characters[i]), int(self.n_bytes[i]))

    def documents(self) -> Iterator[Document]:
        """Yield all documents in order."""
        return map(self.document, range(len(self)))

    def sample(self, n_tokens: int, tokenizer: Tokenizer) -> list[Document]:
        """Return documents with a given total of tokens, drawn in a fixed random order; the last one is truncated.

        Args:
            n_tokens: The total, including the end of each document. All documents are returned if there are no more.
            tokenizer: The tokenizer of the stream.
        """
        order: Iterable[int] = range(len(self))
        if self.n_positions > n_tokens:
            order = _drawn(len(self), n_tokens).tolist()
        chosen: list[Document] = []
        for i in order:
            document = self.document(i)
            chosen.append(
                document if document.n_targets <= n_tokens else document.beginning(n_tokens, tokenizer)
            )
            n_tokens -= chosen[-1].n_targets
            if n_tokens <= 0:
                break
        return chosen


def token_stream(
    chunks: Iterable[Chunk], tokenizer: Tokenizer, key: str, cache: Path | None = None
) -> TokenStream:
    """Return the cached stream of a key; it is built in constant memory if it is missing or damaged.

    Raises AttendoError if the cache cannot be written.
    """
    folder = (cache or cache_folder()) / f"texts-{key}"
    return opened_or_built(folder, TokenStream.open, lambda new: _build(new, chunks, tokenizer, key))


def _build(folder: Path, chunks: Iterable[Chunk], tokenizer: Tokenizer, key: str) -> None:
    with (
        (folder / "ids").open("wb") as ids,
        (folder / "offsets").open("wb") as offsets,
        (folder / "bytes").open("wb") as n_bytes,
        (folder / "characters").open("wb") as n_characters,
    ):
        files: tuple[IO[bytes], ...] = (ids, offsets, n_bytes, n_characters)
        for parts in _encoded(chunks, tokenizer):
            for file, part in zip(files, parts, strict=True):
                file.write(part.tobytes())
    write_manifest(folder, {"format": _FORMAT, "key": key, "dtype": id_type(tokenizer.vocab_size)})


def _drawn(n_documents: int, most: int) -> Counts:
    """Documents in an order that is drawn once and for all: at least `most` of them, or all."""
    random = np.random.default_rng(0)
    if n_documents <= GROUPING.at_once:
        return random.permutation(n_documents)
    return random.choice(n_documents, min(n_documents, most), replace=False)


def _encoded(
    chunks: Iterable[Chunk], tokenizer: Tokenizer
) -> Iterator[tuple[NDArray[Any], Counts, Counts, Counts]]:
    """The files of a stream, piece by piece: each yields what comes next in ids, offsets, bytes and characters."""
    dtype = id_type(tokenizer.vocab_size)
    end = open_bytes = open_characters = 0
    inside = False
    for together in _gathered(chunks):
        starting = iter(tokenizer.encode_batch(chunk.text for chunk in together if chunk.starts))
        going_on = iter(tokenizer.encode_batch((c.text for c in together if not c.starts), going_on=True))
        rows = [next(starting if chunk.starts else going_on) for chunk in together]
        offsets, n_bytes, n_characters = [], [], []
        for chunk, row in zip(together, rows, strict=True):
            if chunk.starts:
                offsets.append(end)
                if inside:
                    n_bytes.append(open_bytes)
                    n_characters.append(open_characters)
                open_bytes, open_characters, inside = 0, 0, True
            assert inside, "the first chunk starts a document"
            end += len(row)
            text = well_formed(chunk.text)
            open_bytes += len(text.encode())
            open_characters += len(text)
        ids = np.fromiter(itertools.chain.from_iterable(rows), dtype)
        yield ids, _counts(offsets), _counts(n_bytes), _counts(n_characters)
    last = [[open_bytes], [open_characters]] if inside else [[], []]
    yield np.empty(0, dtype), _counts([end]), _counts(last[0]), _counts(last[1])


def _gathered(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """The chunks in lists of about _AT_ONCE characters."""
    together: list[Chunk] = []
    size = 0
    for chunk in chunks:
        together.append(chunk)
        size += len(chunk.text) + 1
        if size >= _AT_ONCE:
            yield together
            together, size = [], 0
    if together:
        yield together


def _counts(values: list[int]) -> Counts:
    return np.array(values, "<i8")


@dataclass(frozen=True)
class WindowEdges:
    """The borders of an epoch's windows, ascending from 0 to `n_positions`, computed on access.

    The first window has 1 to `context` positions (`first`), the last one has the rest, and all others are full.

    >>> WindowEdges(20, 6, 3)(np.arange(5)), WindowEdges(20, 6, 4)(np.arange(5))
    (array([ 0,  3,  9, 15, 20]), array([ 0,  4, 10, 16, 20]))
    """

    n_positions: int
    context: int
    first: int

    @classmethod
    def drawn(cls, n_positions: int, context: int, seed: int, epoch: int) -> "WindowEdges":
        return cls(n_positions, context, int(np.random.default_rng((seed, epoch)).integers(1, context + 1)))

    @property
    def n_windows(self) -> int:
        return min(1, self.n_positions) + -(-max(0, self.n_positions - self.first) // self.context)

    def __call__(self, numbers: Rows) -> Rows:
        """The edges of these numbers, counted from 0."""
        places = self.first + (numbers - 1) * self.context
        return np.where(numbers == 0, 0, np.minimum(places, self.n_positions))


def window_batches(
    stream: TokenStream,
    context: int,
    batch_tokens: int,
    seed: int,
    epoch: int,
    grouping: Grouping = GROUPING,
    specials: SpecialTokens = OWN,
) -> EpochBatches:
    """Return all batches of an epoch, a pure function of the arguments.

    The `ids` of a batch are the numbers of its windows along the stream. All batches are about equally large.

    Args:
        stream: The token stream; see `require_window` for one that is too short.
        context: The number of positions of a window.
        batch_tokens: The number of positions per batch, with at least one window.
        seed: The seed of the run.
        epoch: The number of the epoch.
        grouping: How windows are shuffled. Memory is bounded above `grouping.at_once` windows; see `EpochRows`.
        specials: The special ids.
    """
    edges = WindowEdges.drawn(stream.n_positions, context, seed, epoch)
    most = max(1, batch_tokens // context)
    seeds = (seed, epoch, 1)  # the third number keeps the order apart from the place of the first cut

    def cut(windows: Rows, random: np.random.Generator) -> list[Rows]:
        return np.array_split(random.permutation(windows), -(-len(windows) // most))

    if edges.n_windows <= grouping.at_once:
        rows = cut(np.arange(edges.n_windows), np.random.default_rng(seeds))
    else:
        rows = EpochRows.of(edges.n_windows, seeds, cut, grouping)
    return EpochBatches(rows, lambda rows: window_batch(stream, edges(rows), edges(rows + 1), rows, specials))


def require_window(stream: TokenStream, context: int, name: str) -> None:
    """Raise AttendoError, naming the text, if it doesn't fill one window."""
    if stream.n_positions < context:
        raise AttendoError(
            f"{name} has {stream.n_positions:,} tokens (document ends included), fewer than one window of "
            f"{context:,}. Give more text, or set model.max_len to {stream.n_positions:,} or less"
        )


def window_batch(
    stream: TokenStream, starts: Rows, ends: Rows, ids: Rows, specials: SpecialTokens = OWN
) -> Batch:
    """Return the windows between positions `starts[i]` and `ends[i]` as a batch, padded at the end.

    Inputs: token_ids `[windows context]` and, only if a window has several documents, their numbers (segments).
    Causality makes a padding mask unnecessary.
    """
    positions = starts[:, None] + np.arange(int((ends - starts).max()))
    real = positions < ends[:, None]
    positions = np.minimum(positions, ends[:, None] - 1)
    documents = stream.documents_at(positions)
    places = positions - documents  # of the target among the ids; there is none for eos
    opens, closes = positions == stream.begins(documents), positions == stream.begins(documents + 1) - 1
    token_ids = np.where(opens, specials.opening, _taken(stream, places - 1))
    targets = np.where(closes, specials.eos_id, _taken(stream, places))
    inputs = {"token_ids": _padded(token_ids, real, specials.pad_id)}
    if (documents != documents[:, :1]).any():
        inputs["segments"] = torch.from_numpy(documents - documents[:, :1])
    nothing = specials.no_target
    return Batch(inputs, _padded(targets, real, nothing), int(real.sum()), np.asarray(ids), nothing)


def _taken(stream: TokenStream, places: Rows) -> Rows:
    """The ids at these indices; out-of-range indices give any neighbor."""
    if not stream.n_tokens:
        return np.zeros_like(places)
    return stream.ids.take(places, mode="clip").astype(np.int64)


def _padded(ids: Rows, real: NDArray[np.bool_], nothing: int) -> Tensor:
    return torch.from_numpy(np.where(real, ids, nothing))
