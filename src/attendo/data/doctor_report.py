"""The findings of the data doctor: counts, line numbers and remedies, for the terminal and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attendo.data.languages import Seen, language_of, name_of
from attendo.data.row_report import RowReport
from attendo.display.formats import plural


@dataclass(frozen=True)
class Check:
    """A doctor check: its name for `drop`, the reason for a dropped row, its title, and a fix other than `drop`."""

    name: str
    reason: str
    title: str
    instead: str = ""

    @property
    def fix(self) -> str:
        return self.instead or f"`drop` {self.name}"


CHECKS = (
    Check("duplicates", "duplicate", "exact copies of an earlier row"),
    Check("near-duplicates", "near duplicate", "earlier row with other case, digits or punctuation"),
    Check("leaks", "leak", "source also appears in the other file"),
    Check("several-targets", "source with another target", "source has a different target in an earlier row"),
    Check("length-ratio", "odd length ratio", "more than 3 times longer or shorter than usual"),
    Check("swapped", "swapped columns", "source and target seem to be swapped"),
    Check("untranslated", "untranslated copy", "target is a copy of the source"),
    Check("wrong-script", "wrong script", "text in another script than the rest of its column"),
    Check("control-characters", "control character", "control or unusual invisible characters"),
    Check("normalization", "not normalized", "not in Unicode form NFC"),
    Check(
        "spaced",
        "",
        "spaces between words in a language that has none",
        "remove the spaces, or translate only text that is segmented in the same way",
    ),
)
"""The checks, in order of priority: a dropped row is counted for the first check that finds a problem in it."""

OTHER_WAY_ROUND = "swap source and target of the other file first"
"""The reason why leaks are not checked if the other file is swapped: sources would be compared with targets."""


@dataclass(frozen=True)
class Finding:
    """The result of one check: how many rows it found and the first three lines, or why the check was skipped."""

    check: Check
    count: int = 0
    lines: tuple[int, ...] = ()
    not_checked: str = ""

    def told(self, row_report: RowReport, fix: str = "") -> list[str]:
        """Return the finding as lines of text for the terminal. The fix is appended after the line numbers."""
        if self.not_checked:
            return [f"          –  {self.check.name}: not checked, {self.not_checked}"]
        out = [f"  {self.count:>9,}  {self.check.name}: {self.check.title}"]
        if self.count:
            out.append(f"             {row_report.places(list(self.lines), self.count)}{fix}")
            out += [f"             ({self.check.instead})"] if self.check.instead else []
        return out

    def as_json(self, row_report: RowReport) -> dict[str, Any]:
        return {
            "count": self.count,
            "lines": row_report.places_json(list(self.lines)),
            "not_checked": self.not_checked,
            "fix": self.check.fix,
        }


def anything_found(row_report: RowReport, findings: Sequence[Finding]) -> bool:
    """Return whether a row was skipped or a check has a finding (exit code 1 of `attendo doctor`)."""
    return row_report.n_skipped > 0 or any(finding.count for finding in findings)


def report_head(row_report: RowReport, against: RowReport | None, taken_off: str = "") -> list[str]:
    """Return the first lines of a report: rows read and skipped, the compared file, and what the reader removed."""
    out = [row_report.file, f"  {row_report.counts()}"]
    out += [
        f"    {entry.count:>9,}  {reason}, {row_report.places(entry.lines, entry.count)}"
        for reason, entry in row_report.skipped.items()
    ]
    if taken_off:
        out.append(f"  {taken_off} are removed while reading")
    if against is not None:
        out += [f"  against {against.file}", f"  {plural(against.used, 'row')} of the other file used"]
    return out


@dataclass(frozen=True)
class Side:
    """The statistics of one column: its usual script, the share of texts in this script, and lengths in characters.

    Without a usual script, `script` is "" and `share` is 0.
    """

    script: str
    share: float
    mean_length: float
    longest: int
    longest_line: int


@dataclass(frozen=True)
class LikeLabels:
    """A column that looks like labels: its side, its number of different texts, and the option to read it as labels."""

    side: str
    n_different: int
    columns: str

    def line(self) -> str:
        return f"  {self.side}: only {self.n_different} different values; for labels use `columns` {self.columns}"


@dataclass(frozen=True)
class Report:
    """The result of `examine` for one set of sentence pairs.

    Attributes:
        ratios: The 1st, 50th and 99th percentile of target length / source length, in characters.
        verdicts: For each line number, 0 for a row that is kept, otherwise 1 + the index of its check in CHECKS.
        against_reversed: Whether source and target of a compared file are swapped.
        taken_off: A description of what the reader removes from lines, for example byte order marks.
        sample: The pairs of texts that are used to identify the languages.
    """

    row_report: RowReport
    against: RowReport | None
    findings: tuple[Finding, ...]
    source: Side
    target: Side
    ratios: tuple[float, float, float]
    drop: frozenset[str] = frozenset()
    verdicts: bytes = b""
    like_labels: LikeLabels | None = None
    against_reversed: bool = False
    taken_off: str = ""
    sample: tuple[tuple[str, str], ...] = ()

    @cached_property
    def seen(self) -> tuple[Seen, Seen]:
        """The detected scripts and languages of source and target."""
        languages = [language_of(texts) for texts in zip(*self.sample, strict=True)]
        return Seen(self.source.script, languages[0]), Seen(self.target.script, languages[1])

    @property
    def found(self) -> bool:
        """Whether a row was skipped, a check has a finding, or source and target of the compared file are swapped."""
        return self.against_reversed or anything_found(self.row_report, self.findings)

    def summary(self) -> str:
        """Return the report in one line, as `attendo train` prints it."""
        named = [f"leaks not checked, {OTHER_WAY_ROUND}"] if self.against_reversed else []
        named += [f"{f.count:,} {f.check.name}{self._dropped(f)}" for f in self.findings if f.count]
        return f"{self.row_report.line()}; {', '.join(named) if named else 'no other findings'}"

    def lines(self) -> list[str]:
        """Return the report for the terminal. The lines have at most 80 columns, except for long file names."""
        low, middle, high = self.ratios
        row_report = self.row_report
        out = report_head(row_report, self.against, self.taken_off)
        if self.like_labels is not None:
            out.append(self.like_labels.line())
        for name, side in (("source", self.source), ("target", self.target)):
            script = f"{side.script} {side.share:.1%}" if side.script else "no dominant script"
            out.append(
                f"  {name}: {script}, {side.mean_length:.0f} characters on average, "
                f"longest {side.longest:,} ({row_report.places([side.longest_line], 1)})"
            )
        sides = zip(("source", "target"), self.seen, strict=True)
        if languages := [f"{name} {name_of(seen.language)}" for name, seen in sides if seen.language]:
            out.append(f"  languages: {', '.join(languages)}")
        out.append(f"  target / source length: median {middle:.2f}, 1% below {low:.2f}, 1% above {high:.2f}")
        for finding in self.findings:
            fix = self._dropped(finding) or ("" if finding.check.instead else f"  ({finding.check.fix})")
            out += finding.told(row_report, fix)
        if sum(finding.count > 0 and not finding.check.instead for finding in self.findings) > 1:
            out.append("  several names after `drop` are separated by commas")
        return out

    def as_json(self) -> dict[str, Any]:
        return {
            "account": self.row_report.as_json(),
            "against": None if self.against is None else self.against.as_json(),
            "taken_off": self.taken_off,
            "source": self._side_json(self.source, self.seen[0]),
            "target": self._side_json(self.target, self.seen[1]),
            "like_labels": None if self.like_labels is None else vars(self.like_labels),
            "length_ratio": dict(zip(("p1", "median", "p99"), self.ratios, strict=True)),
            "findings": {finding.check.name: finding.as_json(self.row_report) for finding in self.findings},
        }

    def _side_json(self, side: Side, seen: Seen) -> dict[str, Any]:
        return vars(side) | {
            "language": seen.language,
            "longest_line": self.row_report.places_json([side.longest_line])[0],
        }

    def _dropped(self, finding: Finding) -> str:
        return " (dropped)" if finding.check.name in self.drop else ""
