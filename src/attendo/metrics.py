"""Quality measures: BLEU and chrF as in sacreBLEU, exact match, perplexity, and measures of classifiers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Integer
from numpy import ndarray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from attendo.bootstrap import RowSums
from attendo.data.tokenizers import is_spaced
from attendo.errors import AttendoError

BLEU_TOKENIZERS = ("13a", "none", "char", "intl", "zh", "ja-mecab", "ko-mecab")
"""The tokenizers of sacreBLEU that need no download. "ja-mecab" and "ko-mecab" need an additional package."""


@dataclass(frozen=True)
class Score:
    """The name, the value and the sacreBLEU signature of a metric, which `str(score)` shows in one line."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        """Return one line such as `BLEU 28.31 nrefs:1|case:mixed|…`."""
        return f"{self.name} {self.value:.2f} {self.signature}"


def bleu(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Score:
    """Compute corpus BLEU in percent with sacreBLEU, one reference per hypothesis (Papineni et al. 2002; Post 2018).

    Raises AttendoError if the lists are empty or differ in length, or if the tokenizer is not available.

    >>> print(bleu(["rain in the north"], ["rain in the north"], tokenize="none"))  # doctest: +ELLIPSIS
    BLEU 100.00 nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:...
    """
    return _score(bleu_sums(hypotheses, references, tokenize))


def bleu_tokenizer(references: Sequence[str]) -> str:
    """Return the sacreBLEU tokenizer for these texts: "char" for scripts without spaces between words, otherwise "13a".

    "char" is for texts with more than 5 characters per space-separated word, or more than 15 in scripts with spaces.

    >>> bleu_tokenizer(["der Regen fällt"])
    '13a'
    >>> bleu_tokenizer(["明日は、雪です。"]), bleu_tokenizer(["明日 は 雪 です 。"])
    ('char', '13a')
    """
    n_words = sum(len(text.split()) for text in references)
    longest = 15 if is_spaced(references) else 5
    return "char" if sum(map(len, references)) > longest * n_words else "13a"


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Compute corpus chrF2 in percent with sacreBLEU (Popović 2015), the F-score of character 1-grams to 6-grams.

    Raises AttendoError if the lists are empty or differ in length.

    >>> chrf(["晴れ"], ["晴れ"]).value
    100.0
    """
    return _score(chrf_sums(hypotheses, references))


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Compute the percentage of hypotheses that equal their reference in every character.

    >>> exact_match(["a", "b"], ["a", "c"]).value
    50.0
    """
    _check_pairs(hypotheses, references)
    equal = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return Score("exact match", 100 * equal / len(references), f"{equal}/{len(references)}")


def perplexity(log_prob: float, n_tokens: int) -> float:
    """Return the perplexity exp(-log_prob / n_tokens), or infinity if it is too large for a float.

    `log_prob` is the sum of the natural log-probabilities of all tokens. Raises AttendoError if there are no tokens.

    >>> round(perplexity(10 * math.log(0.25), 10), 9)
    4.0
    """
    if n_tokens < 1:
        raise AttendoError(f"the perplexity of {n_tokens} tokens is undefined (expected at least 1)")
    try:
        return math.exp(-log_prob / n_tokens)
    except OverflowError:
        return math.inf


def accuracy(true: Integer[ndarray, " n"], predicted: Integer[ndarray, " n"]) -> float:
    """Return the share of correct predictions, in [0, 1].

    Raises AttendoError if the arrays are empty or differ in length.

    >>> accuracy(np.array([0, 1, 1, 2]), np.array([0, 1, 2, 2]))
    0.75
    """
    _check_rows(true, predicted)
    return float(np.mean(true == predicted))


def confusion_matrix(
    true: Integer[ndarray, " n"], predicted: Integer[ndarray, " n"], n_classes: int
) -> Int[ndarray, "classes classes"]:
    """Count the rows by true class (row of the matrix) and predicted class (column).

    Raises AttendoError if the arrays are empty or differ in length, or if a class is out of range.

    >>> confusion_matrix(np.array([0, 1, 1]), np.array([0, 0, 1]), 2)
    array([[1, 0],
           [1, 1]])
    """
    _check_rows(true, predicted)
    for classes in (true, predicted):
        if classes.min() < 0 or classes.max() >= n_classes:
            raise AttendoError(f"classes {classes.min()} to {classes.max()} must be between 0 and {n_classes - 1}")
    pairs = true.astype(np.int64) * n_classes + predicted
    return np.bincount(pairs, minlength=n_classes**2).reshape(n_classes, n_classes)


@dataclass(frozen=True, eq=False)
class ClassScores:
    """Precision, recall and F1 of each class, in [0, 1], and `support`, the number of rows of each class.

    Undefined ratios (0/0) count as 0, as in scikit-learn with zero_division=0. `macro_f1` is the mean F1 score of the
    classes that are true or predicted in at least one row.
    """

    precision: Float[ndarray, " classes"]
    recall: Float[ndarray, " classes"]
    f1: Float[ndarray, " classes"]
    support: Int[ndarray, " classes"]
    macro_f1: float


def class_scores(
    confusion: Int[ndarray, "classes classes"], unlabeled: Int[ndarray, " classes"] | int = 0
) -> ClassScores:
    """Compute the scores of each class from a confusion matrix: P = TP / (TP + FP), R = TP / (TP + FN), F1 = 2PR / (P +
    R). `unlabeled` is the number of further rows of each class, which received no label.

    >>> scores = class_scores(np.array([[2, 0], [1, 1]]))
    >>> scores.recall.tolist(), [round(f1, 3) for f1 in scores.f1.tolist()], round(scores.macro_f1, 3)
    ([1.0, 0.5], [0.8, 0.667], 0.733)
    """
    hits, support, chosen = np.diag(confusion), confusion.sum(1) + unlabeled, confusion.sum(0)
    return ClassScores(
        precision=hits / np.maximum(1, chosen),
        recall=hits / np.maximum(1, support),
        f1=_f1(hits, support + chosen),
        support=support,
        macro_f1=_macro_f1(hits, support + chosen),
    )


def calibration_error(
    probabilities: Float[ndarray, "n classes"], true: Integer[ndarray, " n"], n_bins: int = 15
) -> float:
    """Compute the expected calibration error: Σ_b (n_b / n) |accuracy(b) - confidence(b)| over bins of equal width, in
    [0, 1].

    See Naeini et al. 2015 and Guo et al. 2017, eq. 3. The confidence of a row is its largest probability. Bin b
    contains the rows with a confidence in ((b - 1) / n_bins, b / n_bins]. Raises AttendoError if there are no rows, or
    if the two arrays differ in length.

    >>> calibration_error(np.array([[0.9, 0.1], [0.9, 0.1]]), np.array([0, 1]))  # right half the time
    0.4
    """
    _check_rows(true, probabilities)
    confidence = probabilities.max(1)
    right = probabilities.argmax(1) == true
    bins = np.searchsorted(np.linspace(0, 1, n_bins + 1)[1:-1], confidence)
    gaps = np.bincount(bins, weights=right - confidence, minlength=n_bins)
    return float(np.abs(gaps).sum() / len(true))


def log_loss(log_probs: Float[ndarray, "n classes"], true: Integer[ndarray, " n"]) -> float:
    """Return the mean of -log p(true class) in nats. Raises AttendoError if the arrays are empty or differ in length.

    >>> round(log_loss(np.log(np.array([[0.5, 0.5], [0.25, 0.75]])), np.array([0, 0])), 4)
    1.0397
    """
    _check_rows(true, log_probs)
    return float(-log_probs[np.arange(len(true)), true].mean())


def brier_score(probabilities: Float[ndarray, "n classes"], true: Integer[ndarray, " n"]) -> float:
    """Return the mean of Σ_c (p_c - [c is true])² (Brier 1950), from 0 (certain and correct) to 2 (certain and wrong).

    Raises AttendoError if the arrays are empty or differ in length.

    >>> brier_score(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0, 0]))
    0.25
    """
    _check_rows(true, probabilities)
    wanted = np.arange(probabilities.shape[1]) == true[:, None]
    return float(((probabilities - wanted) ** 2).sum(1).mean())


def log_softmax(logits: Float[ndarray, "*batch classes"]) -> Float[ndarray, "*batch classes"]:
    """Return the natural logarithm of softmax(z), computed as z - log Σ exp z without overflow for large logits.

    >>> np.exp(log_softmax(np.array([1000.0, 1000.0]))).tolist()
    [0.5, 0.5]
    """
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def yes_or_no(logits: Float[ndarray, "texts labels"]) -> Float[ndarray, "decisions 2"]:
    """Return the logits of both classes, no (0) and yes, of independent decisions with the logits z of yes.

    >>> yes_or_no(np.array([[2.0, -1.0]])).tolist()
    [[0.0, 2.0], [0.0, -1.0]]
    """
    return np.stack([np.zeros_like(logits), logits], -1).reshape(-1, 2)


TEMPERATURES = (0.05, 20.0)
"""The smallest and largest temperature that `fit_temperature` can return for unequal logits."""


def fit_temperature(
    logits: Float[ndarray, "n classes"], true: Integer[ndarray, " n"], smoothing: float | None = None
) -> float:
    """Return the temperature T that minimizes the cross-entropy of softmax(logits / T) (Guo et al. 2017, 4.2).

    `smoothing` is the share of each label that is spread over all classes (default: 1 / (n + 1)). Smoothing keeps T
    above 0 even if all rows are correct (Platt 1999). The cross-entropy is convex in 1 / T. Bisection on log T within
    TEMPERATURES therefore finds the zero of the derivative. If all logits of each row are equal, T is 1. Raises
    AttendoError if the arrays are empty or differ in length.

    >>> logits = np.array([[4.0, 0.0]] * 4)  # sure of 98 %, right in 3 of 4
    >>> round(fit_temperature(logits, np.array([0, 0, 0, 1]), smoothing=0.0), 4), round(4 / math.log(3), 4)
    (3.641, 3.641)
    """
    _check_rows(true, logits)
    share = 1 / (len(true) + 1) if smoothing is None else smoothing
    z = logits.astype(np.float64)
    z = z - z.mean(1, keepdims=True)
    if not z.any():
        return 1.0
    wanted = (1 - share) * z[np.arange(len(true)), true].mean()  # Σ_c z_c / classes is 0 now

    def too_sharp(log_t: float) -> bool:
        return bool((np.exp(log_softmax(z / math.exp(log_t))) * z).sum(1).mean() > wanted)

    low, high = (math.log(t) for t in TEMPERATURES)
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if too_sharp(middle) else (low, middle)
    return math.exp((low + high) / 2)


def bleu_sums(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> RowSums:
    """Return the length and the n-gram counts and matches of each sentence, from which BLEU is computed.

    Raises the same errors as `bleu`.
    """
    return _sentence_sums("BLEU", _bleu_metric(tokenize), hypotheses, references)


def chrf_sums(hypotheses: Sequence[str], references: Sequence[str]) -> RowSums:
    """Return the character n-gram counts and matches of each sentence, from which chrF is computed.

    Raises the same errors as `chrf`.
    """
    return _sentence_sums("chrF2", CHRF(), hypotheses, references)


def macro_f1_sums(true: Integer[ndarray, " n"], predicted: Integer[ndarray, " n"], n_classes: int) -> RowSums:
    """Return the counts of each row from which macro-F1 is computed: hits by class, then true plus predicted by class.

    >>> sums = macro_f1_sums(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]), 2)
    >>> round(sums.score(sums.rows.sum(0)), 3)
    0.733
    """
    _check_rows(true, predicted)
    is_true, is_chosen = (np.eye(n_classes)[classes] for classes in (true, predicted))
    rows = np.concatenate((is_true * is_chosen, is_true + is_chosen), 1)
    return RowSums("macro-F1", rows, lambda sums: _macro_f1(sums[:n_classes], sums[n_classes:]))


def _sentence_sums(name: str, metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> RowSums:
    _check_pairs(hypotheses, references)
    # sacreBLEU has no public functions for this; its significance tests call the same two private ones
    rows = np.array(metric._extract_corpus_statistics(list(hypotheses), [list(references)]), np.float64)
    score = metric._compute_score_from_stats

    def of_sums(sums: Float[ndarray, " parts"]) -> float:
        return min(score(sums.astype(np.int64).tolist()).score, 100.0)

    return RowSums(name, rows, of_sums, str(metric.get_signature()))


def _bleu_metric(tokenize: str) -> BLEU:
    if tokenize not in BLEU_TOKENIZERS:
        raise AttendoError(f"invalid tokenize={tokenize!r} (expected one of {', '.join(BLEU_TOKENIZERS)})")
    try:
        return BLEU(tokenize=tokenize, force=True)  # force: no warning about text tokenized already
    except RuntimeError as error:
        raise AttendoError(f"tokenize={tokenize!r} requires: pip install 'sacrebleu[{tokenize[:2]}]'") from error


def _f1(hits: ndarray, either: ndarray) -> ndarray:
    """Return 2 TP / (2 TP + FP + FN) of each class. `either` is 2 TP + FP + FN."""
    return hits / np.maximum(1, either) * 2


def _macro_f1(hits: ndarray, either: ndarray) -> float:
    occurs = either > 0
    return float(_f1(hits, either)[occurs].mean()) if occurs.any() else 0.0


def _score(sums: RowSums) -> Score:
    return Score(sums.name, sums.score(sums.rows.sum(0)), sums.signature)


def _check_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise AttendoError("one string was given (expected a list of strings). Write [text]")
    if len(hypotheses) != len(references):
        raise AttendoError(
            f"{len(hypotheses)} hypotheses but {len(references)} references (expected one reference per hypothesis)"
        )
    if not references:
        raise AttendoError("nothing to score (expected at least one hypothesis with its reference)")


def _check_rows(true: ndarray, given: ndarray) -> None:
    if len(true) != len(given):
        raise AttendoError(f"{len(given)} rows but {len(true)} labels (expected one label per row)")
    if not len(true):
        raise AttendoError("nothing to measure (expected at least one row with its label)")
