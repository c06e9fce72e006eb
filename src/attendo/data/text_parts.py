"""Training and validation part of texts that come without a validation file, in one streaming pass each."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from attendo.data.held_out import FEWEST_ROWS, HeldOut, held_out
from attendo.data.texts import Chunk, Part
from attendo.errors import AttendoError

TAIL_SHARE = 0.1
"""Of each document, where there are too few to hold whole ones out."""


@dataclass(frozen=True)
class TextSplit:
    """Which text validates: whole documents or, where there are fewer than 20, the last tenth of each one.

    held: documents by their first chunk, so that those which begin alike fall on one side; None where there are
    few. lengths: of these few documents, in characters. A tail begins with a line, if one begins in its first half.
    """

    held: HeldOut | None
    lengths: tuple[int, ...] = ()

    def line(self) -> str:
        """What is held out, in one line, for people."""
        if self.held is None:
            which = "the text" if len(self.lengths) == 1 else "each document"
            return f"the last {TAIL_SHARE:.0%} of {which} is split off for validation"
        counts = f"{self.held.n_held_out:,} of {self.held.n_rows:,}"
        return f"{counts} documents are split off for validation (by a hash of their beginning)"


def split_texts(chunks: Iterable[Chunk], name: str) -> TextSplit:
    """How to split these documents: at least 20 as `held_out` does with rows, fewer by their tails.

    Raises AttendoError, naming `name`, where nothing can be split off; what reading the chunks raises goes through.
    """
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
            f"{name}: {sum(lengths):,} characters are too few to split off a part for validation; "
            "give more text, or a validation file with --valid"
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
            document, place, starts, in_tail = document + 1, 0, True, False
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
