"""The results of a translator: translations with their candidates and alignments, and quality measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attendo.data.segments import LEAST_TOKENS, Segment, Segments, Usual, split_text
from attendo.data.tokenizers import Kind, Tokenizer, require_list
from attendo.decoding.options import DecodingConfig
from attendo.decoding.protocols import Hypothesis
from attendo.errors import AttendoError
from attendo.inference.alignment import Link, Looks, links_of
from attendo.metrics import Score

LEAST_REPEATED = 12
"""Smallest total length of a repetition in tokens. Shorter repetitions occur in correct texts."""
MOST_RATIO = 2.0
MOST_EXTRA = 30
"""Limit for a text without an end token: 2 tokens per source token plus 30. Longer texts count as looping."""
NO_REPEAT: dict[Kind, int] = {"character": 12, "byte": 24}
"""Length of the n-grams that a second search blocks, for small tokens. The n-grams are about as long as 4 subwords."""


def is_looping(source: Sequence[int], found: Hypothesis) -> bool:
    """Return whether a translation contains repetitions (`repeats`) that its source does not, or does not end.

    It does not end if it has no end token and more than 2n + 30 tokens, where n is the number of source tokens.
    """
    n_tokens = len(found.token_ids)
    endless = not found.finished and n_tokens > MOST_RATIO * len(source) + MOST_EXTRA
    return endless or (repeats(found.token_ids) and not repeats(source))


def without_repetition(config: DecodingConfig, kind: Kind) -> DecodingConfig | None:
    """Return the search settings to decode a looping text again, or None if repetition was already blocked.

    >>> without_repetition(DecodingConfig(), "bpe").no_repeat_ngram
    4
    >>> without_repetition(DecodingConfig(no_repeat_ngram=3), "bpe")
    """
    n_gram = NO_REPEAT.get(kind, 4)
    return None if 0 < config.no_repeat_ngram <= n_gram else replace(config, no_repeat_ngram=n_gram)


def repeats(token_ids: Sequence[int]) -> bool:
    """Return whether a token sequence occurs at least three times in a row, with at least 12 tokens in total.

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
"""Number of pairs whose lengths are measured in training."""


def usual_of_run(card: Mapping[str, Any], folder: Path | None) -> Usual | None:
    """Return the typical lengths of a run's training pairs, or None if card.json has none, as for an imported model.

    Raises AttendoError if card.json is invalid.
    """
    data = card.get("data")
    stored = data.get("usual") if isinstance(data, dict) else None
    if stored is None:
        return None
    match stored:
        case {"longest": int(longest), "fewest": int() | float() as fewest, "beginnings": [*words]} if (
            longest > 0 and 0 <= fewest < 100 and all(isinstance(word, str) for word in words)
        ):
            return Usual(longest, fewest, tuple(words))
    raise AttendoError(
        f"{folder}: card.json has an invalid data.usual (expected longest, fewest and beginnings, as training writes"
        " them). Restore the card.json of the run folder"
    )


@dataclass(frozen=True)
class Sources:
    """The encoded parts of several texts: the token ids of all parts are in one list, `rows`.

    `starts` contains the token ids that the translation of each part begins with, if there are prefixes. `fewest` is
    the smallest typical number of target tokens per source token in the training data.
    """

    texts: list[Segments]
    rows: list[list[int]]
    starts: list[list[int]] | None
    fewest: float = 0.0

    def translations(
        self,
        found: Sequence[tuple[Sequence[Hypothesis], Loop]],
        tokenizer: Tokenizer,
        n_best: int,
        looks: Sequence[Mapping[tuple[int, ...], Looks]] | None,
    ) -> list[Translation]:
        """Return one Translation per text, joined from the results of its parts. `looks` contains the alignments."""
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
    """Split texts into parts of at most `longest` tokens (`split_text`) and encode them. An empty text has no parts.

    `prefixes` is the required beginning of each translation: one string for all texts, or one per text. Raises
    AttendoError if `texts` is a single string, if the number of prefixes is wrong, or if a prefix contains an unknown
    word.
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
        return ids if piece == whole else tokenizer.encode(piece)  # most texts are a single part

    segments = split_text(text, longest, lambda piece: len(encoded(piece)), segment, beginnings)
    return segments, [tokenizer.specials.source(encoded(piece)) for piece in segments.pieces]


def _starts(tokenizer: Tokenizer, prefixes: Sequence[str], n_parts: list[int]) -> list[list[int]]:
    if len(prefixes) != len(n_parts):
        raise AttendoError(f"{len(prefixes)} prefixes for {len(n_parts)} texts. Give one per text; it can be empty")
    starts = [tokenizer.target.encode(text) for text in prefixes]
    for text, ids in zip(prefixes, starts, strict=True):
        if tokenizer.unk_id in ids:
            raise AttendoError(f"the prefix {text!r} has a word that is not in the vocabulary. Change it")
    return [row for ids, n in zip(starts, n_parts, strict=True) for row in [ids, *[[]] * (n - 1)][:n]]


Loop = Literal["none", "mended", "left"]
"""Looping of a translation: none, removed by a second search without repetition, or left after that search."""


Omission = Literal["none", "short", "unaligned"]
"""Sign of missing text in a translation: none, a far too short part, or many unaligned source words."""
MOST_UNALIGNED = 0.65
"""Largest share of a part's source tokens that may be unaligned. Above this share, text is probably missing."""


@dataclass(frozen=True)
class Candidate:
    """A candidate translation of a text.

    If a text was translated in parts, the token ids and log-probabilities of all parts are concatenated. The score is
    then the mean score of the parts.

    Attributes:
        log_prob: Log-probability of the translation in nats, including the end token of each part.
        score: Log-probability with length normalization and coverage penalty.
        finished: Whether all parts of the translation end with an end token, and not at their length limits.
        alignment: The source token that each target token attends to most (None: not requested).
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
        parts: Number of parts in which the text was translated.
        loop: Whether the best candidate loops: `none`, `mended` (a second search removed the loop) or `left`.
        omission: Sign of missing text in the best candidate: `none`, `short` (a part is far too short) or `unaligned`
            (many source words are unaligned, checked only with alignments).
        seed: Random seed that reproduces a sampled translation (None: beam search).
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
        """The score of the best candidate, as in `Candidate.score`."""
        return self.candidates[0].score


@dataclass(frozen=True)
class Assessment:
    """The measured quality of translations.

    Attributes:
        texts: The measured translations.
        scores: The scores BLEU, chrF and exact match.
        measures: Measures by name: loss (nats per target token), perplexity, bleu, chrf, and exact matches in percent.
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
    """Join the translations of a text's parts into one Translation.

    `lengths` contains the source lengths of the parts, for the check for omissions. `looks` contains the alignments.
    """
    if not found:
        nothing = Candidate("", (), 0.0, 0.0, (), True, None if looks is None else ())
        return Translation(segments.text, (nothing,))
    best: list[tuple[Hypothesis, ...]] = [()]
    for hypotheses, _ in found:  # keep the n best combinations of the parts so far
        combined = [(*before, after) for before in best for after in hypotheses]
        if len(found) > 1:  # the candidates of a single part are in order, with unfinished candidates last
            combined.sort(key=lambda parts: -sum(part.score for part in parts))
        best = combined[:n_best]
    loops = {loop for _, loop in found}
    worst: Loop = "left" if "left" in loops else "mended" if "mended" in loops else "none"
    candidates = tuple(_candidate(segments, parts, tokenizer, looks) for parts in best)
    ids = [hypotheses[0].token_ids for hypotheses, _ in found]
    omission: Omission = "none"
    if any(len(row) < fewest * n for row, n in zip(ids, lengths, strict=False) if n >= LEAST_TOKENS):
        omission = "short"
    elif looks is not None and any(_unaligned(look[row], n) for look, row, n in zip(looks, ids, lengths, strict=False)):
        omission = "unaligned"
    return Translation(segments.text, candidates, len(found), worst, omission)


def _unaligned(looks: Looks, length: int) -> bool:
    """Return whether most source tokens are unaligned: no target token attends mainly to them."""
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
    """Raise AttendoError unless each item is a pair of a source and a target.

    >>> require_pairs(["rain", "雨"])
    Traceback (most recent call last):
    attendo.errors.AttendoError: evaluate requires pairs, [(source, target), …]. Join two lists with zip
    """
    if any(isinstance(pair, str) or len(pair) != 2 for pair in pairs):
        raise AttendoError("evaluate requires pairs, [(source, target), …]. Join two lists with zip")
