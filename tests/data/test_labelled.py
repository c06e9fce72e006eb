"""Labelled texts: names are kept, nothing is lost silently, wrong columns are refused, long texts are read as said."""

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendo.data.labelled import (
    MOST_LABELS,
    LabelledRow,
    LabelledSource,
    LabelSet,
    LongTexts,
    class_weights,
    count_labels,
    held_out_texts,
    read_labelled,
    shown,
)
from attendo.data.labelled_corpus import LabelledCorpus, LabelledData, NumberCorpus, NumberData
from attendo.data.row_report import RowReport
from attendo.data.store import LabelledStore, labelled_store
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import Tokenizer
from attendo.errors import AttendoError

ROWS = [LabelledRow(3 * i + 1, "up" if i % 3 else "down", f"the cat {i} " * (i % 5)) for i in range(50)]


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def rows(*labels: str, first: int = 1) -> list[LabelledRow]:
    return [LabelledRow(i, label, f"text {i}") for i, label in enumerate(labels, first)]


# Reading


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("f.tsv", "pos\tgood film\nneg\tbad film\n", None),
        ("f.tsv", "pos\t9\tgood film\nneg\t1\tbad film\n", ("1", "3")),
        ("f.tsv", "text\tlabel\ngood film\tpos\nbad film\tneg\n", ("label", "text")),
        ("f.csv", 'text,stars,label\n"good film",9,pos\n"bad film",1,neg\n', None),
        ("f.csv", "said,class\ngood film,pos\nbad film,neg\n", ("class", "said")),
        ("f.jsonl", '{"text": "good film", "label": "pos"}\n{"label": "neg", "text": "bad film"}\n', None),
    ],
)
def test_a_column_of_labels_and_one_of_texts_from_any_format(tmp_path, name, text, columns):
    source = LabelledSource(written(tmp_path / name, text), columns)
    assert [tuple(row)[1:] for row in read_labelled(source)] == [("pos", "good film"), ("neg", "bad film")]


def test_labels_are_names_even_where_json_has_numbers(tmp_path):
    values = [0, 1, True, False, " a \t b ", "", None, 1.5, ["x"], 10**30]
    lines = "".join(json.dumps({"label": value, "text": "t"}) + "\n" for value in values)
    row_report = RowReport("f")
    found = list(read_labelled(LabelledSource(written(tmp_path / "f.jsonl", lines)), row_report=row_report))
    assert [(row.number, row.label) for row in found] == [
        (1, "0"), (2, "1"), (3, "true"), (4, "false"), (5, "a b"), (10, str(10**30)),
    ]  # fmt: skip
    assert {reason: entry.lines for reason, entry in row_report.skipped.items()} == {
        "no label": [6, 7],
        "not text": [8, 9],
    }
    with pytest.raises(AttendoError, match=r":6: no label; fill the field or delete the row"):
        list(read_labelled(LabelledSource(tmp_path / "f.jsonl"), strict=True))


@pytest.mark.parametrize(("columns", "named"), [(("verdict", "body"), "'verdict'"), (("3", "2"), "3")])
def test_a_missing_label_is_named_with_its_column(tmp_path, columns, named):
    file = written(tmp_path / "f.csv", "id,body,verdict\n1,Late.,mail\n2,Wrong., \n")
    with pytest.raises(AttendoError, match=rf"f.csv:3: no label \(column {named}\); fill the field or delete"):
        list(read_labelled(LabelledSource(file, columns), strict=True))
    row_report = RowReport(str(file))
    assert len(list(read_labelled(LabelledSource(file, columns), row_report=row_report))) == 1
    assert row_report.line().endswith("2 rows read, 1 used, 1 skipped (1 no label: line 3)")


# Counting


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["pos"] * 7, "f.tsv: only one label, 'pos', in 7 rows (expected at least two labels)"),
        ([], "f.tsv: no label in 0 rows"),
        (
            [f"sentence {i}" for i in range(30)],
            "f.tsv: 30 different labels in 30 rows ('sentence 0', 'sentence 1', 'sentence 2', 'sentence 3', "
            "'sentence 4', …). This is not a label column: choose columns with `columns` label=…,text=…",
        ),
        (
            ["label", *"aabbab"],
            "f.tsv:1: no other row has the label 'label'. If the line is a header, add `header`",
        ),
    ],
)
def test_columns_that_hold_no_labels_are_refused(labels, message):
    with pytest.raises(AttendoError, match=re.escape(message)):
        count_labels(rows(*labels), "f.tsv")


@pytest.mark.parametrize("labels", ["ab", "abc" * 2, "ba" + "a" * 9, "abbcc"[1:], "xab"])
def test_small_and_rare_classes_are_allowed(labels):
    if labels == "xab":
        with pytest.raises(AttendoError, match="3 different labels in 3 rows"):
            count_labels(rows(*labels), "f")
    else:
        assert count_labels(rows(*labels), "f") == dict(sorted(Counter(labels).items()))


def test_a_label_in_the_first_row_of_a_csv_is_no_header():
    assert count_labels(rows(*"caabbab", first=2), "f.csv")["c"] == 1


def test_counting_stops_where_labels_are_far_too_many():
    read = itertools.count(1)
    endless = (LabelledRow(i, str(i), "") for i in read)
    with pytest.raises(AttendoError, match="not a label column"):
        count_labels(endless, "f")
    assert next(read) == MOST_LABELS + 2


def test_a_label_set_knows_its_names_and_no_others():
    labels = LabelSet(tuple("abcdefg"))
    assert [labels.id_of(name, "") for name in labels.names] == list(range(len(labels))) == list(range(7))
    message = "t.tsv:9: the label 'x' was not seen in training (known: 'a', 'b', 'c', 'd', 'e', …"
    with pytest.raises(AttendoError, match=re.escape(message)):
        labels.id_of("x", "t.tsv:9")
    for wrong in [(), ("b", "a"), ("a", "a")]:
        with pytest.raises(ValueError, match="sorted"):
            LabelSet(wrong)


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=9))
def test_balanced_classes_weigh_the_same_and_all_rows_together_one_each(counts):
    weights = class_weights(counts, "balanced")
    assert weights is not None
    assert np.allclose(np.array(weights) * counts, sum(counts) / len(counts))
    assert class_weights(counts, "none") is None
    assert class_weights(counts, "auto") == (weights if max(counts) > 3 * min(counts) else None)


# What validates


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3)), min_size=20, max_size=300))
def test_every_class_with_two_texts_is_on_both_sides_and_no_text_is(pairs):
    data = [LabelledRow(i, f"class {min(label, text % 4)}", f"text {text}") for i, (text, label) in enumerate(pairs)]
    texts = {row.text: row for row in data}
    data = [LabelledRow(row.number, texts[row.text].label, row.text) for row in data]  # one label a text
    if len(texts) < 2:
        return
    held = held_out_texts(lambda: data, "f")
    valid, train = [[row for row in data if (row.text in held) == side] for side in (True, False)]
    assert (held.n_rows, held.n_held_out) == (len(data), len(valid))
    assert not {row.text for row in valid} & {row.text for row in train}
    for label in {row.label for row in data}:
        if len({row.text for row in data if row.label == label}) > 1:
            assert {row.label for row in valid} >= {label} <= {row.label for row in train}


def test_a_large_corpus_is_split_as_others_are():
    data = [LabelledRow(i, str(i % 2), f"text {i}") for i in range(20_000)]
    assert held_out_texts(lambda: data, "f").n_held_out == 200


# Long texts


@given(st.integers(0, 200), st.integers(4, 40))
def test_windows_cover_a_text_and_overlap(n, size):
    parts = LongTexts(max_tokens=size, long="window").parts(range(n))
    assert sorted(set().union(*parts)) == list(range(n))
    if n <= size:
        assert parts == [range(n)]
        return
    assert all(len(part) == size for part in parts)
    assert (parts[0][0], parts[-1][-1]) == (0, n - 1)
    steps = np.diff([part[0] for part in parts])
    assert steps.min() > 0
    assert steps.max() <= size - size // 4
    assert len(parts) == 1 + -(-(n - size) // (size - size // 4))  # no more than it takes


@given(st.integers(0, 100), st.integers(4, 40), st.floats(0, 1, exclude_max=True))
def test_cutting_keeps_both_ends_in_training_as_in_use(n, size, draw):
    long = LongTexts(max_tokens=size)
    (kept,) = long.parts(range(n))
    assert list(kept) == long.training_part(np.arange(n), draw).tolist()
    assert len(kept) == min(n, size)
    if n > size:
        assert list(kept) == [*range(size // 2), *range(n - (size - size // 2), n)]
    assert long.is_long(n) == (len(kept) < n)


def test_training_windows_are_drawn_from_all_there_are():
    long = LongTexts(max_tokens=4, long="window")
    starts = [long.training_part(np.arange(6), draw / 300).tolist() for draw in range(300)]
    assert Counter(map(tuple, starts)) == {(0, 1, 2, 3): 100, (1, 2, 3, 4): 100, (2, 3, 4, 5): 100}


def test_what_becomes_of_long_texts_is_said():
    assert (
        LongTexts(max_tokens=9).summary(1, 3)
        == "1 of 3 texts have more than 9 tokens; only the first 4 and last 5 tokens are used"
    )
    assert LongTexts(max_tokens=9, long="window").summary(2, 3).endswith("they are read in windows of 9 tokens")
    with pytest.raises(ValueError, match="max_tokens=3 must be at least 4"):
        LongTexts(max_tokens=3)


# The store


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer((row.text for row in ROWS), TokenizerConfig(kind="character"))


def check(store: LabelledStore, tokenizer: Tokenizer, data: list[LabelledRow]) -> None:
    assert len(store) == len(data)
    for i, row in enumerate(data):
        ids = tokenizer.encode(row.text)
        assert (store.row_numbers[i], store.lengths[:][i]) == (row.number, len(ids))
        assert ("down", "up")[store.labels[i]] == row.label
        assert store.texts[i].tolist() == ids


@pytest.mark.parametrize("n", [0, 1, 6, 7, 8, 50])
def test_what_went_in_comes_out_and_is_kept(tokenizer, tmp_path, monkeypatch, n):
    monkeypatch.setenv("ATTENDO_CACHE", str(tmp_path))
    monkeypatch.setattr("attendo.data.store._CHUNK", 7)
    labels = LabelSet(("down", "up"))
    store = labelled_store(iter(ROWS[:n]), RowReport("f"), labels, tokenizer, "k")
    check(store, tokenizer, ROWS[:n])
    assert store.facts.key == "k"
    for wrong in (-1, n):
        with pytest.raises(IndexError):
            store.texts[wrong]
    unread = [LabelledRow(0, "no label of the set", "")]
    check(labelled_store(unread, RowReport("f"), labels, tokenizer, "k"), tokenizer, ROWS[:n])
    classes = tmp_path / "labelled-k" / "labels"
    classes.write_bytes(classes.read_bytes() + b"damage")
    check(labelled_store(ROWS[:n], RowReport("f"), labels, tokenizer, "k"), tokenizer, ROWS[:n])


def test_a_label_that_is_not_in_the_set_leaves_no_store(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENDO_CACHE", str(tmp_path))
    with pytest.raises(AttendoError, match=r"f\.tsv:1: the label 'down' was not seen"):
        labelled_store(ROWS, RowReport("f.tsv"), LabelSet(("left", "up")), tokenizer, "k")
    assert list(tmp_path.iterdir()) == []


def test_long_labels_are_shortened_in_messages():
    assert shown("x" * 30) == repr("x" * 30)
    assert shown("x" * 31) == repr("x" * 29 + "…")


# What is said before training


def test_two_ratings_of_a_text_are_no_contradiction(tmp_path):
    lines = [f"{n % 7},text {n}" for n in range(200)] + ["6.5,text 0", "0,text 0"]
    file, said = str(written(tmp_path / "f.csv", "\n".join(["number,text", *lines]))), []
    assert NumberCorpus(NumberData(train=(file,)), said.append).counts
    assert "exact copies of an earlier row: 1 (line 203)" in said
    assert not any("different" in line for line in said)


def test_the_rows_of_all_rare_labels_are_found_in_one_pass(tmp_path, monkeypatch):
    lines = [f"{'up' if n % 3 else 'down'}\ttext {n}" for n in range(20)] + ["x\tone", "y\ttwo", "z\tthree"]
    file, said, passes = str(written(tmp_path / "f.tsv", "\n".join(lines))), [], []

    def counted(*arguments):
        passes.append(arguments)
        return read_labelled(*arguments)

    monkeypatch.setattr("attendo.data.labelled_corpus.read_labelled", counted)
    assert len(LabelledCorpus(LabelledData(train=(file,), valid=(file,)), said.append).counts) == 5
    places = [line.split()[1] for line in said if "only 1 training row" in line]
    assert places == [f"{file}:{n}:" for n in (21, 22, 23)]
    assert len(passes) == 2
