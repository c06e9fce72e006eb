"""Documents from files: streamed, whole to the character, accounted for; what is no text is refused by its line."""

import gzip
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attendo.data import texts as texts_module
from attendo.data.text_corpus import part_of, split_texts
from attendo.data.texts import Chunk, Reading, TextSource, read_documents, standard_library
from attendo.errors import AttendoError

small_blocks = pytest.mark.usefixtures("in_small_blocks")


@pytest.fixture
def in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "_BLOCK", 7)
    monkeypatch.setattr(texts_module, "_CHUNK", 10)


def source(*files: Path, **options) -> TextSource:
    return TextSource(files, **options)


def joined(chunks: list[Chunk]) -> list[str]:
    """The documents that chunks make up."""
    found: list[str] = []
    for text, starts in chunks:
        assert text
        if starts:
            found.append(text)
        else:
            found[-1] += text
    return found


def documents(*files: Path, reading: Reading | None = None, strict: bool = False, **options) -> list[str]:
    return joined(list(read_documents(source(*files, **options), strict, reading)))


def written(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


content = st.text(st.one_of(st.sampled_from(" \n\r\té猫𠮷\u2028\u3000"), st.characters(exclude_categories=["Cs"])))


@small_blocks
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=content.filter(lambda text: bool(text.strip()) and "\0" not in text and text[0] != "\ufeff"))
def test_a_file_is_one_document_to_the_character(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = written(tmp_path_factory.getbasetemp() / "any.txt", text)
    chunks = list(read_documents(source(path)))
    assert joined(chunks) == [text]
    assert all(len(chunk.text) <= 10 for chunk in chunks)


@small_blocks
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.py", "notes", "a.MD"])
def test_any_name_of_a_text_is_read_and_a_byte_order_mark_taken_off(tmp_path: Path, name: str) -> None:
    text = "def f():\r\n\treturn '猫'\n\n"
    assert documents(written(tmp_path / name, "\ufeff" + text)) == [text]


def test_chunks_begin_at_spaces_and_else_at_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(texts_module, "_CHUNK", 10)

    def cut(text: str) -> list[str]:
        return [c.text for c in read_documents(source(written(tmp_path / "a.txt", text)))]

    assert cut("one two three four") == ["one two", " three", " four"]
    assert cut("猫が座った。\n犬はいない。") == ["猫が座った。\n", "犬はいない。"]
    assert cut("猫が座った。\n\u3000犬はいない。") == ["猫が座った。", "\n\u3000犬はいない。"]
    assert cut("a" * 25) == ["a" * 10, "a" * 10, "a" * 5]


@small_blocks
def test_memory_is_that_of_a_chunk(tmp_path: Path) -> None:
    chunks = read_documents(source(written(tmp_path / "a.txt", "ab cd\n" * 10 + "\0")))
    assert len(next(chunks).text) <= 10  # given out although the end, which is wrong, is not yet read


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"one\ntwo\nab\xffcd\n", r"a\.txt:3: invalid UTF-8 \(byte 0xff.*\); save the file as UTF-8"),
        (b"one\n\xe7\x8c", r"a\.txt:2: invalid UTF-8"),
        (b"one\n\n\0", r"a\.txt:3: NUL character; remove the character"),
        (b"\xff\xfea\0", r"a\.txt is UTF-16 \(expected UTF-8\)"),
        (b"", r"a\.txt: no document \(empty file: .*a\.txt\)\. Give a file with text"),
        (b" \n\n\t", r"a\.txt: no document \(no text: .*a\.txt\)\. Give a file with text"),
    ],
)
@pytest.mark.parametrize("how", ["file", "blank"])
@small_blocks
def test_what_is_no_text_is_refused_by_its_line(tmp_path: Path, data: bytes, error: str, how) -> None:
    with pytest.raises(AttendoError, match=error):
        documents(written(tmp_path / "a.txt", data), documents=how)


def test_files_that_are_not_there_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(AttendoError, match="no such file"):
        documents(tmp_path / "none.txt")
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"text " * 1000)[:-9])
    with pytest.raises(AttendoError, match="is truncated"):
        documents(path)
    with pytest.raises(AttendoError, match="no text is given"):
        source()


def test_a_line_is_a_document_and_every_line_is_accounted_for(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", b"one\r\n\ntwo\tb\n\xff\n three")
    reading = Reading("a")
    assert documents(path, documents="line", reading=reading) == ["one", "two\tb", " three"]
    (row_report,) = reading.row_reports
    assert (row_report.read, row_report.used, row_report.n_skipped) == (5, 3, 2)
    assert (reading.n_files, reading.n_documents) == (1, 3)
    with pytest.raises(AttendoError, match=r"a\.txt:2: empty line"):
        documents(path, documents="line", strict=True)


@small_blocks
def test_blank_lines_part_documents(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "\n\none\r\n  and more than a chunk\n\n \t\ntwo\n\nthree")
    assert documents(path, documents="blank") == ["one\n  and more than a chunk", "two", "three"]
    long = written(tmp_path / "b.txt", b"a\n\n" + b"x" * (1 << 21))
    with pytest.raises(AttendoError, match=r"b\.txt:3: too long"):
        documents(long, documents="blank")


@small_blocks
def test_a_row_is_a_document(tmp_path: Path) -> None:
    jsonl = written(tmp_path / "a.jsonl", '{"id": 1, "text": "one\\nmore of it"}\n{"id": 2}\n')
    csv = written(tmp_path / "b.csv.gz", 'id,text\n3,"three, four"\n')
    tsv = written(tmp_path / "c.tsv", "text\tid\nfive\t5\n")
    reading = Reading("all")
    found = documents(jsonl, csv, tsv, column="text", header=True, reading=reading)
    assert found == ["one\nmore of it", "three, four", "five"]
    assert [(a.read, a.used) for a in reading.row_reports] == [(2, 1), (1, 1), (1, 1)]
    assert reading.as_json()["accounts"][0]["skipped"] == {"missing key": {"count": 1, "lines": [2]}}


def test_a_column_of_texts_is_chosen_with_column(tmp_path: Path) -> None:
    tsv = written(tmp_path / "a.tsv", "1\tone\n2\ttwo\n")
    with pytest.raises(
        AttendoError, match=r"none of 2 rows .* expected\); fix the row, or choose columns with `column`$"
    ):
        documents(tsv)
    with pytest.raises(AttendoError, match=r"a\.tsv:1: .*; fix the row, or choose columns with `column`, or remove"):
        documents(tsv, strict=True)
    csv = written(tmp_path / "b.csv", "id,words\n1,one\n")
    with pytest.raises(AttendoError, match=r"has 2 columns \('id', 'words'\)\. Choose with `column` NAME$"):
        documents(csv)
    with pytest.raises(AttendoError, match="Fix `column`, or use column numbers"):
        documents(csv, column="text")


def test_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AttendoError, match="each row is a document"):
        source(tmp_path / "a.jsonl", documents="line")
    with pytest.raises(AttendoError, match="a text file has no columns"):
        source(tmp_path / "a.txt", column="text")


def test_a_folder_stands_for_its_texts_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, text in {
        "b.txt": "B",
        "a/c.txt": "C",
        "a.txt.gz": "A",
        "empty.txt": "",
        "x.md": "X",
        ".hidden/h.txt": "H",
    }.items():
        written(tmp_path / "in" / name, text)
    reading = Reading("in")
    assert documents(tmp_path / "in", reading=reading) == ["A", "C", "B"]
    assert reading.n_files == 4
    assert reading.line() == (f"in: 4 files, 3 documents, 1 file skipped (empty file: {tmp_path / 'in' / 'empty.txt'})")
    assert documents(tmp_path / "in", suffixes=(".md",)) == ["X"]
    with pytest.raises(AttendoError, match=r"no file in this folder ends in \.rst"):
        documents(tmp_path / "in", suffixes=(".rst",))


def test_the_standard_library_is_split_by_file(monkeypatch: pytest.MonkeyPatch) -> None:
    train, valid = (standard_library(part).paths() for part in ("train", "valid"))
    folder = Path(sysconfig.get_paths()["stdlib"])
    inside = [path.relative_to(folder) for path in train + valid]
    assert len(set(inside)) == len(inside) > 300
    assert Path("argparse.py") in inside
    for path in inside:
        assert not {"site-packages", "test", "idlelib", "lib2to3"} & set(path.parts)
    assert 0.02 < len(valid) / len(inside) < 0.1
    reading = Reading("stdlib")
    n_bytes = sum(len(chunk.text.encode()) for chunk in read_documents(standard_library("valid"), reading=reading))
    assert n_bytes == sum(path.stat().st_size for path in valid)
    assert reading.n_files == len(valid) == reading.n_documents + sum(map(len, reading.left_out.values()))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": "/nowhere"})
    with pytest.raises(AttendoError, match="this Python has no source files"):
        standard_library("train")


def test_files_that_are_not_utf_8_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    good, bad = (
        written(tmp_path / "a.py", "x = 1"),
        written(tmp_path / "b.py", b"# coding: latin-1\n# \xe9\n"),
    )
    reading = Reading("both")
    assert documents(bad, good, tolerant=True, reading=reading) == ["x = 1"]
    assert reading.left_out == {"not UTF-8 text": [str(bad)]}


lists_of_texts = st.lists(st.text("ab \n", min_size=1, max_size=30), min_size=1, max_size=40)


@settings(max_examples=100)
@given(texts=lists_of_texts, width=st.integers(1, 12))
def test_both_parts_together_are_all_of_the_text(texts: list[str], width: int) -> None:
    chunks = [Chunk(text[i : i + width], i == 0) for text in texts for i in range(0, len(text), width)]
    try:
        split = split_texts(iter(chunks), "these")
    except AttendoError:
        too_short = len(texts) < 20 and max(map(len, texts)) < 10
        assert too_short or len({text[:width] for text in texts}) == 1
        return
    train, valid = (list(part_of(chunks, split, part)) for part in ("train", "valid"))
    assert sum(len(c.text) for c in valid) >= 1
    if len(texts) < 20:
        tails = iter(joined(valid))
        for text, beginning in zip(texts, joined(train), strict=True):
            assert text.startswith(beginning)
            assert 0 <= len(text) - len(beginning) <= 0.1 * len(text)
            if beginning != text:
                assert beginning + next(tails) == text
        assert next(tails, None) is None
    else:
        assert sorted(joined(train) + joined(valid)) == sorted(texts)
        assert not {text[:width] for text in joined(train)} & {text[:width] for text in joined(valid)}


def test_what_is_split_off_is_said() -> None:
    with pytest.raises(AttendoError, match=r"the text: 3 characters are too few .*`valid`"):
        split_texts([Chunk("abc", True)], "the text")
    with pytest.raises(AttendoError, match="have the same source"):
        split_texts([Chunk("abc", True)] * 20, "the text")

    def broken() -> Iterator[Chunk]:
        yield Chunk("abc", True)
        raise AttendoError("line 2 is not valid UTF-8")

    with pytest.raises(AttendoError, match="line 2 is not valid UTF-8"):
        split_texts(broken(), "the text")
    one = split_texts([Chunk("a line\n" * 30, True)], "t")
    assert one.line() == "the last 10% of the text is held out for validation"
    assert [c.text for c in part_of([Chunk("a line\n" * 30, True)], one, "valid")] == ["a line\n" * 3]
    many = split_texts([Chunk(f"text {i}", True) for i in range(100)], "t")
    assert many.line() == "20 of 100 documents are held out for validation (by a hash of their beginning)"
