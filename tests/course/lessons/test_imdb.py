"""The lesson on film reviews: reading them, the lecture's words and model, what its maximum takes, all contenders."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from corpus_files import write
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.data.labelled import LabelledRow
from attendo.errors import AttendoError
from attendo.models import parameter_count
from attendo_course.lessons import imdb
from attendo_course.lessons.imdb import PAD_ID, UNKNOWN_ID, reviews, vocabulary, word_examples, words_of
from attendo_course.lessons.lesson import Conclusion, Options, Table
from attendo_course.pictures import Picture

GOOD, BAD, EITHER = (
    ["great", "lovely", "fine"],
    ["awful", "boring", "poor"],
    ["the", "film", "plot", "is", "a", "of"],
)


def rows_of(seed: int, n: int) -> list[LabelledRow]:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        label, words = (("neg", BAD), ("pos", GOOD))[i % 2]
        text = [*rng.choice(EITHER, 12), *rng.choice(words, 2)]
        rows.append(LabelledRow(i + 1, label, " ".join(rng.permutation(text))))
    return rows


def file_of(path: Path, rows: list[LabelledRow]) -> Path:
    lines = "".join(f"{row.label}\t7\t{row.text}\n" for row in rows)
    return write(path, gzip.compress(lines.encode()))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("reviews")
    return file_of(folder / "train.tsv.gz", rows_of(1, 200)), file_of(folder / "test.tsv.gz", rows_of(2, 60))


def test_files_and_the_folder_give_the_same_reviews(files, tmp_path):
    for part, rows in (("train", rows_of(1, 200)), ("test", rows_of(2, 60))):
        for row in rows:
            (tmp_path / part / row.label).mkdir(parents=True, exist_ok=True)
            write(tmp_path / part / row.label / f"{row.number}_7.txt", row.text)
    by_file, by_folder = reviews(files), reviews([tmp_path])
    for name in ("train", "valid", "test"):
        one, other = getattr(by_file, name), getattr(by_folder, name)
        assert sorted((r.label, r.text) for r in one) == sorted((r.label, r.text) for r in other)
    assert by_file.labels == by_folder.labels == ("neg", "pos")


def test_every_review_is_in_one_part_and_equal_texts_on_one_side(files, tmp_path):
    data = reviews(files)
    assert sorted(r.number for r in (*data.train, *data.valid)) == list(range(1, 201))
    assert not {r.text for r in data.train} & {r.text for r in data.valid}
    assert data.n_known == len([r for r in data.test if r.text in {x.text for x in rows_of(1, 200)}])
    twice = file_of(tmp_path / "twice.tsv.gz", rows_of(1, 200))
    assert reviews([files[0], twice]).n_known == 200


@pytest.mark.parametrize(
    ("given_files", "said"),
    [
        (("nowhere",), "nowhere: no such file or folder; film reviews are at https"),
        ((), "the lesson needs film reviews: get them from https"),
        (("train.tsv.gz",), "1 given; the lesson needs .* --train TRAIN.tsv --train TEST.tsv"),
        (("train.tsv.gz", "nothing.tsv"), "nothing.tsv"),
        (("train.tsv.gz", "strange.tsv"), "strange.tsv:2: the label 'good' is none of neg, pos of"),
        (("one.tsv", "train.tsv.gz"), "only one label"),
        (("few.tsv", "train.tsv.gz"), "which lack a label: give more texts"),
        ((".",), "no neg/\\*.txt and pos/\\*.txt"),
    ],
)
def test_other_files_are_refused_in_a_line(files, tmp_path, given_files, said):
    file_of(tmp_path / "train.tsv.gz", rows_of(1, 200))
    write(tmp_path / "strange.tsv", "pos\ta\ngood\tb\n")
    write(tmp_path / "one.tsv", "pos\ta\npos\tb\n")
    write(tmp_path / "few.tsv", "pos\ta\nneg\tb\npos\tc\nneg\td\n")
    with pytest.raises(AttendoError, match=said) as caught:
        reviews([tmp_path / name for name in given_files])
    assert "\n" not in str(caught.value)


@settings(max_examples=60)
@given(st.lists(st.text("ab \t\nÉ", max_size=12), min_size=1, max_size=5), st.integers(1, 6), st.integers(1, 9))
def test_a_text_is_the_ids_of_its_first_words(texts, n_words, length):
    rows = [LabelledRow(i, "pos", text) for i, text in enumerate(texts)]
    ids = vocabulary(rows, n_words)
    assert list(ids.values()) == list(range(2, 2 + len(ids))) and len(ids) <= n_words
    examples = word_examples(rows, [0] * len(rows), ids, length, masked=True)
    names = {number: word for word, number in ids.items()}
    for row, src, n in zip(rows, examples.inputs["src"].tolist(), examples.inputs["src_lengths"].tolist(), strict=True):
        words = words_of(row.text, length) or ["?"]
        assert n == len(words) and src[n:] == [PAD_ID] * (length - n)
        for word, i in zip(words, src, strict=False):
            assert names.get(i) == word if i != UNKNOWN_ID else word not in ids


def test_the_lectures_numbers():
    with torch.device("meta"):
        assert parameter_count(imdb.EncoderClassifier(imdb.lecture_config(50_002, 2))) == 1_612_802


def test_the_padding_starts_at_zero_and_the_seed_decides():
    config = imdb.lecture_config(30, 2)
    one, same, other = (imdb.lecture_model(config, seed).embedding.tokens.weight for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert not one[PAD_ID].any() and 0.8 < float(one[2:].detach().std()) < 1.2


def test_the_maximum_is_taken_where_it_is(files):
    data = reviews(files)
    ids = vocabulary(data.train, 50)
    model = imdb.lecture_model(imdb.lecture_config(60, 2), 1)
    row = data.test[0]
    src = word_examples([row], [0], ids, imdb.LENGTH, masked=False).inputs["src"]
    places = imdb.pooled_from(model, src[0])
    states = model.encoder(model.embedding(src))[0]
    assert torch.equal(states[torch.from_numpy(places), torch.arange(32)], model.hidden(src)[0])
    chosen = imdb.chosen_words(model, row, ids)
    assert sum(count for _, count in chosen) <= 32 and {w for w, _ in chosen} <= {*row.text.split(), "…"}


def test_all_contenders_learn_what_words_tell(files, monkeypatch):
    monkeypatch.setattr(imdb, "LENGTH", 40)  # words, longer than these reviews
    pieces = list(imdb.IMDB.teach(Options(files=files)))
    table = next(piece for piece in pieces if isinstance(piece, Table) and piece.name == "imdb")
    assert len(table.rows) == 4  # scikit-learn is there
    accuracies = [float(str(row[3]).rstrip("%")) for row in table.rows]
    assert min(accuracies[:2]) > 60 and accuracies[3] > 90  # so few texts are too few for ours
    pictures = [piece for piece in pieces if isinstance(piece, Picture)]
    assert [picture.rows for picture in pictures] == [("lecture", "masked", "ours")]
    assert np.isfinite(pictures[0].values).all()
    assert isinstance(pieces[-1], Conclusion)
    said = pieces[-1].words
    best = max(table.rows, key=lambda row: float(str(row[3]).rstrip("%")))
    assert str(best[3]) in said.en and str(best[3]) in said.ja
