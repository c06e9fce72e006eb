"""What a classifier has to beat: the commonest label, and naive Bayes as it is counted by hand."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.data.labelled import LabelledRow, LabelSet
from attendo.data.row_report import RowReport
from attendo.data.store import labelled_store
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.metrics import accuracy, class_scores, confusion_matrix
from attendo.runs import tasks as module
from attendo.runs.tasks import BASELINE_MEASURES, baselines, naive_bayes, word_counts

WORDS = ["late", "parcel", "wrong", "bill"]
LABELS = LabelSet(("bill", "mail"))
rows = st.lists(
    st.tuples(st.sampled_from(LABELS.names), st.lists(st.sampled_from(WORDS), min_size=1, max_size=6)),
    min_size=2,
    max_size=12,
).filter(lambda found: {label for label, _ in found} == set(LABELS.names))
TRAIN = [
    LabelledRow(i, label, text)
    for i, (label, text) in enumerate(
        [
            ("mail", "late parcel"),
            ("mail", "parcel late late"),
            ("bill", "wrong bill"),
            ("mail", "wrong parcel"),
        ]
    )
]
TOKENIZER = train_tokenizer((row.text for row in TRAIN), TokenizerConfig(kind="word"))


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENDO_CACHE", str(tmp_path))
    return labelled_store(TRAIN, RowReport("rows"), LABELS, TOKENIZER, "k")


def log_joint(train: list[tuple[str, list[str]]], label: str, text: list[str]) -> float:
    """log P(label) + Σ log P(word | label), a word at a time; words that training has not seen are passed over."""
    words = Counter(word for name, own in train if name == label for word in own)
    seen = {word for _, own in train for word in own}
    prior = math.log(sum(name == label for name, _ in train) / len(train))
    below = words.total() + len(seen)
    return prior + sum(math.log((words[word] + 1) / below) for word in text if word in seen)


@settings(max_examples=30)
@given(rows, st.lists(st.sampled_from(WORDS), max_size=6))
def test_naive_bayes_is_what_is_counted_by_hand(train, text):
    counts = np.array(
        [
            [sum(own.count(word) for name, own in train if name == label) for word in WORDS]
            for label in LABELS.names
        ]
    )
    sizes = np.array([sum(name == label for name, _ in train) for label in LABELS.names])
    prior, words = naive_bayes(sizes, counts)
    found = prior + words[:, [WORDS.index(word) for word in text]].sum(1)
    assert found.tolist() == pytest.approx(
        [log_joint(train, label, text) for label in LABELS.names], abs=1e-12
    )


def test_words_are_counted_in_pieces_as_in_one(store, monkeypatch):
    whole = word_counts(store, 2, TOKENIZER.vocab_size)
    late, parcel = (TOKENIZER.encode(word)[0] for word in ("late", "parcel"))
    assert whole.sum() == 9 and whole[1, late] == whole[1, parcel] == 3 and whole[0, late] == 0
    for tokens in (1, 3, 4):
        monkeypatch.setattr(module, "COUNTED_TOKENS", tokens)
        assert (word_counts(store, 2, TOKENIZER.vocab_size) == whole).all()


def test_both_are_measured_on_the_validation_texts(store, monkeypatch):
    texts, true = ["late parcel", "bill", "wrong bill late", "parcel"], np.array([1, 0, 0, 0])
    ids = TOKENIZER.encode_batch(texts)
    found = baselines(store, ids, true, 2, TOKENIZER.vocab_size)
    train = [(row.label, row.text.split()) for row in TRAIN]
    counted = [
        int(np.argmax([log_joint(train, label, text.split()) for label in LABELS.names])) for text in texts
    ]
    for name, predicted in (("counting_words", np.array(counted)), ("always_commonest", np.ones_like(true))):
        wanted = accuracy(true, predicted), class_scores(confusion_matrix(true, predicted, 2)).macro_f1
        measures = found.measures()
        assert (measures[f"accuracy_{name}"], measures[f"macro_f1_{name}"]) == wanted
    assert found.commonest == 1 and tuple(found.measures()) == BASELINE_MEASURES
    monkeypatch.setattr(module, "MOST_WORD_COUNTS", 3)
    assert tuple(baselines(store, ids, true, 2, TOKENIZER.vocab_size).measures()) == BASELINE_MEASURES[:2]
