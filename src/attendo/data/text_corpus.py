"""The texts of a run: their token stream, with every file and row accounted for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from attendo.data.batches import EpochBatches, TokenDataset
from attendo.data.corpus_base import Corpus
from attendo.data.data_files import require_file
from attendo.data.held_out import FEWEST_ROWS, HeldOut, held_out
from attendo.data.store import StoreFacts, store_key
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
"""Of each document, where there are too few to hold whole ones out."""


@dataclass(frozen=True)
class TextSplit:
    """The validation texts: whole documents or, with fewer than 20, the last tenth of each one.

    held: hashes of first chunks, which keep similar beginnings together; None for tails. lengths: those of few
    documents, in characters.
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
    """Split documents: at least 20 as `held_out` splits rows, fewer by their tails. Raises AttendoError on failure."""
    lengths: list[int] = []
    all_read = False

    def beginnings() -> Iterator[str]:
        nonlocal all_read
        for chunk in chunks:
            if chunk.starts:
                if len(lengths) < FEWEST_ROWS:  # as many as that are held out whole: nobody asks for lengths
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
    """The chunks of one part; both together are all of the text, and have nothing in common."""
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
    starts = True  # whether what comes next begins a document of the part
    in_tail = False
    for text, begins in chunks:
        if begins:
            document += 1
            place = 0
            starts = True
            in_tail = False
        tail = int(lengths[document] * TAIL_SHARE)
        near = lengths[document] - tail - place  # where the tail begins in this chunk
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
"""About 20 words: the rules that choose a vocabulary and a size count in rows of them."""

TOKENIZER_CHARACTERS = 50_000_000
"""A tokenizer learns from at most that many."""


@dataclass(frozen=True, kw_only=True)
class TextData:
    """The texts of a run. The run stores absolute paths, so it can be resumed from any folder.

    Attributes:
        train: Files, folders or patterns. `stdlib` is the source code of Python's standard library.
        valid: Validation files, folders or patterns (default: some documents, or the end of each, are held out).
        column: Column of the text in .tsv, .csv, .jsonl and .parquet files.
        header: Whether the first line of a .tsv file contains column names.
        documents: Documents in a text file: the whole `file`, each `line`, or paragraphs between blank lines (`blank`).
        strict: Whether the first bad row raises an error. Otherwise, bad rows are skipped and counted.
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
        """Whether validation text is split off from the training texts."""
        return not (self.embedded or self.valid)

    def source(self, part: Part) -> TextSource:
        """The source of a part; of a split part, the training texts."""
        if self.embedded:
            return standard_library(part)
        files = self.valid if part == "valid" and self.valid else self.train
        return TextSource(tuple(map(Path, files)), self.column, self.header, self.documents)


@dataclass(frozen=True, eq=False)
class WindowDataset(TokenDataset):
    """A stream of documents as a language model's training sees it: full windows of `context` tokens."""

    stream: TokenStream
    context: int
    specials: SpecialTokens = OWN

    @property
    def facts(self) -> StoreFacts:
        assert self.stream.facts is not None, "a stream in memory has no store"
        return self.stream.facts

    @property
    def n_rows(self) -> int:
        """Rows of about 20 words, by which sizes are chosen."""
        return int(self.stream.n_characters.sum()) // CHARACTERS_A_ROW

    @property
    def n_tokens(self) -> int:
        """Targets of an epoch, the ends of documents included."""
        return self.stream.n_positions

    def batches(self, batch_tokens: int, seed: int, epoch: int) -> EpochBatches:
        """The batches of an epoch; none are kept, as a stream may have any size."""
        return self._epoch(batch_tokens, seed, epoch)

    def _epoch(self, batch_tokens: int, seed: int, epoch: int) -> EpochBatches:
        return window_batches(self.stream, self.context, batch_tokens, seed, epoch, specials=self.specials)


class TextCorpus(Corpus[TextData]):
    """The training and validation documents of a run, read in streams as often as needed."""

    @cached_property
    def split(self) -> TextSplit | None:
        """The part that is split off for validation, if no validation file is given."""
        if not self.data.is_split:
            return None
        split = split_texts(self._read("train"), self.data.source("train").name)
        self.say(split.line())
        return split

    @cached_property
    def n_characters(self) -> int:
        """The characters of the training texts; the first call prints the reading report."""
        source = self.data.source("train")
        reading = Reading(source.name)
        for _ in read_documents(source, self.data.strict, reading):
            pass
        for line in (reading.line(), *(report.line() for report in reading.row_reports)):
            self.say(line)
        return sum(len(chunk.text) for chunk in self.chunks("train"))

    def chunks(self, part: Part) -> Iterator[Chunk]:
        """The documents of a part, in chunks."""
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
        """The training texts in windows of `context` tokens. Raises AttendoError if they don't fill one."""
        stream = self.stream(tokenizer, "train")
        require_window(stream, context, self.data.source("train").name)
        return WindowDataset(stream, context, tokenizer.specials)

    def _read(self, part: Part) -> Iterator[Chunk]:
        return read_documents(self.data.source(part), self.data.strict)
