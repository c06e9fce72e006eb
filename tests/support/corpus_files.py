"""Files to read in tests, and the check that every row read is accounted for."""

from pathlib import Path

import pytest

from attendo.data.corpora import PairSource, read_pairs
from attendo.data.row_report import RowReport
from attendo.errors import AttendoError

SEPARATORS = "\u2028\u2029\x0b\x0c\x1c\x1d\x1e\x85\r"  # each splits a line in str.splitlines, none may here


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)
    return path


def read(*files: Path, **options) -> tuple[list[tuple[int, str, str]], dict[str, tuple[int, list[int]]]]:
    """All pairs, and the skipped rows by reason; checks that the account adds up."""
    strict = options.pop("strict", False)
    row_report = RowReport(str(files[0]))
    pairs = list(read_pairs(PairSource(files, **options), strict, row_report))
    assert row_report.used == len(pairs)
    assert row_report.read == row_report.used + row_report.n_skipped
    return pairs, {reason: (entry.count, entry.lines) for reason, entry in row_report.skipped.items()}


def refusal(*files: Path, **options) -> str:
    with pytest.raises(AttendoError) as caught:
        read(*files, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
