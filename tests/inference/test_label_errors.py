"""The search for wrong labels, on made texts whose changed labels are known."""

import random

import numpy as np
import pytest
from tiny_classifiers import classifier

from attendo.data.labelled import LabelledRow
from attendo.inference import label_errors as module
from attendo.inference.label_errors import label_errors, out_of_fold

WEATHER = {"cold": ("snow", "ice", "frost"), "dry": ("sun", "sand", "heat"), "wet": ("rain", "flood", "fog")}


@pytest.fixture(scope="module")
def rows():
    """Labeled texts, of which every 20th has a wrong label."""
    draw = random.Random(1)
    names = list(WEATHER)
    texts = {}
    while len(texts) < 300:
        label = draw.choice(names)
        texts[" ".join(draw.choices(WEATHER[label], k=2)) + f" {len(texts)}"] = label
    labels = [names[names.index(label) - 1] if n % 20 == 0 else label for n, label in enumerate(texts.values())]
    return [LabelledRow(n, label, text) for n, (label, text) in enumerate(zip(labels, texts, strict=True))]


def test_wrong_labels_of_training_rows_come_first(rows):
    folds = []
    found = label_errors(classifier(), rows, trained=[True] * len(rows), show=folds.append)
    assert folds == [1, 2, 3, 4, 5]
    assert (found.n_crossed, found.n_inflated) == (300, 0)
    assert sum(suspect.row.number % 20 == 0 for suspect in found.suspects[:15]) >= 13
    assert all(suspect.suggested != suspect.row.label for suspect in found.suspects)
    assert found.wrong == pytest.approx(15, abs=8)


def test_no_row_is_scored_by_a_model_that_was_fitted_on_its_text(rows, monkeypatch):
    fitted, classes_of = [], []

    class Nothing:
        def scores(self, texts):
            assert not set(texts) & set(fitted[-1])
            return np.zeros((len(texts), len(classes_of[-1])))

    def fit(texts, classes, n_classes, weights, valid, true, search):
        assert not set(texts) & set(valid)
        fitted.append(texts)
        classes_of.append(set(classes.tolist()))
        return Nothing()

    monkeypatch.setattr(module, "fit_ngrams", fit)
    texts = [row.text for row in rows] * 2
    classes = np.array([sorted(WEATHER).index(row.label) for row in rows] * 2)
    assert out_of_fold(texts, classes, 3)[1].all()
    rare = np.where(np.arange(len(texts)) == 7, 2, classes % 2)
    known = out_of_fold(texts, rare, 3)[1]
    assert known.sum() == len(texts) - 1 and not known[7]  # no other text has its label
    assert not out_of_fold(texts[:30], classes[:30], 3)[1].any()


def test_rows_that_are_new_to_the_model_have_its_own_probabilities(rows):
    user = classifier()
    found = label_errors(user, rows[:40])
    assert (found.n_crossed, found.n_inflated) == (0, 0)
    expected = user.classify([suspect.row.text for suspect in found.suspects])
    margins = [suspect.label_probability - suspect.probability for suspect in found.suspects]
    assert margins == sorted(margins)
    for suspect, one in zip(found.suspects, expected, strict=True):
        assert suspect.label_probability == pytest.approx(one.probabilities[suspect.row.label])
        others = {label: p for label, p in one.probabilities.items() if label != suspect.row.label}
        assert suspect.suggested == max(others, key=others.__getitem__)
    assert label_errors(user, rows[:40], trained=[True] * 40).n_inflated == 40
