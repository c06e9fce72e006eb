"""TSV columns, CSV, JSONL, Parquet and XLSX: each rule on a file that breaks it."""

import gzip
import io
import sys
import zipfile
from datetime import datetime, time

import pytest
from corpus_files import read, refusal, write
from hypothesis import given
from hypothesis import strategies as st

from attendo.data import formats
from attendo.data.corpora import parse_columns
from attendo.data.row_report import LINE_CAP
from attendo.errors import AttendoError, install_command

# --- columns ----------------------------------------------------------------------------------------------


def test_parse_columns():
    assert parse_columns("source=en,target=ja") == ("en", "ja")
    assert parse_columns(" target = ja , source = en ") == ("en", "ja")
    assert parse_columns("2,1") == ("2", "1")
    assert parse_columns("en,ja") == ("en", "ja")
    assert parse_columns("label=1,text=3", roles=("text", "label")) == ("3", "1")
    wrong = ("", "1", "1,2,3", "source=en", "source=en,goal=ja", "0,1", "1,1", "source=,target=ja")
    for bad in (*wrong, "source=en,2"):
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
    assert refusal(path, columns=("1", "4"), header=True).endswith("('id', 'en', 'ja'). Fix `columns`")
    assert "4, only 3" in refusal(path, columns=("1", "4"), header=True)
    one = refusal(write(tmp_path / "one.tsv", "one\n"))
    assert one.endswith("1 column found, 2 expected); fix the row, or choose columns with `columns`")
    assert "has 3 columns ('id', 'en', 'ja'). Choose with `columns`" in refusal(path, header=True)
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


def test_semicolons_between_columns_are_named(tmp_path):
    path = write(tmp_path / "a.csv", "en;ja\none;ichi\n")
    assert "semicolons" in refusal(path)


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


def test_a_record_whose_quotes_never_end_is_not_parsed_anew_at_each_line(tmp_path, monkeypatch):
    """An odd quote inside a plain field, and a field that is opened behind it: at each line the quotes are even."""
    parses = []
    parse = formats._parse_record
    monkeypatch.setattr(formats, "_parse_record", lambda *args: parses.append(1) or parse(*args))
    text = 'source,target\na"b,"open\n' + '""\n' * 2000 + "one,two\n"
    pairs, skipped = read(write(tmp_path / "a.csv", text))
    assert pairs == [(2003, "one", "two")] and len(parses) < 2500
    assert skipped["broken quoting"] == (1, [2])


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
        "no source": (1, [9]),
        "lone surrogate": (1, [10]),
        "NUL character": (1, [12]),
    }


def test_jsonl_keys(tmp_path):
    two = write(tmp_path / "two.jsonl", '{"en": "one", "ja": "ichi"}\n')
    assert read(two)[0] == [(1, "one", "ichi")]
    three = write(tmp_path / "three.jsonl", '{"id": 7, "en": "one", "ja": "ichi"}\n')
    assert "Choose with `columns` source=NAME,target=NAME" in refusal(three)
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
    assert skipped == {"no source": (1, [2]), "too long": (1, [3]), "invalid UTF-8": (1, [4])}
    packed = write(tmp_path / "b.parquet.gz", gzip.compress(path.read_bytes()))
    assert read(packed, columns=("2", "1"))[0][0] == (1, "one", "1")
    assert "Choose with `columns`" in refusal(path)
    assert "not a valid Parquet file" in refusal(write(tmp_path / "cut.parquet", path.read_bytes()[:-10]))
    assert "is empty" in refusal(write(tmp_path / "none.parquet", b""))


def test_a_parquet_file_of_one_large_value_in_many_rows_takes_no_memory_for_each(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    places, large = pyarrow.array([0] * 256, pyarrow.int32()), pyarrow.array(["a" * 2_000_000])
    table = {"source": pyarrow.DictionaryArray.from_arrays(places, large), "target": ["b"] * 256}
    parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    before = pyarrow.default_memory_pool()
    pyarrow.set_memory_pool(counted := pyarrow.proxy_memory_pool(before))
    try:
        rows = list(formats.read_parquet(tmp_path / "a.parquet", formats.Wanted(("source", "target"))))
    finally:
        pyarrow.set_memory_pool(before)
    assert len(rows) == 256 and {row for _, row in rows} == {formats.TOO_LONG}
    assert counted.max_memory() < 30_000_000  # 512 MB as texts


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert install_command("data") in refusal(write(tmp_path / "a.parquet", b"PAR1"))


# --- xlsx -------------------------------------------------------------------------------------------------


def workbook(path, rows, **cells):
    book = pytest.importorskip("openpyxl").Workbook()
    for row in rows:
        book.active.append(row)
    for place, text in cells.items():
        book.active[place] = text
    book.create_sheet("other").append(["a sheet that is not read"])
    book.save(path)
    return path


def test_xlsx_rows_and_faults(tmp_path):
    rows = [
        ("en", "id", "ja", None),
        ("one", 1, "two_x000D_\nlines", "a note beside the table"),
        (),
        (0.1 + 0.2, 2.0, datetime(2026, 1, 2)),
        (True, None, datetime(2026, 1, 2, 3, 4)),
        ("=1+1", 3, "a formula that was never computed"),
        ("#N/A", 4, "x"),
        (time(3, 4), None, 12345678901),
        ("\t", None, "x" * 32_767),
    ]
    path = workbook(tmp_path / "a.xlsx", rows, B20="")
    pairs, skipped = read(path, columns=("en", "ja"))
    assert pairs == [
        (2, "one", "two\nlines"),
        (4, "0.3", "2026-01-02"),
        (5, "TRUE", "2026-01-02 03:04:00"),
        (8, "03:04:00", "12345678901"),
    ]
    assert skipped == {"empty line": (1, [3]), "no source": (2, [6, 9]), "not text": (1, [7])}
    packed = write(tmp_path / "b.xlsx.gz", gzip.compress(path.read_bytes()))
    assert read(packed, columns=("2", "1"))[0][0] == (2, "1", "one")
    assert "has 3 columns ('en', 'id', 'ja'). Choose with `columns`" in refusal(path)
    assert "no readable header" in refusal(workbook(tmp_path / "c.xlsx", []))
    assert "not a valid .xlsx file after row 0" in refusal(write(tmp_path / "d.xlsx", path.read_bytes()[:-99]))
    assert "is empty" in refusal(write(tmp_path / "e.xlsx", b""))


def changed(path, name, change):
    """A copy of a zip archive with another content of one of its files."""
    out = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.namelist():
            new.writestr(part, change(old.read(part)) if part == name else old.read(part))
    return out.getvalue()


def test_a_hostile_xlsx_file_takes_no_memory(tmp_path):
    path = workbook(tmp_path / "a.xlsx", [("source", "target"), ("one", "ichi")])
    sheet = "xl/worksheets/sheet1.xml"
    large = changed(path, sheet, lambda data: data.replace(b"<sheetData>", b"<sheetData>" + b" " * (1 << 26)))
    assert "sheet1.xml expands to 67,1" in refusal(write(tmp_path / "b.xlsx", large))
    far = changed(path, sheet, lambda data: data.replace(b'r="2"', b'r="99999999999"'))
    assert "a row number is too large" in refusal(write(tmp_path / "c.xlsx", far))
    wide = changed(path, sheet, lambda data: data.replace(b'"A1:B2"', b'"A1:XFD1048576"'))
    assert read(write(tmp_path / "d.xlsx", wide))[0] == [(2, "one", "ichi")]


def test_xlsx_without_openpyxl_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    assert install_command("data") in refusal(write(tmp_path / "a.xlsx", b"PK"))
