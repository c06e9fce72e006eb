"""Labels that were found, as a table on disk: .tsv, .csv or .jsonl by the file's ending."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from attendo.errors import AttendoError
from attendo.files import atomic_text
from attendo.inference.batch_files import require_absent
from attendo.inference.classifier import CHUNK, Classifier

Cell = str | int | float | None

FOUND = ("line", "label", "probability", "text")
"""The columns of classified texts."""


def check_table(out: Path, option: str) -> None:
    """Raises AttendoError for a file of no known ending, one that is there, and one in a folder that isn't."""
    if out.suffix.lower() not in _FORMS:
        raise AttendoError(f"{option} {out}: labels are written as .tsv, .csv or .jsonl; let it end in one")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise AttendoError(f"{option} {out}: no place for a file; give a file in a folder that exists")
    require_absent(out)


@contextmanager
def label_table(out: Path, heads: Sequence[str]) -> Iterator[Callable[[Sequence[Cell]], None]]:
    """Yields what writes a row; the file is there, whole, when the block ends without an error.

    A float has four digits behind the point but in .jsonl; None is an empty cell. In .tsv, which knows no
    quotes, a tab or line break in a text is written as a space.

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
    form = _FORMS[out.suffix.lower()]
    with atomic_text(out) as file:
        if form is not _json:
            file.write(form(heads, heads))
        yield lambda row: file.writelines([form(heads, row)])


def classify_table(
    classifier: Classifier,
    rows: Iterator[tuple[int, tuple[str, ...]]],
    out: Path,
    show: Callable[[int], None] = lambda n_done: None,
    kept: Sequence[str] = (),
) -> tuple[int, int]:
    """Labels texts in a table, in order: the kept columns, then FOUND.

    rows: each its line number, and its text with the kept fields behind it. A text without content has no label. Memory
    is bounded. Gives the number of rows, and of those that were cut; `show` is told the former now and then.
    """
    n_done = n_cut = 0
    with label_table(out, (*kept, *FOUND)) as write:
        while chunk := list(islice(rows, CHUNK)):
            for (line, (text, *own)), found in zip(
                chunk, classifier.classify([fields[0] for _, fields in chunk]), strict=True
            ):
                write((*own, line, found.label, found.probability, text))
                n_cut += found.cut
            n_done += len(chunk)
            show(n_done)
    return n_done, n_cut


def _text(cell: Cell) -> str:
    return "" if cell is None else f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def _tabbed(heads: Sequence[str], row: Sequence[Cell]) -> str:
    return "\t".join(re.sub(r"\r\n|[\t\r\n]", " ", _text(cell)) for cell in row) + "\n"


def _quoted(heads: Sequence[str], row: Sequence[Cell]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(map(_text, row))
    return line.getvalue()


def _json(heads: Sequence[str], row: Sequence[Cell]) -> str:
    return json.dumps(dict(zip(heads, row, strict=True)), ensure_ascii=False) + "\n"


_FORMS = {".tsv": _tabbed, ".csv": _quoted, ".jsonl": _json}
