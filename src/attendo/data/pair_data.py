"""The [data] of a translation run: which pairs train and which validate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attendo.data.corpora import AGAINST, PairSource, beside, parse_columns
from attendo.data.doctor import parse_drop
from attendo.data.language_names import require_code
from attendo.data.language_scripts import Seen, misfit
from attendo.data.lines import require_file
from attendo.errors import AttendoError

FORECASTS = "forecasts"
"""The name of the embedded corpus, where a file is expected."""


@dataclass(frozen=True, kw_only=True)
class PairData:
    """Which rows train and which validate. Paths are kept absolute, so that a run resumes from anywhere.

    train, valid: one file with columns, or two parallel ones, or as many of either as a folder or pattern names;
    without `valid` some rows are split off. columns: as on the command line. source_language, target_language: codes
    for the card. drop: checks of the doctor whose rows are left out. against: test rows, to look for leaks as in those
    of `valid`. max_tokens: rows with more on a side are left out, and so are those with more than the model has
    positions for; 0: none.
    """

    train: tuple[str, ...]
    valid: tuple[str, ...] = ()
    columns: str | None = None
    header: bool = False
    reverse: bool = False
    strict: bool = False
    drop: str = ""
    against: tuple[str, ...] = ()
    max_tokens: int = 0  # as before runs wrote it down; a new one has its family's
    source_language: str | None = None
    target_language: str | None = None

    def __post_init__(self):
        if not self.train:
            raise ValueError("train names no file; give `train` F, or `train_source` F `train_target` F")

    def training_source(self) -> PairSource:
        """Where the training pairs are read from."""
        return self._source(self.train, "`train_source` F `train_target` F")

    def validation_source(self) -> PairSource | None:
        """Where the validation pairs are read from, if files were given."""
        return self._source(self.valid, "`valid_source` F `valid_target` F") if self.valid else None

    def test_source(self) -> PairSource | None:
        """Where the test rows are read from that the training rows are compared with, if files were given."""
        return self._source(self.against, AGAINST) if self.against else None

    def compared(self) -> list[PairSource]:
        """Where the rows come from whose sources are leaks among the training rows: test and validation rows."""
        return [source for source in (self.test_source(), self.validation_source()) if source is not None]

    def source(
        self, files: Sequence[Path], columns: str | None = None, header: bool | None = None
    ) -> PairSource:
        """Where other pairs are read from in the run's direction; columns and header as in training unless given.

        Columns that are given are those of source and target in that direction: `reverse` does not turn them.
        """
        data = replace(
            self,
            columns=self.columns if columns is None else columns,
            header=self.header if header is None else header,
            reverse=self.reverse and columns is None,
        )
        if len(files) == 2 and (columns or header):
            raise AttendoError("two parallel files have no columns; leave out `columns` and `header`")
        return data._source(tuple(map(str, files)), "SOURCE TARGET")

    @property
    def languages(self) -> tuple[str, str]:
        """The codes of source and target, "" where they are not told."""
        return self.source_language or "", self.target_language or ""

    def require_languages(self) -> None:
        """Raises AttendoError where the code of a language is none."""
        require_code("`source_language`", self.source_language)
        require_code("`target_language`", self.target_language)

    def direction_warning(self, seen: tuple[Seen, Seen]) -> tuple[str, bool]:
        """A line where the training rows are not in their languages, "" where nothing speaks against.

        And whether each side is in the other's language. seen: what the source and the target are in.
        """
        if (found := misfit(self.languages, seen)) is None:
            return "", False
        option = "`source_language`" if found.side == "source" else "`target_language`"
        if not found.swapped:
            remedy = f"look at the data, or mend {option}"
        elif self.reverse:
            remedy = "leave out `reverse`, or swap `source_language` and `target_language`"
        else:
            remedy = f"{'swap the files, or ' if len(self.train) == 2 else ''}give `reverse`"
        return f"{option} {found.language}, but the {found.side} is {found.what}: {remedy}", found.is_sure

    def drops(self) -> frozenset[str]:
        """The checks of the doctor whose rows are left out."""
        return parse_drop(self.drop)

    @property
    def embedded(self) -> bool:
        """Whether the pairs come from the built-in grammar of weather forecasts."""
        return self.train == (FORECASTS,)

    def check(self) -> None:
        """Raises AttendoError for a missing file or an option that cannot be read, before anything slow begins."""
        if self.embedded:
            if self.valid or self.drop or self.against:
                raise AttendoError(
                    f"`train` {FORECASTS} brings its own validation rows; leave out `valid`, `against` and `drop`"
                )
            return
        compared = self.compared()
        for file in (file for source in [self.training_source(), *compared] for file in source.paths()):
            require_file(file)
        if "leaks" in self.drops() and not compared:
            ways = f"{AGAINST}, or `valid_source` and `valid_target`"
            raise AttendoError(
                "`drop` leaks: there is no other file to compare with; give one with "
                + (ways if len(self.train) == 2 else "`against` or `valid`")
            )

    def _source(self, files: tuple[str, ...], both: str) -> PairSource:
        columns = None
        if self.columns is not None and len(files) == 1:
            first, second = parse_columns(self.columns)
            columns = (first, second)
        return beside([Path(f) for f in files], columns, self.header, self.reverse, both)
