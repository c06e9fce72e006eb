"""Tables of results: what each format keeps of a cell."""

import sys

import pytest

from attendo.data.corpora import read_rows
from attendo.errors import AttendoError, install_command
from attendo.inference.tables import CELL_CHARACTERS, check_table, label_table

ROWS = [(2, None, None, "=1+1"), (3, "@a", 0.123456, "#N/A"), (4, "-", 1.0, "tab\there\nand \x0b")]


def written(out):
    with label_table(out, ("line", "label", "probability", "text")) as write:
        for row in ROWS:
            write(row)
    return out


def test_texts_of_a_sheet_are_never_formulas(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    sheet = openpyxl.load_workbook(written(tmp_path / "a.xlsx")).active
    cells = [[(cell.value, cell.data_type) for cell in row] for row in sheet.rows]
    assert cells[1] == [(2, "n"), (None, "n"), (None, "n"), ("=1+1", "s")]
    assert cells[2] == [(3, "n"), ("@a", "s"), (0.123456, "n"), ("#N/A", "s")]
    assert cells[3][3] == ("tab\there\nand \ufffd", "s")
    with label_table(tmp_path / "b.xlsx", ("text",)) as write:
        write(("x" * CELL_CHARACTERS,))
        write(("x" * (CELL_CHARACTERS + 1),))
    whole, cut = [row.fields[0] for row in read_rows(tmp_path / "b.xlsx", ("text",))]
    assert whole == "x" * CELL_CHARACTERS
    assert cut == "x" * (CELL_CHARACTERS - 1) + "…"


def test_parquet_keeps_numbers_as_numbers(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(written(tmp_path / "a.parquet"))
    assert list(zip(*table.to_pydict().values(), strict=True)) == ROWS
    with label_table(tmp_path / "none.parquet", ("line", "probability")):
        pass
    assert parquet.read_schema(tmp_path / "none.parquet").names == ["line", "probability"]


@pytest.mark.parametrize("end", [".csv", ".tsv", ".jsonl", ".parquet", ".xlsx"])
def test_after_an_error_there_is_no_file(tmp_path, end):
    with pytest.raises(RuntimeError), label_table(tmp_path / f"a{end}", ("line", "text")) as write:
        write((1, "rain"))
        raise RuntimeError
    assert [*tmp_path.iterdir()] == []


def test_a_missing_library_is_named_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(AttendoError) as refused:
        check_table(tmp_path / "a.xlsx", "--out")
    assert str(refused.value).endswith(f"requires openpyxl. Write .csv, or run: {install_command('data')}")
