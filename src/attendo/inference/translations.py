"""What a translator gives: translations, their candidates and alignments, and how good they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attendo.data.segments import LEAST_TOKENS, Segments
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.step import Hypothesis
from attendo.errors import AttendoError
from attendo.inference.alignment import Link, Looks, links_of
from attendo.metrics import Score

Loop = Literal["none", "mended", "left"]
"""Of a translation: it does not repeat itself; it did, and was searched again without repetition; that did not help."""


Omission = Literal["none", "short", "unaligned"]
"""Of a translation: nothing speaks for missing text; a piece is far shorter than usual; source words are unaligned."""

MOST_UNALIGNED = 0.65
"""The share of a piece's source tokens that no target token looks at, above which the piece is marked."""


@dataclass(frozen=True)
class Candidate:
    """One translation. log_prob: sum over its tokens, the end token included, in nats; score: normalized by length.

    finished: False where the text met its length limit before its end. Of a text translated in parts, the tokens are
    those of the parts in turn, each with its end, and the score is the mean of the parts' scores. alignment: for each
    token where it looks; None where that was not asked for.
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
    """A source and the candidates found for it, best first.

    parts: how many pieces it was translated in; loop: whether a piece repeated itself, of its best candidate; of a
    draw, which is not searched again, "left" if one did. omission: whether text is probably missing in the best
    candidate; "unaligned" only where alignments were asked for. seed: draws it again; None where it was searched for.
    """

    source: str
    candidates: tuple[Candidate, ...]
    parts: int = 1
    loop: Loop = "none"
    omission: Omission = "none"
    seed: int | None = None

    @property
    def text(self) -> str:
        """The best candidate's text."""
        return self.candidates[0].text

    @property
    def score(self) -> float:
        """The best candidate's normalized score."""
        return self.candidates[0].score


@dataclass(frozen=True)
class Assessment:
    """How good translations are: the texts, sacreBLEU's scores with signatures, and all measures by name.

    measures: loss (nats a target token), perplexity, bleu, chrf, exact (percent).
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
    """A text put together again from what was found for its parts, which may be none, one or more.

    looks: for each part where the tokens of its hypotheses look, by their ids; None for no alignment. lengths: of each
    part, in source tokens; none: omissions are not looked for. fewest: of usual translations, target tokens per
    source token.
    """
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
    """Whether no target token looks at most of the source."""
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
    """Raises AttendoError for what is no sequence of a source and a target each.

    >>> require_pairs(["rain", "雨"])
    Traceback (most recent call last):
    attendo.errors.AttendoError: evaluate wants pairs, [(source, target), …]; make them of two lists by zip
    """
    if any(isinstance(pair, str) or len(pair) != 2 for pair in pairs):
        raise AttendoError("evaluate wants pairs, [(source, target), …]; make them of two lists by zip")
