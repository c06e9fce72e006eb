"""The classification task: what the training loop is told about labelled texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Integer
from numpy import ndarray
from torch import nn

from attendo.data.batches import EpochBatches, padding_share
from attendo.data.labelled import LabelledRow, shown
from attendo.data.labelled_corpus import LabelledDataset
from attendo.data.labelled_store import LabelledStore
from attendo.display.formats import plural
from attendo.inference.classifier import Classifier
from attendo.metrics import (
    accuracy,
    calibration_error,
    class_scores,
    confusion_matrix,
    fit_temperature,
    log_loss,
    log_softmax,
)
from attendo.training.distributed import ALONE, Ranks
from attendo.training.run import Evaluation, measured

NAMES = tuple(
    f"{measure}_{rival}"
    for rival in ("always_commonest", "counting_words")
    for measure in ("accuracy", "macro_f1")
)
"""Of the baselines' measures, beside a model's in each evaluation."""
MOST_COUNTS = 1 << 23
"""Where there would be more of them, classes times words, words are not counted: 64 MiB."""
TOKENS = 1 << 20
"""Tokens that are counted at a time, or those of one text."""


@dataclass(frozen=True)
class Baselines:
    """The accuracy and macro-F1, in [0, 1], of always saying the `commonest` class, and of counting words.

    counting: None where there are too many counts to be held.
    """

    commonest: int
    always: tuple[float, float]
    counting: tuple[float, float] | None

    def measures(self) -> dict[str, float]:
        """They by NAMES."""
        return dict(zip(NAMES, self.always + (self.counting or ()), strict=False))


def baselines(
    store: LabelledStore,
    texts: Sequence[Sequence[int]],
    true: Integer[ndarray, " texts"],
    shape: tuple[int, int],
) -> Baselines:
    """What both reach on `texts`, in token ids, of the classes `true`, by the rows of a store.

    shape: the numbers of classes and of ids. The store is read once, in streams.
    """
    n_classes, n_ids = shape
    sizes = np.bincount(store.labels, minlength=n_classes)
    commonest = int(sizes.argmax())
    counting = None
    if n_classes * n_ids <= MOST_COUNTS:
        scores = naive_bayes(sizes, word_counts(store, n_classes, n_ids))
        counted = (np.bincount(ids, minlength=n_ids) for ids in map(list, texts))
        found = np.array([(scores[0] + scores[1] @ n).argmax() for n in counted])
        counting = _scored(true, found, n_classes)
    return Baselines(commonest, _scored(true, np.full_like(true, commonest), n_classes), counting)


def naive_bayes(
    sizes: Integer[ndarray, " classes"], counts: Integer[ndarray, "classes words"]
) -> tuple[Float[ndarray, " classes"], Float[ndarray, "classes words"]]:
    """log P(c), and log P(w | c) = log (n_cw + 1) / (Σ_w n_cw + V); a text has the class of the largest sum.

    Multinomial naive Bayes with add-one smoothing (Manning et al. 2008, section 13.2). sizes: rows of each class;
    counts: how often each word stands in them. V words stand anywhere; those that do not, tell nothing, and have 0.

    >>> prior, words = naive_bayes(np.array([3, 1]), np.array([[5, 1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 1, 1, 0]]))
    >>> [round(float(p), 4) for p in np.exp(prior + words[:, [0, 0, 0, 4, 5]].sum(1))]  # as in their example 13.1
    [0.0003, 0.0001]
    """
    seen = counts.sum(0) > 0
    smoothed = np.log((counts + 1.0) / (counts.sum(1, keepdims=True) + seen.sum()))
    return np.log(sizes / sizes.sum()), np.where(seen, smoothed, 0.0)


def word_counts(store: LabelledStore, n_classes: int, n_ids: int) -> Int[ndarray, "classes ids"]:
    """How often each token stands in the rows of each class."""
    counts = np.zeros((n_classes, n_ids), np.int64)
    ends = np.cumsum(store.lengths[:], dtype=np.int64)
    start = 0
    while start < len(store):
        before = ends[start - 1] if start else 0
        rows = slice(start, max(start + 1, int(np.searchsorted(ends, before + TOKENS, side="right"))))
        start = rows.stop
        classes = np.repeat(store.labels[rows], store.lengths[rows])
        np.add.at(counts, (classes, np.concatenate([store.text(i) for i in range(rows.start, rows.stop)])), 1)
    return counts


def _scored(true: ndarray, found: ndarray, n_classes: int) -> tuple[float, float]:
    return accuracy(true, found), class_scores(confusion_matrix(true, found, n_classes)).macro_f1


N_SAMPLES = 31
"""Rows of an evaluation that are passed on, at equal distances: they may be sorted by label. A prime number, so that
steps at equal distances come by all of them."""


@dataclass(frozen=True, eq=False)
class ClassificationTask:
    """Batches from a token store; evaluation by classifying validation texts.

    name: where the validation rows come from, for messages. all_validation: those that decide at the end, if they are
    more.
    """

    material: LabelledDataset
    classifier: Classifier
    validation: Sequence[LabelledRow]
    batch_tokens: int
    name: str = "validation"
    all_validation: Sequence[LabelledRow] = ()

    def __post_init__(self) -> None:
        for rows in (self.validation, self.all_validation):
            self.classifier.ids_of(rows, self.name)  # an unseen label is told before anything is trained

    @property
    def final(self) -> ClassificationTask | None:
        """The task with all validation texts; None where it has them."""
        if len(self.all_validation) <= len(self.validation):
            return None
        return replace(self, validation=self.all_validation)

    def batches(self, seed: int, epoch: int, start: int) -> EpochBatches:
        """The batches of an epoch from number `start` on."""
        return self.material.batches(self.batch_tokens, seed, epoch)[start:]

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Fits the temperature and measures accuracy and macro-F1; loss (nats a text) and calibration error with it.

        The measure "temperature" is that of the very weights, and belongs into the card with them. The baselines'
        measures stand beside the model's.
        """
        classifier = self.classifier
        assert model is classifier.model
        true = classifier.ids_of(self.validation, self.name)
        texts = [row.text for row in self.validation]
        logits = np.array(ranks.shared(texts, lambda part: classifier.read(part)[0].tolist()))
        classifier.temperature = fit_temperature(logits, true)
        log_probs = log_softmax(logits / classifier.temperature)
        predicted = log_probs.argmax(1)
        measures = {
            "loss": log_loss(log_probs, true),
            "accuracy": accuracy(true, predicted),
            "macro_f1": class_scores(confusion_matrix(true, predicted, len(classifier.labels))).macro_f1,
            "ece": calibration_error(np.exp(log_probs), true),
            "ece_uncalibrated": calibration_error(np.exp(log_softmax(logits)), true),
            "temperature": classifier.temperature,
            **self.baselines.measures(),
        }
        names = classifier.labels.names
        samples = [(row.text, row.label, names[i]) for row, i in zip(self.validation, predicted, strict=True)]
        step = max(1, len(samples) // N_SAMPLES)
        return Evaluation(measures, self.deciding, samples[::step][:N_SAMPLES])

    @cached_property
    def baselines(self) -> Baselines:
        """What the model has to beat on the validation texts."""
        tokenizer, true = self.classifier.tokenizer, self.classifier.ids_of(self.validation, self.name)
        texts = tokenizer.encode_batch(row.text for row in self.validation)
        shape = len(self.classifier.labels), tokenizer.vocab_size
        return baselines(self.material.store, texts, true, shape)

    @property
    def what_to_beat(self) -> str:
        """The baselines in a line for people, by accuracy and by the measure that decides."""
        found, n = self.baselines, len(self.validation)
        label = shown(self.classifier.labels.names[found.commonest])
        line = f"to beat on {plural(n, 'validation text')}: always {label}, {self._scores(found.always)}"
        return line if found.counting is None else f"{line}; counting words, {self._scores(found.counting)}"

    def _scores(self, scores: tuple[float, float]) -> str:
        names = ("accuracy", "macro_f1") if self.deciding == "macro_f1" else ("accuracy",)
        return ", ".join(measured(dict(zip(names, scores, strict=False))))

    @property
    def deciding(self) -> str:
        """The measure that decides."""
        return "accuracy" if self.material.weights is None else "macro_f1"

    def better(self, value: float, than: float) -> bool:
        """More is better."""
        return value > than

    def describe(self) -> dict[str, Any]:
        """Rows, tokens, classes and padding of the training data."""
        material, batches = self.material, self.batches(0, 0, 0).rows
        return {
            "texts": material.n_rows,
            "tokens": material.n_tokens,
            "long_texts": material.n_long,
            "class_weights": material.weights,
            "batches_per_epoch": len(batches),
            "padding_share": round(padding_share(batches, material.lengths), 4),
            "validation_texts": max(len(self.validation), len(self.all_validation)),
        }
