"""File formats: TSV, CSV, JSONL, Parquet and XLSX, each optionally gzipped, read as unchecked rows.

Each reader yields `(number, fields)`, or `(number, RowError)` for an unreadable row. The caller of a reader can
therefore count every row. Only LF or CRLF ends a line. U+2028 and similar characters are text.
"""

import csv
import json
import re
import shutil
import tempfile
import warnings
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from attendo.data.data_files import TOO_LONG, decode, not_utf8, open_binary, physical_lines, text_lines
from attendo.data.row_report import LINE_CAP, RowError
from attendo.display.formats import plural
from attendo.errors import AttendoError, install_command

_MOST_TRIES = 100  # attempts to parse a record with line breaks; each attempt parses the whole record again
_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a pair, which is invalid in UTF-8
_CARRIAGE = re.compile("_x000D_\n?")  # the form of a carriage return in Excel files
Fields = tuple[str, ...]
RawRow = tuple[int, Fields | RowError]


class Wanted(NamedTuple):
    """The columns to read: one column per role, followed by columns that are kept unchanged as text.

    Attributes:
        columns: The names or 1-based numbers of the columns (default: columns named as the roles, or all columns).
        header: Whether a .tsv file starts with a header. A header is also expected if `columns` contains a name.
        option: The name of the option that selects the columns, for messages.
        instead: A second suggestion for messages about the columns.
    """

    roles: Fields
    columns: Fields | None = None
    header: bool = False
    option: str = "`columns`"
    instead: str = ""


def by_name(roles: Fields) -> str:
    """Return an example value of the option that selects the columns for these roles by name.

    >>> by_name(("source", "target")), by_name(("text",))
    ('source=NAME,target=NAME', 'NAME')
    """
    return ",".join(f"{role}=NAME" for role in roles) if len(roles) > 1 else "NAME"


def pick_columns(path: Path, names: Sequence[str], wanted: Wanted) -> list[int]:
    """Return the indices of the columns, from 0. Raises AttendoError for an unknown, repeated or ambiguous column."""
    roles, columns, _, option, instead = wanted
    if (
        len(names) == 1 < len(roles) and ";" in names[0]
    ):  # the CSV format of spreadsheets in countries with decimal commas
        raise AttendoError(
            f"{path}: the columns are separated by semicolons (expected commas). Save it with commas, or as .tsv"
        )
    found = ", ".join(repr(name[:40]) for name in names[:8]) + (", …" if len(names) > 8 else "")
    if columns is None:
        if all(names.count(role) == 1 for role in roles):
            return [names.index(role) for role in roles]
        if len(names) == len(roles):
            return list(range(len(roles)))
        choice = f"{option} {by_name(roles)}{instead}"
        raise AttendoError(f"{path} has {plural(len(names), 'column')} ({found}). Choose with {choice}")
    picks = []
    for column in columns:
        if column.isdecimal():
            if int(column) > len(names):
                raise AttendoError(f"{path} has no column {column}, only {len(names)} ({found}). Fix {option}")
            picks.append(int(column) - 1)
        elif names.count(column) == 1:
            picks.append(list(names).index(column))
        else:
            trouble = "no column" if column not in names else "more than one column"
            raise AttendoError(f"{path} has {trouble} {column!r} (found: {found}). Fix {option}, or use column numbers")
    return picks


def read_tsv(path: Path, wanted: Wanted) -> Iterator[RawRow]:
    """Yield the rows of a tab-separated file without quoting. If a column is chosen by name, a header is expected.

    The header determines the number of columns. Without a header, the first row that contains all chosen columns
    determines the number. Without a header and without chosen columns, a row has one column per role.
    """
    lines = text_lines(path)
    roles, columns, header, *_ = wanted
    picks: list[int] = []
    width = 0
    if header or (columns and not all(column.isdecimal() for column in columns)):
        names = _header(path, next(lines, None))
        picks, width = pick_columns(path, names, wanted), len(names)
    elif columns is None:
        picks, width = list(range(len(roles))), len(roles)
    else:
        picks = [int(column) - 1 for column in columns]
    for number, text in lines:
        if isinstance(text, RowError):
            yield number, text
            continue
        fields = text.split("\t")
        if width == 0 and len(fields) > max(picks):
            width = len(fields)
        if len(fields) == 1 and not text.strip():
            yield number, RowError("empty line")
        elif len(fields) == width:
            yield number, tuple([fields[i] for i in picks])
        else:
            yield number, _wrong_width(len(fields), width or max(picks) + 1, text)


def read_csv(path: Path, wanted: Wanted) -> Iterator[RawRow]:
    """Yield the rows of a CSV file with a header (RFC 4180). Rows are numbered by the first line of their record."""
    records = csv_records(path)
    first = next(records, None)
    if first is None:
        return
    if isinstance(first[1], RowError):
        raise _no_header(path, first[1])
    picks, width = pick_columns(path, first[1], wanted), len(first[1])
    for number, fields in records:
        if isinstance(fields, RowError):
            yield number, fields
        elif len(fields) == width:
            yield number, tuple([fields[i] for i in picks])
        elif not any(field.strip() for field in fields) and len(fields) < 2:
            yield number, RowError("empty line")
        else:
            yield number, _wrong_width(len(fields), width)


def csv_records(path: Path) -> Iterator[tuple[int, list[str] | RowError]]:
    """Yield the records of a CSV file, each with the number of its first line. Quoted fields may contain line breaks.

    A quote that is not closed within LINE_CAP bytes makes only its own line invalid, with the error "broken quoting".
    """
    csv.field_size_limit(max(csv.field_size_limit(), LINE_CAP))  # the module's own limit is lower than ours
    lines = physical_lines(path, keep_ends=True)
    waiting: deque[tuple[int, bytes | None]] = deque()
    while (item := waiting.popleft() if waiting else next(lines, None)) is not None:
        number, line = item
        if line is None:
            yield number, TOO_LONG
            continue
        fields = _parse_record(line, number)
        held: list[tuple[int, bytes | None]] = []
        record = [line]
        quotes = line.count(b'"')
        size = len(line)
        tries = _MOST_TRIES
        while fields is None:
            item = waiting.popleft() if waiting else next(lines, None)
            if item is not None:
                held.append(item)
                size += len(item[1] or b"")
            if item is None or item[1] is None or size > LINE_CAP or not tries:
                fields = RowError("broken quoting", f"a quote opened on line {number} is not closed")
                break
            record.append(item[1])
            quotes += item[1].count(b'"')
            if quotes % 2 == 0 and b'"' in item[1]:
                tries -= 1
                fields = _parse_record(b"".join(record), number)
        if isinstance(fields, RowError) and fields.reason == "broken quoting":
            waiting.extendleft(reversed(held))
        yield number, fields


def _parse_record(record: bytes, number: int) -> list[str] | RowError | None:
    """Return the fields of a complete record, None if a quoted field is still open at its end, or a row error."""
    record = record[:-2] if record.endswith(b"\r\n") else record.removesuffix(b"\n")
    text = decode(record)
    if isinstance(text, RowError):
        # Quotes are ASCII, so the end of the record is found even if its text cannot be decoded.
        as_latin = _parse_record(record.decode("latin-1").encode("utf-8"), number)
        return text if isinstance(as_latin, list) else as_latin
    if '"' not in text:
        return text.split(",") if text else []
    try:
        return next(csv.reader([text], strict=True), [])
    except csv.Error as error:
        return None if "unexpected end of data" in str(error) else RowError("broken quoting", str(error))


def read_jsonl(path: Path, wanted: Wanted) -> Iterator[RawRow]:
    """Yield the rows of a file with one JSON object per line. Column numbers refer to the keys of the first object."""
    keys: list[str] | None = None
    columns = wanted.columns
    n_needed = len(wanted.roles)
    if columns is not None and not any(column.isdecimal() for column in columns):
        keys = list(columns)
    for number, text in text_lines(path):
        if isinstance(text, RowError):
            yield number, text
            continue
        if not text.strip():
            yield number, RowError("empty line")
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield number, RowError("invalid JSON", str(error)[:100])
            continue
        if not isinstance(value, dict):
            yield number, RowError("invalid JSON", f"{type(value).__name__} instead of an object")
            continue
        if keys is None:
            names = list(value)
            keys = [names[i] for i in pick_columns(path, names, wanted)]
        missing = [key for key in keys[:n_needed] if key not in value]
        if missing:
            yield (
                number,
                RowError("missing key", f"no {missing[0]!r} among {', '.join(map(repr, value))[:100]}"),
            )
            continue
        fields = [as_text(value[key]) for key in keys[:n_needed]]
        fields += [as_kept(value.get(key)) for key in keys[n_needed:]]
        if "\\u" in text and any(isinstance(field, str) and _SURROGATE.search(field) for field in fields):
            yield number, RowError("lone surrogate")
        else:
            yield number, _fields_or_error(fields)


def read_parquet(path: Path, wanted: Wanted) -> Iterator[RawRow]:
    """Yield the rows of a Parquet file, numbered from 1. Raises AttendoError for a damaged file or without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise AttendoError(f"{path}: Parquet requires pyarrow. Run: {install_command('data')}") from None
    number = 0
    with ExitStack() as stack:
        if (stream := _unpacked(path, stack)) is None:
            return
        try:
            options = {"pre_buffer": False, "buffer_size": 1 << 16}
            plain = pyarrow.parquet.ParquetFile(stream, **options)
            names, inflated = list(plain.schema_arrow.names), _inflated(plain.metadata)
            file = stack.enter_context(pyarrow.parquet.ParquetFile(stream, **options, read_dictionary=inflated))
            picked = [names[i] for i in pick_columns(path, names, wanted)]
            forms = [as_text if i < len(wanted.roles) else as_kept for i in range(len(picked))]
            for batch in file.iter_batches(batch_size=256, columns=list(dict.fromkeys(picked))):
                values = [_parquet_column(batch.column(name), form) for name, form in zip(picked, forms, strict=True)]
                for row in zip(*values, strict=True):
                    number += 1
                    yield number, _fields_or_error(list(row))
        except (pyarrow.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0][:100]
            raise AttendoError(
                f"{path} is not a valid Parquet file after row {number} ({reason}). Copy it again"
            ) from None


def _unpacked(path: Path, stack: ExitStack) -> Any:
    """Open a file that is read from its end. It is unpacked if its name ends in .gz. An empty file returns None."""
    stream = stack.enter_context(open_binary(path))
    if path.suffix.lower() == ".gz":  # gzip is read only from its start
        packed, stream = stream, stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        shutil.copyfileobj(packed, stream)
        stream.seek(0)
    if not stream.read(1):
        return None
    stream.seek(0)
    return stream


SHEET_ROWS = 1_048_576
"""The maximum number of rows of a sheet in the format .xlsx."""
_MOST_INFLATED = 1 << 25
"""A part of an .xlsx file that expands to more bytes than this must not expand to more than 100 times its size."""


def read_xlsx(path: Path, wanted: Wanted) -> Iterator[RawRow]:
    """Yield the rows of the first visible sheet of an Excel file. Row 1 is the header, rows are numbered as in Excel.

    A cell is read as the text of its value (see `as_cell`). For a formula, this is the value that was last computed.
    Cells right of the header and empty rows at the end are ignored. Raises AttendoError for a damaged file or without
    openpyxl.
    """
    try:
        import openpyxl
    except ImportError:
        raise AttendoError(f"{path}: .xlsx requires openpyxl. Run: {install_command('data')}") from None
    number = 0
    with ExitStack() as stack:
        if (stream := _unpacked(path, stack)) is None:
            return
        try:
            _refuse_bomb(path, stream)
            with warnings.catch_warnings(action="ignore"):  # about parts of the file that are not read
                book = stack.enter_context(closing(openpyxl.load_workbook(stream, True, data_only=True)))
            sheet: Any = next(sheet for sheet in book.worksheets if sheet.sheet_state == "visible")
            sheet.reset_dimensions()  # the stored size can be wrong
            rows = iter(sheet.rows)
            names = [as_cell(cell) for cell in next(rows, ())]
            while names and not names[-1]:
                del names[-1]
            if not names:
                raise _no_header(path, RowError("empty line"))
            picks = pick_columns(path, [str(name) for name in names], wanted)
            number = last = 1
            while True:
                with warnings.catch_warnings(action="ignore"):
                    chunk = list(islice(rows, 256))
                if not chunk:
                    break
                for row in chunk:
                    number += 1
                    if number > SHEET_ROWS:
                        raise ValueError("a row number is too large")
                    if all(cell.value is None for cell in row[: len(names)]):
                        continue
                    for empty in range(last + 1, number):
                        yield empty, RowError("empty line")
                    last = number
                    yield number, _fields_or_error([as_cell(row[i]) if i < len(row) else "" for i in picks])
        except (AttendoError, OSError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  (openpyxl raises many kinds for a damaged file)
            reason = (str(error).splitlines() or [type(error).__name__])[0][:100]
            raise AttendoError(
                f"{path} is not a valid .xlsx file after row {number} ({reason}). Save it again without a password"
            ) from None


def _refuse_bomb(path: Path, stream: Any) -> None:
    """Raise AttendoError for an archive of a few kilobytes that would expand to gigabytes in memory."""
    with zipfile.ZipFile(stream) as archive:
        for part in archive.infolist():
            if part.file_size > max(_MOST_INFLATED, 100 * part.compress_size):
                raise AttendoError(
                    f"{path}: {part.filename[:60]} expands to {part.file_size:,} bytes, more than 100 times its size."
                    " Save the table as .csv"
                )


def as_cell(cell: Any) -> str | RowError:
    """Return the value of a cell of a sheet as text, as a spreadsheet program writes it into a CSV file.

    Numbers have up to 15 digits, dates their ISO form, and booleans are TRUE or FALSE. An error such as #N/A is a
    RowError.
    """
    value = cell.value
    match value:
        case None:
            return ""
        case str():
            return RowError("not text", value[:20]) if cell.data_type == "e" else _CARRIAGE.sub("\n", value)
        case bool():
            return str(value).upper()
        case float():
            return f"{value:.15g}"
        case datetime() if value.time() == datetime.min.time():
            return value.date().isoformat()
        case _:
            return str(value)


def as_text(value: Any) -> str | RowError:
    """Return a JSON or Parquet value as text. Integers and booleans have their JSON form, and null is empty text.

    For other types, the result is a RowError.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, int):
        return json.dumps(value)
    return RowError("not text", f"{type(value).__name__} instead of text")


def as_kept(value: Any) -> str:
    """Return any JSON or Parquet value as text. Lists and objects have their JSON form.

    >>> as_kept(0.5), as_kept(["bill", "mail"]), as_kept(None)
    ('0.5', '["bill", "mail"]', '')
    """
    text = as_text(value)
    if isinstance(text, str):
        return text
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else str(value)


def _inflated(metadata: Any) -> list[str]:
    """Return the columns whose dictionary may contain a large value. Expanded, 1 kB could become gigabytes."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    found = (group.column(i) for group in groups for i in range(group.num_columns))
    return [
        column.path_in_schema
        for column in found
        if column.has_dictionary_page
        and (
            column.total_uncompressed_size > max(LINE_CAP, 100 * column.total_compressed_size)
            or column.data_page_offset - column.dictionary_page_offset > 2 * LINE_CAP
        )
    ]


def _parquet_column(array: Any, form: Callable[[Any], str | RowError]) -> list[str | RowError]:
    if hasattr(array, "dictionary"):
        places = array.indices.to_pylist()
        own = list({*places} - {None})
        known = dict(zip(own, _parquet_column(array.dictionary.take(own), form), strict=True)) if own else {}
        return [form(None) if i is None else known[i] for i in places]
    try:
        return [form(value) for value in array.to_pylist()]
    except UnicodeDecodeError:
        return [_parquet_value(value, form) for value in array]


def _parquet_value(value: Any, form: Callable[[Any], str | RowError]) -> str | RowError:
    try:
        return form(value.as_py())
    except UnicodeDecodeError as error:
        return not_utf8(error)


def _fields_or_error(fields: list[str | RowError]) -> Fields | RowError:
    """Return the fields of a row, or the first row error. A field longer than LINE_CAP bytes is also an error."""
    texts = []
    for field in fields:
        if isinstance(field, RowError):
            return field
        if len(field) > LINE_CAP // 4 and len(field.encode("utf-8", "surrogatepass")) > LINE_CAP:
            return TOO_LONG
        texts.append(field)
    return tuple(texts)


def _header(path: Path, first: tuple[int, str | RowError] | None) -> list[str]:
    """Return the column names in the first line of a tab-separated file."""
    if first is None:
        raise AttendoError(f"{path} is empty (expected a header and at least one row of data)")
    if isinstance(first[1], RowError):
        raise _no_header(path, first[1])
    return first[1].split("\t")


def _no_header(path: Path, row_error: RowError) -> AttendoError:
    return AttendoError(
        f"{path}:1: no readable header ({row_error.reason}). The first line must contain the column names"
    )


def _wrong_width(found: int, wanted: int, text: str = "") -> RowError:
    spaced = found == 1 and len(re.split(" {2,}", text.strip())) == wanted
    hint = "; spaces instead of tabs?" if spaced else ""
    return RowError("wrong number of columns", f"{plural(found, 'column')} found, {wanted} expected{hint}")
