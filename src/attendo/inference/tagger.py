"""Tagging of raw text: spans with labels in the offsets of the text, found by a trained encoder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from attendo.data.labelled import LabelledRow, LabelSet
from attendo.data.tagged import Borders, Span, TagSet, spans_of
from attendo.data.tokenizers import require_list
from attendo.inference.label_model import (
    CHUNK,
    Answer,
    ClassScore,
    LabelAssessment,
    LabelModel,
    encoder_logits,
)
from attendo.inference.tables import Cell
from attendo.metrics import log_softmax

_LETTER = r"[^\W\d_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff]"
_MARK = r"[\u0300-\u036f\u200d\u3099\u309a\ufe00-\ufe0f\U0001f3fb-\U0001f3ff]"
_INSIDE = re.compile(rf"{_LETTER}{_LETTER}|\d\d|.{_MARK}|{_MARK}{_LETTER}|\u200d.", re.DOTALL)
"""Two characters between which no span begins or ends. Particles follow Korean names, so Hangul is not included."""


@dataclass(frozen=True)
class Tag:
    """A span that a tagger has found in a text.

    Attributes:
        start: Start of the span in the text, in characters from 0.
        end: End of the span (exclusive).
        label: The label of the span.
        text: The text of the span.
        probability: Calibrated probability of the span, in [0, 1]: the product over its words.
    """

    start: int
    end: int
    label: str
    text: str
    probability: float


@dataclass(frozen=True)
class Tagging(Answer):
    """The spans of a text, in the order of the text."""

    spans: tuple[Tag, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        return ([asdict(span) for span in self.spans],)

    @property
    def line(self) -> str:
        """The spans for a terminal, separated by tabs."""
        return "\t".join(
            f"{span.label} {span.start}-{span.end} {span.probability:.4f} {span.text}" for span in self.spans
        )

    def as_json(self) -> dict[str, Any]:
        """Return the spans and the number of tokens, as JSON values."""
        return {"spans": self.cells[0], "n_tokens": self.n_tokens}


def units_of(text: str, borders: Borders) -> list[list[int]]:
    """Return the tokens of each unit of a text. A span always contains whole units, and no unit is white space.

    A unit is a word or number in a script with spaces, a character of another script with its marks, or a token.

    >>> units_of("Ann 東京", [(0, 1), (1, 3), (3, 4), (4, 5), (5, 6)])
    [[0, 1], [3], [4]]
    """
    units: list[list[int]] = []
    last = 0
    for token, (start, end) in enumerate(borders):
        if not text[start:end].strip():
            continue
        if units and (start < last or (start == last and _INSIDE.match(text, start - 1))):
            units[-1].append(token)
        else:
            units.append([token])
        last = end
    return units


def best_classes(log_probs: Float[ndarray, "units classes"]) -> Int[ndarray, " units"]:
    """Return the most probable valid sequence of classes (Viterbi 1967): an I class continues its own label only.

    >>> best_classes(np.log([[0.3, 0.4, 0.3], [0.1, 0.1, 0.8]])), best_classes(np.log([[0.5, 0.1, 0.4]]))
    (array([1, 2]), array([0]))
    """
    best = log_probs.argmax(1)
    inside = (best > 0) & (best % 2 == 0)
    before = np.concatenate([[0], best[:-1]])
    if not (inside & (before != best) & (before != best - 1)).any():
        return best  # valid without further constraints, as nearly always
    scores = np.where(np.arange(log_probs.shape[1]) % 2 == 1, 0.0, -np.inf)
    scores[0] = 0.0
    scores += log_probs[0]
    origins = np.zeros(log_probs.shape, np.int64)
    for at in range(1, len(log_probs)):
        origin = np.full(len(scores), scores.argmax())
        begun = scores[1::2] > scores[2::2]
        origin[2::2] = np.arange(2, len(scores), 2) - begun
        origins[at] = origin
        scores = scores[origin] + log_probs[at]
    path = [int(scores.argmax())]
    for origin in origins[:0:-1]:
        path.append(int(origin[path[-1]]))
    return np.array(path[::-1])


@dataclass
class Tagger(LabelModel):
    """A trained tagger and its tokenizer, which find spans with labels in raw text.

    `counts` is the number of training spans of each label. Long texts are read in overlapping windows.
    """

    task = "tagging"
    heads = ("spans",)
    usual_long = "window"

    def __post_init__(self) -> None:
        self.tags = TagSet(tuple(self.counts))
        super().__post_init__()

    @property
    def n_outputs(self) -> int:
        return len(self.tags)

    def classify(self, texts: Sequence[str]) -> list[Tagging]:
        """Find the spans of texts of any length. Long texts are read in overlapping windows.

        Args:
            texts: A list of texts.

        Returns:
            One Tagging per text, in the order of the texts.

        Raises:
            AttendoError: `texts` is a single string.
        """
        require_list(texts)
        remaining = iter(texts)
        found: list[Tagging] = []
        while chunk := list(islice(remaining, CHUNK)):
            read = self.read(chunk)
            found += [self._tagging(*row) for row in zip(chunk, *read, strict=True)]
        return found

    def read(self, texts: Sequence[str]) -> tuple[list[Borders], list[Float[ndarray, "units classes"]], list[int]]:
        """Compute the logits of the units of each text (see `units_of`), before the division by the temperature.

        Args:
            texts: A list of texts.

        Returns:
            The start and end of the units of each text, the logits of these units, and the number of tokens of each
            text.
        """
        ids, borders = zip(*map(self.tokenizer.encode_spans, texts), strict=True)
        logits = encoder_logits(self.model, self.tokenizer, self.long_texts, ids)
        tokens = np.split(log_softmax(logits), np.cumsum([*map(len, ids)])[:-1])
        units = [self._units(*row) for row in zip(texts, borders, tokens, strict=True)]
        return [own for own, _ in units], [own for _, own in units], [*map(len, ids)]

    def borders(self, text: str) -> Borders:
        """Return the start and end of each unit of a text, between which a span can be.

        Args:
            text: The text.
        """
        borders = self.tokenizer.encode_spans(text)[1]
        return [(borders[tokens[0]][0], borders[tokens[-1]][1]) for tokens in units_of(text, borders)]

    def _units(
        self, text: str, borders: Borders, log_probs: Float[ndarray, "tokens classes"]
    ) -> tuple[Borders, Float[ndarray, "units classes"]]:
        """Return the borders and the logits of the units of a text from those of its tokens."""
        units = units_of(text, borders)
        if not units:
            return [], np.empty((0, log_probs.shape[1]))
        inside = log_probs.copy()
        inside[:, 1::2] = inside[:, 2::2]  # after the first token of a unit in a span, the class is always I
        inside[[tokens[0] for tokens in units]] = log_probs[[tokens[0] for tokens in units]]
        starts = np.cumsum([0, *map(len, units)])[:-1]
        sums = np.add.reduceat(inside[np.concatenate(units)], starts)
        return [(borders[tokens[0]][0], borders[tokens[-1]][1]) for tokens in units], sums

    def evaluate(
        self,
        rows: Sequence[LabelledRow],
        name: str = "the rows",
        read: tuple[list[Borders], list[Float[ndarray, "units classes"]], list[int]] | None = None,
    ) -> LabelAssessment:
        """Tag the texts of tagged rows and compare the spans with the true spans.

        `precision`, `recall` and `f1` count a span as right only if its start, end and label are right. `unit_accuracy`
        is the share of units (words, or characters in scripts without spaces) with the right class, and `loss` is in
        nats per unit. `unreachable` is the number of true spans that begin or end inside a unit.

        Args:
            rows: Tagged texts. The label of a row contains its spans as JSON (see `spans_of`).
            name: Name of the rows in error messages, for example a file name.
            read: The result of `read` for the texts of the rows (default: it is computed).

        Returns:
            The quality measures and the found spans.

        Raises:
            AttendoError: A label does not occur in the training set.
        """
        found: list[Tagging] = []
        truth: list[list[Span]] = []
        losses: list[ndarray] = []
        names = LabelSet(tuple(self.counts))
        n_right = n_unreachable = 0
        chunks = (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
        parts = [read] if read else (self.read([row.text for row in chunk]) for chunk in chunks)
        outputs = (output for part in parts for output in zip(*part, strict=True))
        for row, (borders, logits, n_tokens) in zip(rows, outputs, strict=True):
            spans = spans_of(row)
            for span in spans:
                names.id_of(span.label, f"{name}:{row.number}")
            classes = np.array(self.tags.classes(borders, spans), np.int64)
            log_probs = log_softmax(logits / self.temperature)
            losses.append(-log_probs[np.arange(len(classes)), classes])
            n_right += int((log_probs.argmax(1) == classes).sum())
            reachable = {span for span, _ in self.tags.spans(classes.tolist(), borders)}
            n_unreachable += len({*spans} - reachable)
            found.append(self._tagging(row.text, borders, logits, n_tokens))
            truth.append(spans)
        labels, measures = span_scores(truth, [[Span(t.start, t.end, t.label) for t in f.spans] for f in found])
        n_units = max(1, sum(map(len, losses)))
        measures |= {"unit_accuracy": n_right / n_units, "loss": float(sum(map(np.sum, losses))) / n_units}
        return LabelAssessment(tuple(found), labels, measures | {"unreachable": n_unreachable})

    def _tagging(self, text: str, borders: Borders, logits: Float[ndarray, "units classes"], n_tokens: int) -> Tagging:
        if not len(borders):
            return Tagging(text, n_tokens, False, ())
        log_probs = log_softmax(logits / self.temperature)
        classes = best_classes(log_probs)
        chosen = log_probs[np.arange(len(classes)), classes]
        tags = (
            Tag(*span, text[span.start : span.end], float(np.exp(chosen[tokens].sum())))
            for span, tokens in self.tags.spans(classes.tolist(), borders)
        )
        return Tagging(text, n_tokens, False, tuple(tags))


def span_scores(
    truth: Sequence[Sequence[Span]], found: Sequence[Sequence[Span]]
) -> tuple[tuple[ClassScore, ...], dict[str, float]]:
    """Return precision, recall and F1 per label and over all spans (Tjong Kim Sang & De Meulder 2003, section 2.4).

    A found span is right if a true span of the same text has the same start, end and label.

    >>> _, measures = span_scores([[Span(0, 4, "PER"), Span(9, 12, "LOC")]], [[Span(0, 4, "PER")]])
    >>> measures
    {'f1': 0.6666666666666666, 'precision': 1.0, 'recall': 0.5}
    """
    true = [(i, span) for i, spans in enumerate(truth) for span in spans]
    guessed = [(i, span) for i, spans in enumerate(found) for span in spans]
    right = {*true} & {*guessed}

    def scores(label: str | None) -> tuple[float, float, float, int]:
        n_true, n_guessed, n_right = (
            sum(label in (None, span.label) for _, span in spans) for spans in (true, guessed, right)
        )
        f1 = 2 * n_right / max(1, n_true + n_guessed)
        return n_right / max(1, n_guessed), n_right / max(1, n_true), f1, n_true

    labels = sorted({span.label for _, span in [*true, *guessed]})
    precision, recall, f1, _ = scores(None)
    measures = {"f1": f1, "precision": precision, "recall": recall}
    return tuple(ClassScore(label, *scores(label)) for label in labels), measures
