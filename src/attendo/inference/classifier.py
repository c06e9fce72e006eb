"""Classification of raw text by a trained classifier and its tokenizer, with calibrated probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from attendo import metrics
from attendo.data.labelled import LabelledRow, LabelSet, shown
from attendo.errors import AttendoError
from attendo.inference.decisions import Thresholds, decide
from attendo.inference.label_model import (
    Answer,
    ClassScore,
    Decisions,
    LabelAssessment,
    Logits,
    TextClassifier,
    mixed,
)
from attendo.inference.tables import Cell


@dataclass(frozen=True)
class Classification(Answer):
    """The predicted label of a text and the probabilities of all labels, most probable first.

    A text without content (empty or only white space) has the label None and no probabilities. A text for which no
    label reaches its threshold has the label None.

    Attributes:
        label: The predicted label: the most probable label, if the classifier has no thresholds (see `decide`).
        probability: Calibrated probability of `label`, or of the most probable label if `label` is None, in [0, 1].
        probabilities: Calibrated probabilities by label, in descending order.
    """

    label: str | None
    probability: float | None
    probabilities: dict[str, float]

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.label, self.probability


@dataclass(frozen=True, eq=False)
class ClassAssessment(LabelAssessment):
    """The measured quality of classifications.

    Rows without a predicted label lower the recall of their label. The measures are `loss` (nats per text), `accuracy`,
    `macro_f1`, `brier` and `ece` (expected calibration error) of the calibrated probabilities. `loss_uncalibrated` and
    `ece_uncalibrated` are computed at temperature 1. `accuracy_error` is one standard error of the accuracy, and
    `commonest` is the share of the most frequent label. With thresholds, `coverage` is the share of rows with a
    predicted label, and `accuracy_given` is the share of correct labels among them; the accuracy is that of the most
    probable label.

    Attributes:
        confusion: Number of rows by true and predicted class, `[true, predicted]`, without rows that have no label.
        probabilities: The calibrated probabilities.
        true: The class of each row.
    """

    confusion: Int[ndarray, "classes classes"]
    probabilities: Float[ndarray, "rows classes"]
    true: Int[ndarray, " rows"]


@dataclass
class Classifier(TextClassifier):
    """A trained classifier and its tokenizer, which classify raw text: one label per text."""

    task = "classification"
    heads = ("label", "probability")

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            self.labels = LabelSet(tuple(self.counts))
        except ValueError as error:
            raise AttendoError(f"{error}. Restore the card.json of the run folder") from None

    def classify(self, texts: Sequence[str], thresholds: Thresholds | None = None) -> list[Classification]:
        """Classify texts of any length. The encoder cuts long texts or reads windows; the n-grams read whole texts.

        Args:
            texts: A list of texts.
            thresholds: The lowest probability at which each label is given (default: the stored thresholds).

        Returns:
            One Classification per text, in the order of the texts.

        Raises:
            AttendoError: `texts` is a single string.
        """
        logits, n_tokens = self.read(texts)
        probabilities = np.exp(metrics.log_softmax(logits / self.temperature))
        return self._classifications(texts, probabilities, n_tokens, thresholds)

    def evaluate(
        self,
        rows: Sequence[LabelledRow],
        name: str = "the rows",
        read: tuple[Logits, list[int]] | None = None,
    ) -> ClassAssessment:
        """Classify the texts of labeled rows and compare the predictions with the labels.

        Args:
            rows: Labeled texts. For a text without content, the prediction is the most frequent training label.
            name: Name of the rows in error messages, for example a file name.
            read: The result of `read` for the texts of the rows (default: it is computed).

        Returns:
            A ClassAssessment with the quality measures and the predictions.

        Raises:
            AttendoError: A label does not occur in the training set.
        """
        true = self.classes_of(rows, name)
        texts = [row.text for row in rows]
        logits, n_tokens = read or self.read(texts)
        log_probs = metrics.log_softmax(logits / self.temperature)
        probabilities = np.exp(log_probs)
        most_probable = probabilities.argmax(1)
        predicted = decide(probabilities, self._threshold_array(self.thresholds))
        given = predicted >= 0
        n = len(self.labels)
        # the last column counts the texts without a label
        confusion = metrics.confusion_matrix(true, np.where(given, predicted, n), n + 1)[:n, :n]
        scores = metrics.class_scores(confusion, np.bincount(true[~given], minlength=n))
        raw = metrics.log_softmax(logits)
        accuracy = metrics.accuracy(true, most_probable)
        measures = {
            "loss": metrics.log_loss(log_probs, true),
            "accuracy": accuracy,
            "accuracy_error": math.sqrt(accuracy * (1 - accuracy) / len(true)),
            "commonest": float(scores.support.max()) / len(true),
            "macro_f1": scores.macro_f1,
            "ece": metrics.calibration_error(probabilities, true),
            "brier": metrics.brier_score(probabilities, true),
            "loss_uncalibrated": metrics.log_loss(raw, true),
            "ece_uncalibrated": metrics.calibration_error(np.exp(raw), true),
        }
        if self.thresholds:
            measures["coverage"] = float(given.mean())
            measures["accuracy_given"] = metrics.accuracy(true[given], predicted[given]) if given.any() else 0.0
        columns = (scores.precision, scores.recall, scores.f1, scores.support)
        labels = zip(self.labels.names, *(column.tolist() for column in columns), strict=True)
        found = tuple(self._classifications(texts, probabilities, n_tokens, None))
        classes = tuple(ClassScore(*row) for row in labels)
        return ClassAssessment(found, classes, measures, confusion, probabilities, true)

    def classes_of(self, rows: Sequence[LabelledRow], name: str) -> Int[ndarray, " rows"]:
        return np.array([self.labels.id_of(row.label, f"{name}:{row.number}") for row in rows], np.int64)

    @property
    def prior(self) -> Float[ndarray, " classes"]:
        counts = np.array([*self.counts.values()], np.float64)
        return np.log(counts / counts.sum())

    @property
    def baseline(self) -> str:
        return f"always {shown(self.labels.names[self.prior.argmax()])}"

    def decisions(self, logits: Logits) -> Decisions:
        return logits

    def scores(self, log_probs: Decisions, rows: Sequence[LabelledRow]) -> dict[str, float]:
        true = self.classes_of(rows, "the rows")
        predicted = log_probs.argmax(1)
        confusion = metrics.confusion_matrix(true, predicted, log_probs.shape[1])
        return {
            "accuracy": metrics.accuracy(true, predicted),
            "macro_f1": metrics.class_scores(confusion).macro_f1,
        }

    def predicted(self, log_probs: Decisions) -> list[str]:
        return [self.labels.names[i] for i in log_probs.argmax(1)]

    def combined(self, logits: Logits, ngrams: Logits) -> Logits:
        return mixed(logits / self.encoder_temperature, ngrams, self.share)

    def _threshold_array(self, thresholds: Thresholds) -> Float[ndarray, " classes"]:
        """Return the thresholds in the order of the classes (NaN: none)."""
        return np.array([thresholds.get(name, np.nan) for name in self.labels.names])

    def _classifications(
        self,
        texts: Sequence[str],
        probabilities: Logits,
        n_tokens: Sequence[int],
        thresholds: Thresholds | None,
    ) -> list[Classification]:
        names = self.labels.names
        chosen = decide(probabilities, self._threshold_array(self.thresholds if thresholds is None else thresholds))
        results = []
        for text, row, n, class_id in zip(texts, probabilities, n_tokens, chosen.tolist(), strict=True):
            if not text.strip():
                results.append(Classification(text, n, False, None, None, {}))
                continue
            order = np.argsort(-row, kind="stable")
            label = names[class_id] if class_id >= 0 else None
            probability = float(row[order[0] if label is None else class_id])
            by_label = {names[i]: float(row[i]) for i in order}
            cut = self.is_cut(n)
            results.append(Classification(text, n, cut, label, probability, by_label))
        return results
