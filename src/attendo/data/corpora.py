"""Readers for a user's corpus: pairs, rows and lines are streamed in constant memory, and every row is counted.

Data is read from `.tsv` without quoting, `.csv`, `.jsonl`, `.parquet`, `.xlsx`, or two parallel text files. A single
`.txt` file of pairs is read like `.tsv`. Each file can be gzipped (`.gz`). A folder or pattern is read as the
concatenation of its files (`data_files.expanded`). Fields are unchanged, except for the line ending and a byte-order
mark. An unusable row is skipped and counted by reason (`row_report.REASONS`), or raises an error with `strict`. A
blank field counts as empty.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from attendo.data.data_files import TABLES, count_lines, expanded, require_file, suffix, text_lines
from attendo.data.formats import RawRow, Wanted, read_csv, read_jsonl, read_parquet, read_tsv, read_xlsx
from attendo.data.row_report import RowError, RowReport
from attendo.display.formats import plural
from attendo.errors import AttendoError

Columns = tuple[str, ...]
"""The columns to read, one per role. Each column is a name, or a 1-based number in decimal digits."""

Pair = tuple[int, str, str]
"""The row number, the source text and the target text."""

PAIR = ("source", "target")
AGAINST = "`against` SOURCE `against` TARGET"
"""The notation in messages for two parallel files in the option `against`."""


class Row(NamedTuple):
    """A row of a data file: its fields, and its line number from 1. Line numbers continue across several files.

    A CSV record with several lines has the number of its first line.
    """

    number: int
    fields: tuple[str, ...]


@dataclass(frozen=True)
class PairSource:
    """The location of sentence pairs: files with columns, or parallel text files.

    Attributes:
        files: One name, or the names of two parallel files. A name can be a folder or pattern; see `expanded`.
        columns: The source and target columns, by name or 1-based number (default: columns named source and target, or
            the only two columns).
        header: Whether a .tsv file starts with a header. A header is also expected if `columns` contains a name.
        reverse: Whether source and target are swapped.
        both: The command-line notation for two parallel files, for the error message if one file is not a table.
        instead: A second suggestion in the error message about columns, for example for rows that are not pairs.
    """

    files: tuple[Path, ...]
    columns: Columns | None = None
    header: bool = False
    reverse: bool = False
    both: str = "SOURCE TARGET"
    instead: str = ""

    def __post_init__(self) -> None:
        if len(self.files) not in (1, 2):
            raise AttendoError(
                f"pairs must come from one file or from two parallel files, not from {len(self.files)}. For "
                "many files, give a folder or a quoted pattern, for example 'shards/*.tsv'"
            )
        if len(self.files) == 2 and (self.columns or self.header):
            raise AttendoError(f"{self.name}: two parallel files have no columns. Remove `columns` and `header`")

    @property
    def name(self) -> str:
        return _joined(self.files)

    def parts(self) -> list[tuple[Path, ...]]:
        """Return the files in reading order. Each entry is a single file, or a source file with its target file.

        Raises:
            AttendoError: A name matches no file, or the numbers of source and target files differ.
        """
        if len(self.files) == 1:
            return [(path,) for path in expanded(self.files[0], TABLES)]
        found = [expanded(name, None) for name in self.files]
        if len(found[0]) != len(found[1]):
            raise AttendoError(
                f"{self.files[0]} has {plural(len(found[0]), 'file')} but {self.files[1]} has "
                f"{len(found[1]):,}. Parallel files are paired by the order of their names: add the missing "
                "files"
            )
        return list(zip(*found, strict=True))

    def paths(self) -> list[Path]:
        """Return all source and target files as one list, in reading order."""
        return [path for part in self.parts() for path in part]


def parse_columns(text: str, roles: tuple[str, ...] = PAIR) -> Columns:
    """Parse the option `columns`: `role=name` for each role in any order, or names or numbers in the order of `roles`.

    Raises AttendoError for any other text.

    >>> parse_columns("target=ja,source=en"), parse_columns("1,3")
    (('en', 'ja'), ('1', '3'))
    """
    forms = f"{','.join(f'{role}=NAME' for role in roles)} or {','.join(str(i + 1) for i in range(len(roles)))}"
    parts = [part.strip() for part in text.split(",")]
    named = {role.strip(): name.strip() for role, mark, name in (part.partition("=") for part in parts) if mark}
    if len(named) == len(parts) and set(named) == set(roles):
        columns = tuple(named[role] for role in roles)
    elif not named and len(parts) == len(roles):
        columns = tuple(parts)
        for name, role in zip(parts, roles, strict=True):
            if name != role and name in roles and roles != PAIR:  # target,source reverses pairs
                raise AttendoError(f"invalid `columns` {text!r}: {name!r} would be the {role}. Write {forms}")
    else:
        raise AttendoError(f"invalid `columns` {text!r} (expected {forms})")
    if not all(columns) or any(column.isdecimal() and int(column) == 0 for column in columns):
        raise AttendoError(f"invalid `columns` {text!r} (expected names, or numbers from 1). Write {forms}")
    if len(set(columns)) < len(columns):
        raise AttendoError(f"invalid `columns` {text!r}: one column is named twice. Write {forms}")
    return columns


def parse_kept(text: str, taken: Sequence[str]) -> Columns:
    """Parse the option `keep` into columns: names or numbers. Raises AttendoError for invalid text or names in `taken`.

    >>> parse_kept("id, opened", ("label",))
    ('id', 'opened')
    """
    columns = tuple(part.strip() for part in text.split(","))
    if not all(columns) or "0" in columns:
        raise AttendoError(f"invalid `keep` {text!r} (expected names or numbers, for example id,opened)")
    if len(set(columns)) < len(columns):
        raise AttendoError(f"invalid `keep` {text!r}: one column is named twice. Remove one of them")
    if clash := set(columns) & set(taken):
        raise AttendoError(
            f"invalid `keep` {text!r}: the output already has a column {min(clash)!r}. Give this column by its number"
        )
    return columns


def read_rows(
    path: Path,
    roles: tuple[str, ...] = PAIR,
    columns: Columns | None = None,
    header: bool = False,
    strict: bool = False,
    row_report: RowReport | None = None,
    reader: Callable[[Path, Wanted], Iterator[RawRow]] | None = None,
    suffixes: tuple[str, ...] = TABLES,
) -> Iterator[Row]:
    """Yield the usable rows of a file, folder or pattern, with one field per role, and count all rows in `row_report`.

    `reader` reads a file (default: `raw_rows`). Raises AttendoError for a missing, empty or unusable file, and with
    `strict` for the first unusable row.
    """
    row_report = RowReport(str(path)) if row_report is None else row_report
    files = expanded(path, suffixes)
    wanted = Wanted(roles, columns, header, row_report.option)
    parts = ((str(file), (reader or raw_rows)(file, wanted)) for file in files)
    yield from _counted_rows(parts, wanted, strict, row_report)


def read_pairs(source: PairSource, strict: bool = False, row_report: RowReport | None = None) -> Iterator[Pair]:
    """Yield the usable sentence pairs as (line number, source text, target text).

    Args:
        source: The location of the sentence pairs.
        strict: Whether the first unusable row raises an error (default: unusable rows are skipped and counted).
        row_report: The report in which the rows are counted (default: a new report).

    Raises:
        AttendoError: A file is missing, empty or unusable, or `strict` is set and a row is unusable. Two parallel files
            with different numbers of lines raise the error before the first pair.
    """
    row_report = RowReport(source.name) if row_report is None else row_report
    parts = source.parts()
    wanted = Wanted(PAIR, source.columns, source.header, row_report.option, source.instead)
    for part in parts:
        if len(part) == 2:
            _require_parallel(part[0], part[1])
    rows = (
        (
            _joined(part),
            raw_rows(part[0], wanted, source.both) if len(part) == 1 else _parallel_rows(part[0], part[1]),
        )
        for part in parts
    )
    for number, (first, second) in _counted_rows(rows, wanted, strict, row_report):
        yield (number, second, first) if source.reverse else (number, first, second)


def read_lines(
    path: Path,
    column: str | None = None,
    header: bool = False,
    strict: bool = False,
    row_report: RowReport | None = None,
    keep_empty: bool = False,
    keep_skipped: bool = False,
) -> Iterator[tuple[int, str]]:
    """Yield the usable texts of a file as (line number, text).

    Args:
        path: A .tsv, .csv, .jsonl, .parquet or .xlsx file with columns, or any other file with one text per line.
        column: The column to read, by name or 1-based number (default: the column named text, or the only column).
        header: Whether a .tsv file starts with a header.
        strict: Whether the first unusable row raises an error (default: unusable rows are skipped and counted).
        row_report: The report in which the rows are counted (default: a new report).
        keep_empty: Whether empty lines of a text file are also yielded.
        keep_skipped: Whether "" is yielded for each skipped row. With this option, every row yields one text.

    Raises:
        AttendoError: A file is missing, empty or unusable, or `strict` is set and a row is unusable.
    """
    row_report = RowReport(str(path)) if row_report is None else row_report
    wanted = Wanted(("text",), None if column is None else (column,), header, row_report.option)
    if suffix(path) in TABLES:
        rows = raw_rows(path, wanted)
    elif column is not None or header:
        raise AttendoError(f"{path}: a text file has no columns. Remove `columns` and `header`")
    else:
        rows = _whole_lines(path, keep_empty)
    blank = ("",) if keep_skipped else None
    for number, fields in _counted_rows([(str(path), rows)], wanted, strict, row_report, keep_empty, blank):
        yield number, fields[0]


def read_with_kept(path: Path, column: str | None, kept: Columns, header: bool, row_report: RowReport) -> Iterator[Row]:
    """Yield every row of a table: its text, then the unchanged fields of the columns `kept`.

    All fields of an unreadable row are empty. Raises AttendoError in the same cases as `read_rows`.
    """
    if suffix(path) not in TABLES:
        raise AttendoError(f"{path}: a text file has no columns. Remove `keep`")
    wanted = Wanted(("text",), (column or "text", *kept), header, f"{row_report.option} or `keep`")
    rows = raw_rows(path, wanted)
    yield from _counted_rows(
        [(str(path), rows)], wanted, False, row_report, blank=("",) * (1 + len(kept)), n_kept=len(kept)
    )


def _counted_rows(
    parts: Iterable[tuple[str, Iterator[RawRow]]],
    wanted: Wanted,
    strict: bool,
    row_report: RowReport,
    keep_empty: bool = False,
    blank: tuple[str, ...] | None = None,
    n_kept: int = 0,
) -> Iterator[Row]:
    """Yield the usable rows of files, and with `blank` all rows. The last `n_kept` fields are unchecked."""
    number = start = 0
    for name, rows in parts:
        start += number
        number = 0
        row_report.begin(name, start)
        for number, fields in rows:
            row_report.read += 1
            known = () if isinstance(fields, RowError) else fields
            n_needed = len(known) - n_kept
            row_error = fields if isinstance(fields, RowError) else _field_error(known[:n_needed], wanted, keep_empty)
            if row_error is None:
                row_report.used += 1
                yield Row(start + number, known)
            else:
                row_report.skip(start + number, row_error, strict)
                if blank is not None:
                    yield Row(start + number, (*blank[:n_needed], *known[n_needed:]) if known else blank)
    row_report.end()
    row_report.require_used()


def _field_error(fields: tuple[str, ...], wanted: Wanted, keep_empty: bool) -> RowError | None:
    for position, text in enumerate(fields):
        if "\0" in text:
            return RowError("NUL character")
        if (not text or text.isspace()) and not keep_empty:
            column = wanted.columns[position] if wanted.columns else ""
            named = f"column {column if column.isdecimal() else repr(column)}" if column else ""
            return RowError(f"no {wanted.roles[position]}", named)
    return None


READERS = {
    ".tsv": read_tsv,
    ".txt": read_tsv,
    ".csv": read_csv,
    ".jsonl": read_jsonl,
    ".parquet": read_parquet,
    ".xlsx": read_xlsx,
}


def raw_rows(path: Path, wanted: Wanted, both: str = "") -> Iterator[RawRow]:
    """Return the rows of a table, unchecked. Raises AttendoError for a missing file or an unknown format.

    `both` is the notation for two parallel files, if they are allowed here.
    """
    require_file(path)
    form = suffix(path)
    if form in READERS:
        return READERS[form](path, wanted)
    remedy = "Use .tsv, .csv, .jsonl, .txt, .parquet or .xlsx, each optionally .gz"
    remedy += f"; for two parallel files give both: {both}" if both else ""
    if form in (".xls", ".xlsb", ".ods"):
        remedy = "Save the table as .xlsx in the spreadsheet program"
    raise AttendoError(f"{path}: unknown format {form!r}. {remedy}")


def _whole_lines(path: Path, keep_empty: bool) -> Iterator[RawRow]:
    for number, text in text_lines(path):
        if isinstance(text, RowError):
            yield number, text
        elif keep_empty or text.strip():
            yield number, (text,)
        else:
            yield number, RowError("empty line")


def _joined(files: Iterable[Path]) -> str:
    return " + ".join(map(str, files))


def _require_parallel(source: Path, target: Path) -> None:
    """Raise AttendoError unless the paths are two text files with equal numbers of lines."""
    for path in (source, target):
        if suffix(path) in TABLES:
            raise AttendoError(
                f"{path}: parallel files must be plain text, one text per line. Give a table as a single file"
            )
    counts = count_lines(source), count_lines(target)
    if counts[0] != counts[1]:
        raise AttendoError(
            f"{_from_here(source)} has {counts[0]:,} lines but {_from_here(target)} has {counts[1]:,} "
            "(expected equal numbers: line n of one file is the translation of line n of the other). Compare "
            "both with their originals to find the missing lines"
        )


def _from_here(path: Path) -> Path:
    """Return the shorter relative name of a file below the current folder, because runs store absolute paths."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _parallel_rows(source: Path, target: Path) -> Iterator[RawRow]:
    """Yield the rows of two text files with equal numbers of lines."""
    try:
        for (number, first), (_, second) in zip(text_lines(source), text_lines(target), strict=True):
            if isinstance(first, RowError):
                yield number, _within(source, first)
            elif isinstance(second, RowError):
                yield number, _within(target, second)
            else:
                yield number, (first, second) if first or second else RowError("empty line")
    except ValueError:
        raise AttendoError(f"{source} or {target} changed while it was read. Read the files again") from None


def _within(path: Path, row_error: RowError) -> RowError:
    detail = f": {row_error.detail}" if row_error.detail else ""
    return RowError(row_error.reason, f"in {path}{detail}")
