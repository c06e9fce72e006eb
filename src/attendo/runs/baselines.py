"""What a classifier has to beat: always the commonest label, and counting words (multinomial naive Bayes)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Integer
from numpy import ndarray

from attendo.data.labelled_store import LabelledStore
from attendo.metrics import accuracy, class_scores, confusion_matrix

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
