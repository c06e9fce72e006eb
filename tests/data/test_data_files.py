"""Data in many files: what a name stands for, rows that keep file and line, one account, one key."""

from pathlib import Path

import numpy as np
import pytest
from command_line import attendo
from corpus_files import refusal, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_corpus import pairs_file, small_run

from attendo.bundle import load_bundle
from attendo.config import read_toml
from attendo.data.corpora import PairSource, read_pairs
from attendo.data.data_files import expanded
from attendo.data.doctor import examine, filtered
from attendo.data.labelled_corpus import LabelledCorpus, LabelledData
from attendo.data.pair_corpus import PairCorpus, PairData
from attendo.data.row_report import RowReport
from attendo.data.text_corpus import TextCorpus, TextData
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.errors import AttendoError
from attendo.runs.resume import config_of, same_material

TOKENIZER = train_tokenizer(["abc"], TokenizerConfig(kind="byte"))


def shards(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, text)
    return folder


def silent(line: str) -> None:
    pass


def test_what_a_name_stands_for(tmp_path, monkeypatch):
    files = ["b.tsv", "a.tsv", ".hidden.tsv", "a.txt", "more/c.tsv.gz", "more/d.csv", "odd[1].tsv"]
    folder = shards(tmp_path / "a [b]", dict.fromkeys(files, "x"))

    def names(pattern, suffixes=(".tsv", ".csv")):
        return [path.relative_to(folder).as_posix() for path in expanded(folder / pattern, suffixes)]

    assert names("*.tsv") == ["a.tsv", "b.tsv", "odd[1].tsv"]
    assert names("**/*.tsv*") == ["a.tsv", "b.tsv", "more/c.tsv.gz", "odd[1].tsv"]
    assert names("[ab].t?[vt]") == ["a.tsv", "a.txt", "b.tsv"]
    assert names(".") == ["a.tsv", "b.tsv", "more/c.tsv.gz", "more/d.csv", "odd[1].tsv"]
    assert names("more", None) == ["more/c.tsv.gz", "more/d.csv"]
    assert names("odd[1].tsv") == ["odd[1].tsv"]  # a file of that name is itself
    assert names("none.tsv") == ["none.tsv"]  # which reading it refuses
    monkeypatch.chdir(folder)
    assert expanded(Path("m*/*.csv"), None) == (Path("more/d.csv"),)
    with pytest.raises(AttendoError, match=r"no file matches this pattern"):
        expanded(folder / "*.jsonl", None)
    with pytest.raises(AttendoError, match=r"no file in this folder ends in \.parquet"):
        expanded(folder, (".parquet",))


rows = st.lists(st.sampled_from(["a\tb", "c\td", "", "bad", "x\t "]), max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(rows, min_size=2, max_size=4))
def test_many_files_are_read_as_their_rows_one_after_the_other(tmp_path_factory, contents):
    folder = tmp_path_factory.mktemp("shards")
    for number, lines in enumerate(contents):
        write(folder / f"{number}.tsv", "".join(f"{line}\n" for line in lines))
    together = write(folder / "all.txt", "".join(f"{line}\n" for lines in contents for line in lines))
    whole, row_report = RowReport(str(together)), RowReport("shards")
    try:
        wanted = list(read_pairs(PairSource((together,)), row_report=whole))
    except AttendoError:
        with pytest.raises(AttendoError):
            list(read_pairs(PairSource((folder,)), row_report=row_report))
        return
    assert list(read_pairs(PairSource((folder / "*.tsv",)), row_report=row_report)) == wanted
    assert row_report.read == row_report.used + row_report.n_skipped == sum(map(len, contents))
    assert [part.read for part in row_report.parts] == [len(lines) for lines in contents]
    assert sum(part.used for part in row_report.parts) == row_report.used == whole.used
    assert {r: (e.count, e.lines) for r, e in row_report.skipped.items()} == {
        r: (e.count, e.lines) for r, e in whole.skipped.items()
    }
    for number, source, target in wanted:
        file, _, line = row_report.place(number).rpartition(":")
        assert Path(file).read_text().splitlines()[int(line) - 1] == f"{source}\t{target}"


def test_messages_name_the_very_file_and_line(tmp_path):
    folder = shards(tmp_path, {"a.tsv": "a\tb\nc\td\n", "b.tsv": "e\tf\n\ng\th\n", "c.tsv": "x\n"})
    assert f"{folder / 'b.tsv'}:2: empty line; delete" in refusal(folder / "*.tsv", strict=True)
    row_report = RowReport("shards")
    pairs = list(read_pairs(PairSource((folder,)), row_report=row_report))
    assert [row_report.place(number) for number, _, _ in pairs][2:] == [
        f"{folder / 'b.tsv'}:1",
        f"{folder / 'b.tsv'}:3",
    ]
    assert row_report.line() == (
        f"shards: 3 files, 6 rows read, 4 used, 2 skipped (1 empty line: {folder / 'b.tsv'}:2,"
        f" 1 wrong number of columns: {folder / 'c.tsv'}:1)"
    )
    found = row_report.as_json()
    assert [(part["read"], part["used"]) for part in found["files"]] == [(2, 2), (3, 2), (1, 0)]
    assert found["skipped"]["empty line"]["lines"] == [f"{folder / 'b.tsv'}:2"]


def test_parallel_files_in_many(tmp_path):
    sides = {"1.en": "a\nb\n", "2.en": "c\n", "1.de": "A\nB\n", "2.de": "C\n"}
    folder = shards(tmp_path, sides)
    source = PairSource((folder / "*.en", folder / "*.de"))
    assert list(read_pairs(source)) == [(1, "a", "A"), (2, "b", "B"), (3, "c", "C")]
    assert [path.name for path in source.paths()] == ["1.en", "1.de", "2.en", "2.de"]
    write(folder / "2.de", "C\nD\n")
    with pytest.raises(AttendoError, match=rf"{folder}/2\.en has 1 lines but {folder}/2\.de has 2") as caught:
        next(read_pairs(source))  # before the first pair of all
    assert "line n" in str(caught.value)
    write(folder / "3.en", "e\n")
    with pytest.raises(AttendoError, match=r"\*\.en has 3 files but .*\*\.de has 2"):
        source.parts()


def test_the_doctor_finds_copies_over_all_files_and_drops_them(tmp_path):
    lines = pairs_file(tmp_path, 60).read_text(encoding="utf-8").splitlines(keepends=True)
    folder = tmp_path / "shards"
    shards(folder, {"1.tsv": "".join(lines[:30]), "2.tsv": "".join(lines[30:] + lines[4:6])})
    source = PairSource((folder,))
    report = examine(source, drop=frozenset(["duplicates"]))
    copies = [f"{folder / '2.tsv'}:31", f"{folder / '2.tsv'}:32"]
    assert report.as_json()["findings"]["duplicates"]["lines"] == copies
    assert any(", ".join(copies) in line for line in report.lines())
    row_report = RowReport(source.name)
    kept = list(filtered(read_pairs(source, row_report=row_report), report, row_report))
    assert (len(kept), row_report.used, row_report.n_skipped) == (60, 60, 2)
    assert [part.used for part in row_report.parts] == [30, 30]


def test_a_store_of_pairs_knows_its_rows_and_its_key_the_contents_in_order(tmp_path):
    lines = pairs_file(tmp_path, 60).read_text(encoding="utf-8").splitlines(keepends=True)
    folder = shards(tmp_path / "s", {"1.tsv": "\n" + "".join(lines[:30]), "2.tsv": "".join(lines[30:])})

    def store():
        return PairCorpus(PairData(train=(str(folder / "*.tsv"),), valid=("v.tsv",)), silent).store(TOKENIZER)

    found = store()
    assert found.row_numbers.tolist() == list(range(2, 62))
    key = found.facts.key
    (folder / "1.tsv").rename(folder / "0.tsv")
    assert store().facts.key == key  # names don't count
    (folder / "0.tsv").rename(folder / "3.tsv")
    assert store().facts.key != key  # their order does


def test_one_file_alone_has_the_key_that_it_had_and_lines_for_numbers(tmp_path):
    (tmp_path / "x").mkdir()
    file = pairs_file(tmp_path / "x", 40)
    keys = set()
    for name in (file, file.parent, file.parent / "*.tsv"):
        store = PairCorpus(PairData(train=(str(name),), valid=("v.tsv",)), silent).store(TOKENIZER)
        keys.add(store.facts.key)
        assert store.row_numbers[39] == 40
    assert len(keys) == 1


def test_labelled_texts_in_many_files(tmp_path):
    text = "".join(f"{'ab'[i % 2]}\ttext {i}\n" for i in range(40))
    folder = shards(tmp_path / "s", {"1.tsv": text, "2.tsv": text.replace("text", "other")})
    corpus = LabelledCorpus(LabelledData(train=(str(folder),)), silent)
    assert corpus.size[0] + len(corpus.validation(0)[0]) == 80
    store = corpus.material(TOKENIZER).store
    assert 40 < store.row_numbers.max() <= 80
    valid = shards(tmp_path / "v", {"1.tsv": "a\tx\n", "2.tsv": "b\ty\nc\tz\n"})
    corpus = LabelledCorpus(LabelledData(train=(str(folder),), valid=(str(valid / "*.tsv"),)), silent)
    with pytest.raises(AttendoError, match=rf"{valid}/2\.tsv:2: the label 'c' was not seen in training"):
        corpus.validation(0)


def test_headers_that_were_read_as_rows_are_found_in_many_files(tmp_path):
    text = "label\ttext\n" + "".join(f"{'ab'[i % 2]}\ttext {i}\n" for i in range(40))
    folder = shards(tmp_path, {"1.tsv": text, "2.tsv": text})
    with pytest.raises(AttendoError, match=rf"{folder}/1\.tsv:1: .*'label'\. .* add `header`"):
        _ = LabelledCorpus(LabelledData(train=(str(folder),)), silent).counts
    counts = LabelledCorpus(LabelledData(train=(str(folder),), header=True, valid=("v",)), silent).counts
    assert counts == {"a": 40, "b": 40}


def test_texts_in_many_files(tmp_path):
    folder = shards(tmp_path, {"1.md": "one\n", "2.md": "two\n", "1.jsonl": '{"text": "x"}\n'})
    found = TextCorpus(TextData(train=(str(folder / "*.md"),), valid=(str(folder / "1.*"),)), silent)
    found.data.check()
    assert [chunk.text for chunk in found.chunks("train")] == ["one\n", "two\n"]
    assert np.isin(["x", "one\n"], [chunk.text for chunk in found.chunks("valid")]).all()
    with pytest.raises(AttendoError, match="a text file has no columns"):
        TextData(train=(str(folder / "*.md"),), column="text").source("train")
    rows = TextData(train=(str(folder / "1.json*"),), column="text").source("train")
    assert [path.name for path in rows.paths()] == ["1.jsonl"]


def test_a_run_keeps_the_pattern_and_is_resumed_with_the_same_files_alone(tmp_path):
    lines = pairs_file(tmp_path, 120).read_text(encoding="utf-8").splitlines(keepends=True)
    folder = shards(tmp_path / "s", {"1.tsv": "".join(lines[:50]), "2.tsv": "".join(lines[50:])})
    run = small_run(tmp_path / "run", folder / "*.tsv")
    assert read_toml(tmp_path / "run" / "config.toml")["data"]["train"] == [str(folder / "*.tsv")]
    bundle = load_bundle(tmp_path / "run")
    config = config_of(tmp_path / "run", bundle)

    def again():
        return same_material(config.family, config, config.family.open(config.data, silent), bundle, silent)

    assert again().facts == run.run.task.material.facts
    shards(folder, {"3.tsv": lines[0]})
    with pytest.raises(AttendoError, match=r"\*\.tsv: the data has changed since the run started \(store .*, was "):
        again()


def test_the_doctor_takes_a_pattern(tmp_path):
    folder = shards(tmp_path, {"1.tsv": "a\tb\n", "2.tsv": "c\td\nbad\n"})
    outcome = attendo("doctor", folder / "*.tsv")
    assert outcome.code == 1
    assert f"1  wrong number of columns, {folder / '2.tsv'}:2" in outcome.out
    assert "2 files, 3 rows read, 2 used, 1 skipped" in outcome.out
    assert attendo("doctor", folder / "*.csv").error.startswith(f"{folder / '*.csv'}: no file matches")
