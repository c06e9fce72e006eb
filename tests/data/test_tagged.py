"""Tagged texts: what is a span, what a CoNLL file says, and which classes the tokens get."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendo.data.labelled import LabelledSource, read_labelled
from attendo.data.row_report import RowReport
from attendo.data.tagged import SPANS, Span, TagSet, dictionary, dictionary_spans, spans_of
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.errors import AttendoError

TAGS = TagSet(("LOC", "PER"))


def read(folder: Path, name: str, text: str, strict: bool = False, columns=None):
    file = folder / name
    file.write_text(text, encoding="utf-8")
    row_report = RowReport(str(file))
    rows = list(read_labelled(LabelledSource(file, columns, form=SPANS), strict, row_report))
    return [(row.number, row.text, [tuple(span) for span in spans_of(row)]) for row in rows], row_report


CONLL = """# a comment
-DOCSTART- -X- O

Ann NNP B-PER
Lee NNP I-PER
likes VB O
New NNP I-LOC
York NNP I-LOC
( ( O
U.S. NNP S-LOC
) ) O
. . O

東 B-LOC
京 E-LOC
と O
山 B-PER
森 B-PER
"""


def test_a_conll_file_becomes_texts_with_spans(tmp_path):
    rows, _ = read(tmp_path, "a.conll", CONLL)
    spans = [(0, 7, "PER"), (14, 22, "LOC"), (24, 28, "LOC")]
    assert rows[0] == (4, "Ann Lee likes New York (U.S.).", spans)
    assert rows[1] == (14, "東京と山森", [(0, 2, "LOC"), (3, 4, "PER"), (4, 5, "PER")])


def test_tables_have_lists_or_objects(tmp_path):
    lines = [
        {"text": " Ann sings", "spans": [[0, 4, "PER"]]},  # white space is not part of a span
        {"text": "In Rome", "spans": [{"start": 3, "end": 7, "label": "LOC", "probability": 0.5}]},
        {"text": "rain", "spans": []},
    ]
    rows, _ = read(tmp_path, "a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert [spans for _, _, spans in rows] == [[(1, 4, "PER")], [(3, 7, "LOC")], []]
    table = 'body,who\n"Ann, sings","[[0, 3, ""PER""]]"\n'
    assert read(tmp_path, "a.csv", table, columns=("who", "body"))[0] == [(2, "Ann, sings", [(0, 3, "PER")])]


BAD = {
    '[[0, 99, "PER"]]': "invalid spans",
    '[[3, 3, "PER"]]': "invalid spans",
    '[[-1, 3, "PER"]]': "invalid spans",
    '[[0, 3, " "]]': "invalid spans",
    '[[3, 4, "PER"]]': "invalid spans",  # only a space
    "[[0, 3]]": "invalid spans",
    '[[true, 3, "PER"]]': "invalid spans",
    '"PER"': "invalid spans",
    '[[4, 8, "A"], [0, 5, "B"]]': "overlapping spans",
    '[[0, 3, "A"], [0, 3, "A"]]': "overlapping spans",
}


@pytest.mark.parametrize("spans", BAD)
def test_bad_and_overlapping_spans_are_skipped_with_their_line(spans, tmp_path):
    good = '{"text": "Ann sings", "spans": [[0, 3, "PER"]]}\n'
    text = f'{good}{{"text": "Ann sings", "spans": {spans}}}\n'
    rows, row_report = read(tmp_path, "a.jsonl", text)
    assert len(rows) == 1 and row_report.skipped[BAD[spans]].lines == [2]
    with pytest.raises(AttendoError, match=rf"a\.jsonl:2: {BAD[spans]} \(.*\); (write|delete)"):
        read(tmp_path, "a.jsonl", text, strict=True)


@pytest.mark.parametrize(("line", "reason"), [("Ann X-PER", "invalid tag"), ("Ann", "wrong number of columns")])
def test_a_bad_line_of_a_conll_file_is_named(line, reason, tmp_path):
    text = f"Bo B-PER\n\nit O\n{line}\nis O\n\nLi B-PER\n"
    rows, row_report = read(tmp_path, "a.bio", text)
    assert [number for number, _, _ in rows] == [1, 7] and row_report.skipped[reason].lines == [4]
    with pytest.raises(AttendoError, match=rf"a\.bio:4: {reason}"):
        read(tmp_path, "a.bio", text, strict=True)


TEXTS = ["Anna Müller, Rom", "東京都の天気", "an e\u0301clair 🎉 to Bo"] * 20
TOKENIZERS = {
    kind: train_tokenizer(TEXTS, TokenizerConfig(kind=kind, vocab_size=330 if kind in ("bpe", "unigram") else None))
    for kind in ("bpe", "unigram", "character", "byte", "word", "uncased")
}
LETTERS = st.text("aAnü 東京▁\u0301🎉👨\u200dﬁ㍿İ.\t\n-9", max_size=12)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=LETTERS)
def test_token_spans_are_places_in_the_given_text(kind, text):
    tokenizer = TOKENIZERS[kind]
    ids, borders = tokenizer.encode_spans(text)
    assert ids == tokenizer.encode(text) and len(ids) == len(borders)
    assert all(0 <= start <= end <= len(text) for start, end in borders)
    assert [start for start, _ in borders] == sorted(start for start, _ in borders)
    covered = {place for start, end in borders for place in range(start, end)}
    assert all(text[place].isspace() or place in covered for place in range(len(text)))
    assert not any(text[start].isspace() and text[start:end].strip() for start, end in borders if start < end)


def test_normalized_tokens_refer_to_the_original_text():
    _, borders = TOKENIZERS["uncased"].encode_spans("ﬁne E\u0301T <br/>RAIN")
    assert [("ﬁne E\u0301T <br/>RAIN")[slice(*border)] for border in borders] == ["ﬁne", "E\u0301T", "RAIN"]


@given(st.lists(st.sampled_from(["out", "PER", "LOC", "PER+"]), max_size=8))
def test_classes_and_spans_are_inverse(kinds):
    borders = [(2 * i, 2 * i + 1) for i in range(len(kinds))]
    spans: list[Span] = []
    for (start, end), kind in zip(borders, kinds, strict=True):
        if kind == "PER+" and spans and spans[-1].label == "PER" and spans[-1].end == start - 1:
            spans[-1] = Span(spans[-1].start, end, "PER")
        elif kind in TAGS.labels:
            spans.append(Span(start, end, kind))
    assert [span for span, _ in TAGS.spans(TAGS.classes(borders, spans), borders)] == spans


def test_a_token_in_two_spans_belongs_to_the_first():
    borders = [(0, 2), (2, 6), (6, 6), (6, 8)]
    assert TAGS.classes(borders, [Span(0, 3, "LOC"), Span(3, 8, "PER")]) == [1, 2, 0, 3]


def test_the_dictionary_takes_the_longest_known_text(tmp_path):
    lines = [("New York", [[0, 8, "LOC"]]), ("York", [[0, 4, "PER"]]), ("New", [[0, 3, "LOC"]])]
    text = "".join(json.dumps({"text": text, "spans": spans}) + "\n" for text, spans in lines)
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    known = dictionary(read_labelled(LabelledSource(file, form=SPANS)))
    borders = [(0, 3), (4, 8), (9, 13)]
    assert dictionary_spans("New York York", borders, known) == [Span(0, 8, "LOC"), Span(9, 13, "PER")]
