"""Tests of the functions that students hand in: each file is tested separately, with one line and one table row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attendo.display.i18n import Language, Localized
from attendo.display.width import beside
from attendo.errors import AttendoError
from attendo_course.book import translated
from attendo_course.grader.checker import PROPERTIES, refuse_unknown, try_file
from attendo_course.grader.loading import UnfitError
from attendo_course.grader.report import WIDTH, Report

COLUMNS = ("student", "file", "verdict", "score", "out of", "failed", "not tried", "hint", "remarks")
"""The table columns. "score" and "out of" are from `Report.counts`. A file that cannot be run has the score 0."""
VERDICTS = {
    "passes": translated("passes"),
    "fails": translated("fails"),
    "can't be run": translated("can't be run"),
}


@dataclass(frozen=True)
class Answer:
    """The result of one file: the report, or the error if the file cannot be run."""

    file: str
    report: Report | None = None
    error: Localized | None = None

    @property
    def ok(self) -> bool:
        """Whether the function could be run and no property fails."""
        return self.report is not None and self.report.ok

    @property
    def verdict(self) -> str:
        """The key of the result in `VERDICTS`: "passes", "fails" or "can't be run"."""
        if self.report is None:
            return "can't be run"
        return "passes" if self.report.ok else "fails"

    def line(self, language: Language = "en") -> str:
        """Return the result as one line.

        >>> Answer("ben.py", error=Localized("line 1: syntax error", "1 行目：構文エラー")).line()
        "ben.py: can't be run: line 1: syntax error"
        """
        verdict, report = VERDICTS[self.verdict], self.report
        if report is None:
            colon, said = translated(": ").text(language), self.error or translated("")
            return colon.join([self.file, verdict.text(language), said.text(language)])
        (held, n), failed, absent = report.counts, report.failed, report.not_offered
        n_left = [outcome.status for outcome in report.outcomes].count("not tried")
        said = [
            Localized(
                f"{verdict.en} {', '.join(failed)}".rstrip() + f" ({held} of {n} hold)",
                f"{verdict.ja}（{held}/{n}）：{'、'.join(failed)}".rstrip("："),
            ),
            *([Localized(f"{', '.join(absent)} not offered", f"対象外：{'、'.join(absent)}")] if absent else []),
            *([translated("{n_left} not tried", n_left=n_left)] if n_left else []),
        ]
        texts = Localized("; ".join(words.en for words in said), "。".join(words.ja for words in said))
        return translated("{self.file}: {texts.en}", self=self, texts=texts).text(language)

    def lines(self, language: Language = "en") -> list[str]:
        """Return the result as one line, followed by lines for the first hint and the remarks.

        >>> [found.lines() for found in check_files(["none.py:attention"])]
        [["none.py: can't be run: No such file or directory; give a Python file"]]
        """
        if self.report is None:
            return [self.line(language)]
        hint = translated("    hint: ").text(language)
        said = [] if self.report.hint is None else beside(hint, self.report.hint.text(language), WIDTH)
        for remark in self.report.remarks:
            said += beside("    ! ", remark.text(language), WIDTH)
        return [self.line(language), *said]

    def row(self, language: Language = "en") -> list[str | int]:
        """Return the table row of the result in the order of `COLUMNS`. Only hint and remarks are translated."""
        report, whose = self.report, [Path(self.file).stem, self.file, self.verdict]
        if report is None:
            untried = ", ".join(one.id for one in PROPERTIES)
            why = "" if self.error is None else self.error.text(language)
            return [*whose, 0, len(PROPERTIES), "", untried, why, ""]
        lists = [", ".join(report.failed), ", ".join(report.not_tried)]
        hint = "" if report.hint is None else report.hint.text(language)
        remarks = translated("; ").text(language).join(one.text(language) for one in report.remarks)
        return [*whose, *report.counts, *lists, hint, remarks]

    def as_json(self, language: Language = "en") -> dict[str, Any]:
        """Return the result as a dictionary of JSON types."""
        facts = None if self.report is None else self.report.as_json(language)
        error = None if self.error is None else self.error.text(language)
        return {"file": self.file, "verdict": self.verdict, "error": error, "check": facts}


def check_files(places: Sequence[str], require: Sequence[str] = ()) -> Iterator[Answer]:
    """Test each "FILE.py:FUNCTION" as in `check_file`; "FOLDER:FUNCTION" tests each Python file in the folder.

    A file that cannot be run yields a result with an error. Raises AttendoError for a folder without Python files.

    >>> [answer.line() for answer in check_files(["none.py:attention"])]
    ["none.py: can't be run: No such file or directory; give a Python file"]
    """
    refuse_unknown(require)
    for place in [one for given in places for one in places_in(given)]:
        file = place.rpartition(":")[0] or place
        try:
            yield Answer(file, try_file(place, require))
        except UnfitError as unfit:
            yield Answer(file, error=unfit.within)


def places_in(place: str) -> list[str]:
    """Return the given place. For "FOLDER:FUNCTION", return one "FILE.py:FUNCTION" per Python file, sorted by name.

    >>> places_in("mine.py:attention")
    ['mine.py:attention']
    """
    folder, _, name = place.rpartition(":")
    if is_folder(place):
        found = sorted(Path(folder).glob("*.py"))
        if not found:
            raise AttendoError(f"{folder}: no Python file in it; name the folder of the answers")
        return [f"{file}:{name}" for file in found]
    if not folder and Path(place).is_dir():
        raise AttendoError(f"{place}: write {place}:FUNCTION, the function's name behind a colon")
    return [place]


def is_folder(place: str) -> bool:
    """Return whether "FOLDER:FUNCTION" contains the path of an existing folder.

    >>> is_folder("none:attention")
    False
    """
    folder, _, name = place.rpartition(":")
    return bool(folder and name) and Path(folder).is_dir()


def as_csv(answers: Sequence[Answer], language: Language = "en") -> str:
    """Return a CSV table with the header `COLUMNS` and one row per result. Hints and remarks are translated.

    >>> error = Localized("it must run", "実行できること")
    >>> first, ben = as_csv([Answer("ben.py", error=error)]).splitlines()
    >>> first
    'student,file,verdict,score,out of,failed,not tried,hint,remarks'
    >>> ben.startswith("ben,ben.py,can't be run,0,10,,"), ben.endswith(",it must run,")
    (True, True)
    """
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerows([COLUMNS, *(answer.row(language) for answer in answers)])
    return written.getvalue()
