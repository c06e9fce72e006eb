"""Tagging of raw text: spans with labels in the offsets of the text, found by a trained encoder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from attendo.bundle import Bundle, TaskName, TextModel, load_as
from attendo.data.labelled import LabelledRow, LongTexts
from attendo.data.tagged import Borders, Span, TagSet, spans_of
from attendo.data.tokenizers import Tokenizer, require_list
from attendo.errors import AttendoError
from attendo.inference.classifier import CHUNK, ClassScore, encoder_logits
from attendo.inference.tables import Cell
from attendo.metrics import log_softmax
from attendo.models import EncoderClassifier

_LETTER = (
    r"[^\W\d_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff]"
)
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
class Tagging:
    """The spans of a text, in the order of the text.

    Attributes:
        n_tokens: Number of tokens in the whole text.
    """

    cut: ClassVar[bool] = False

    text: str
    spans: tuple[Tag, ...]
    n_tokens: int

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


@dataclass(frozen=True, eq=False)
class TagAssessment:
    """The measured quality of taggings.

    Attributes:
        found: The taggings, in the order of the rows.
        labels: The score of each label.
        measures: Quality measures by name. `precision`, `recall` and `f1` count a span as right only if its start, end
            and label are right. `unit_accuracy` is the share of units (words, or characters in scripts without spaces)
            with the right class, and `loss` is in nats per unit. `unreachable` is the number of true spans that begin
            or end inside a unit.
    """

    found: tuple[Tagging, ...]
    labels: tuple[ClassScore, ...]
    measures: dict[str, float]


def units_of(text: str, borders: Borders) -> list[list[int]]:
    """Return the tokens of each unit of a text. A span always contains whole units, and no unit is white space.

    A unit is a word or number in a script with spaces, a character of another script with its marks, or a token.

    Args:
        text: The text.
        borders: The start and end of each token, in characters.

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
class Tagger(TextModel):
    """A trained tagger and its tokenizer, which find spans with labels in raw text.

    Attributes:
        model: The encoder with a class for each token.
        tokenizer: The tokenizer of the model.
        counts: Number of training spans of each label, in the order of the labels.
        temperature: Divisor of the logits in p = softmax(logits / temperature), fitted on the validation set.
        long_texts: Size of the overlapping windows in which long texts are read.
        card: The contents of the run's card.json.
        folder: Path of the run folder that the tagger was loaded from.
    """

    task: ClassVar[TaskName] = "tagging"
    heads: ClassVar[tuple[str, ...]] = ("spans",)

    model: EncoderClassifier
    tokenizer: Tokenizer
    counts: Mapping[str, int]
    temperature: float = 1.0
    long_texts: LongTexts = field(default_factory=lambda: LongTexts(long="window"))
    card: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    def __post_init__(self) -> None:
        self.tags = TagSet(tuple(self.counts))
        config = self.model.config
        if config.pooling != "none" or config.n_classes != len(self.tags):
            raise AttendoError(
                "this model is not a tagger of the labels in card.json. Load the run of a tagger"
            )
        n_read = self.long_texts.max_tokens + self.tokenizer.specials.n_around_text
        if config.positions == "learned" and n_read > config.max_len:
            raise AttendoError(
                f"data.max_tokens={self.long_texts.max_tokens} plus the special tokens exceeds"
                f" model.max_len={config.max_len}. Lower max_tokens or raise max_len"
            )

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> Tagger:
        """Load and return the tagger of a run folder.

        Args:
            folder: Path of the run folder.
            device: Device of the model, "cpu" or "cuda".

        Raises:
            AttendoError: A file is missing or damaged, or the run has another task.
        """
        return cls.from_bundle(*load_as(EncoderClassifier, folder, device))

    @classmethod
    def from_bundle(cls, bundle: Bundle, model: EncoderClassifier) -> Tagger:
        """Return a tagger for a model that is already in memory.

        Args:
            bundle: The contents of the run folder. card.json contains the number of training spans per label and the
                temperature. The table [data] contains `max_tokens`.
            model: The trained model.
        """
        card = bundle.card
        most = bundle.tables.get("data", {}).get("max_tokens", LongTexts.max_tokens)
        temperature = card.get("validation", {}).get("temperature", 1.0)
        long_texts = LongTexts(max_tokens=most, long="window")
        return cls(
            model, bundle.tokenizer, card.get("labels", {}), temperature, long_texts, card, bundle.folder
        )

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.output_proj.weight.device

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

    def read(
        self, texts: Sequence[str]
    ) -> tuple[list[Borders], list[Float[ndarray, "units classes"]], list[int]]:
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
    ) -> TagAssessment:
        """Tag the texts of tagged rows and compare the spans with the true spans.

        Args:
            rows: Tagged texts. The label of a row contains its spans as JSON (see `spans_of`).
            name: Name of the rows in error messages, for example a file name.
            read: The result of `read` for the texts of the rows (default: it is computed).

        Returns:
            A TagAssessment with the quality measures and the found spans.

        Raises:
            AttendoError: A label does not occur in the training set.
        """
        found: list[Tagging] = []
        truth: list[list[Span]] = []
        losses: list[ndarray] = []
        n_right = n_unreachable = 0
        chunks = (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
        parts = [read] if read else (self.read([row.text for row in chunk]) for chunk in chunks)
        outputs = (output for part in parts for output in zip(*part, strict=True))
        for row, (borders, logits, n_tokens) in zip(rows, outputs, strict=True):
            spans = spans_of(row)
            self.tags.require(spans, f"{name}:{row.number}")
            classes = np.array(self.tags.classes(borders, spans), np.int64)
            log_probs = log_softmax(logits / self.temperature)
            losses.append(-log_probs[np.arange(len(classes)), classes])
            n_right += int((log_probs.argmax(1) == classes).sum())
            reachable = {span for span, _ in self.tags.spans(classes.tolist(), borders)}
            n_unreachable += len({*spans} - reachable)
            found.append(self._tagging(row.text, borders, logits, n_tokens))
            truth.append(spans)
        labels, measures = span_scores(
            truth, [[Span(t.start, t.end, t.label) for t in f.spans] for f in found]
        )
        n_units = max(1, sum(map(len, losses)))
        measures |= {"unit_accuracy": n_right / n_units, "loss": float(sum(map(np.sum, losses))) / n_units}
        return TagAssessment(tuple(found), labels, measures | {"unreachable": n_unreachable})

    def _tagging(
        self, text: str, borders: Borders, logits: Float[ndarray, "units classes"], n_tokens: int
    ) -> Tagging:
        if not len(borders):
            return Tagging(text, (), n_tokens)
        log_probs = log_softmax(logits / self.temperature)
        classes = best_classes(log_probs)
        chosen = log_probs[np.arange(len(classes)), classes]
        tags = (
            Tag(*span, text[span.start : span.end], float(np.exp(chosen[tokens].sum())))
            for span, tokens in self.tags.spans(classes.tolist(), borders)
        )
        return Tagging(text, tuple(tags), n_tokens)


def span_scores(
    truth: Sequence[Sequence[Span]], found: Sequence[Sequence[Span]]
) -> tuple[tuple[ClassScore, ...], dict[str, float]]:
    """Return precision, recall and F1 per label and over all spans (Tjong Kim Sang & De Meulder 2003, section 2.4).

    A found span is right if a true span of the same text has the same start, end and label.

    Args:
        truth: The true spans of each text.
        found: The found spans of each text.

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
