"""The paired bootstrap: sacreBLEU's own test as the oracle, and what must hold of any two systems."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from attendo import bootstrap
from attendo.bootstrap import Comparison, RowSums, interval, paired_bootstrap, ratio_sums
from attendo.errors import AttendoError
from attendo.metrics import bleu, bleu_sums, chrf, chrf_sums, class_scores, confusion_matrix, macro_f1_sums

WORDS = ["rain", "snow", "wind", "falls", "in", "the", "north", "tomorrow", "and", "sleet", "."]


def sentences(n=60, seed=0):
    """References, and what two systems make of them: some words become others."""
    rng = np.random.default_rng(seed)

    def spoiled(words, share):
        return " ".join(w if rng.random() > share else str(rng.choice(WORDS)) for w in words)

    references = [list(rng.choice(WORDS, rng.integers(4, 14))) for _ in range(n)]
    return [[spoiled(row, share) for row in references] for share in (0.0, 0.3, 0.34)]


def of_sacrebleu(metric, references, first, second, n_samples):
    _, found = PairedTest([("a", first), ("b", second)], metric, [references], "bs", n_samples)()
    return next(results for name, results in found.items() if name != "System")


@pytest.mark.parametrize(("sums", "score", "metric"), [
    (bleu_sums, bleu, BLEU(force=True)),
    (chrf_sums, chrf, CHRF()),
])  # fmt: skip
def test_the_samples_are_those_of_sacrebleu(monkeypatch, sums, score, metric):
    """With its seed: so are the scores of both, the means and intervals of their samples, and its p-value."""
    references, first, second = sentences()
    monkeypatch.setattr(bootstrap, "_AT_ONCE", 60 * 64)  # several portions
    found = paired_bootstrap(sums(first, references), sums(second, references), 200)
    theirs = of_sacrebleu({"x": metric}, references, first, second, 200)
    assert found.first == pytest.approx(score(first, references).value, abs=1e-9)
    assert [found.first, found.second] == pytest.approx([one.score for one in theirs], abs=1e-9)
    for samples, one in zip(found.samples, theirs, strict=True):
        ordered = np.sort(samples)
        assert samples.mean() == pytest.approx(one.mean, abs=1e-4)  # theirs in 32 bits
        assert (ordered[200 - 5 - 1] - ordered[5]) / 2 == pytest.approx(one.ci, abs=1e-4)
    sizes = np.abs(found.differences)
    more = (sizes - sizes.mean() > abs(found.difference)).sum()
    assert (more + 1) / 201 == pytest.approx(theirs[1].p_value)


rows = st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=2, max_size=40)  # truth, first's, second's


def both(chosen) -> list[tuple[RowSums, RowSums]]:
    """Accuracy and macro-F1 of the two."""
    true, *found = (np.array(column) for column in zip(*chosen, strict=True))
    ones = np.ones(len(true))
    accuracies = [ratio_sums("accuracy", (true == one).astype(float), ones) for one in found]
    f1s = [macro_f1_sums(true, one, 3) for one in found]
    return [(accuracies[0], accuracies[1]), (f1s[0], f1s[1])]


@settings(max_examples=40)
@given(rows)
def test_what_must_hold_of_any_two_systems(chosen):
    for first, second in both(chosen):
        found, turned = (paired_bootstrap(*pair, 120, 7) for pair in ((first, second), (second, first)))
        assert turned.difference == -found.difference
        assert interval(turned.differences) == tuple(-end for end in reversed(interval(found.differences)))
        assert turned.p_value == found.p_value
        low, high = interval(found.differences)
        assert (found.p_value <= 0.05) == (low > 0 or high < 0)
        same = paired_bootstrap(first, first, 120, 7)
        assert (same.difference, same.p_value, interval(same.differences)) == (0.0, 1.0, (0.0, 0.0))


@settings(max_examples=40)
@given(rows)
def test_macro_f1_by_rows_is_that_of_the_confusion_matrix(chosen):
    true, predicted, _ = (np.array(column) for column in zip(*chosen, strict=True))
    sums = macro_f1_sums(true, predicted, 3)
    wanted = class_scores(confusion_matrix(true, predicted, 3)).macro_f1
    assert sums.score(sums.rows.sum(0)) == pytest.approx(wanted)


def test_p_counts_the_samples_on_the_other_side():
    differences = np.concatenate([np.full(997, 1.0), np.full(2, -1.0)])
    found = Comparison(0.0, 1.0, np.stack([np.zeros(999), differences]))
    assert found.p_value == 2 * 3 / 1000
    assert Comparison(0.0, 0.0, np.zeros((2, 999))).p_value == 1.0
    assert Comparison(1.0, 0.0, np.stack([np.zeros(999), -differences])).p_value == 2 * 3 / 1000


def accuracies(rng, n, p_first, p_second):
    """Two systems that are right independently of each other."""
    ones = np.ones(n)
    return [ratio_sums("accuracy", (rng.random(n) < p).astype(float), ones) for p in (p_first, p_second)]


def rates(trials, n_samples):
    """Shares of test sets where the interval covers the true score and difference, and where p ≤ 0.05 by chance."""
    rng = np.random.default_rng(3)
    covered, differing, by_chance = 0, 0, 0
    for _ in range(trials):
        found = paired_bootstrap(*accuracies(rng, 250, 0.7, 0.8), n_samples, int(rng.integers(1 << 30)))
        low, high = interval(found.samples[0])
        covered += low <= 0.7 <= high
        low, high = interval(found.differences)
        differing += low <= 0.1 <= high
        equal = paired_bootstrap(*accuracies(rng, 250, 0.7, 0.7), n_samples, int(rng.integers(1 << 30)))
        by_chance += equal.p_value <= 0.05
    return covered / trials, differing / trials, by_chance / trials


def test_intervals_cover_the_truth_and_chance_is_rarely_taken_for_more():
    covered, differing, by_chance = rates(100, 100)
    assert min(covered, differing) >= 0.88
    assert by_chance <= 0.12


@pytest.mark.full
def test_intervals_cover_the_truth_in_95_of_100_test_sets():
    covered, differing, by_chance = rates(1500, 400)
    assert 0.93 <= covered <= 0.97 and 0.93 <= differing <= 0.97
    assert 0.03 <= by_chance <= 0.065


def test_what_cannot_be_compared_is_refused():
    one, two = ratio_sums("x", np.ones(3), np.ones(3)), ratio_sums("x", np.ones(2), np.ones(2))
    with pytest.raises(AttendoError, match="3 and 2 rows"):
        paired_bootstrap(one, two)
    with pytest.raises(AttendoError, match=r"99 bootstrap samples are too few \(expected at least 100"):
        paired_bootstrap(one, one, 99)
    with pytest.raises(AttendoError, match="nothing to compare"):
        paired_bootstrap(*[RowSums("x", np.ones((0, 2)), float)] * 2)
    with pytest.raises(AttendoError, match="expected one of 13a"):
        bleu_sums(["a"], ["a"], tokenize="13b")
