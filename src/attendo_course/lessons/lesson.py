"""The definition of a lesson: a question of the sources, and pieces of an answer, yielded as they are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.errors import AttendoError

Cell = str | float | int | Localized


@dataclass(frozen=True)
class Options:
    """The options of a lesson. Raises AttendoError for a value out of range.

    seeds: models trained of each kind (default: the lesson's own). effort: the share of the lesson's steps. files: the
    user's own data, for lessons that use some.
    """

    seeds: int | None = None
    effort: float = 1.0
    files: tuple[Path, ...] = ()

    def __post_init__(self):
        if self.seeds is not None and self.seeds < 1:
            raise AttendoError(f"--seeds {self.seeds}: train at least one model of each kind")
        if not 0 < self.effort <= 10:
            raise AttendoError(
                f"--effort {self.effort}: give a share of the lesson's steps above 0, 10 at most"
            )

    def steps(self, n: int) -> int:
        """The lesson's number of steps times the effort, at least 1.

        >>> Options(effort=0.1).steps(500)
        50
        """
        return max(1, round(n * self.effort))


@dataclass(frozen=True)
class Table:
    """Rows under columns; numbers are right-aligned. `name` is the table's key where a machine reads it."""

    name: str
    title: Localized
    columns: tuple[Localized, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self):
        assert all(len(row) == len(self.columns) for row in self.rows), "a row has a cell for each column"


@dataclass(frozen=True)
class Conclusion:
    """The conclusion from a lesson's figures, which requires fully trained models."""

    words: Localized


Piece = Localized | Conclusion | Table | Picture
"""What a lesson shows: a sentence, a table, or a picture (curves or a matrix)."""


@dataclass(frozen=True)
class Lesson:
    """A learning task of the sources. `teach` gives its pieces in order, each as soon as it is known.

    source: where the task is from. question: what it asks. cpu_minutes: about how long it takes, all threads together.
    takes_files: whether it learns from the user's own. seeds: models of each kind in each of its parts, the lesson's
    own numbers; none where it trains one whatever is asked.
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
        """About how many CPU-minutes it takes with these options: the parts' own seeds count alike.

        >>> said = Localized("sort", "並べ替え")
        >>> Lesson("sort", "", said, said, 2.5, lambda options: iter(()), seeds=(2,)).minutes(Options(seeds=1))
        1.25
        """
        more = 1.0
        if options.seeds is not None and self.seeds:
            more = options.seeds * len(self.seeds) / sum(self.seeds)
        return self.cpu_minutes * options.effort * more
