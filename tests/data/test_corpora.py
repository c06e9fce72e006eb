"""Every input rule of the readers, each on a file that breaks it; read = used + skipped in all of them."""

import gzip
import json
import tracemalloc

import pytest
from corpus_files import SEPARATORS, read, refusal, write
from hypothesis import given
from hypothesis import strategies as st

from attendo.data.corpora import PairSource, read_lines, read_pairs, read_rows
from attendo.data.data_files import count_lines, physical_lines
from attendo.data.row_report import LINE_CAP, RowError, RowReport
from attendo.errors import AttendoError

# --- line rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("character", SEPARATORS)
def test_only_a_line_feed_ends_a_line(tmp_path, character):
    path = write(tmp_path / "a.tsv", f"one{character}two\tzwei\nthree\tdrei\n")
    assert read(path) == ([(1, f"one{character}two", "zwei"), (2, "three", "drei")], {})


def test_crlf_bom_and_a_missing_last_line_feed(tmp_path):
    path = write(tmp_path / "a.tsv", b"\xef\xbb\xbfone\teins\r\ntwo\tzwei\r\nthree\tdrei")
    assert read(path) == ([(1, "one", "eins"), (2, "two", "zwei"), (3, "three", "drei")], {})


def test_fields_keep_their_content_exactly(tmp_path):
    path = write(tmp_path / "a.tsv", ' "one"  \t\u3000eins\ufeff \n')
    assert read(path)[0] == [(1, ' "one"  ', "\u3000eins\ufeff ")]


def test_bad_rows_are_skipped_by_reason_with_their_line_numbers(tmp_path):
    rows = [b"good\tgut", b"", b"   ", b"one", b"a\tb\tc", b"\xff\tb", b"a\0\tb", b"a\t", b" \tb", b"\t"]
    pairs, skipped = read(write(tmp_path / "a.tsv", b"\n".join([*rows, b"ok\tja"])))
    assert pairs == [(1, "good", "gut"), (11, "ok", "ja")]
    assert skipped == {
        "empty line": (2, [2, 3]),
        "wrong number of columns": (2, [4, 5]),
        "invalid UTF-8": (1, [6]),
        "NUL character": (1, [7]),
        "no target": (1, [8]),
        "no source": (2, [9, 10]),
    }


def test_only_the_first_three_line_numbers_are_kept(tmp_path):
    assert read(write(tmp_path / "a.tsv", "a\tb\n" + "x\n" * 9))[1] == {"wrong number of columns": (9, [2, 3, 4])}


def test_the_report_is_in_japanese():
    row_report = RowReport("a.tsv", read=7, used=7)
    row_report.drop(2, "leaks")
    for line in (3, 4, 5, 6):
        row_report.skip(line, RowError("empty line"))
    assert row_report.line("ja") == (
        "a.tsv：7 行を読み、6 行を使用、5 行を除外（leaks 1 行：a.tsv:2、空行 4 行：a.tsv:3、a.tsv:4、a.tsv:5、…）"
    )


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "empty line"),
        (b"x\t ", "no target"),
        (b"x", "wrong number of columns (1 column found, 2 expected)"),
        (b"\xc3(\tx", "invalid UTF-8 (byte 0xc3 at position 1)"),
        (b"\0\tx", "NUL character"),
        (b"x" * (LINE_CAP + 1), "too long"),
    ],
)
def test_strict_stops_at_the_first_bad_row_with_place_reason_and_remedy(tmp_path, bad, reason):
    path = write(tmp_path / "a.tsv", b"a\tb\n" + bad + b"\nc\td\n")
    message = refusal(path, strict=True)
    assert message.startswith(f"{path}:2: {reason}")
    assert "; " in message
    assert message.endswith("remove `strict` to skip such rows")


def test_a_line_of_the_cap_is_read_and_one_byte_more_is_not(tmp_path):
    fits, over = "x" * (LINE_CAP - 2) + "\ty", "x" * (LINE_CAP - 1) + "\ty"
    for end in ("\n", "\r\n"):
        path = write(tmp_path / "a.tsv", f"{fits}{end}{over}{end}a\tb{end}")
        pairs, skipped = read(path)
        assert [number for number, _, _ in pairs] == [1, 3]
        assert skipped == {"too long": (1, [2])}
    assert read(write(tmp_path / "a.tsv", f"a\tb\n{over}"))[1] == {"too long": (1, [2])}
    assert read(write(tmp_path / "a.tsv", f"a\tb\n{fits}"))[1] == {}


def test_a_line_of_100_megabytes_is_never_held(tmp_path):
    path = tmp_path / "a.tsv"
    with path.open("wb") as file:
        file.write(b"a\tb\n")
        for _ in range(100):
            file.write(b"x" * 1_000_000)
        file.write(b"\nc\td\n")
    tracemalloc.start()
    found = [number for number, _, _ in read_pairs(PairSource((path,)))]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [1, 3] and peak < 10_000_000


@given(st.lists(st.binary(max_size=12), max_size=12))
def test_any_bytes_are_accounted_for(tmp_path_factory, lines):
    path = write(tmp_path_factory.mktemp("any") / "a.tsv", b"a\tb\n" + b"\n".join(lines))
    row_report = RowReport("a")
    pairs = list(read_pairs(PairSource((path,)), False, row_report))
    assert len(pairs) == row_report.used
    assert (
        row_report.read
        == row_report.used + row_report.n_skipped
        == count_lines(path)
        == len(list(physical_lines(path)))
    )


# --- whole files ------------------------------------------------------------------------------------------


def test_files_that_cannot_be_read(tmp_path):
    assert "no such file" in refusal(tmp_path / "none.tsv")
    assert "no file in this folder ends in .tsv" in refusal(tmp_path)
    assert "is empty" in refusal(write(tmp_path / "empty.tsv", ""))
    assert "is UTF-16" in refusal(write(tmp_path / "wide.tsv", "a\tb\n".encode("utf-16")))
    assert "unknown format '.doc'" in refusal(write(tmp_path / "a.doc", "a\tb\n"))
    assert refusal(write(tmp_path / "a.ja", "雨\n")).endswith("; for two parallel files give both: SOURCE TARGET")
    message = refusal(write(tmp_path / "one.tsv", "hello\nworld\n"))
    assert "none of 2 rows can be used: 2 wrong number of columns: lines 1, 2" in message
    assert "1 column found, 2 expected" in message
    assert "`columns`" in message


def test_a_file_in_another_encoding_is_refused_and_says_so(tmp_path):
    rows = "".join(f"東京{n}\t雨{n}\n" for n in range(30)) + "one\ttwo\n"
    said = refusal(write(tmp_path / "a.tsv", rows.encode("cp932")))
    assert said == f"{tmp_path / 'a.tsv'}: 30 of 31 rows are not UTF-8. Save the file as UTF-8"
    said = refusal(write(tmp_path / "a.csv", b"PK\x03\x04\x14\x00\n"))
    assert said.startswith(f"{tmp_path / 'a.csv'} is a zip archive, perhaps a renamed spreadsheet. Rename it to .xlsx")


def test_gzip_is_unpacked_and_a_cut_or_false_one_refused(tmp_path):
    packed = gzip.compress("".join(f"source {i}\ttarget {i}\n" for i in range(5_000)).encode())
    assert len(read(write(tmp_path / "a.tsv.gz", packed))[0]) == 5_000
    assert "is truncated" in refusal(write(tmp_path / "cut.tsv.gz", packed[:-2000]))
    assert "not a valid gzip file" in refusal(write(tmp_path / "plain.tsv.gz", "a\tb\n"))
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 0xFF
    assert "gzip" in refusal(write(tmp_path / "bad.tsv.gz", bytes(damaged)))


# --- two parallel files -----------------------------------------------------------------------------------


def test_parallel_files(tmp_path):
    source = write(tmp_path / "train.en", b"\xef\xbb\xbfone\r\ntwo\r\n\r\nfour\r\n\xff\r\nsix")
    target = write(tmp_path / "train.ja", "ichi\tx\nni\u2028\n\n\ngo\nroku\n")
    pairs, skipped = read(source, target)
    assert pairs == [(1, "one", "ichi\tx"), (2, "two", "ni\u2028"), (6, "six", "roku")]
    assert skipped == {"empty line": (1, [3]), "no target": (1, [4]), "invalid UTF-8": (1, [5])}
    assert read(source, target, reverse=True)[0][0] == (1, "ichi\tx", "one")


def test_a_fault_in_parallel_files_names_the_file(tmp_path):
    files = write(tmp_path / "a.en", b"one\ntwo\n"), write(tmp_path / "a.ja", b"a\n\xff\n")
    assert f"a.en:2: invalid UTF-8 (in {files[1]}: byte 0xff at position 1)" in refusal(*files, strict=True)


@pytest.mark.parametrize("extra", ["source", "target"])
@pytest.mark.parametrize(("lines", "more"), [(3, 1), (3, 1000), (0, 1)])
def test_unequal_parallel_files_are_refused_with_both_counts_before_the_first_pair(tmp_path, extra, lines, more):
    short = write(tmp_path / "short.txt", "x\n" * lines)
    long = write(tmp_path / "long.txt.gz", gzip.compress(b"x\n" * (lines + more)))
    files = (long, short) if extra == "source" else (short, long)
    with pytest.raises(AttendoError) as caught:
        next(read_pairs(PairSource(files)))
    assert f"{short} has {lines:,} lines" in str(caught.value) or f"{short} has {lines:,} (expected" in str(
        caught.value
    )
    assert f"{long} has {lines + more:,}" in str(caught.value)


def test_a_last_line_without_a_line_feed_counts(tmp_path):
    assert len(read(write(tmp_path / "a.txt", "x\ny"), write(tmp_path / "b.txt", "x\ny\n"))[0]) == 2
    assert "has 3 lines" in refusal(write(tmp_path / "c.txt", "x\ny\n "), write(tmp_path / "b.txt", "x\ny\n"))


def test_parallel_files_refuse_columns_and_tables(tmp_path):
    pair = write(tmp_path / "a.txt", "x\n"), write(tmp_path / "b.csv", "x\n")
    assert "plain text" in refusal(*pair)
    with pytest.raises(AttendoError, match="Remove `columns`"):
        PairSource(pair, columns=("1", "2"))
    with pytest.raises(AttendoError, match="not from 0"):
        PairSource(())
    assert "is empty" in refusal(write(tmp_path / "c.txt", ""), write(tmp_path / "d.txt", ""))


# --- rows and lines ---------------------------------------------------------------------------------------


def test_rows_with_other_roles(tmp_path):
    path = write(tmp_path / "a.jsonl", json.dumps({"stars": 5, "text": "good", "label": 1}) + "\n")
    assert list(read_rows(path, ("text", "label"))) == [(1, ("good", "1"))]


def test_lines_of_text(tmp_path):
    path = write(tmp_path / "a.txt", b"one\ttab\r\n\n  \n\xff\nlast")
    row_report = RowReport("a")
    assert [number for number, _ in read_lines(path, row_report=row_report)] == [1, 5]
    assert {reason: entry.lines for reason, entry in row_report.skipped.items()} == {
        "empty line": [2, 3],
        "invalid UTF-8": [4],
    }
    kept = list(read_lines(path, keep_empty=True))
    assert kept[1:] == [(2, ""), (3, "  "), (5, "last")]
    assert list(read_lines(write(tmp_path / "a.csv", "id,text\n1,x\n"), column="text")) == [(2, "x")]
    assert list(read_lines(write(tmp_path / "one.tsv", "x\n\ny\n"))) == [(1, "x"), (3, "y")]
    with pytest.raises(AttendoError, match="no columns"):
        list(read_lines(path, column="text"))


def test_an_account_in_words():
    row_report = RowReport("f.tsv", read=5, used=3)
    row_report.skip(2, RowError("no text"))
    row_report.skip(4, RowError("too long"))
    assert row_report.line() == ("f.tsv: 5 rows read, 3 used, 2 skipped (1 no text: line 2, 1 too long: line 4)")
    assert row_report.as_json()["skipped"]["too long"] == {"count": 1, "lines": [4]}
