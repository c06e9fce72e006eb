"""The texts of a run: training and validation documents, and their token stream."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from attendo.data.batches import EpochBatches, TokenDataset
from attendo.data.corpus_base import Corpus
from attendo.data.data_files import require_file
from attendo.data.held_out import FEWEST_ROWS, HeldOut, held_out
from attendo.data.store import store_key
from attendo.data.texts import (
    STDLIB,
    Chunk,
    Documents,
    Part,
    Reading,
    TextSource,
    read_documents,
    standard_library,
)
from attendo.data.token_stream import TokenStream, require_window, token_stream, window_batches
from attendo.data.tokenizers import OWN, SpecialTokens, Tokenizer
from attendo.errors import AttendoError

TAIL_SHARE = 0.1
"""The share of each document that is held out, if there are too few documents to hold out whole ones."""


@dataclass(frozen=True)
class TextSplit:
    """The validation texts: whole documents, or the last tenth of each document if there are fewer than 20.

    `held` are the hashes of the first chunks of held-out documents. If it is None, the ends of documents are held out,
    and `lengths` are the lengths of all documents in characters.
    """

    held: HeldOut | None
    lengths: tuple[int, ...] = ()

    def line(self) -> str:
        if self.held is None:
            which = "the text" if len(self.lengths) == 1 else "each document"
            return f"the last {TAIL_SHARE:.0%} of {which} is held out for validation"
        counts = f"{self.held.n_held_out:,} of {self.held.n_rows:,}"
        return f"{counts} documents are held out for validation (by a hash of their beginning)"


def split_texts(chunks: Iterable[Chunk], name: str) -> TextSplit:
    """Hold out validation texts: whole documents (see `held_out`), or the end of each document if there are under 20.

    Raises AttendoError if nothing can be held out.
    """
    lengths: list[int] = []
    all_read = False

    def beginnings() -> Iterator[str]:
        nonlocal all_read
        for chunk in chunks:
            if chunk.starts:
                if len(lengths) < FEWEST_ROWS:  # with more documents, the lengths are not needed
                    lengths.append(0)
                yield chunk.text
            if len(lengths) < FEWEST_ROWS:
                lengths[-1] += len(chunk.text)
        all_read = True

    try:
        return TextSplit(held_out(beginnings(), name))
    except AttendoError:
        if not all_read or len(lengths) >= FEWEST_ROWS:
            raise
    if not any(length * TAIL_SHARE >= 1 for length in lengths):
        raise AttendoError(
            f"{name}: {sum(lengths):,} characters are too few to hold out a part for validation. Give more "
            "text, or a validation file with `valid`"
        )
    return TextSplit(None, tuple(lengths))


def part_of(chunks: Iterable[Chunk], split: TextSplit, part: Part) -> Iterator[Chunk]:
    """Yield the chunks of the training or validation split. The splits do not overlap and together contain all text."""
    if split.held is None:
        yield from _tails(chunks, split.lengths, part)
        return
    wanted = False
    for chunk in chunks:
        if chunk.starts:
            wanted = (chunk.text in split.held) == (part == "valid")
        if wanted:
            yield chunk


def _tails(chunks: Iterable[Chunk], lengths: tuple[int, ...], part: Part) -> Iterator[Chunk]:
    document, place = -1, 0
    starts = True  # whether the next chunk begins a document in this part
    in_tail = False
    for text, begins in chunks:
        if begins:
            document += 1
            place = 0
            starts = True
            in_tail = False
        tail = int(lengths[document] * TAIL_SHARE)
        near = lengths[document] - tail - place  # the start of the tail in this chunk
        if in_tail or near >= len(text):
            end = 0 if in_tail else len(text)
        else:
            line = text.find("\n", max(0, near - 1), near + tail // 2) + 1
            end, in_tail = line or near, True
        place += len(text)
        chosen = text[:end] if part == "train" else text[end:]
        if chosen:
            yield Chunk(chosen, starts)
            starts = False


CHARACTERS_A_ROW = 100
"""The number of characters, about 20 words, that count as one row in the choice of vocabulary size and model size."""

TOKENIZER_CHARACTERS = 50_000_000
"""The maximum number of characters for the training of a tokenizer."""


@dataclass(frozen=True, kw_only=True)
class TextData:
    """The texts of a run. The run stores absolute paths, so it can be resumed from any folder.

    Attributes:
        train: Files, folders or patterns. `stdlib` is the source code of Python's standard library.
        valid: Validation files, folders or patterns (default: some documents, or the end of each one, are held out).
        column: Column of the text in .tsv, .csv, .jsonl, .parquet and .xlsx files.
        header: Whether the first line of a .tsv file contains column names.
        documents: Documents in a text file: the whole `file`, each `line`, or paragraphs between blank lines (`blank`).
        strict: Whether the first bad row raises an error. By default, bad rows are skipped and counted.
    """

    train: tuple[str, ...] = (STDLIB,)
    valid: tuple[str, ...] = ()
    column: str | None = None
    header: bool = False
    documents: Documents = "file"
    strict: bool = False

    def check(self) -> None:
        if self.embedded and self.valid:
            raise AttendoError(f"`train` {STDLIB} has its own validation files. Remove `valid`")
        for part in () if self.embedded else ("train", "valid"):
            for file in self.source(part).paths():
                require_file(file)

    @property
    def embedded(self) -> bool:
        """Whether the texts are Python's standard library."""
        return self.train == (STDLIB,)

    @property
    def is_split(self) -> bool:
        """Whether validation texts are held out from the training texts."""
        return not (self.embedded or self.valid)

    def source(self, part: Part) -> TextSource:
        """Return the location of a split's texts: the same for both splits if validation texts are held out."""
        if self.embedded:
            return standard_library(part)
        files = self.valid if part == "valid" and self.valid else self.train
        return TextSource(tuple(map(Path, files)), self.column, self.header, self.documents)


@dataclass(frozen=True, eq=False)
class WindowDataset(TokenDataset):
    """The training documents of a language model as windows of `context` tokens."""

    store: TokenStream
    context: int
    specials: SpecialTokens = OWN

    @property
    def n_rows(self) -> int:
        """The amount of text, in units of 100 characters, from which vocabulary size and model size are chosen."""
        return int(self.store.n_characters.sum()) // CHARACTERS_A_ROW

    @property
    def n_tokens(self) -> int:
        """The number of tokens to predict per epoch, including one end token per document."""
        return self.store.n_positions

    def batches(self, batch_tokens: int, seed: int, epoch: int) -> EpochBatches:
        """Return the batches of an epoch. The batches are not cached, because a stream can have any size."""
        return self._epoch(batch_tokens, seed, epoch)

    def _epoch(self, batch_tokens: int, seed: int, epoch: int) -> EpochBatches:
        return window_batches(self.store, self.context, batch_tokens, seed, epoch, specials=self.specials)


class TextCorpus(Corpus[TextData]):
    """The training and validation documents of a run, which are read as streams whenever they are needed."""

    @cached_property
    def split(self) -> TextSplit | None:
        """The validation texts that are held out, or None if validation files are given or built in."""
        if not self.data.is_split:
            return None
        split = split_texts(self._read("train"), self.data.source("train").name)
        self.say(split.line())
        return split

    @cached_property
    def n_characters(self) -> int:
        """The number of characters in the training texts. The first access prints the reading report."""
        source = self.data.source("train")
        reading = Reading(source.name)
        for _ in read_documents(source, self.data.strict, reading):
            pass
        for line in (reading.line(), *(report.line() for report in reading.row_reports)):
            self.say(line)
        return sum(len(chunk.text) for chunk in self.chunks("train"))

    def chunks(self, part: Part) -> Iterator[Chunk]:
        """Return an iterator over the documents of the training or validation split, in chunks."""
        split = self.split
        if split is None:
            return self._read(part)
        return part_of(self._read("train"), split, part)

    @property
    def size(self) -> tuple[int, str]:
        return self.n_characters // CHARACTERS_A_ROW, f"{self.n_characters:,} characters"

    def texts(self) -> Iterator[str]:
        read = 0
        for chunk in self.chunks("train"):
            yield chunk.text
            read += len(chunk.text)
            if read > TOKENIZER_CHARACTERS:
                return

    def stream(self, tokenizer: Tokenizer, part: Part) -> TokenStream:
        source = self.data.source(part)
        options = source.options() | {"part": part, "split": part == "valid" and self.data.is_split}
        if self.data.embedded:
            options["folders"] = STDLIB
        return token_stream(self.chunks(part), tokenizer, store_key(source.paths(), options, tokenizer))

    def windows(self, tokenizer: Tokenizer, context: int) -> WindowDataset:
        """Return the training texts in windows of `context` tokens. Raises AttendoError if no window can be filled."""
        stream = self.stream(tokenizer, "train")
        require_window(stream, context, self.data.source("train").name)
        return WindowDataset(stream, context, tokenizer.specials)

    def _read(self, part: Part) -> Iterator[Chunk]:
        return read_documents(self.data.source(part), self.data.strict)
