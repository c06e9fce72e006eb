"""Any number of labels per text, and a number per text, from decisions between no and yes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from attendo.data.labelled import LabelledRow, LabelSet
from attendo.data.labelled_corpus import MultiLabelCorpus, has_labels, is_above, label_list, numbers_of
from attendo.inference.label_model import (
    Answer,
    ClassScore,
    Decisions,
    LabelAssessment,
    Logits,
    TextClassifier,
)
from attendo.inference.tables import Cell
from attendo.metrics import log_loss, log_softmax, yes_or_no

INTERVAL = 0.8
"""The probability of the interval around a number."""


@dataclass(frozen=True)
class LabelList(Answer):
    """The labels whose probability reaches their threshold (0.5 if the run stores none), most probable first.

    The calibrated probabilities of all labels do not sum to 1.
    """

    labels: tuple[str, ...]
    probabilities: dict[str, float]

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (list(self.labels),)

    @property
    def line(self) -> str:
        """The labels and their probabilities for a terminal, separated by tabs."""
        return "\t".join(f"{label} {self.probabilities[label]:.4f}" for label in self.labels)


@dataclass(frozen=True)
class Estimate(Answer):
    """The number of a text, and the interval from `low` to `high` that contains it with probability 0.8."""

    number: float
    low: float
    high: float

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.number, self.low, self.high


@dataclass
class MultiLabelClassifier(TextClassifier):
    """A trained classifier that gives a text any number of labels. Each label is an independent decision.

    card.json contains the number of training rows (`n_rows`).
    """

    task = "multi-label"
    heads = ("labels",)

    @property
    def baseline(self) -> str:
        return "shares of the labels"

    @property
    def labels(self) -> LabelSet:
        """The sorted labels."""
        return LabelSet(tuple(self.counts))

    @property
    def prior(self) -> Float[ndarray, " labels"]:
        counts = np.array([*self.counts.values()], np.float64)
        return np.log((counts + 0.5) / (self.card["n_rows"] - counts + 0.5))

    def decisions(self, logits: Logits) -> Decisions:
        return yes_or_no(logits)

    def classes_of(self, rows: Sequence[LabelledRow], name: str) -> Int[ndarray, "rows labels"]:
        labels = self.labels
        for row in rows:
            for label in MultiLabelCorpus.labels_of(row):
                labels.id_of(label, f"{name}:{row.number}")
        return has_labels(rows, labels.names)

    def scores(self, log_probs: Decisions, rows: Sequence[LabelledRow]) -> dict[str, float]:
        return self._score(self.classes_of(rows, "the rows"), self._given(self._probabilities(log_probs)))[1]

    def predicted(self, log_probs: Decisions) -> list[str]:
        given = self._given(self._probabilities(log_probs))
        return [label_list(name for name, chosen in zip(self.counts, own, strict=True) if chosen) for own in given]

    def combined(self, logits: Logits, ngrams: Logits) -> Logits:
        # between two classes, mixed log-probabilities are mixed logits
        return self.share * logits / self.encoder_temperature + (1 - self.share) * ngrams

    def classify(self, texts: Sequence[str]) -> Sequence[Answer]:
        """Return the answer for each text, of any length. Long texts are cut or read in windows.

        Args:
            texts: A list of texts.

        Raises:
            AttendoError: `texts` is a single string.
        """
        logits, n_tokens = self.read(texts)
        return self._answers(texts, logits, n_tokens)

    def evaluate(self, rows: Sequence[LabelledRow], name: str = "the rows") -> LabelAssessment:
        """Compare the answers with the labels of rows.

        Args:
            rows: Labeled texts. The label of a row is a JSON list.
            name: Name of the rows in error messages, for example a file name.

        Returns:
            The answers, the score of each label, and the measures: `micro_f1` over all decisions, `macro_f1` (the mean
            of the labels), `exact` (the percentage of texts with exactly the right labels), and `loss` (nats per
            decision).

        Raises:
            AttendoError: A label does not occur in the training set.
        """
        true = self.classes_of(rows, name)
        texts = [row.text for row in rows]
        logits, n_tokens = self.read(texts)
        log_probs = log_softmax(yes_or_no(logits / self.temperature))
        found = self._answers(texts, logits, n_tokens)
        labels, measures = self._score(true, self._given(self._probabilities(log_probs)))
        loss = log_loss(log_probs, true.ravel())
        return LabelAssessment(tuple(found), labels, measures | {"loss": loss})

    def _probabilities(self, log_probs: Decisions) -> Logits:
        return np.exp(log_probs[:, 1]).reshape(-1, self.n_outputs)

    def _given(self, probabilities: Logits) -> ndarray:
        return probabilities >= np.array([self.thresholds.get(name, 0.5) for name in self.counts])

    def _score(
        self, true: Int[ndarray, "rows labels"], given: ndarray
    ) -> tuple[tuple[ClassScore, ...], dict[str, float]]:
        right = (given & (true == 1)).sum(0)
        sizes = given.sum(0), true.sum(0)
        f1 = 2 * right / np.maximum(1, sizes[0] + sizes[1])
        columns = (right / np.maximum(1, sizes[0]), right / np.maximum(1, sizes[1]), f1, sizes[1])
        labels = zip(self.counts, *(column.tolist() for column in columns), strict=True)
        measures = {
            "micro_f1": float(2 * right.sum() / max(1, sizes[0].sum() + sizes[1].sum())),
            "macro_f1": float(f1.mean()),
            "exact": 100 * float((given == (true == 1)).all(1).mean()),
        }
        return tuple(ClassScore(*row) for row in labels), measures

    def _answers(self, texts: Sequence[str], logits: Logits, n_tokens: Sequence[int]) -> Sequence[Answer]:
        probabilities = self._probabilities(log_softmax(yes_or_no(logits / self.temperature)))
        given, names = self._given(probabilities), tuple(self.counts)
        answers = []
        for text, row, own, n in zip(texts, probabilities, given, n_tokens, strict=True):
            order = np.argsort(-row, kind="stable")
            labels = tuple(names[i] for i in order if own[i] and text.strip())
            by_label = {names[i]: float(row[i]) for i in order if text.strip()}
            answers.append(LabelList(text, n, self.is_cut(n), labels, by_label))
        return answers


@dataclass
class Regressor(MultiLabelClassifier):
    """A trained model that estimates a number for a text (Frank & Hall 2001).

    For each step, it decides whether the number is larger. The estimate is Σ p(bin) · mean of the bin, where a bin lies
    between two steps. `counts` is the number of training rows above each step. card.json contains the mean of the
    training rows in each bin (`values`).
    """

    task = "regression"
    heads = ("number", "low", "high")

    @property
    def baseline(self) -> str:
        return "always the mean"

    def classes_of(self, rows: Sequence[LabelledRow], name: str) -> Int[ndarray, "rows steps"]:
        return is_above(rows, tuple(self.counts))

    def scores(self, log_probs: Decisions, rows: Sequence[LabelledRow]) -> dict[str, float]:
        return _errors(self._numbers(self._probabilities(log_probs)), numbers_of(rows))

    def predicted(self, log_probs: Decisions) -> list[str]:
        return [f"{number:.4g}" for number in self._numbers(self._probabilities(log_probs))]

    def evaluate(self, rows: Sequence[LabelledRow], name: str = "the rows") -> LabelAssessment:
        """Compare the estimates with the numbers of rows.

        Args:
            rows: Texts with numbers.
            name: Name of the rows in error messages.

        Returns:
            The estimates, no labels, and the measures: `mae` (mean absolute error), `rmse` (root mean square error),
            `r2` (1 - squared error / variance), and `within` (the share of numbers in the interval of the estimate).
        """
        true = numbers_of(rows)
        found = self.classify([row.text for row in rows])
        numbers, low, high = np.array([answer.cells for answer in found], np.float64).T
        within = float(((low <= true) & (true <= high)).mean())
        return LabelAssessment(tuple(found), (), _errors(numbers, true) | {"within": within})

    @property
    def _values(self) -> Float[ndarray, " bins"]:
        return np.array(self.card["values"])

    def _numbers(self, above: Logits) -> Float[ndarray, " texts"]:
        return self._values[0] + above @ np.diff(self._values)

    def _answers(self, texts: Sequence[str], logits: Logits, n_tokens: Sequence[int]) -> Sequence[Answer]:
        above = self._probabilities(log_softmax(yes_or_no(logits / self.temperature)))
        edges = np.array([self._values[0], *map(float, self.counts), self._values[-1]])
        # a bin with one value, as in stars from 1 to 5, has all its probability at this value
        single = np.isclose(self._values, edges[1:], rtol=1e-9, atol=0)
        single[-1] = single[:-1].all()
        edges = np.stack([np.where(single, edges[1:], edges[:-1]), edges[1:]], 1).ravel()
        ends = ((1 - INTERVAL) / 2, (1 + INTERVAL) / 2)
        answers = []
        for text, number, row, n in zip(texts, self._numbers(above), above, n_tokens, strict=True):
            shares = np.maximum.accumulate([0.0, *(1 - row), 1.0])
            low, high = np.interp(ends, shares.repeat(2)[1:-1], edges)
            answers.append(Estimate(text, n, self.is_cut(n), float(number), float(low), float(high)))
        return answers


def _errors(numbers: Float[ndarray, " rows"], true: Float[ndarray, " rows"]) -> dict[str, float]:
    squares = float(((numbers - true) ** 2).mean())
    return {
        "mae": float(np.abs(numbers - true).mean()),
        "rmse": squares**0.5,
        "r2": 1 - squares / max(float(true.var()), 1e-300),
    }
