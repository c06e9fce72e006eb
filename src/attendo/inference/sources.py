"""Raw texts as a translator's model reads them: in pieces, as ids, with what each translation begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from attendo.config import build, read_toml
from attendo.data.segments import Segment, Segments, Usual, split_text, usual_of
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.step import Hypothesis
from attendo.errors import AttendoError
from attendo.inference.alignment import Looks
from attendo.inference.text_list import require_list
from attendo.inference.translations import Loop, Translation, translation_of

ROWS, ROWS_OF_OLDER = 20_000, 2000
"""The pairs whose texts are counted at training, and the pairs of an older run that are, each time it is loaded."""


def usual_of_run(card: Mapping[str, Any], folder: Path | None, tokenizer: Tokenizer) -> Usual | None:
    """What the card of a run says, or its first training pairs; None where neither is known.

    Raises AttendoError for a card with other values than a training writes.
    """
    data = card.get("data")
    stored = data.get("usual") if isinstance(data, dict) else None
    if stored is None:
        return _counted(folder, tokenizer) if data and folder is not None else None
    match stored:
        case {"longest": int(longest), "fewest": int() | float() as fewest, "beginnings": [*words]} if (
            longest > 0 and 0 <= fewest < 100 and all(isinstance(word, str) for word in words)
        ):
            return Usual(longest, fewest, tuple(words))
    raise AttendoError(
        f"{folder}: card.json has an invalid data.usual (expected longest, fewest and beginnings, as training writes"
        " them); copy the run's card.json back"
    )


def _counted(folder: Path, tokenizer: Tokenizer) -> Usual | None:
    from attendo.data.pair_corpus import PairCorpus
    from attendo.data.pair_data import PairData

    try:
        data = build(PairData, read_toml(folder / "config.toml").get("data", {}), "config.toml [data]")
        data.check()
        data = replace(data, valid=data.train, drop="")  # the first rows suffice: nothing is split off
        pairs = list(islice(PairCorpus(data, lambda _: None).pairs(), ROWS_OF_OLDER))
    except (AttendoError, OSError, ValueError):
        return None  # the data have moved, or are damaged: the model can still be used
    sources, targets = [source for _, source, _ in pairs], [target for _, _, target in pairs]
    each = ((tokenizer, sources), (tokenizer.target, targets))
    source, target = (np.array([len(row) for row in own.encode_batch(texts)]) for own, texts in each)
    return usual_of([(source, target)], sources) if pairs else None


@dataclass(frozen=True)
class Sources:
    """The parts of texts, those of all texts in one list.

    texts: each in its parts. rows: the ids of each part, special tokens included. starts: the first ids of each part's
    translation; None where none has any. fewest: of usual translations, target tokens per source token.
    """

    texts: list[Segments]
    rows: list[list[int]]
    starts: list[list[int]] | None
    fewest: float = 0.0

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
        left, seen, rows = iter(found), iter(looks or ()), iter(self.rows)
        return [
            translation_of(
                segments,
                [next(left) for _ in segments.pieces],
                tokenizer,
                n_best,
                None if looks is None else [next(seen) for _ in segments.pieces],
                [len(next(rows)) - tokenizer.specials.n_around_source for _ in segments.pieces],
                self.fewest,
            )
            for segments in self.texts
        ]


def sources_of(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    longest: int,
    prefixes: str | Sequence[str] | None = None,
    segment: Segment = "none",
    usual: Usual | None = None,
) -> Sources:
    """Split texts into pieces of at most `longest` tokens, as `split_text` does; an empty text has no pieces.

    Args:
        tokenizer: The model's.
        texts: Any texts.
        longest: The most tokens of a piece.
        prefixes: What each translation begins with, or one prefix for all; the first piece's translation begins so.
        segment: The unit to split into.
        usual: What training saw; None if that is not known.

    Raises:
        AttendoError: `texts` is a single text, the number of prefixes is not the number of texts, or a prefix has a
            word that the tokenizer does not know.
    """
    require_list(texts)
    known = usual or Usual(longest)
    split = [_pieces(tokenizer, text, longest, segment, known.beginnings) for text in texts]
    starts = None
    if prefixes is not None:
        each = [prefixes] * len(texts) if isinstance(prefixes, str) else prefixes
        starts = _starts(tokenizer, each, [len(rows) for _, rows in split])
    return Sources(
        [segments for segments, _ in split], [row for _, rows in split for row in rows], starts, known.fewest
    )


def _pieces(
    tokenizer: Tokenizer, text: str, longest: int, segment: Segment, beginnings: tuple[str, ...]
) -> tuple[Segments, list[list[int]]]:
    whole = text.strip()
    ids = tokenizer.encode(whole) if whole else []
    if not ids:
        return Segments((), (text,)), []

    def encoded(piece: str) -> list[int]:
        return ids if piece == whole else tokenizer.encode(piece)  # most texts are one piece

    segments = split_text(text, longest, lambda piece: len(encoded(piece)), segment, beginnings)
    return segments, [tokenizer.specials.source(encoded(piece)) for piece in segments.pieces]


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
