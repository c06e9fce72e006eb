"""The data doctor for labeled texts: duplicates, contradictory labels, leaks and rare labels.

Only 24 bytes per row are kept in memory: the row number, and the hashes of the text and the label. For each label, the
numbers of its first rows are also kept.
"""

import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from attendo.data.doctor_checks import later_rows
from attendo.data.doctor_report import Check, Finding, anything_found, report_head
from attendo.data.labelled import LabelledRow, LabelledSource, read_labelled, similar_label
from attendo.data.row_report import RowReport

FEWEST = 10
"""A label with fewer rows is reported as rare."""

_COPIES = "delete the copies, unless such texts are really frequent"
_SEVERAL = "fix or delete one of the rows: one of the labels is wrong"
_LEAKS = "delete these rows, or the test scores are inflated"
_RARE = "fix a wrong label, add rows with the label, or delete its rows"
CHECKS = (
    Check("duplicates", "", "exact copies of an earlier row", _COPIES),
    Check("several-labels", "", "text has a different label in an earlier row", _SEVERAL),
    Check("leaks", "", "text also appears in the other file", _LEAKS),
    Check("rare-labels", "", f"a label has fewer than {FEWEST} rows", _RARE),
)

_RECORD = np.dtype([("line", np.int64), ("text", np.int64), ("label", np.int64)])


class Repeats(NamedTuple):
    """The numbers of rows that repeat an earlier text, with the same label or with another label (contradictions)."""

    copies: list[int]
    contradictions: list[int]

    def lines(self, row_report: RowReport) -> list[str]:
        """Return the findings for display, one line per kind of finding."""
        kinds = ("exact copies of an earlier row", "texts have a different label in an earlier row")
        return [
            f"{kind}: {len(rows):,} ({row_report.places(rows[:3], len(rows))})"
            for kind, rows in zip(kinds, self, strict=True)
            if rows
        ]


class SeenRows:
    """The rows read so far, as hashes for comparison. Equal texts have equal hashes within one process.

    >>> seen, texts = SeenRows(), ("rain", "rain", "rain", "snow")
    >>> rows = [LabelledRow(i, label, text) for i, (label, text) in enumerate(zip("aaba", texts), 1)]
    >>> list(seen.watch(rows)) == rows, seen.repeats()
    (True, Repeats(copies=[2], contradictions=[3]))
    """

    def __init__(self) -> None:
        self._held = array("q")

    def watch(self, rows: Iterable[LabelledRow]) -> Iterator[LabelledRow]:
        """Yield the rows unchanged, and store the hashes of each row."""
        for row in rows:
            self._held.extend((row.number, hash(row.text), hash(row.label)))
            yield row

    @property
    def _records(self) -> np.ndarray:
        return np.array(self._held, np.int64).view(_RECORD)

    def repeats(self, may_differ: bool = False) -> Repeats:
        """Return the numbers of the rows whose text also occurs in an earlier row.

        If the labels of a text may differ (`RowForm.may_differ`), there are no contradictions.
        """
        records = self._records
        copies, others = (
            np.sort(records["line"][rows]).tolist() for rows in later_rows(records, ("text",), ("label",))
        )
        return Repeats(copies, [] if may_differ else others)

    def shared(self, other: "SeenRows") -> list[int]:
        """Return the numbers of the rows whose text is also in `other`."""
        records = self._records
        return records["line"][np.isin(records["text"], other._records["text"])].tolist()


@dataclass
class LabelledReport:
    """The result of `examine_labelled`. `longest` contains the length of the longest text and the number of its row."""

    row_report: RowReport
    against: RowReport | None = None
    counts: Counter[str] = field(default_factory=Counter)
    n_characters: int = 0
    longest: tuple[int, int] = (0, 0)
    findings: tuple[Finding, ...] = ()

    @property
    def found(self) -> bool:
        return anything_found(self.row_report, self.findings)

    def lines(self) -> list[str]:
        row_report, (longest, line) = self.row_report, self.longest
        out = report_head(row_report, self.against)
        out.append(
            f"  text: {self.n_characters / row_report.used:.0f} characters on average, longest {longest:,}"
            f" ({row_report.places([line], 1)})"
        )
        if self.counts:
            out.append(f"  {len(self.counts):,} labels, the least frequent last:")
        common = self.counts.most_common()
        shown = common if len(common) <= 12 else [*common[:6], ("…", 0), *common[-5:]]
        often = [label for label, count in common if count >= FEWEST]
        for label, count in shown:
            like = similar_label(label, often) if count < FEWEST else ""
            out.append(f"    {count:>9,}  {label[:60]}  {like}".rstrip() if count else "            …")
        for finding in self.findings:
            out += finding.told(row_report)
        return out

    def as_json(self) -> dict[str, Any]:
        return {
            "account": self.row_report.as_json(),
            "against": None if self.against is None else self.against.as_json(),
            "labels": dict(self.counts.most_common()),
            "mean_length": self.n_characters / self.row_report.used,
            "longest": self.longest[0],
            "longest_line": self.row_report.places_json([self.longest[1]])[0],
            "findings": {finding.check.name: finding.as_json(self.row_report) for finding in self.findings},
        }


def examine_labelled(source: LabelledSource, against: LabelledSource | None = None) -> LabelledReport:
    """Check labeled texts for duplicates, leaks, contradictory labels and rare labels.

    Args:
        source: The location of the labeled texts.
        against: A test set, whose texts should not occur in the checked files (default: none).

    Returns:
        The report with the findings of each check.

    Raises:
        AttendoError: A file cannot be read.
    """
    row_report = RowReport(source.name)
    seen = SeenRows()
    report = LabelledReport(row_report)
    role = source.form.roles[0]
    first_rows = defaultdict[str, list[int]](list)
    for row in seen.watch(read_labelled(source, row_report=row_report)):
        if role in ("label", "labels"):  # numbers and spans are rarely equal
            for label in [row.label] if role == "label" else json.loads(row.label):
                report.counts[label] += 1
                if len(first_rows[label]) < FEWEST:
                    first_rows[label].append(row.number)
        report.n_characters += len(row.text)
        report.longest = max(report.longest, (len(row.text), -row.number))
    report.longest = report.longest[0], -report.longest[1]
    leaks: list[int] = []
    if against is not None:
        report.against = RowReport(against.name)
        other = SeenRows()
        for _ in other.watch(read_labelled(against, row_report=report.against)):
            pass
        leaks = seen.shared(other)
    rare = sorted({number for rows in first_rows.values() if len(rows) < FEWEST for number in rows})
    numbers = (*seen.repeats(), leaks, rare)
    left_out = {"several-labels": source.form.may_differ, "rare-labels": not report.counts}
    report.findings = tuple(
        Finding(check, len(rows), tuple(rows[:3]), not_checked)
        for check, rows in zip(CHECKS, numbers, strict=True)
        if not left_out.get(check.name)
        for not_checked in ["no file to compare with" if check.name == "leaks" and against is None else ""]
    )
    return report
