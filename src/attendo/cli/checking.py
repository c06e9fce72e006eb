"""What `attendo claims --check` does with functions of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendo.cli.reporting import wrote
from attendo.words import Language

if TYPE_CHECKING:
    from attendo.theory.checking.handed_in import Answer
    from attendo.theory.checking.report import Report


@dataclass(frozen=True)
class Checked:
    """The report on one function, or the answers of several files."""

    report: Report | None = None
    answers: tuple[Answer, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing fails."""
        return (self.report is None or self.report.ok) and all(answer.ok for answer in self.answers)

    def as_json(self, language: Language) -> dict[str, Any]:
        """The keys `check` and `checks`."""
        return {
            "check": None if self.report is None else self.report.as_json(language),
            "checks": [answer.as_json(language) for answer in self.answers],
        }


def checked(
    places: Sequence[str], require: Sequence[str], out: Path | None, language: Language, silent: bool
) -> Checked:
    """The functions at these places checked: one reported on in full; of several, each in a line printed at once."""
    from attendo.errors import AttendoError
    from attendo.files import write_atomic
    from attendo.theory.checking.checker import check_file
    from attendo.theory.checking.handed_in import as_csv, check_files, is_folder, places_in

    if (require or out) and not places:
        raise AttendoError("--require and --out go with --check FILE.py:FUNCTION")
    if out is not None and out.suffix != ".csv":
        raise AttendoError(f"--out {out}: the grades are written as .csv")
    if not places:
        return Checked()
    found = [one for place in places for one in places_in(place)]
    if out is None and len(found) == 1 and not is_folder(places[0]):
        return Checked(check_file(places[0], require))
    answers: list[Answer] = []
    for answer in check_files(found, require):
        answers.append(answer)
        if not silent:
            print("\n".join(answer.lines(language)), flush=True)
    if out is not None:
        write_atomic(out, as_csv(answers, language).encode("utf-8-sig"))  # Excel asks for the mark
        if not silent:
            print(wrote(out, language))
    return Checked(answers=tuple(answers))
