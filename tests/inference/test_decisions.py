"""Decisions: the rule of thresholds, the promise of a precision, and curves that equal those of scikit-learn."""

import json
from dataclasses import replace
from math import comb
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from tiny_classifiers import COUNTS, TEXTS, config, saved

from attendo.data.labelled import LabelledRow
from attendo.errors import AttendoError
from attendo.inference import decisions
from attendo.inference.classifier import Classifier

ORACLE: Any = sklearn.metrics


def test_the_rule_of_thresholds():
    draw = np.random.default_rng(1)
    for _ in range(300):
        row = draw.dirichlet(np.ones(4))
        thresholds = np.where(draw.random(4) < 0.4, np.nan, draw.random(4))
        reached = [i for i in range(4) if row[i] >= thresholds[i]]
        free = [i for i in range(4) if np.isnan(thresholds[i])]
        expected = max(reached or free or [-1], key=lambda i: row[i] if i >= 0 else 0)
        assert decisions.decide(row[None], thresholds) == [expected]
    assert decisions.decide(np.eye(2), np.array([decisions.NEVER, 0.5])).tolist() == [-1, 1]


def test_a_precision_is_kept_with_the_stated_probability():
    draw = np.random.default_rng(2)
    n_given = n_broken = 0
    for _ in range(150):
        true = draw.beta(0.8, 0.8, 5000)  # calibrated probabilities
        is_class = draw.random(5000) < true
        threshold = decisions.threshold_for_precision(true[:400], is_class[:400], 0.9)
        if threshold != decisions.NEVER:
            n_given += 1
            n_broken += true[true >= threshold].mean() < 0.9
    assert n_given > 30
    assert n_broken < (1 - decisions.CONFIDENCE) * 150
    with_more = decisions.threshold_for_precision(true, is_class, 0.9)
    assert 0.75 < with_more < 0.9  # the highest precision is 1, so many texts show a low threshold
    assert true[true >= with_more].mean() == pytest.approx(0.9, abs=0.02)


def test_the_bound_is_that_of_clopper_and_pearson():
    p = decisions.lowest_precision(18, 20, 0.05)
    assert sum(comb(20, k) * p**k * (1 - p) ** (20 - k) for k in (18, 19, 20)) == pytest.approx(0.05)


def test_too_few_texts_show_nothing():
    assert decisions.threshold_for_precision(np.full(5, 0.99), np.ones(5, bool), 0.95) == decisions.NEVER
    assert decisions.threshold_for_precision(np.full(50, 0.01), np.zeros(50, bool), 0.5) == decisions.NEVER


def test_a_share_of_the_texts_has_no_label():
    p = np.random.default_rng(3).dirichlet(np.ones(3), 1000)
    threshold = decisions.threshold_for_share(p, 0.2)
    assert (decisions.decide(p, np.full(3, threshold)) < 0).mean() == pytest.approx(0.2, abs=0.002)


def test_curves_are_those_of_scikit_learn(tmp_path):
    draw = np.random.default_rng(4)
    true = draw.integers(0, 2, 400)
    p = 1 / (1 + np.exp(-2 * (true - 0.5) - draw.normal(size=400)))
    probabilities = np.stack([1 - p, p, np.zeros(400)], 1)
    curves = decisions.decision_curves(probabilities, true, ["a", "b", "unseen"])
    assert list(curves["labels"]) == ["a", "b"]
    own = curves["labels"]["b"]
    assert own["roc_auc"] == pytest.approx(ORACLE.roc_auc_score(true, p))
    for threshold, precision, recall in list(zip(own["threshold"], own["precision"], own["recall"], strict=True))[1::9]:
        given = p >= threshold - 5e-5  # thresholds are rounded
        assert precision == pytest.approx(true[given].mean(), abs=0.02)
        assert recall == pytest.approx(true[given].sum() / true.sum(), abs=0.02)
    coverage = curves["coverage"]
    assert len(coverage["coverage"]) <= decisions.MOST_POINTS
    assert coverage["accuracy"][-1] == pytest.approx(((p > 0.5) == true).mean(), abs=1e-4)
    assert sum(b["n"] for b in curves["reliability"]) == 400
    for suffix, start in ((".json", b"{"), (".png", b"\x89PNG"), (".svg", b"<?xml")):
        decisions.write_curves(tmp_path / f"c{suffix}", curves, np.eye(3, dtype=np.int64), ["a", "b", "$x$\x07"])
        assert (tmp_path / f"c{suffix}").read_bytes().startswith(start)
    assert json.loads((tmp_path / "c.json").read_text())["classes"][0] == "a"
    with pytest.raises(AttendoError, match="must end in"):
        decisions.write_curves(tmp_path / "c.pdf", curves, np.eye(2, dtype=np.int64), ["a", "b"])


@pytest.mark.parametrize("text", ["1.5", "x", "wet=", "wet=nan", "fog=0.5", "wet=0.5,-1"])
def test_unusable_thresholds_are_rejected(text):
    with pytest.raises(AttendoError, match="threshold"):
        decisions.parse_thresholds(text, list(COUNTS))


def test_stored_thresholds_decide_and_lower_the_coverage(tmp_path):
    folder = saved(tmp_path, config(), {"task": "classification", "labels": COUNTS})
    plain = Classifier.load(folder).classify(TEXTS)
    limit = sorted(found.probability for found in plain)[2]
    decisions.store_thresholds(folder, dict.fromkeys(COUNTS, limit), "given")
    user = Classifier.load(folder)
    for one, before in zip(user.classify(TEXTS), plain, strict=True):
        expected = before.label if before.probability >= limit else None
        assert (one.label, one.probability) == (expected, before.probability)
        assert one.probabilities == before.probabilities
    assert user.classify(TEXTS, {})[0].label == plain[0].label
    rows = [LabelledRow(n, "wet", text) for n, text in enumerate(TEXTS, 1)]
    found = user.evaluate(rows)
    given = [one for one in found.found if one.label]
    assert len(given) == 3
    assert found.measures["coverage"] == pytest.approx(3 / 5)
    assert found.confusion.sum() == 3
    wet = next(score for score in found.labels if score.label == "wet")
    assert (wet.support, wet.recall) == (5, sum(one.label == "wet" for one in given) / 5)
    assert found.measures["accuracy"] == Classifier.evaluate(replace(user, card={}), rows).measures["accuracy"]
    decisions.store_thresholds(folder, dict.fromkeys(COUNTS, decisions.NEVER))
    nothing = Classifier.load(folder).evaluate(rows)
    assert (nothing.measures["coverage"], nothing.confusion.sum(), nothing.labels[2].recall) == (0, 0, 0)
    decisions.store_thresholds(folder, {})
    assert Classifier.load(folder).thresholds == {}
