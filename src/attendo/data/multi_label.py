"""Texts with any number of labels, or with a number, which both become decisions between no and yes."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from attendo.data.corpora import raw_rows
from attendo.data.data_files import suffix
from attendo.data.formats import RawRow, Wanted
from attendo.data.labelled import LabelledRow, RowForm
from attendo.data.labelled_corpus import LabelledData, ListCorpus
from attendo.data.row_report import RowError
from attendo.data.tokenizers import Tokenizer
from attendo.errors import AttendoError

MOST_STEPS = 32
"""The maximum number of values between which a number is decided."""


def parse_labels(value: str) -> str | RowError:
    """Return the labels of a field as a sorted JSON list, or the reason why they cannot be used.

    Args:
        value: A JSON list of labels, which can be empty, or labels with | between them.

    >>> parse_labels("refund | billing"), parse_labels("[]")
    ('["billing", "refund"]', '[]')
    """
    labels: Any = value.split("|")
    if value.lstrip().startswith("["):
        try:
            labels = json.loads(value)
        except (ValueError, RecursionError):
            labels = None
    if not isinstance(labels, list) or not all(isinstance(label, str) and label.strip() for label in labels):
        return RowError("invalid labels", repr(value[:40]))
    return label_list(sorted({" ".join(label.split()) for label in labels}))


def label_list(labels: Iterable[str]) -> str:
    """Return the JSON form of labels, which is the label of a row."""
    return json.dumps([*labels], ensure_ascii=False)


def parse_number(value: str) -> str | RowError:
    """Return a finite number unchanged, or the reason why it cannot be used.

    >>> parse_number("3.50"), str(parse_number("3,5"))
    ('3.50', "invalid number ('3,5')")
    """
    try:
        is_finite = math.isfinite(float(value))
    except ValueError:
        is_finite = False
    return value if is_finite else RowError("invalid number", repr(value[:40]))


def _read(parse: Callable[[str], str | RowError], path: Path, wanted: Wanted) -> Iterator[RawRow]:
    """Yield the rows of a table with their first field checked and converted. An empty first field is unchanged.

    In formats with types, a list is read as a kept column, which is returned as JSON.
    """
    label, *texts = wanted.columns or wanted.roles
    typed = suffix(path) in (".jsonl", ".parquet") and not "".join((label, *texts)).isdecimal()
    kept = wanted._replace(roles=wanted.roles[1:], columns=(*texts, label))
    for number, fields in raw_rows(path, kept if typed else wanted):
        if not isinstance(fields, RowError):
            fields = (fields[-1], *fields[:-1]) if typed else fields
            parsed = parse(fields[0]) if fields[0].strip() else ""
            fields = parsed if isinstance(parsed, RowError) else (parsed, *fields[1:])
        yield number, fields


class MultiLabelData(LabelledData):
    """The texts of a run, each with any number of labels."""

    form: ClassVar[RowForm] = RowForm(("labels", "text"), partial(_read, parse_labels))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_weights != "auto" or self.contrastive:
            raise ValueError(
                "class_weights and contrastive require one label per text. Leave out both settings"
            )


class NumberData(MultiLabelData):
    """The texts of a run, each with a number."""

    form: ClassVar[RowForm] = RowForm(("number", "text"), partial(_read, parse_number))


class MultiLabelCorpus(ListCorpus):
    """The training and validation texts of a run, each with any number of labels."""

    decisions = True
    counted = "labels"

    @staticmethod
    def labels_of(row: LabelledRow) -> Sequence[str]:
        return json.loads(row.label)

    def facts(self) -> dict[str, Any]:
        return {"labels": self.counts, "n_rows": self.n_rows}

    def _classes(self, tokenizer: Tokenizer) -> Callable[[LabelledRow], Sequence[int]]:
        names = tuple(self.counts)
        return lambda row: has_labels([row], names)[0].tolist()


def has_labels(rows: Sequence[LabelledRow], names: Sequence[str]) -> Int[ndarray, "rows labels"]:
    """Return whether (1) or not (0) each row has each label."""
    owned = ({*MultiLabelCorpus.labels_of(row)} for row in rows)
    found = [[name in own for name in names] for own in owned]
    return np.array(found, np.int64).reshape(len(rows), len(names))


class NumberCorpus(MultiLabelCorpus):
    """The training and validation texts of a run, each with a number."""

    @staticmethod
    def labels_of(row: LabelledRow) -> tuple[str, ...]:
        return ()

    @cached_property
    def _numbers(self) -> Float[ndarray, " rows"]:
        for _ in self._reported_rows():
            pass
        return numbers_of(self.rows())

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of training rows above each step. The first access prints the row report."""
        found = self._numbers
        n_values = len(np.unique(found))
        if n_values < 2:
            raise AttendoError(f"{self._source.name}: all rows have the same number. Check the columns")
        self.say(
            f"numbers from {found.min():g} to {found.max():g}, mean {found.mean():g},"
            f" standard deviation {found.std():g}"
        )
        return {repr(step): int((found > step).sum()) for step in steps_of(found)}

    def facts(self) -> dict[str, Any]:
        steps = np.array([float(step) for step in self.counts])
        places = np.searchsorted(steps, self._numbers)
        sums = np.bincount(places, self._numbers, len(steps) + 1)
        values = sums / np.bincount(places, minlength=len(steps) + 1)
        return super().facts() | {"values": values.tolist()}

    def _classes(self, tokenizer: Tokenizer) -> Callable[[LabelledRow], Sequence[int]]:
        names = tuple(self.counts)
        return lambda row: is_above([row], names)[0].tolist()


def numbers_of(rows: Iterable[LabelledRow]) -> Float[ndarray, " rows"]:
    """Return the numbers of rows that have been read."""
    return np.array([float(row.label) for row in rows])


def is_above(rows: Sequence[LabelledRow], steps: Sequence[str]) -> Int[ndarray, "rows steps"]:
    """Return whether (1) or not (0) the number of each row is above each step."""
    return (numbers_of(rows)[:, None] > np.array([*map(float, steps)])).astype(np.int64)


def steps_of(numbers: Float[ndarray, " rows"]) -> list[float]:
    """Return the values between which a number is decided: all but the largest, or MOST_STEPS quantiles.

    A row is above a step if its number is larger. Some rows are above each step, and some are not.

    >>> steps_of(np.array([1.0, 1.0, 2.0, 4.0]))
    [1.0, 2.0]
    """
    values = np.unique(numbers)[:-1]
    if len(values) > MOST_STEPS:
        shares = np.arange(1, MOST_STEPS + 1) / (MOST_STEPS + 1)
        values = np.unique(np.quantile(numbers, shares, method="lower"))
    return values[values < numbers.max()].tolist()
