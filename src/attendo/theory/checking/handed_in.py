"""The answers of a class: each file checked by itself, one line and one row of a table for each."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attendo.errors import AttendoError
from attendo.theory.checking.checker import PROPERTIES, check_file, refuse_unknown
from attendo.theory.checking.report import Report, named
from attendo.words import Language, Words

COLUMNS = ("student", "file", "verdict", "score", "out of", "failed", "not tried", "hint", "remarks")
"""score: the properties that hold, out of all, tried or not, so that it is of the same number for every file."""
VERDICTS = {
    "passes": Words("passes", "合格"),
    "fails": Words("fails", "不合格"),
    "can't be run": Words("can't be run", "実行できない"),
}


@dataclass(frozen=True)
class Answer:
    """One file's: the report, or why there is none."""

    file: str
    report: Report | None = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the function could be run and no property fails."""
        return self.report is not None and self.report.ok

    @property
    def verdict(self) -> str:
        """One of VERDICTS."""
        if self.report is None:
            return "can't be run"
        return "passes" if self.report.ok else "fails"

    def line(self, language: Language = "en") -> str:
        """The answer in one line.

        >>> Answer("ben.py", error="line 1: syntax error").line()
        "ben.py: can't be run: line 1: syntax error"
        """
        verdict = VERDICTS[self.verdict]
        if self.report is None:
            colon = Words(": ", "：").in_language(language)
            return colon.join([self.file, verdict.in_language(language), self.error or ""])
        held, tried = self.report.counts
        failed, absent = named(self.report.failed), named(self.report.not_offered)
        n_left = [outcome.status for outcome in self.report.outcomes].count("not tried")
        said = [
            Words(
                f"{verdict.en} {failed.en}".rstrip() + f" ({held} of {tried} hold)",
                f"{verdict.ja}：{failed.ja}".rstrip("：") + f"。{tried} 個のうち {held} 個が成り立つ",
            ),
            *([Words(f"{absent.en} not offered", f"{absent.ja}は対象外")] if absent.en else []),
            *([Words(f"{n_left} not tried", f"{n_left} 個は未検査")] if n_left else []),
            *self.report.remarks,
        ]
        texts = Words("; ".join(words.en for words in said), "。".join(words.ja for words in said))
        return Words(f"{self.file}: {texts.en}", f"{self.file}：{texts.ja}").in_language(language)

    def row(self) -> list[str | int]:
        """The answer under COLUMNS, in English."""
        report, whose, n = self.report, [Path(self.file).stem, self.file, self.verdict], len(PROPERTIES)
        if report is None:
            return [*whose, 0, n, "", ", ".join(one.id for one in PROPERTIES), self.error or "", ""]
        lists = [", ".join(report.failed), ", ".join(report.not_tried)]
        hint = "" if report.hint is None else report.hint.en
        return [*whose, report.counts[0], n, *lists, hint, "; ".join(remark.en for remark in report.remarks)]

    def as_json(self, language: Language = "en") -> dict[str, Any]:
        """The answer as JSON's own types."""
        facts = None if self.report is None else self.report.as_json(language)
        return {"file": self.file, "verdict": self.verdict, "error": self.error, "check": facts}


def check_files(places: Sequence[str], require: Sequence[str] = ()) -> Iterator[Answer]:
    """Checks each "FILE.py:FUNCTION", or for "FOLDER:FUNCTION" each Python file of the folder, as `check_file` does.

    What cannot be run is an answer with an error. Raises AttendoError for a folder without Python files.

    >>> [answer.line() for answer in check_files(["none.py:attention"])]
    ["none.py: can't be run: No such file or directory; give a Python file"]
    """
    refuse_unknown(require)
    for place in [one for given in places for one in places_in(given)]:
        file = place.rpartition(":")[0] or place
        try:
            yield Answer(file, check_file(place, require))
        except AttendoError as error:
            yield Answer(file, error=_without_name(str(error), file))


def _without_name(message: str, file: str) -> str:
    """A message without the file that it begins with.

    >>> _without_name("ben.py:3: it must run", "ben.py"), _without_name("ben.py: no file", "ben.py")
    ('line 3: it must run', 'no file')
    """
    line = re.match(rf"{re.escape(file)}:(\d+): ", message)
    return f"line {line[1]}: {message[line.end() :]}" if line else message.removeprefix(f"{file}: ")


def places_in(place: str) -> list[str]:
    """The place itself, or for "FOLDER:FUNCTION" one for each Python file in it, sorted by name.

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
    """Whether "FOLDER:FUNCTION" names a folder that is there.

    >>> is_folder("none:attention")
    False
    """
    folder, _, name = place.rpartition(":")
    return bool(folder and name) and Path(folder).is_dir()


def as_csv(answers: Sequence[Answer]) -> str:
    """A table with COLUMNS and a row for each answer, for a spreadsheet; in English, whatever else speaks.

    >>> first, ben = as_csv([Answer("ben.py", error="it must run")]).splitlines()
    >>> first
    'student,file,verdict,score,out of,failed,not tried,hint,remarks'
    >>> ben.startswith("ben,ben.py,can't be run,0,10,,"), ben.endswith(",it must run,")
    (True, True)
    """
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerows([COLUMNS, *(answer.row() for answer in answers)])
    return written.getvalue()
