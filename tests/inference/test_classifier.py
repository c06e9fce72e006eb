"""Classifier: probabilities are the model's own, whatever stands beside a text, and every text has an answer."""

import math
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch
from tiny_classifiers import COUNTS, TEXTS, TOKENIZER, classifier, config, saved

from attendo.data.labelled import LabelledRow, LongTexts
from attendo.errors import AttendoError
from attendo.inference import label_model
from attendo.inference.classifier import Classifier
from attendo.metrics import calibration_error
from attendo.models import DecoderLM, ModelConfig, build_model

ORACLE: Any = sklearn.metrics


def logits_alone(subject: Classifier, ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return subject.model(torch.tensor([[TOKENIZER.bos_id, *ids]]))[0].numpy()


def softmax(z: np.ndarray) -> np.ndarray:
    return np.exp(z - z.max()) / np.exp(z - z.max()).sum()


@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_probabilities_are_the_models_own_whatever_stands_beside_a_text(monkeypatch, pooling, temperature):
    monkeypatch.setattr(label_model, "BATCH_TOKENS", 70)
    monkeypatch.setattr(label_model, "CHUNK", 4)
    subject = classifier(temperature, pooling=pooling)
    for text, found in zip(TEXTS * 2, subject.classify(TEXTS * 2), strict=True):
        ids = TOKENIZER.encode(text)
        expected = softmax(logits_alone(subject, ids) / temperature)
        assert (found.text, found.n_tokens, found.cut) == (text, len(ids), False)
        assert [found.probabilities[name] for name in COUNTS] == pytest.approx(expected.tolist(), abs=1e-12)
        assert list(found.probabilities) == sorted(COUNTS, key=lambda name: -found.probabilities[name])
        assert (found.label, found.probability) == next(iter(found.probabilities.items()))
    assert len({round(found.probability, 9) for found in subject.classify(TEXTS)}) == len(TEXTS)
    assert subject.classify([]) == []


@pytest.mark.parametrize("empty", ["", " ", "\t\n\u3000"])
def test_a_text_without_content_has_no_label(empty):
    first, found, last = classifier(temperature=2.5).classify([TEXTS[0], empty, TEXTS[1]])
    assert (found.text, found.label, found.probability, found.probabilities) == (empty, None, None, {})
    alone = classifier(temperature=2.5).classify([TEXTS[0], TEXTS[1]])
    assert [first.probabilities, last.probabilities] == [
        pytest.approx(other.probabilities, abs=1e-12) for other in alone
    ]


def test_a_long_text_is_cut_and_says_so():
    subject = classifier(long=LongTexts(max_tokens=6))
    text = TEXTS[2]
    (found,) = subject.classify([text])
    ids = TOKENIZER.encode(text)
    expected = softmax(logits_alone(subject, [*ids[:3], *ids[-3:]]))
    assert [found.probabilities[name] for name in COUNTS] == pytest.approx(expected.tolist(), abs=1e-12)
    assert (found.cut, found.n_tokens) == (True, len(ids))
    assert not subject.classify([text[:5]])[0].cut


def test_windows_are_averaged():
    subject = classifier(long=LongTexts(max_tokens=4, long="window"))
    text, ids = TEXTS[2], TOKENIZER.encode(TEXTS[2])
    windows = subject.long_texts.parts(ids)
    assert len(windows) == math.ceil((len(ids) - 4) / 3) + 1 > 2
    expected = softmax(np.mean([logits_alone(subject, list(window)) for window in windows], axis=0))
    for found in subject.classify(["rain", text, "rain", text])[1::2]:
        assert [found.probabilities[name] for name in COUNTS] == pytest.approx(expected.tolist(), abs=1e-12)
        assert not found.cut


@pytest.mark.parametrize("long", ["cut", "window"])
def test_a_text_of_a_million_characters_takes_no_more_memory_than_others(long):
    subject = classifier(long=LongTexts(max_tokens=48, long=long), n_heads=1)
    sizes = []
    subject.model.register_forward_pre_hook(lambda _, arguments: sizes.append(arguments[0].numel()))
    text = "the north country " * 60_000
    long_one, short_one = subject.classify([text, "rain"])
    n_tokens = len(TOKENIZER.encode(text))
    assert len(text) > 10**6 > 4 * n_tokens > 10**5
    assert (long_one.n_tokens, long_one.cut) == (n_tokens, long == "cut")
    assert max(sizes) <= label_model.BATCH_TOKENS
    assert n_tokens < sum(sizes) < 1.5 * n_tokens if long == "window" else sum(sizes) < 120
    assert short_one.probabilities == pytest.approx(subject.classify(["rain"])[0].probabilities, abs=1e-12)


def test_evaluation_is_scikit_learns():
    subject = classifier(temperature=1.7)
    rows = [LabelledRow(i, list(COUNTS)[i % 2], text) for i, text in enumerate([*TEXTS, *TEXTS[:3]], 1)]
    found = subject.evaluate(rows, "f.tsv")
    labels, given = [row.label for row in rows], [each.label for each in found.found]
    names = list(COUNTS)
    assert found.found == tuple(subject.classify([row.text for row in rows]))
    assert (found.confusion == ORACLE.confusion_matrix(labels, given, labels=names)).all()
    table = ORACLE.precision_recall_fscore_support(labels, given, labels=names, zero_division=0)
    for score, name, *expected in zip(found.labels, names, *table, strict=True):
        assert score.label == name
        assert [score.precision, score.recall, score.f1, score.support] == pytest.approx(expected, abs=1e-12)
    measures = found.measures
    assert measures["accuracy"] == ORACLE.accuracy_score(labels, given)
    assert measures["macro_f1"] == pytest.approx(
        ORACLE.f1_score(labels, given, average="macro", zero_division=0), abs=1e-12
    )
    probabilities = np.array([[each.probabilities[name] for name in names] for each in found.found])
    assert measures["loss"] == pytest.approx(ORACLE.log_loss(labels, probabilities, labels=names), abs=1e-12)
    true = np.array([names.index(label) for label in labels])
    assert measures["ece"] == calibration_error(probabilities, true)
    subject.temperature = 1.0
    plain = subject.evaluate(rows).measures
    assert plain["loss"] != measures["loss"]
    n, share = len(rows), measures["accuracy"]
    assert measures["accuracy_error"] == pytest.approx((share * (1 - share) / n) ** 0.5)
    assert measures["commonest"] == max(Counter(labels).values()) / n
    assert measures["loss_uncalibrated"] == pytest.approx(plain["loss"], abs=1e-12)
    assert measures["ece_uncalibrated"] == pytest.approx(plain["ece"], abs=1e-12)


def test_a_text_without_content_counts_as_the_most_frequent_label():
    found = classifier().evaluate([LabelledRow(1, "dry", ""), LabelledRow(2, "wet", " ")])
    assert found.confusion.tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert found.measures["loss"] == pytest.approx(-math.log(0.6 * 0.3) / 2)


def test_a_label_that_training_did_not_see_is_named_with_its_row():
    rows = [LabelledRow(1, "dry", "rain"), LabelledRow(7, "hot", "rain")]
    message = "test.tsv:7: the label 'hot' was not seen in training (known: 'cold', 'dry', 'wet')"
    with pytest.raises(AttendoError, match=re.escape(message)):
        classifier().evaluate(rows, "test.tsv")


def test_a_run_folder_holds_all_it_takes(tmp_path):
    card = {"task": "classification", "labels": COUNTS, "validation": {"temperature": 1.5}}
    subject = Classifier.load(saved(tmp_path, config(), card, max_tokens=12, long="window", train=["f.tsv"]))
    assert (subject.temperature, subject.labels.names, subject.counts) == (1.5, tuple(COUNTS), COUNTS)
    assert subject.long_texts == LongTexts(max_tokens=12, long="window")
    assert subject.device == torch.device("cpu")
    assert not subject.model.training
    assert subject.classify(TEXTS)[0].probability > 1 / 3


def test_what_does_not_fit_is_refused(tmp_path):
    card = {"task": "classification", "labels": {"a": 1, "b": 1}}
    with pytest.raises(AttendoError, match=r"names 2 labels, but the model has 3 classes\. .*card\.json"):
        Classifier.load(saved(tmp_path / "a", config(), card))
    with pytest.raises(AttendoError, match=r"names 0 labels"):
        Classifier.load(saved(tmp_path / "no", config(), {"task": "classification"}))
    positions = config(positions="learned", max_len=100)
    with pytest.raises(AttendoError, match=r"max_tokens=100 .*max_len=100\. Lower max_tokens"):
        Classifier.load(saved(tmp_path / "b", positions, {"labels": COUNTS}, max_tokens=100))
    assert Classifier.load(saved(tmp_path / "c", positions, {"labels": COUNTS}, max_tokens=99)).classify(["a" * 999])
    shape: dict[str, Any] = {
        "d_model": 16,
        "d_ff": 32,
        "n_heads": 2,
        "n_encoder_layers": 0,
        "n_decoder_layers": 1,
    }
    decoder = ModelConfig(architecture="decoder", vocab_size=TOKENIZER.vocab_size, **shape)
    assert isinstance(build_model(decoder), DecoderLM)
    with pytest.raises(AttendoError, match="was trained for language-model"):
        Classifier.load(saved(tmp_path / "d", decoder, {"task": "language-model"}))
