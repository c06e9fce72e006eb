"""The definition of a lesson: a question of the sources, and the parts of an answer, in the order of computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from attendo.display.i18n import Language, Localized
from attendo.errors import AttendoError
from attendo_course.pictures import Picture

Cell = str | float | int | Localized


@dataclass(frozen=True)
class Options:
    """The options of a lesson. Raises AttendoError for a value out of range.

    Attributes:
        seeds: The number of trained models of each kind (default: the number that the lesson defines).
        effort: The share of the lesson's training steps to run (default: 1, all steps).
        files: The data files of the user, for lessons that use files.
        language: The language of the output, for lessons whose models learn this language.
    """

    seeds: int | None = None
    effort: float = 1.0
    files: tuple[Path, ...] = ()
    language: Language = "en"

    def __post_init__(self):
        if self.seeds is not None and self.seeds < 1:
            raise AttendoError(f"--seeds {self.seeds}: train at least one model of each kind")
        if not 0 < self.effort <= 10:
            raise AttendoError(f"--effort {self.effort}: give a share of the lesson's steps above 0, 10 at most")

    def steps(self, n: int) -> int:
        """Return a number of training steps times the effort, at least 1.

        >>> Options(effort=0.1).steps(500)
        50
        """
        return max(1, round(n * self.effort))


@dataclass(frozen=True)
class Table:
    """A table with columns and rows. Numbers are right-aligned, and `name` identifies the table in JSON output."""

    name: str
    title: Localized
    columns: tuple[Localized, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self):
        assert all(len(row) == len(self.columns) for row in self.rows), "a row has a cell for each column"


@dataclass(frozen=True)
class Conclusion:
    """The conclusion from the results of a lesson, which requires fully trained models."""

    words: Localized


Piece = Localized | Conclusion | Table | Picture
"""A part of a lesson: a sentence, a conclusion, a table, or a picture (curves or a matrix)."""


@dataclass(frozen=True)
class Lesson:
    """A learning task of the sources. `teach` yields the parts of the lesson as soon as they are computed.

    Attributes:
        source: The paper, book, blog post or lecture that the task is from.
        question: The question that the lesson answers.
        cpu_minutes: The approximate CPU time in minutes, summed over all threads.
        takes_files: Whether the lesson trains on files of the user.
        seeds: The default number of models per kind, for each part of the lesson. The tuple is empty if the lesson
            always trains one model.
    """

    name: str
    source: str
    title: Localized
    question: Localized
    cpu_minutes: float
    teach: Callable[[Options], Iterator[Piece]]
    takes_files: bool = False
    seeds: tuple[int, ...] = ()

    def minutes(self, options: Options) -> float:
        """Return the approximate CPU time in minutes with these options, assuming equal times per model in all parts.

        >>> said = Localized("sort", "並べ替え")
        >>> Lesson("sort", "", said, said, 2.5, lambda options: iter(()), seeds=(2,)).minutes(Options(seeds=1))
        1.25
        """
        more = 1.0
        if options.seeds is not None and self.seeds:
            more = options.seeds * len(self.seeds) / sum(self.seeds)
        return self.cpu_minutes * options.effort * more
