"""Every input rule of the readers, each on a file that breaks it; read = used + skipped in all of them."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendo.data import formats
from attendo.data.accounting import LINE_CAP, Account, Fault
from attendo.data.corpora import PairSource, parse_columns, read_lines, read_pairs, read_rows
from attendo.data.held_out import held_out
from attendo.data.lines import count_lines, physical_lines
from attendo.errors import AttendoError

SEPARATORS = "\u2028\u2029\x0b\x0c\x1c\x1d\x1e\x85\r"  # each splits a line in str.splitlines, none may here


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)
    return path


def read(*files: Path, **options) -> tuple[list[tuple[int, str, str]], dict[str, tuple[int, list[int]]]]:
    """All pairs, and the skipped rows by reason; checks that the account adds up."""
    strict = options.pop("strict", False)
    account = Account(str(files[0]))
    pairs = list(read_pairs(PairSource(files, **options), strict, account))
    assert account.used == len(pairs)
    assert account.read == account.used + account.n_skipped
    return pairs, {reason: (entry.count, entry.lines) for reason, entry in account.skipped.items()}


def refusal(*files: Path, **options) -> str:
    with pytest.raises(AttendoError) as caught:
        read(*files, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
    rows = [
        b"good\tgut",
        b"",
        b"   ",
        b"one",
        b"a\tb\tc",
        b"\xff\tb",
        b"a\0\tb",
        b"a\t",
        b" \tb",
        b"\t",
        b"ok\tja",
    ]
    pairs, skipped = read(write(tmp_path / "a.tsv", b"\n".join(rows)))
    assert pairs == [(1, "good", "gut"), (11, "ok", "ja")]
    assert skipped == {
        "empty line": (2, [2, 3]),
        "wrong number of columns": (2, [4, 5]),
        "invalid UTF-8": (1, [6]),
        "NUL character": (1, [7]),
        "empty field": (3, [8, 9, 10]),
    }


def test_only_the_first_three_line_numbers_are_kept(tmp_path):
    assert read(write(tmp_path / "a.tsv", "a\tb\n" + "x\n" * 9))[1] == {
        "wrong number of columns": (9, [2, 3, 4])
    }


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "empty line"),
        (b"x\t ", "empty field"),
        (b"x", "wrong number of columns (1 column where 2 are expected)"),
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
    assert message.endswith("leave out --strict to skip such rows")


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
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from attendo.data.corpora import PairSource, read_pairs\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print([n for n, _, _ in read_pairs(PairSource((Path(sys.argv[1]),)))])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
    ).stdout
    numbers, growth = out.splitlines()
    assert numbers == "[1, 3]"
    assert int(growth) < 10_000 * (1024 if sys.platform == "darwin" else 1)


@given(st.lists(st.binary(max_size=12), max_size=12))
def test_any_bytes_are_accounted_for(tmp_path_factory, lines):
    path = write(tmp_path_factory.mktemp("any") / "a.tsv", b"a\tb\n" + b"\n".join(lines))
    account = Account("a")
    pairs = list(read_pairs(PairSource((path,)), False, account))
    assert len(pairs) == account.used
    assert (
        account.read
        == account.used + account.n_skipped
        == count_lines(path)
        == len(list(physical_lines(path)))
    )


# --- whole files ------------------------------------------------------------------------------------------


def test_files_that_cannot_be_read(tmp_path):
    assert "no such file" in refusal(tmp_path / "none.tsv")
    assert "not a regular file" in refusal(tmp_path)
    assert "is empty" in refusal(write(tmp_path / "empty.tsv", ""))
    assert "is UTF-16" in refusal(write(tmp_path / "wide.tsv", "a\tb\n".encode("utf-16")))
    assert "unknown format '.doc'" in refusal(write(tmp_path / "a.doc", "a\tb\n"))
    message = refusal(write(tmp_path / "one.tsv", "hello\nworld\n"))
    assert "none of 2 rows can be used: 2 wrong number of columns: lines 1, 2" in message
    assert "1 column where 2 are expected" in message
    assert "--columns" in message


def test_gzip_is_unpacked_and_a_cut_or_false_one_refused(tmp_path):
    packed = gzip.compress("".join(f"source {i}\ttarget {i}\n" for i in range(5_000)).encode())
    assert len(read(write(tmp_path / "a.tsv.gz", packed))[0]) == 5_000
    assert "cut short" in refusal(write(tmp_path / "cut.tsv.gz", packed[:-2000]))
    assert "no sound gzip file" in refusal(write(tmp_path / "plain.tsv.gz", "a\tb\n"))
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 0xFF
    assert "gzip" in refusal(write(tmp_path / "bad.tsv.gz", bytes(damaged)))


# --- columns ----------------------------------------------------------------------------------------------


def test_parse_columns():
    assert parse_columns("source=en,target=ja") == ("en", "ja")
    assert parse_columns(" target = ja , source = en ") == ("en", "ja")
    assert parse_columns("2,1") == ("2", "1")
    assert parse_columns("en,ja") == ("en", "ja")
    assert parse_columns("label=1,text=3", roles=("text", "label")) == ("3", "1")
    for bad in (
        "",
        "1",
        "1,2,3",
        "source=en",
        "source=en,goal=ja",
        "0,1",
        "1,1",
        "source=,target=ja",
        "source=en,2",
    ):
        with pytest.raises(AttendoError, match="source=NAME,target=NAME or 1,2"):
            parse_columns(bad)


def test_columns_of_a_tsv_file(tmp_path):
    path = write(tmp_path / "a.tsv", "id\ten\tja\n1\tone\tichi\n2\ttwo\tni\n3\tthree\n")
    wanted = [(2, "one", "ichi"), (3, "two", "ni")]
    assert read(path, columns=("en", "ja")) == (wanted, {"wrong number of columns": (1, [4])})
    assert read(path, columns=("2", "3"), header=True)[0] == wanted
    assert read(path, columns=("2", "3"))[0] == [(1, "en", "ja"), *wanted]
    assert read(path, columns=("3", "2"), header=True, reverse=True)[0] == wanted
    assert "no column 'de' (found: 'id', 'en', 'ja')" in refusal(path, columns=("en", "de"))
    assert "no column 4, only 3" in refusal(path, columns=("1", "4"), header=True)
    assert "has 3 columns ('id', 'en', 'ja'); choose with --columns" in refusal(path, header=True)
    assert read(path) == ([(4, "3", "three")], {"wrong number of columns": (3, [1, 2, 3])})
    twice = write(tmp_path / "b.tsv", "en\ten\tja\na\tb\tc\n")
    assert "more than one column 'en'" in refusal(twice, columns=("en", "ja"))


def test_columns_called_source_and_target_are_found(tmp_path):
    path = write(tmp_path / "a.csv", "id,target,source\n1,ichi,one\n")
    assert read(path)[0] == [(2, "one", "ichi")]


def test_a_header_alone_is_an_empty_file(tmp_path):
    assert "is empty" in refusal(write(tmp_path / "a.tsv", "en\tja\n"), header=True)
    assert "is empty" in refusal(write(tmp_path / "a.csv", "en,ja\n"))
    assert "is empty" in refusal(write(tmp_path / "b.tsv", ""), header=True)


# --- csv --------------------------------------------------------------------------------------------------


def test_csv_quoting_line_breaks_and_numbers(tmp_path):
    text = 'en,ja\r\n"a, ""b""",c\r\n"two\r\nlines\n",d\r\n\r\ne,"f"\r\n'
    pairs, skipped = read(write(tmp_path / "a.csv", b"\xef\xbb\xbf" + text.encode()))
    assert pairs == [(2, 'a, "b"', "c"), (3, "two\r\nlines\n", "d"), (7, "e", "f")]
    assert skipped == {"empty line": (1, [6])}


def test_a_quote_that_is_never_closed_costs_one_line(tmp_path):
    path = write(tmp_path / "a.csv", 'en,ja\na,b\n"open,c\n' + "d,e\n" * 50)
    pairs, skipped = read(path)
    assert [number for number, _, _ in pairs] == [2, *range(4, 54)]
    assert skipped == {"broken quoting": (1, [3])}
    message = refusal(path, strict=True)
    assert f"{path}:3: broken quoting (a quote opened on line 3 is not closed)" in message


def test_csv_faults_are_accounted_for(tmp_path):
    body = b'en,ja\n"a"x,b\na,b,c\n\xff,b\n"\xff\n",b\n' + b"x" * (LINE_CAP + 1) + b",b\ngood,gut\n"
    pairs, skipped = read(write(tmp_path / "a.csv", body))
    assert pairs == [(8, "good", "gut")]
    assert skipped == {
        "broken quoting": (1, [2]),
        "wrong number of columns": (1, [3]),
        "invalid UTF-8": (2, [4, 5]),
        "too long": (1, [7]),
    }


def test_a_quoted_field_may_be_longer_than_the_csv_module_likes(tmp_path):
    path = write(tmp_path / "a.csv", 'en,ja\n"' + "x" * 200_000 + '",b\n')
    assert len(read(path)[0][0][1]) == 200_000


def test_a_long_record_is_not_parsed_anew_at_each_of_its_lines(tmp_path, monkeypatch):
    parsed = []
    parse = formats._parse_record
    monkeypatch.setattr(formats, "_parse_record", lambda record, n: parsed.append(n) or parse(record, n))
    path = write(tmp_path / "a.csv", 'en,ja\n"' + '""x""\n' * 1000 + '",b\n')
    assert read(path)[0] == [(2, '"x"\n' * 1000, "b")]
    assert len(parsed) == 3  # the header, the first line of the record, the whole record


@given(st.lists(st.tuples(st.text('ab",\n\r\t é', max_size=6), st.text('xy",\n\r ', max_size=6)), min_size=1))
def test_csv_round_trip(tmp_path_factory, rows):
    def quoted(field: str) -> str:
        return '"' + field.replace('"', '""') + '"'

    text = "en,ja\n" + "".join(f"{quoted(a)},{quoted(b)}\n" for a, b in rows)
    path = write(tmp_path_factory.mktemp("csv") / "a.csv", text)
    usable = [row for row in rows if row[0].strip() and row[1].strip()]
    if usable:
        pairs, _ = read(path)
        assert [(source, target) for _, source, target in pairs] == usable
    else:
        assert "none of" in refusal(path)


# --- jsonl ------------------------------------------------------------------------------------------------


def test_jsonl_rows_and_faults(tmp_path):
    lines = [
        '{"en": "one", "ja": "ichi\\u2028", "n": 1.5}',
        '{"ja": "ni", "en": "two"}',
        "",
        "{",
        '["one", "two"]',
        '{"en": "three"}',
        '{"en": 3, "ja": true}',
        '{"en": 0.5, "ja": "x"}',
        '{"en": null, "ja": "x"}',
        r'{"en": "\ud83d", "ja": "x"}',
        r'{"en": "\ud83d\ude00", "ja": "x"}',
        r'{"en": "a\u0000", "ja": "x"}',
        "[" * 100_000,
    ]
    pairs, skipped = read(write(tmp_path / "a.jsonl", "\n".join(lines)), columns=("en", "ja"))
    assert pairs == [(1, "one", "ichi\u2028"), (2, "two", "ni"), (7, "3", "true"), (11, "\U0001f600", "x")]
    assert skipped == {
        "empty line": (1, [3]),
        "invalid JSON": (3, [4, 5, 13]),
        "missing key": (1, [6]),
        "not text": (1, [8]),
        "empty field": (1, [9]),
        "lone surrogate": (1, [10]),
        "NUL character": (1, [12]),
    }


def test_jsonl_keys(tmp_path):
    two = write(tmp_path / "two.jsonl", '{"en": "one", "ja": "ichi"}\n')
    assert read(two)[0] == [(1, "one", "ichi")]
    three = write(tmp_path / "three.jsonl", '{"id": 7, "en": "one", "ja": "ichi"}\n')
    assert "choose with --columns source=NAME,target=NAME" in refusal(three)
    assert read(three, columns=("2", "3"))[0] == [(1, "one", "ichi")]
    assert "no 'de' among" in refusal(three, columns=("en", "de"))


# --- parquet ----------------------------------------------------------------------------------------------


def test_parquet_rows_and_faults(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    bad = pyarrow.array([b"x", b"x", b"x", b"\xff"], pyarrow.binary()).view(pyarrow.string())
    table = pyarrow.table({"id": [1, 2, 3, 4], "en": ["one", None, "x" * (LINE_CAP + 1), "four"], "ja": bad})
    parquet.write_table(table, path)
    pairs, skipped = read(path, columns=("en", "ja"))
    assert pairs == [(1, "one", "x")]
    assert skipped == {"empty field": (1, [2]), "too long": (1, [3]), "invalid UTF-8": (1, [4])}
    packed = write(tmp_path / "b.parquet.gz", gzip.compress(path.read_bytes()))
    assert read(packed, columns=("2", "1"))[0][0] == (1, "one", "1")
    assert "choose with --columns" in refusal(path)
    assert "no sound Parquet file" in refusal(write(tmp_path / "cut.parquet", path.read_bytes()[:-10]))
    assert "is empty" in refusal(write(tmp_path / "none.parquet", b""))


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert 'pip install "attendo[data]"' in refusal(write(tmp_path / "a.parquet", b"PAR1"))


# --- two parallel files -----------------------------------------------------------------------------------


def test_parallel_files(tmp_path):
    source = write(tmp_path / "train.en", b"\xef\xbb\xbfone\r\ntwo\r\n\r\nfour\r\n\xff\r\nsix")
    target = write(tmp_path / "train.ja", "ichi\tx\nni\u2028\n\n\ngo\nroku\n")
    pairs, skipped = read(source, target)
    assert pairs == [(1, "one", "ichi\tx"), (2, "two", "ni\u2028"), (6, "six", "roku")]
    assert skipped == {"empty line": (1, [3]), "empty field": (1, [4]), "invalid UTF-8": (1, [5])}
    assert read(source, target, reverse=True)[0][0] == (1, "ichi\tx", "one")


def test_a_fault_in_parallel_files_names_the_file(tmp_path):
    files = write(tmp_path / "a.en", b"one\ntwo\n"), write(tmp_path / "a.ja", b"a\n\xff\n")
    assert f"a.en:2: invalid UTF-8 (in {files[1]}: byte 0xff at position 1)" in refusal(*files, strict=True)


@pytest.mark.parametrize("extra", ["source", "target"])
@pytest.mark.parametrize(("lines", "more"), [(3, 1), (3, 1000), (0, 1)])
def test_unequal_parallel_files_are_refused_with_both_counts_before_the_first_pair(
    tmp_path, extra, lines, more
):
    short = write(tmp_path / "short.txt", "x\n" * lines)
    long = write(tmp_path / "long.txt.gz", gzip.compress(b"x\n" * (lines + more)))
    files = (long, short) if extra == "source" else (short, long)
    with pytest.raises(AttendoError) as caught:
        next(read_pairs(PairSource(files)))
    assert f"{short} has {lines:,} lines" in str(caught.value) or f"{short} has {lines:,};" in str(
        caught.value
    )
    assert f"{long} has {lines + more:,}" in str(caught.value)


def test_a_last_line_without_a_line_feed_counts(tmp_path):
    assert len(read(write(tmp_path / "a.txt", "x\ny"), write(tmp_path / "b.txt", "x\ny\n"))[0]) == 2
    assert "has 3 lines" in refusal(write(tmp_path / "c.txt", "x\ny\n "), write(tmp_path / "b.txt", "x\ny\n"))


def test_parallel_files_refuse_columns_and_tables(tmp_path):
    pair = write(tmp_path / "a.txt", "x\n"), write(tmp_path / "b.csv", "x\n")
    assert "plain text" in refusal(*pair)
    with pytest.raises(AttendoError, match="leave out --columns"):
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
    account = Account("a")
    assert [number for number, _ in read_lines(path, account=account)] == [1, 5]
    assert {reason: entry.lines for reason, entry in account.skipped.items()} == {
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
    account = Account("f.tsv", read=5, used=3)
    account.skip(2, Fault("empty field"))
    account.skip(4, Fault("too long"))
    assert account.line() == (
        "f.tsv: 5 rows read, 3 used, 2 skipped (1 empty field: line 2, 1 too long: line 4)"
    )
    assert account.as_json()["skipped"]["too long"] == {"count": 1, "lines": [4]}


# --- the split --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "wanted"), [(20, 4), (100, 20), (500, 100), (5_000, 100), (30_000, 300), (250_000, 2_000)]
)
def test_the_split_has_the_size_it_should(rows, wanted):
    held = held_out(str(i) for i in range(rows))
    assert (held.n_rows, held.n_held_out) == (rows, wanted)


@given(st.lists(st.integers(0, 60), min_size=20, max_size=400))
def test_equal_sources_fall_on_one_side_whatever_their_order(numbers):
    sources = [f"source {n}" for n in numbers]
    try:
        held = held_out(sources)
    except AttendoError:
        assert len(set(numbers)) == 1
        return
    inside = [source for source in sources if source in held]
    assert len(inside) == held.n_held_out
    assert 0 < len(inside) <= len(sources) / 2  # a fifth, unless sources are few
    assert held_out(reversed(sources)) == held


def test_the_split_is_the_same_in_every_process():
    assert sorted(held_out(map(str, range(20))).hashes)[0] == 1742185772413642127


def test_too_little_to_split():
    with pytest.raises(AttendoError, match=r"f.tsv: 3 usable rows .* --valid"):
        held_out(["a", "b", "c"], "f.tsv")
    with pytest.raises(AttendoError, match=r"share one source.* --valid"):
        held_out(["a"] * 100)
