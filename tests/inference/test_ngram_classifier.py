"""The linear classifier of n-grams: equal to scikit-learn's, stored safely, and combined with the encoder."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from attendo.errors import AttendoError
from attendo.inference import ngram_classifier as module
from attendo.inference.ngram_classifier import (
    NGRAMS,
    STRENGTHS,
    NgramClassifier,
    character_ngrams,
    even_rows,
    fit_ngrams,
    word_ngrams,
)
from attendo.metrics import fit_temperature, log_loss, log_softmax

WORDS = ["late", "parcel", "wrong", "bill", "very", "駅から", "not", "!"]
SEED = np.random.default_rng(0)


def rows(n, n_classes=2):
    """Return texts whose class decides which words are frequent, and their classes."""
    classes = np.arange(n) % n_classes
    shares = np.random.default_rng(1).dirichlet(np.ones(len(WORDS)), n_classes)
    texts = [" ".join(SEED.choice(WORDS, size=SEED.integers(2, 9), p=shares[c])) for c in classes]
    return texts, classes


@pytest.mark.parametrize("n_classes", [2, 3])
def test_it_is_the_best_of_scikit_learns_pipelines(n_classes):
    (texts, classes), (valid, true) = rows(90, n_classes), rows(30, n_classes)
    found = fit_ngrams(texts, classes, n_classes, [1.0, 2.0, 1.0][:n_classes], valid, true)
    blocks = {
        "words": TfidfVectorizer(analyzer=word_ngrams, sublinear_tf=True),
        "characters": TfidfVectorizer(analyzer=lambda text: character_ngrams(text, 5), sublinear_tf=True, min_df=2),
    }
    train = {name: block.fit_transform(texts) for name, block in blocks.items()}
    results = []
    for names in (("words", "characters"), ("words",), ("characters",)):
        for strength in STRENGTHS:
            weights = dict(enumerate([1.0, 2.0, 1.0][:n_classes]))
            model = LogisticRegression(C=strength, class_weight=weights, max_iter=1000)
            model.fit(hstack([train[name] for name in names]), classes)
            log_probs = model.predict_log_proba(hstack([blocks[name].transform(valid) for name in names]))
            calibrated = log_softmax(log_probs / fit_temperature(log_probs, true))
            results.append((log_loss(calibrated, true), calibrated))
    _, best = min(results, key=lambda result: result[0])
    assert log_softmax(found.scores(valid)) == pytest.approx(best, abs=1e-4)
    assert found.scores([""])[0] == pytest.approx(found.bias.astype(float))


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_the_words_and_the_characters_have_norm_1(text):
    fitted = small()
    features, n_words = fitted.features(text), len(fitted.words)
    for part in (
        [v for r, v in features.items() if r < n_words],
        [v for r, v in features.items() if r >= n_words],
    ):
        assert not part or np.linalg.norm(part) == pytest.approx(1)
    assert np.isfinite(fitted.scores([text])).all()


def small():
    words, characters = ["late", "not late", "!"], ["l", "la", "駅"]
    weights = np.random.default_rng(3).normal(size=(6, 2)).astype(np.float32)
    return NgramClassifier(words, characters, 2, np.ones(6, np.float32), weights, np.zeros(2, np.float32))


def test_reasons_are_the_parts_of_the_score():
    fitted, text = small(), "Not LATE !"
    reasons = fitted.reasons(text, 1, n=99)
    (scores,) = fitted.scores([text])
    assert sum(nats for _, nats in reasons) == pytest.approx((scores[1] - scores[0]) / 2)
    assert {term for term, _ in reasons} == {"late", "not late", "!", "l", "la"}
    assert [abs(nats) for _, nats in reasons] == sorted((abs(nats) for _, nats in reasons), reverse=True)
    assert fitted.reasons(text, 1, n=2) == reasons[:2]


def test_large_training_sets_have_shorter_character_ngrams(monkeypatch):
    (texts, classes), (valid, true) = rows(30), rows(10)
    n_characters = sum(map(len, texts))
    monkeypatch.setattr(module, "MOST_COUNTED", 3 * n_characters)
    assert fit_ngrams(texts, classes, 2, None, valid, true).longest == 3
    monkeypatch.setattr(module, "MOST_COUNTED", n_characters)
    assert not fit_ngrams(texts, classes, 2, None, valid, true).characters
    monkeypatch.setattr(module, "MOST_WEIGHTS", 8)
    assert len(fit_ngrams(texts, classes, 2, None, valid, true).words) == 4


def test_texts_without_a_common_ngram_are_no_error():
    texts = [f"word{chr(0x4E00 + n)}" for n in range(20)]
    found = fit_ngrams(texts, np.arange(20) % 2, 2, None, texts[:4], np.arange(4) % 2)
    assert found.scores(texts).shape == (20, 2)
    assert fit_ngrams(["好", "悪"], np.arange(2), 2, None, ["好"], np.zeros(1, int)).scores(["好"]).shape == (
        1,
        2,
    )


def test_a_slow_fit_tries_one_strength_only(monkeypatch):
    (texts, classes), (valid, true) = rows(60), rows(20)
    monkeypatch.setattr(module, "MOST_WORK", 1)
    found = fit_ngrams(texts, classes, 2, None, valid, true)
    monkeypatch.setattr(module, "STRENGTHS", (module.USUAL_STRENGTH,))
    again = fit_ngrams(texts, classes, 2, None, valid, true)
    assert found.words and found.characters and (found.weights == again.weights).all()


def test_of_very_many_rows_each_class_keeps_some():
    kept = even_rows([0] * 9 + [1], 3 * module.MOST_READ, 1)
    assert [n for n, keep in enumerate(kept) if keep] == [0, 3, 6, 9]
    assert all(even_rows([0, 1, 1], 10, 2))


def test_a_file_that_is_damaged_or_missing_is_named(tmp_path):
    fitted = small()
    path = tmp_path / NGRAMS
    path.write_bytes(fitted.to_bytes())
    sha256 = module.hashlib.sha256(fitted.to_bytes()).hexdigest()
    again = NgramClassifier.load(tmp_path, sha256)
    assert (again.scores(["not late", "駅"]) == fitted.scores(["not late", "駅"])).all()
    path.write_bytes(fitted.to_bytes()[:-1])
    with pytest.raises(AttendoError, match=r"ngrams.safetensors is damaged or from another run. Restore"):
        NgramClassifier.load(tmp_path, sha256)
    path.unlink()
    with pytest.raises(AttendoError, match=r"ngrams.safetensors cannot be read .* Restore the file"):
        NgramClassifier.load(tmp_path, sha256)
