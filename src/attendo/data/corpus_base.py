"""The base classes of all corpora: how a run reads its texts, and how validation rows are held out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from attendo.data.held_out import HeldOut, TrainedRows
from attendo.data.row_report import RowReport
from attendo.data.store import store_key
from attendo.data.tokenizers import Tokenizer
from attendo.display.formats import Say, plural

FINAL = 10
"""The final choice of a checkpoint uses at least this many times the rows of each evaluation, or all rows."""
KNOWN = "are training rows of the run that this run starts from"
"""The reason in messages for validation rows that are not used."""
DataT = TypeVar("DataT")
RowT = TypeVar("RowT")


@dataclass
class Corpus(ABC, Generic[DataT]):
    """The data files of a run, which are read as streams whenever they are needed.

    `trained` are the training rows of the run from which this run starts. They are not used for validation.
    """

    data: DataT
    say: Say
    trained: TrainedRows = field(default_factory=TrainedRows)

    @property
    @abstractmethod
    def size(self) -> tuple[int, str]:
        """The number of pairs, texts, or units of 100 characters, and a text for messages, such as "50,000 pairs"."""

    @abstractmethod
    def texts(self) -> Iterator[str]:
        """Yield the texts on which a tokenizer is trained: all training texts, or the first texts of a large corpus."""

    def identifying_texts(self) -> Iterator[str]:
        """Yield the text by which a later run recognizes each training row. By default, no text is yielded."""
        return iter(())

    def facts(self) -> dict[str, Any]:
        """Return the facts that the model's card stores for users of the model, such as languages or labels."""
        return {}

    def model_facts(self) -> dict[str, Any]:
        """Return the settings in [model] that depend on the data, such as the number of classes."""
        return {}


class RowCorpus(Corpus[Any], Generic[RowT]):
    """A corpus of rows. A hash of each row's text (`text_of`) selects the rows that are held out for validation."""

    noun: ClassVar[str]
    hashed: ClassVar[str]

    @staticmethod
    @abstractmethod
    def text_of(row: RowT) -> str:
        """Return the text that identifies a row, for example the source of a pair."""

    @abstractmethod
    def _usable(self, row_report: RowReport | None = None) -> Iterator[RowT]:
        """Return the rows of the training files, including rows that are held out."""

    @abstractmethod
    def _given(self) -> Iterator[RowT]:
        """Return the rows of the given validation files, if any."""

    @abstractmethod
    def _split(self, trained: Callable[[int], bool]) -> HeldOut:
        """Choose the rows to hold out. `trained` returns whether a hash belongs to a row that was trained on."""

    @property
    def embedded(self) -> bool:
        """Whether the rows are built into attendo."""
        return False

    @cached_property
    def held(self) -> HeldOut | None:
        """The held-out rows, or None if validation files are given. The first access prints the number of rows."""
        if self.embedded or self.data.valid:
            return None
        held = self._split(self.trained.has if len(self.trained) else lambda key: False)
        if not held.n_held_out:
            self.say(f"warning: all rows, or nearly all, {KNOWN}: scores will be inflated")
            held = self._split(lambda key: False)
        self.say(
            f"{held.n_held_out:,} of {held.n_rows:,} {self.noun}s are held out for validation (by a hash of "
            f"the {self.hashed})"
        )
        return held

    def rows(self, row_report: RowReport | None = None) -> Iterator[RowT]:
        """Yield the training rows, and count them in `row_report`."""
        held = self.held
        for row in self._usable(row_report):
            if held is None or self.text_of(row) not in held:
                yield row

    def identifying_texts(self) -> Iterator[str]:
        return map(self.text_of, () if self.embedded else self.rows())

    def _validation(self, most: int, left_out: dict[str, Callable[[RowT], bool]]) -> tuple[list[RowT], list[RowT]]:
        """Return up to `most` rows for each evaluation (0: all) and the rows for the final choice of a checkpoint.

        Rows that meet a condition of `left_out` are not used, unless all rows meet it. The keys are the reasons.
        """
        if self.data.valid and len(self.trained):
            left_out = left_out | {KNOWN: lambda row: self.text_of(row) in self.trained}
        rows, noun = list(self._all_validation()), f"validation {self.noun}"
        for why, is_out in left_out.items():
            kept = [row for row in rows if not is_out(row)]
            if rows and not kept:
                self.say(f"warning: all {plural(len(rows), noun)} {why}: scores will be inflated")
            elif len(kept) < len(rows):
                self.say(f"{len(rows) - len(kept):,} of {len(rows):,} {noun}s {why} and are not used")
                rows = kept
        step = max(1, -(-len(rows) // most)) if most else 1
        last = max(1, step // FINAL)
        each, final = rows[::step], rows[::last]
        if len(each) < len(final):
            at_end = "all" if last == 1 else f"{len(final):,}"
            self.say(f"{len(each):,} of {len(rows):,} {noun}s are used at each evaluation, {at_end} at the end")
        return each, final

    def _all_validation(self) -> Iterator[RowT]:
        held = self.held
        if held is None:
            return self._given()
        return (row for row in self._usable() if self.text_of(row) in held)

    def _store_key(self, files: Sequence[Path], options: dict[str, Any], tokenizer: Tokenizer) -> str:
        """Return the key of the token store of the training rows. `options` are all other settings that select rows."""
        options = {"columns": self.data.columns, "header": self.data.header, **options}
        if not self.embedded:
            options["split"] = not self.data.valid
        if self.held is not None and len(self.trained):
            options["trained"] = self.trained.sha256
        return store_key(files, options, tokenizer)
