"""From text files to streams: every character on one side, the same store for the same data, none for others."""

import pytest
from tiny_texts import text_file

from attendo.data.text_corpus import TextCorpus, TextData
from attendo.data.texts import Part
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.errors import AttendoError


def corpus(*files, said=None, **options):
    lines = [] if said is None else said
    return TextCorpus(TextData(train=tuple(map(str, files)), **options), lines.append)


def test_what_is_split_off_trains_no_more_and_nothing_is_lost(tmp_path):
    file, said = text_file(tmp_path), []
    found = corpus(file, said=said)
    parts = {part: "".join(chunk.text for chunk in found.chunks(part)) for part in ("train", "valid")}
    assert parts["train"] + parts["valid"] == file.read_text(encoding="utf-8")
    assert len(parts["valid"]) == pytest.approx(0.1 * len(file.read_text()), abs=100)
    assert found.n_characters == len(parts["train"])
    assert said == ["the last 10% of the text is held out for validation", f"{file}: 1 file, 1 document"]


def test_lines_are_documents_if_asked(tmp_path):
    file = text_file(tmp_path, 60)
    found = corpus(file, documents="line")
    tokenizer = train_tokenizer(found.texts(), TokenizerConfig(kind="byte"))
    train, valid = found.stream(tokenizer, "train"), found.stream(tokenizer, "valid")
    lines = file.read_text(encoding="utf-8").splitlines()
    together = [tokenizer.decode(d.ids.tolist()) for s in (train, valid) for d in s.documents()]
    assert sorted(together) == sorted(lines)
    assert not {d.ids.tobytes() for d in train.documents()} & {d.ids.tobytes() for d in valid.documents()}


def test_a_validation_file_leaves_all_to_training(tmp_path):
    train, valid = text_file(tmp_path, 50), text_file(tmp_path, 10, "valid.txt")
    found = corpus(train, valid=(str(valid),))
    assert "".join(chunk.text for chunk in found.chunks("train")) == train.read_text(encoding="utf-8")
    assert "".join(chunk.text for chunk in found.chunks("valid")) == valid.read_text(encoding="utf-8")


def test_the_store_is_another_for_other_texts_or_another_reading(tmp_path):
    file = text_file(tmp_path, 60)
    tokenizer = train_tokenizer(corpus(file).texts(), TokenizerConfig(kind="character"))

    def key(found: TextCorpus, part: Part) -> str:
        facts = found.stream(tokenizer, part).facts
        assert facts is not None
        return facts.key

    keys = {
        key(corpus(file), "train"),
        key(corpus(file), "valid"),
        key(corpus(file, documents="line"), "train"),
    }
    assert key(corpus(file), "train") in keys
    assert len(keys) == 3
    with file.open("a", encoding="utf-8") as more:
        more.write("more\n")
    assert key(corpus(file), "train") not in keys


def test_what_cannot_be_is_refused_before_anything_begins(tmp_path):
    with pytest.raises(AttendoError, match="has its own validation files"):
        TextData(valid=("x.txt",)).check()
    with pytest.raises(AttendoError, match=r"no\.txt"):
        TextData(train=(str(tmp_path / "no.txt"),)).check()
    short = text_file(tmp_path, 2)
    found = corpus(short, valid=(str(short),))
    with pytest.raises(AttendoError, match="fewer than one window of 500"):
        found.windows(train_tokenizer(found.texts(), TokenizerConfig(kind="character")), 500)
