"""The results of a translator: translations, their candidates and alignments, and their quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attendo.config import build, read_toml
from attendo.data.segments import LEAST_TOKENS, Segment, Segments, Usual, split_text, usual_of
from attendo.data.tokenizers import Kind, Tokenizer, require_list
from attendo.decoding.options import DecodingConfig
from attendo.decoding.protocols import Hypothesis
from attendo.errors import AttendoError
from attendo.inference.alignment import Link, Looks, links_of
from attendo.metrics import Score

LEAST_REPEATED = 12
"""Tokens that a repetition has at least, all its times together: shorter ones are found in good texts."""

MOST_RATIO = 2.0
MOST_EXTRA = 30
"""A text without an end is suspect from so many times its source, and so many tokens more."""

NO_REPEAT: dict[Kind, int] = {"character": 12, "byte": 24}
"""The n-grams that a second search does not repeat, where a token is no piece: about as much text as 4 pieces."""


def is_looping(source: Sequence[int], found: Hypothesis) -> bool:
    """Return whether a text has repetitions (`repeats`) that its source lacks, or ran to its limit.

    The latter requires more than 30 tokens and more than twice those of its source.
    """
    n_tokens = len(found.token_ids)
    endless = not found.finished and n_tokens > MOST_RATIO * len(source) + MOST_EXTRA
    return endless or (repeats(found.token_ids) and not repeats(source))


def without_repetition(config: DecodingConfig, kind: Kind) -> DecodingConfig | None:
    """The settings to decode a looping text again; None if repetition was already blocked.

    >>> without_repetition(DecodingConfig(), "bpe").no_repeat_ngram
    4
    >>> without_repetition(DecodingConfig(no_repeat_ngram=3), "bpe")
    """
    n_gram = NO_REPEAT.get(kind, 4)
    return None if 0 < config.no_repeat_ngram <= n_gram else replace(config, no_repeat_ngram=n_gram)


def repeats(token_ids: Sequence[int]) -> bool:
    """Return whether the same tokens repeat three times in a row or more, with 12 tokens or more in total.

    >>> repeats([5, 6, 7, 8] * 3), repeats([5, 6, 7, 8] * 2 + [5, 6, 7, 9]), repeats([5] * 11), repeats([5] * 12)
    (True, False, False, True)
    """
    if len(token_ids) - len(set(token_ids)) < LEAST_REPEATED * 2 // 3:
        return False
    row = np.asarray(token_ids)
    for period in range(1, len(row) // 3 + 1):
        different = np.flatnonzero(row[period:] != row[:-period])
        equal = np.diff(different, prepend=-1, append=len(row) - period).max() - 1
        if equal >= max(3 * period, LEAST_REPEATED) - period:
            return True
    return False


ROWS = 20_000
ROWS_OF_OLDER = 2000
"""The pairs whose texts are counted at training, and the pairs of an older run that are, each time it is loaded."""


def usual_of_run(card: Mapping[str, Any], folder: Path | None, tokenizer: Tokenizer) -> Usual | None:
    """The lengths in a run's card or its first training pairs; None if unknown.

    Raises AttendoError for an invalid card.
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
        " them). Restore the card.json of the run folder"
    )


def _counted(folder: Path, tokenizer: Tokenizer) -> Usual | None:
    from attendo.data.pair_corpus import PairCorpus, PairData

    try:
        data = build(PairData, read_toml(folder / "config.toml").get("data", {}), "config.toml [data]")
        data.check()
        data = replace(data, valid=data.train, drop="")  # the first rows suffice: nothing is split off
        pairs = list(islice(PairCorpus(data, lambda _: None).rows(), ROWS_OF_OLDER))
    except (AttendoError, OSError, ValueError):
        return None  # the data have moved, or are damaged: the model can still be used
    sources = [source for _, source, _ in pairs]
    targets = [target for _, _, target in pairs]
    each = ((tokenizer, sources), (tokenizer.target, targets))
    source, target = (np.array([len(row) for row in own.encode_batch(texts)]) for own, texts in each)
    return usual_of([(source, target)], sources) if pairs else None


@dataclass(frozen=True)
class Sources:
    """The parts of texts as one list: their ids, the first ids of their translations, and the usual token ratio."""

    texts: list[Segments]
    rows: list[list[int]]
    starts: list[list[int]] | None
    fewest: float = 0.0

    @property
    def n_parts(self) -> list[int]:
        """The number of parts of each text."""
        return [len(segments.pieces) for segments in self.texts]

    def translations(
        self,
        found: Sequence[tuple[Sequence[Hypothesis], Loop]],
        tokenizer: Tokenizer,
        n_best: int,
        looks: Sequence[Mapping[tuple[int, ...], Looks]] | None,
    ) -> list[Translation]:
        """The texts put together again from what was found for their parts; looks: as in `translation_of`."""
        left = iter(found)
        seen = iter(looks or ())
        rows = iter(self.rows)
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
            f"{len(prefixes)} prefixes for {len(n_parts)} texts. Give one per text; it can be empty"
        )
    starts = [tokenizer.target.encode(text) for text in prefixes]
    for text, ids in zip(prefixes, starts, strict=True):
        if tokenizer.unk_id in ids:
            raise AttendoError(f"the prefix {text!r} has a word that is not in the vocabulary. Change it")
    return [row for ids, n in zip(starts, n_parts, strict=True) for row in [ids, *[[]] * (n - 1)][:n]]


Loop = Literal["none", "mended", "left"]
"""Of a translation: it does not repeat itself; it did, and was searched again without repetition; that did not help."""


Omission = Literal["none", "short", "unaligned"]
"""Of a translation: nothing speaks for missing text; a piece is far shorter than usual; source words are unaligned."""

MOST_UNALIGNED = 0.65
"""The share of a piece's source tokens that no target token looks at, above which the piece is marked."""


@dataclass(frozen=True)
class Candidate:
    """One translation of a text.

    If a text was translated in parts, the tokens of all parts are concatenated, each with its end token, and the score
    is the mean of the parts' scores.

    Attributes:
        log_prob: The sum of the tokens' log-probabilities in nats, including the end token.
        score: The log-probability normalized by length.
        finished: False if the text reached its length limit before its end token.
        alignment: The source token that each target token attends to most; None unless requested.
    """

    text: str
    token_ids: tuple[int, ...]
    log_prob: float
    score: float
    token_log_probs: tuple[float, ...]
    finished: bool
    alignment: tuple[Link, ...] | None = None


@dataclass(frozen=True)
class Translation:
    """A source text and its candidate translations, best first.

    Attributes:
        parts: The number of pieces that the text was translated in.
        loop: Whether a piece of the best candidate loops. A sampled translation is not decoded again: it is then
            "left".
        omission: Whether text is probably missing in the best candidate; "unaligned" requires alignments.
        seed: The seed that reproduces a sampled translation; None for a searched one.
    """

    source: str
    candidates: tuple[Candidate, ...]
    parts: int = 1
    loop: Loop = "none"
    omission: Omission = "none"
    seed: int | None = None

    @property
    def text(self) -> str:
        """The text of the best candidate."""
        return self.candidates[0].text

    @property
    def score(self) -> float:
        """The normalized score of the best candidate."""
        return self.candidates[0].score


@dataclass(frozen=True)
class Assessment:
    """The measured quality of translations.

    Attributes:
        measures: loss (nats per target token), perplexity, bleu, chrf and exact (percent), by name.
    """

    texts: tuple[str, ...]
    scores: tuple[Score, ...]
    measures: dict[str, float]


def translation_of(
    segments: Segments,
    found: Sequence[tuple[Sequence[Hypothesis], Loop]],
    tokenizer: Tokenizer,
    n_best: int,
    looks: Sequence[Mapping[tuple[int, ...], Looks]] | None,
    lengths: Sequence[int] = (),
    fewest: float = 0.0,
) -> Translation:
    """Join the translations of a text's parts; `lengths` enables the check for omissions, `looks` the alignment."""
    if not found:
        nothing = Candidate("", (), 0.0, 0.0, (), True, None if looks is None else ())
        return Translation(segments.text, (nothing,))
    best: list[tuple[Hypothesis, ...]] = [()]
    for hypotheses, _ in found:  # the n best of all combinations: a sum is best where its terms are
        combined = [(*before, after) for before in best for after in hypotheses]
        if len(found) > 1:  # alone they are in order, those that have come to no end behind the others
            combined.sort(key=lambda parts: -sum(part.score for part in parts))
        best = combined[:n_best]
    loops = {loop for _, loop in found}
    worst: Loop = "left" if "left" in loops else "mended" if "mended" in loops else "none"
    candidates = tuple(_candidate(segments, parts, tokenizer, looks) for parts in best)
    ids = [hypotheses[0].token_ids for hypotheses, _ in found]
    omission: Omission = "none"
    if any(len(row) < fewest * n for row, n in zip(ids, lengths, strict=False) if n >= LEAST_TOKENS):
        omission = "short"
    elif looks is not None and any(
        _unaligned(look[row], n) for look, row, n in zip(looks, ids, lengths, strict=False)
    ):
        omission = "unaligned"
    return Translation(segments.text, candidates, len(found), worst, omission)


def _unaligned(looks: Looks, length: int) -> bool:
    """Return whether no target token attends mainly to most of the source."""
    n_seen = len({source for source, _ in looks})
    return length >= LEAST_TOKENS and length - n_seen > MOST_UNALIGNED * length


def _candidate(
    segments: Segments,
    parts: Sequence[Hypothesis],
    tokenizer: Tokenizer,
    looks: Sequence[Mapping[tuple[int, ...], Looks]] | None,
) -> Candidate:
    ids = [part.token_ids for part in parts]
    seen = None if looks is None else [look[row] for look, row in zip(looks, ids, strict=True)]
    return Candidate(
        text=segments.joined([tokenizer.decode(row) for row in ids]),
        token_ids=tuple(token for row in ids for token in row),
        log_prob=sum(part.log_prob for part in parts),
        score=sum(part.score for part in parts) / len(parts),
        token_log_probs=tuple(value for part in parts for value in part.token_log_probs),
        finished=all(part.finished for part in parts),
        alignment=None if seen is None else links_of(tokenizer, segments, ids, seen),
    )


def require_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Raise AttendoError unless each item is a source and a target.

    >>> require_pairs(["rain", "雨"])
    Traceback (most recent call last):
    attendo.errors.AttendoError: evaluate requires pairs, [(source, target), …]. Join two lists with zip
    """
    if any(isinstance(pair, str) or len(pair) != 2 for pair in pairs):
        raise AttendoError("evaluate requires pairs, [(source, target), …]. Join two lists with zip")
