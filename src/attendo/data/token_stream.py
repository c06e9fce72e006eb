"""Documents as one stream of token ids, in a memory-mapped file or in memory, and the training windows of the stream.

In a window, the input of each document is bos + ids, and its target is ids + eos. Documents are consecutive, and
attention never crosses document boundaries. In each epoch, the window borders and the order of the windows depend on
the seed and the epoch. A position in the list of batches is therefore enough to resume a run.
"""

import itertools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """A document: its token ids without bos and eos, and its text length. `ended` is False if the text is truncated."""

    ids: NDArray[Any]
    n_characters: int
    n_bytes: int
    ended: bool = True

    @property
    def n_targets(self) -> int:
        """The number of tokens to predict: all ids, and eos unless the document is truncated."""
        return len(self.ids) + self.ended

    def beginning(self, n_tokens: int, tokenizer: Tokenizer) -> "Document":
        """Return the first `n_tokens` tokens of a document, without its end. A shorter document is returned unchanged.

        The numbers of characters and bytes are those of the truncated text. The bytes of a split character are
        excluded.
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
        ids: The ids of all documents `[tokens]`.
        offsets: The start of each document in `ids`, and the end of the last document `[documents + 1]`.
        n_bytes: The length of each document's text in UTF-8 bytes `[documents]`.
        n_characters: The length of each document's text in characters `[documents]`.
        facts: The facts about the token store (default: the stream is in memory).
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
            texts: The text of each document.
            tokenizer: The tokenizer that encodes the texts.

        >>> from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
        >>> stream = TokenStream.of(["ab", "ü"], train_tokenizer(["ab"], TokenizerConfig(kind="byte")))
        >>> stream.ids.tolist(), stream.offsets.tolist(), stream.n_characters.tolist()
        ([101, 102, 199, 192], [0, 2, 4], [2, 1])
        """
        return cls.of_chunks((Chunk(text, True) for text in texts), tokenizer)

    @classmethod
    def of_chunks(cls, chunks: Iterable[Chunk], tokenizer: Tokenizer) -> "TokenStream":
        """Return a stream of documents in chunks, as `read_documents` yields them. The ids of the stream are in memory.

        Args:
            chunks: The chunks of the documents.
            tokenizer: The tokenizer that encodes the chunks.
        """
        parts = list(_encoded(chunks, tokenizer))
        empty = [np.empty(0, id_type(tokenizer.vocab_size)), *[np.empty(0, np.int64)] * 3]
        ids, offsets, n_bytes, n_characters = map(np.concatenate, zip(empty, *parts, strict=True))
        return cls(ids, offsets, n_bytes, n_characters)

    @classmethod
    def open(cls, folder: Path) -> "TokenStream":
        """Open and check the store of a token stream, and return the stream.

        Args:
            folder: The folder of the store.

        Raises:
            FileNotFoundError: The store does not exist.
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
        """The number of tokens to predict: all ids, and one end token per document."""
        return self.n_tokens + len(self)

    def begins(self, documents: NDArray[np.integer]) -> Counts:
        """Return the positions at which documents begin. A document has one position per id, and one for its end token.

        Args:
            documents: The numbers of the documents, from 0.
        """
        return self.offsets[documents] + documents

    def documents_at(self, positions: NDArray[np.int64]) -> Counts:
        """Return the number of the document at each position.

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
        """Return the document at each of a few arbitrary positions, by bisection without a table of all starts."""
        low, high = np.zeros_like(positions), np.full_like(positions, len(self))
        while (high - low > 1).any():
            middle = (low + high) // 2
            before = self.begins(middle) <= positions
            low, high = np.where(before, middle, low), np.where(before, high, middle)
        return low

    def document(self, i: int) -> Document:
        """Return a document. The ids of the document are a view into the file.

        Args:
            i: The number of the document, from 0.

        Raises:
            IndexError: The stream has no document with this number.
        """
        if not 0 <= i < len(self):
            raise IndexError(f"document {i} of a stream of {len(self)}")
        ids = self.ids[self.offsets[i] : self.offsets[i + 1]]
        return Document(ids, int(self.n_characters[i]), int(self.n_bytes[i]))

    def documents(self) -> Iterator[Document]:
        """Yield all documents in order."""
        return map(self.document, range(len(self)))

    def sample(self, n_tokens: int, tokenizer: Tokenizer) -> list[Document]:
        """Return documents with a given total of tokens, drawn in a fixed random order. The last document is truncated.

        Args:
            n_tokens: The total number of tokens, including the end of each document. A smaller stream is returned
                completely.
            tokenizer: The tokenizer of the stream.
        """
        order: Iterable[int] = range(len(self))
        if self.n_positions > n_tokens:
            order = _drawn(len(self), n_tokens).tolist()
        chosen: list[Document] = []
        for i in order:
            chosen.append(self.document(i).beginning(n_tokens, tokenizer))
            n_tokens -= chosen[-1].n_targets
            if n_tokens <= 0:
                break
        return chosen


def token_stream(chunks: Iterable[Chunk], tokenizer: Tokenizer, key: str, cache: Path | None = None) -> TokenStream:
    """Return the token stream with this key from the cache, and build it first if it is missing or damaged.

    Raises AttendoError if the cache cannot be written.
    """
    folder = (cache or cache_folder()) / f"texts-{key}"
    return opened_or_built(folder, TokenStream.open, lambda new: _build(new, chunks, tokenizer, key))


def _build(folder: Path, chunks: Iterable[Chunk], tokenizer: Tokenizer, key: str) -> None:
    with ExitStack() as stack:
        files = [stack.enter_context((folder / name).open("wb")) for name in _FILES]
        for parts in _encoded(chunks, tokenizer):
            for file, part in zip(files, parts, strict=True):
                file.write(part.tobytes())
    write_manifest(folder, {"format": _FORMAT, "key": key, "dtype": id_type(tokenizer.vocab_size)})


def _drawn(n_documents: int, most: int) -> Counts:
    """Return document numbers in a fixed random order: at least `most` of them, or all documents."""
    random = np.random.default_rng(0)
    if n_documents <= GROUPING.at_once:
        return random.permutation(n_documents)
    return random.choice(n_documents, min(n_documents, most), replace=False)


def _encoded(chunks: Iterable[Chunk], tokenizer: Tokenizer) -> Iterator[tuple[NDArray[Any], Counts, Counts, Counts]]:
    """Yield the contents of a stream's files part by part: the next ids, offsets, byte counts and character counts."""
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
    """Yield the chunks in lists of about _AT_ONCE characters."""
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


def window_batches(
    stream: TokenStream,
    context: int,
    batch_tokens: int,
    seed: int,
    epoch: int,
    grouping: Grouping = GROUPING,
    specials: SpecialTokens = OWN,
) -> EpochBatches:
    """Return all batches of an epoch. The batches depend only on the arguments, and have about equal sizes.

    The `ids` of a batch are the numbers of its windows in the stream. The first window has a random number of positions
    from 1 to `context`. The last window has the remaining positions, and all other windows are full.

    Args:
        stream: The token stream. `require_window` checks that the stream is long enough.
        context: The number of tokens per window.
        batch_tokens: The maximum number of tokens per batch. A batch has at least one window.
        seed: The seed of the run.
        epoch: The number of the epoch, from 0.
        grouping: The limits on the windows that are shuffled together, which also limit the memory (see `EpochRows`).
        specials: The special ids of the tokenizer.
    """
    n_positions = stream.n_positions
    first = int(np.random.default_rng((seed, epoch)).integers(1, context + 1))
    n_windows = min(1, n_positions) + -(-max(0, n_positions - first) // context)
    most = max(1, batch_tokens // context)
    seeds = (seed, epoch, 1)  # the third number makes the order independent of the first border

    def cut(windows: Rows, random: np.random.Generator) -> list[Rows]:
        return np.array_split(random.permutation(windows), -(-len(windows) // most))

    def edges(windows: Rows) -> Rows:
        """Return the start of each window."""
        starts = np.minimum(first + (windows - 1) * context, n_positions)
        return np.where(windows == 0, 0, starts)

    if n_windows <= grouping.at_once:
        rows = cut(np.arange(n_windows), np.random.default_rng(seeds))
    else:
        rows = EpochRows(n_windows, seeds, cut, grouping)
    return EpochBatches(rows, lambda rows: window_batch(stream, edges(rows), edges(rows + 1), rows, specials))


def require_window(stream: TokenStream, context: int, name: str) -> None:
    """Raise AttendoError if the stream does not fill one window. `name` is the name of the text in the message."""
    if stream.n_positions < context:
        raise AttendoError(
            f"{name} has {stream.n_positions:,} tokens (document ends included), fewer than one window of "
            f"{context:,}. Give more text, or set model.max_len to {stream.n_positions:,} or less"
        )


def window_batch(stream: TokenStream, starts: Rows, ends: Rows, ids: Rows, specials: SpecialTokens = OWN) -> Batch:
    """Return the windows between positions `starts[i]` and `ends[i]` as a batch, padded at the end.

    The inputs are `token_ids` `[windows context]` and, only if a window contains several documents, `segments` with the
    document numbers. No padding mask is needed, because attention is causal.
    """
    positions = starts[:, None] + np.arange(int((ends - starts).max()))
    real = positions < ends[:, None]
    positions = np.minimum(positions, ends[:, None] - 1)
    documents = stream.documents_at(positions)
    places = positions - documents  # index of the target in the ids; eos has no index
    opens, closes = positions == stream.begins(documents), positions == stream.begins(documents + 1) - 1
    token_ids = np.where(opens, specials.opening, _taken(stream, places - 1))
    targets = np.where(closes, specials.eos_id, _taken(stream, places))
    inputs = {"token_ids": _padded(token_ids, real, specials.pad_id)}
    if (documents != documents[:, :1]).any():
        inputs["segments"] = torch.from_numpy(documents - documents[:, :1])
    nothing = specials.no_target
    return Batch(inputs, _padded(targets, real, nothing), int(real.sum()), np.asarray(ids), nothing)


def _taken(stream: TokenStream, places: Rows) -> Rows:
    """Return the ids at these indices. An index out of range returns the nearest id, which is not used."""
    if not stream.n_tokens:
        return np.zeros_like(places)
    return stream.ids.take(places, mode="clip").astype(np.int64)


def _padded(ids: Rows, real: NDArray[np.bool_], nothing: int) -> Tensor:
    return torch.from_numpy(np.where(real, ids, nothing))
