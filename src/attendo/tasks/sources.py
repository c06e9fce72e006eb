"""Raw texts as a translator's model reads them: in pieces, as ids, with what each translation begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attendo.data.segments import Segments, split_text
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.step import Hypothesis
from attendo.errors import AttendoError
from attendo.tasks.alignment import Looks
from attendo.tasks.text_list import require_list
from attendo.tasks.translations import Loop, Translation, translation_of


@dataclass(frozen=True)
class Sources:
    """The parts of texts, those of all texts in one row.

    texts: each in its parts. rows: the ids of each part, its specials among them. starts: the first ids of each part's
    translation; None where none has any.
    """

    texts: list[Segments]
    rows: list[list[int]]
    starts: list[list[int]] | None

    @property
    def n_parts(self) -> list[int]:
        """Of each text."""
        return [len(segments.pieces) for segments in self.texts]

    def translations(
        self,
        found: Sequence[tuple[Sequence[Hypothesis], Loop]],
        tokenizer: Tokenizer,
        n_best: int,
        looks: Sequence[Mapping[tuple[int, ...], Looks]] | None,
    ) -> list[Translation]:
        """The texts put together again from what was found for their parts; looks: as in `translation_of`."""
        left, seen = iter(found), iter(looks or ())
        return [
            translation_of(
                segments,
                [next(left) for _ in segments.pieces],
                tokenizer,
                n_best,
                None if looks is None else [next(seen) for _ in segments.pieces],
            )
            for segments in self.texts
        ]


def sources_of(
    tokenizer: Tokenizer, texts: Sequence[str], longest: int, prefixes: str | Sequence[str] | None = None
) -> Sources:
    """Texts in pieces of at most `longest` tokens, mostly one; an empty text has none.

    prefixes: what each translation begins with, or one for all; of a text in parts the first part's. Raises
    AttendoError for a bare text, for another number of prefixes than texts, and for a prefix with a word that the
    tokenizer does not know.
    """
    require_list(texts)
    split = [_pieces(tokenizer, text, longest) for text in texts]
    starts = None
    if prefixes is not None:
        each = [prefixes] * len(texts) if isinstance(prefixes, str) else prefixes
        starts = _starts(tokenizer, each, [len(rows) for _, rows in split])
    return Sources([segments for segments, _ in split], [row for _, rows in split for row in rows], starts)


def _pieces(tokenizer: Tokenizer, text: str, longest: int) -> tuple[Segments, list[list[int]]]:
    ids = tokenizer.encode(text) if text.strip() else []
    if not ids:
        return Segments((), (text,)), []
    framed = tokenizer.specials.source
    if len(ids) <= longest:
        return Segments((text,), ("", "")), [framed(ids)]
    segments = split_text(text, longest, lambda piece: len(tokenizer.encode(piece)))
    return segments, [framed(tokenizer.encode(piece)) for piece in segments.pieces]


def _starts(tokenizer: Tokenizer, prefixes: Sequence[str], n_parts: list[int]) -> list[list[int]]:
    if len(prefixes) != len(n_parts):
        raise AttendoError(
            f"{len(prefixes)} prefixes for {len(n_parts)} texts; give one for each, an empty one for none"
        )
    starts = [tokenizer.target.encode(text) for text in prefixes]
    for text, ids in zip(prefixes, starts, strict=True):
        if tokenizer.unk_id in ids:
            raise AttendoError(f"the prefix {text!r} has a word that the tokenizer does not know; change it")
    return [row for ids, n in zip(starts, n_parts, strict=True) for row in [ids, *[[]] * (n - 1)][:n]]
