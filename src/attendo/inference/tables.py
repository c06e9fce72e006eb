"""Tables of results in files: CSV, TSV, JSONL, Parquet and XLSX."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from attendo.data.formats import SHEET_ROWS
from attendo.errors import AttendoError, install_command
from attendo.files import atomic_text
from attendo.inference.batch_files import require_absent

Cell = str | int | float | list[Any] | None
Row = Sequence[Cell]
Write = Callable[[Row], None]

CELL_CHARACTERS = 32_767
"""The maximum number of characters in a cell of the format .xlsx."""
_GROUP = 4096  # rows that a Parquet file stores together


def check_table(out: Path, option: str) -> None:
    """Raise AttendoError unless a new table can be written to `out`, which messages call `option`."""
    if out.suffix.lower() not in _FORMS:
        raise AttendoError(f"{option} {out} must end in {', '.join(_FORMS)}")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise AttendoError(f"{option} {out} is not a possible output file. Give a file in an existing folder")
    require_absent(out)
    if library := _LIBRARIES.get(out.suffix.lower()):
        try:
            import_module(library)
        except ImportError:
            raise AttendoError(
                f"{option} {out}: {out.suffix} requires {library}. Write .csv, or run: {install_command('data')}"
            ) from None


@contextmanager
def label_table(out: Path, heads: Sequence[str]) -> Iterator[Write]:
    """Yield a function that writes a row of a table with the columns `heads`, in the format of the suffix.

    The whole file appears when the block ends without an error. Except in .jsonl, a list is written as JSON text. In
    .csv and .tsv, floats are written with four decimals, and None as an empty cell. In .tsv, a tab or a line break is
    written as a space. In .xlsx, every text is stored as text, never as a formula. There, a text that is longer than
    CELL_CHARACTERS ends with "…", and characters that XML does not allow become U+FFFD. Raises AttendoError if a sheet
    has too many rows.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     out = Path(folder, "labels.csv")
    ...     with label_table(out, ("line", "text", "probability")) as write:
    ...         write((2, 'it is "late",\\nagain', 0.75))
    ...     print(out.read_text(), end="")
    line,text,probability
    2,"it is ""late"",
    again",0.7500
    """
    suffix = out.suffix.lower()
    with atomic_text(out) as file, _FORMS[suffix](file, heads, out) as write:
        yield write if suffix == ".jsonl" else lambda row: write([_plain(cell) for cell in row])


def _plain(cell: Cell) -> Cell:
    return json.dumps(cell, ensure_ascii=False) if isinstance(cell, list) else cell


def cell_text(cell: Cell) -> str:
    """Return a cell as text. Floats have four decimals.

    >>> cell_text(0.5), cell_text(None), cell_text("a")
    ('0.5000', '', 'a')
    """
    return "" if cell is None else f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def tsv_line(row: Row) -> str:
    """Return a line of a .tsv file. A tab or a line break in a cell becomes a space."""
    return "\t".join(re.sub(r"\r\n|[\t\r\n]", " ", cell_text(cell)) for cell in row) + "\n"


def csv_line(row: Row) -> str:
    """Return a record of a .csv file (RFC 4180, with LF)."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(map(cell_text, row))
    return line.getvalue()


@contextmanager
def _text(file: TextIO, heads: Sequence[str], out: Path) -> Iterator[Write]:
    line = csv_line if out.suffix.lower() == ".csv" else tsv_line
    file.write(line(heads))
    yield lambda row: file.writelines([line(row)])


@contextmanager
def _json(file: TextIO, heads: Sequence[str], out: Path) -> Iterator[Write]:
    def write(row: Row) -> None:
        file.write(json.dumps(dict(zip(heads, row, strict=True)), ensure_ascii=False) + "\n")

    yield write


@contextmanager
def _parquet(file: TextIO, heads: Sequence[str], out: Path) -> Iterator[Write]:
    import pyarrow
    import pyarrow.parquet

    rows: list[Row] = []
    made: list[Any] = []

    def flush() -> None:
        columns = list(zip(*rows, strict=True)) or [()] * len(heads)
        if not made:  # the first rows decide the types
            types = [_type_of(head, column) for head, column in zip(heads, columns, strict=True)]
            schema = pyarrow.schema(list(zip(heads, types, strict=True)))
            made.append(pyarrow.parquet.ParquetWriter(file.buffer, schema))
        [writer] = made
        arrays = [pyarrow.array(column, type_) for column, type_ in zip(columns, writer.schema.types, strict=True)]
        writer.write_table(pyarrow.Table.from_arrays(arrays, schema=writer.schema))
        rows.clear()

    def write(row: Row) -> None:
        rows.append(row)
        if len(rows) == _GROUP:
            flush()

    try:
        yield write
        if rows or not made:
            flush()
    finally:
        for writer in made:
            writer.close()


def _type_of(head: str, column: Row) -> str:
    """Return the Parquet type of a column. A probability is a float, even if the first rows have none."""
    kinds = {type(cell) for cell in column} - {type(None)}
    return "float64" if float in kinds or head == "probability" else "int64" if kinds == {int} else "string"


@contextmanager
def _sheet(file: TextIO, heads: Sequence[str], out: Path) -> Iterator[Write]:
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell

    book = Workbook(write_only=True)
    sheet = book.create_sheet("attendo")
    sheet.freeze_panes = "A2"
    n_rows = 0

    def cell_of(cell: Cell) -> Any:
        if not isinstance(cell, str):
            return cell
        text = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", cell)
        if len(text) > CELL_CHARACTERS:
            text = f"{text[: CELL_CHARACTERS - 1]}…"
        made = WriteOnlyCell(sheet, text)
        made.data_type = "s"  # otherwise "=1+1" would be a formula, and "#N/A" an error
        return made

    def write(row: Row) -> None:
        nonlocal n_rows
        n_rows += 1
        if n_rows > SHEET_ROWS:
            raise AttendoError(f"{out}: a sheet has at most {SHEET_ROWS:,} rows. Write .csv or .parquet instead")
        sheet.append([cell_of(cell) for cell in row])

    try:
        write(heads)
        yield write
    finally:  # also removes the temporary file of the sheet
        book.save(file.buffer)


_FORMS = {".csv": _text, ".tsv": _text, ".jsonl": _json, ".parquet": _parquet, ".xlsx": _sheet}
_LIBRARIES = {".parquet": "pyarrow", ".xlsx": "openpyxl"}
