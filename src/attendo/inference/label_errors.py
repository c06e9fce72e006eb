"""The search for wrong labels: rows whose label has a low probability in a model that was not trained on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from attendo.data.held_out import source_hash
from attendo.data.labelled import LabelledRow
from attendo.inference.classifier import Classifier
from attendo.inference.ngram_classifier import even_rows, fit_ngrams
from attendo.metrics import log_softmax

FOLDS = 5
"""The number of parts of the rows in cross-validation."""
FEWEST = 50
"""The minimum number of different texts for cross-validation."""
CERTAIN = 200
"""The minimum number of rows for the estimate of the wrong labels, if there are as many."""


class Suspect(NamedTuple):
    """A row, the most probable of all other labels (`suggested`), and the probabilities of both labels in [0, 1]."""

    row: LabelledRow
    suggested: str
    label_probability: float
    probability: float


@dataclass(frozen=True)
class LabelErrors:
    """All rows, the most suspicious first, and the estimated number of wrong labels (see `wrong_labels`).

    `n_crossed` training rows were cross-validated, and `n_inflated` could not be: their labels seem right.
    """

    suspects: tuple[Suspect, ...]
    wrong: float
    n_crossed: int
    n_inflated: int


def label_errors(
    classifier: Classifier,
    rows: Sequence[LabelledRow],
    name: str = "the rows",
    trained: Sequence[bool] = (),
    show: Callable[[int], None] = lambda fold: None,
) -> LabelErrors:
    """Rank rows by the normalized margin p(label) - max p(other label), the smallest first (Northcutt et al. 2021).

    The probabilities come from the classifier. A classifier has learned the wrong labels of its training rows
    (`trained`, default: none). For these rows, its log-probabilities are therefore averaged with those of a linear
    model of n-grams that is fitted on the other folds of `rows`. The number of wrong labels is estimated with the
    linear model alone. `show` receives the number of each finished fold. Raises AttendoError if a label does not occur
    in the training set.
    """
    given = classifier.classes_of(rows, name)
    texts = [row.text for row in rows]
    log_probs = log_softmax(classifier.read(texts)[0] / classifier.temperature)
    is_trained = np.array(trained or [False] * len(rows))
    unseen = log_probs.copy()
    is_crossed = np.zeros(len(rows), bool)
    if is_trained.any():
        crossed, known = out_of_fold(texts, given, len(classifier.labels), show)
        is_crossed = is_trained & known
        unseen[is_crossed] = crossed[is_crossed]
        log_probs[is_crossed] = log_softmax((log_probs + crossed)[is_crossed] / 2)
    probabilities = np.exp(log_probs)
    own = probabilities[np.arange(len(rows)), given]
    others = probabilities.copy()
    others[np.arange(len(rows)), given] = -1.0
    suggested = others.argmax(1)
    most = others.max(1)
    order = np.argsort(own - most, kind="stable")
    names = classifier.labels.names
    suspects = (Suspect(rows[i], names[suggested[i]], float(own[i]), float(most[i])) for i in order)
    wrong = wrong_labels(np.exp(unseen), given)
    return LabelErrors(tuple(suspects), wrong, int(is_crossed.sum()), int((is_trained & ~is_crossed).sum()))


def wrong_labels(probabilities: Float[ndarray, "rows classes"], given: Int[ndarray, " rows"]) -> float:
    """Estimate the number of wrong labels from the rows for which the model is most certain.

    If the model is certain, a different label is more likely a wrong label than a wrong prediction. The share of
    different labels among the tenth of the rows with the largest probability (at least CERTAIN rows) is assumed for all
    rows, as at the anchor points of Patrini et al. 2017 (section 3.2). The estimate is too high for a weak model.

    >>> wrong_labels(np.array([[0.9, 0.1]] * 200 + [[0.4, 0.6]] * 200), np.array([1] * 10 + [0] * 390))
    20.0
    """
    n_certain = max(CERTAIN, -(-len(given) // 10))
    certain = np.argsort(-probabilities.max(1), kind="stable")[:n_certain]
    return float((probabilities[certain].argmax(1) != given[certain]).mean() * len(given))


def out_of_fold(
    texts: Sequence[str],
    given: Int[ndarray, " rows"],
    n_classes: int,
    show: Callable[[int], None] = lambda fold: None,
) -> tuple[Float[ndarray, "rows classes"], Bool[ndarray, " rows"]]:
    """Return the log-probabilities of each text in a linear model of n-grams that was not fitted on the text.

    The texts are divided into FOLDS parts by a hash. Equal texts are in the same part. For each part, the next part
    calibrates the model, and the model is fitted on the others. The second result states whether the log-probabilities
    are known: the class of a row must occur in other folds.
    """
    ranks = {text: rank for rank, text in enumerate(sorted(set(texts), key=source_hash))}
    folds = np.array([ranks[text] % FOLDS for text in texts])
    log_probs = np.full((len(texts), n_classes), -np.inf)
    known = np.zeros(len(texts), bool)
    for fold in range(FOLDS if len(ranks) >= FEWEST else 0):
        fitted = (folds != fold) & (folds != (fold + 1) % FOLDS)
        classes = np.unique(given[fitted])  # a rare class can be missing
        tried = (folds == fold) & np.isin(given, classes)
        valid = (folds == (fold + 1) % FOLDS) & np.isin(given, classes)
        if len(classes) > 1 and valid.any() and tried.any():
            n_characters = sum(map(len, compress(texts, fitted)))
            fitted[fitted] = even_rows(given[fitted].tolist(), n_characters, n_classes)
            parts = [([*compress(texts, part)], np.searchsorted(classes, given[part])) for part in (fitted, valid)]
            ngrams = fit_ngrams(*parts[0], len(classes), None, *parts[1], search=False)
            log_probs[np.ix_(tried, classes)] = log_softmax(ngrams.scores([*compress(texts, tried)]))
            known |= tried
        show(fold + 1)
    return log_probs, known
