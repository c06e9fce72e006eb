"""Metrics: sacreBLEU's and scikit-learn's own numbers, sums by hand, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
import sacrebleu
import scipy.optimize
import sklearn.calibration
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from attendo.errors import AttendoError
from attendo.metrics import (
    TEMPERATURES,
    accuracy,
    bleu,
    brier_score,
    calibration_error,
    chrf,
    class_scores,
    confusion_matrix,
    exact_match,
    fit_temperature,
    log_loss,
    log_softmax,
    perplexity,
)

ORACLE: Any = sklearn.metrics
HYPOTHESES = ["the sky is clear in the north today .", "rain will fall in Tokyo", "", "風 が 強い でしょ う"]
REFERENCES = [
    "the sky is clear in the north .",
    "rain will fall on Tokyo tomorrow",
    "snow",
    "風 が 強く なる でしょ う",
]


@pytest.mark.parametrize("tokenize", ["13a", "none", "char", "intl", "zh"])
def test_bleu_is_sacrebleus_and_its_signature_names_the_tokenizer(tokenize):
    score = bleu(HYPOTHESES, REFERENCES, tokenize)
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], tokenize=tokenize, force=True).score
    assert score.value == pytest.approx(expected, abs=1e-12)
    assert 0 < score.value < 100
    assert f"tok:{tokenize}|" in score.signature
    assert str(score) == f"BLEU {expected:.2f} {score.signature}"


def test_bleu_by_hand():
    # 4 of 5, 3 of 4, 2 of 3, 1 of 2 n-grams; no brevity penalty
    expected = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    assert bleu(["a b c d x"], ["a b c d e"], "none").value == pytest.approx(expected)


def test_bleu_says_nothing_about_tokenized_text(caplog):
    bleu(["it rains ."] * 200, ["it rains ."] * 200, "none")
    assert caplog.text == ""


def test_chrf_is_sacrebleus():
    score = chrf(HYPOTHESES, REFERENCES)
    assert score.value == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score, abs=1e-12)
    assert (score.name, "nc:6|nw:0" in score.signature) == ("chrF2", True)


def test_exact_match_counts_characters_not_looks():
    score = exact_match(["が", "が", "a ", ""], ["が", "か\u3099", "a", ""])
    assert str(score) == "exact match 50.00 2/4"


def test_perplexity():
    assert perplexity(-100 * math.log(7), 100) == pytest.approx(7)
    assert perplexity(0.0, 3) == 1.0
    assert perplexity(-1e9, 1) == math.inf
    with pytest.raises(AttendoError, match="0 tokens"):
        perplexity(0.0, 0)


@pytest.mark.parametrize("metric", [bleu, chrf, exact_match])
def test_unequal_empty_and_single_strings_are_refused(metric):
    with pytest.raises(AttendoError, match="2 hypotheses but 1 references"):
        metric(["a", "b"], ["a"])
    with pytest.raises(AttendoError, match="nothing to score"):
        metric([], [])
    with pytest.raises(AttendoError, match="list"):
        metric("a b", "a b")


@pytest.mark.parametrize("tokenize", ["", "13b", "flores200"])
def test_unknown_tokenizers_and_those_that_download_are_refused(tokenize):
    with pytest.raises(AttendoError, match="13a, none, char"):
        bleu(["a"], ["a"], tokenize)


# Classifiers: scikit-learn's numbers


def drawn(seed: int, n: int = 200, n_classes: int = 4, sharpness: float = 2.0):
    """Logits and labels that agree more often than not; the last class is never true."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, n_classes - 1, n)
    logits = rng.normal(size=(n, n_classes)) * sharpness
    logits[np.arange(n), true] += sharpness
    return logits, true


@pytest.mark.parametrize("seed", range(5))
def test_class_metrics_are_scikit_learns(seed):
    logits, true = drawn(seed, n=int(np.random.default_rng(seed).integers(1, 60)))
    predicted = logits.argmax(1)
    confusion = confusion_matrix(true, predicted, 4)
    assert (confusion == ORACLE.confusion_matrix(true, predicted, labels=range(4))).all()
    assert accuracy(true, predicted) == ORACLE.accuracy_score(true, predicted)
    scores = class_scores(confusion)
    expected = ORACLE.precision_recall_fscore_support(true, predicted, labels=range(4), zero_division=0)
    for found, theirs in zip((scores.precision, scores.recall, scores.f1, scores.support), expected, strict=True):
        assert np.allclose(found, theirs, rtol=0, atol=1e-12)
    macro = ORACLE.f1_score(true, predicted, average="macro", zero_division=0)
    assert scores.macro_f1 == pytest.approx(macro, abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_macro_f1_counts_the_classes_that_occur(rows):
    true, predicted = np.array(rows).T
    theirs = ORACLE.f1_score(true, predicted, average="macro", zero_division=0)
    found = class_scores(confusion_matrix(true, predicted, 6)).macro_f1
    assert found == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_losses_of_probabilities_are_scikit_learns(n_classes):
    logits, true = drawn(1, n_classes=n_classes)
    true[:2] = [0, n_classes - 1]
    log_probs = log_softmax(logits)
    theirs = ORACLE.log_loss(true, np.exp(log_probs), labels=range(n_classes))
    assert log_loss(log_probs, true) == pytest.approx(theirs, abs=1e-12)
    one_hot = np.eye(n_classes)[true]
    by_class = [ORACLE.brier_score_loss(one_hot[:, c], np.exp(log_probs)[:, c]) for c in range(n_classes)]
    assert brier_score(np.exp(log_probs), true) == pytest.approx(sum(by_class), abs=1e-12)


@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_calibration_error_is_the_gap_of_scikit_learns_curve(n_bins):
    logits, true = drawn(2, n=500)
    probabilities = np.exp(log_softmax(logits))
    confidence, right = probabilities.max(1), probabilities.argmax(1) == true
    share, mean = sklearn.calibration.calibration_curve(right, confidence, n_bins=n_bins)
    filled = np.histogram(confidence, np.linspace(0, 1, n_bins + 1))[0]
    expected = (filled[filled > 0] / 500 * np.abs(share - mean)).sum()
    assert expected > 0.01
    assert calibration_error(probabilities, true, n_bins) == pytest.approx(expected, abs=1e-12)


def test_calibration_error_at_the_edges_of_bins():
    # 0.75 is the end of the bin (0.5, 0.75]: one bin with one of two right; in two bins it would be 0.5
    probabilities = np.array([[0.75, 0.25], [0.625, 0.375]])
    assert calibration_error(probabilities, np.array([0, 1]), 4) == pytest.approx(0.1875)
    assert calibration_error(np.array([[1.0, 0.0]]), np.array([0])) == 0
    assert calibration_error(np.array([[1.0, 0.0]]), np.array([1])) == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_the_temperature_is_where_the_likelihood_is_largest(seed, sharpness):
    logits, true = drawn(seed, sharpness=1.0)
    found = fit_temperature(logits * sharpness, true, smoothing=0.0)
    best: Any = scipy.optimize.minimize_scalar(
        lambda log_t: log_loss(log_softmax(logits * sharpness / math.exp(log_t)), true),
        bounds=(-3, 3), options={"xatol": 1e-10},
    )  # fmt: skip
    assert found == pytest.approx(math.exp(best.x), rel=1e-5)
    assert found == pytest.approx(fit_temperature(logits, true, smoothing=0.0) * sharpness, rel=1e-9)


def test_the_temperature_finds_back_what_it_was():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50_000, 3)) * 2
    true = (logits + rng.gumbel(size=logits.shape)).argmax(1)  # drawn from softmax(logits)
    assert fit_temperature(3 * logits, true) == pytest.approx(3, rel=0.03)


def test_where_all_rows_are_right_the_temperature_stays_away_from_0():
    logits, true = np.array([[3.0, 0.0], [0.0, 2.0]] * 10), np.array([0, 1] * 10)
    low, high = TEMPERATURES
    assert fit_temperature(logits, true, smoothing=0.0) == pytest.approx(low)
    assert fit_temperature(logits, 1 - true) == pytest.approx(high)
    temperature = fit_temperature(logits, true)
    # as in Platt (1999): no surer than so many rows allow
    wrong = 1 - np.exp(log_softmax(logits / temperature)).max(1)
    assert 0.005 < wrong.mean() < 0.05
    assert fit_temperature(np.tile(logits, (50, 1)), np.tile(true, 50)) < temperature


@given(
    st.lists(st.lists(st.floats(-1e30, 1e30), min_size=3, max_size=3), min_size=1, max_size=8),
    st.integers(0, 9),
)
def test_any_logits_have_a_temperature(logits, seed):
    true = np.random.default_rng(seed).integers(0, 3, len(logits))
    low, high = TEMPERATURES
    assert low <= fit_temperature(np.array(logits), true) <= high * (1 + 1e-9)
    assert fit_temperature(np.ones((4, 3)), np.array([0, 1, 2, 0])) == 1


def test_log_softmax_of_large_logits():
    logits = np.array([[1e4, 0.0], [-1e300, 1e300], [5.0, 5.0]])
    assert np.allclose(log_softmax(logits), [[0, -1e4], [-2e300, 0], [-math.log(2)] * 2])


@pytest.mark.parametrize("measure", [accuracy, log_loss, brier_score, calibration_error, fit_temperature])
def test_unequally_many_or_no_rows_are_refused(measure):
    given, true = (np.zeros(2, int), np.zeros(3, int)) if measure is accuracy else (np.zeros((2, 2)), np.zeros(3, int))
    arguments = (true, given) if measure is accuracy else (given, true)
    with pytest.raises(AttendoError, match="2 rows but 3 labels"):
        measure(*arguments)
    with pytest.raises(AttendoError, match="nothing to measure"):
        measure(*(argument[:0] for argument in arguments))


@pytest.mark.parametrize("wrong", [-1, 3])
def test_classes_out_of_range_are_refused(wrong):
    with pytest.raises(AttendoError, match="must be between 0 and 2"):
        confusion_matrix(np.array([0, 1]), np.array([0, wrong]), 3)
