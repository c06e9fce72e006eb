"""The common parts of all corpora: how a run reads its texts, and how validation rows are split off."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from attendo.data.held_out import KNOWN, HeldOut, TrainedRows, split_of_new, validation_rows
from attendo.data.row_report import RowReport
from attendo.data.store import store_key
from attendo.data.tokenizers import Tokenizer
from attendo.display.formats import Say

DataT = TypeVar("DataT")
RowT = TypeVar("RowT")


@dataclass
class Corpus(ABC, Generic[DataT]):
    """The files of a run, read in streams as often as needed; `trained` rows of the run's start do not validate."""

    data: DataT
    say: Say
    trained: TrainedRows = field(default_factory=TrainedRows)

    @property
    @abstractmethod
    def size(self) -> tuple[int, str]:
        """The amount of data in rows of about 20 words, and its text in messages ("50,000 pairs")."""

    @abstractmethod
    def texts(self) -> Iterator[str]:
        """The training texts that a tokenizer is learned from: all, or the first of very many."""

    def identifying_texts(self) -> Iterator[str]:
        """The text by which each training row is recognized in another run; none where nothing is compared."""
        return iter(())

    def facts(self) -> dict[str, Any]:
        """The facts for the card that users of the model need: languages, labels."""
        return {}

    def model_facts(self) -> dict[str, Any]:
        """Keys of [model] that the data decide."""
        return {}


class RowCorpus(Corpus[Any], Generic[RowT]):
    """A corpus of rows with validation rows split off by a hash of one text, `text_of`."""

    noun: ClassVar[str]
    hashed: ClassVar[str]

    @staticmethod
    @abstractmethod
    def text_of(row: RowT) -> str:
        """The text by which a row is recognized."""

    @abstractmethod
    def _usable(self, row_report: RowReport | None = None) -> Iterator[RowT]:
        """The rows of the training files, those included that are held out."""

    @abstractmethod
    def _given(self) -> Iterator[RowT]:
        """The given validation rows, if any."""

    @abstractmethod
    def _split(self, trained: Callable[[int], bool]) -> HeldOut:
        """The rows to hold out, given the hashes of rows that were trained on."""

    @property
    def embedded(self) -> bool:
        """Whether the rows are built in."""
        return False

    @cached_property
    def held(self) -> HeldOut | None:
        """The rows that are split off, with a printed line; None if validation rows are given."""
        if self.embedded or self.data.valid:
            return None
        held = split_of_new(self._split, self.trained, self.say)
        self.say(
            f"{held.n_held_out:,} of {held.n_rows:,} {self.noun}s are held out for validation (by a hash of "
            f"the {self.hashed})"
        )
        return held

    def rows(self, row_report: RowReport | None = None) -> Iterator[RowT]:
        """The training rows; `row_report` is kept up to date."""
        held = self.held
        for row in self._usable(row_report):
            if held is None or self.text_of(row) not in held:
                yield row

    def identifying_texts(self) -> Iterator[str]:
        return map(self.text_of, () if self.embedded else self.rows())

    def _validation(
        self, most: int, left_out: dict[str, Callable[[RowT], bool]]
    ) -> tuple[list[RowT], list[RowT]]:
        """The rows of each evaluation, at most `most` (0: all), and those of the last choice: see `validation_rows`."""
        if self.data.valid and len(self.trained):
            left_out = left_out | {KNOWN: lambda row: self.text_of(row) in self.trained}
        return validation_rows(self._all_validation, most, self.noun, self.say, left_out)

    def _all_validation(self) -> Iterator[RowT]:
        held = self.held
        if held is None:
            return self._given()
        return (row for row in self._usable() if self.text_of(row) in held)

    def _store_key(self, files: Sequence[Path], options: dict[str, Any], tokenizer: Tokenizer) -> str:
        """The key of the training rows' store; `options` are all further settings that select rows."""
        options = {"columns": self.data.columns, "header": self.data.header, **options}
        if not self.embedded:
            options["split"] = not self.data.valid
        if self.held is not None and len(self.trained):
            options["trained"] = self.trained.sha256
        return store_key(files, options, tokenizer)
