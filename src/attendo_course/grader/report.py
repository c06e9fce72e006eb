"""The results of a test, as text for readers and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor

from attendo.display.i18n import Language, Localized, labelled
from attendo.display.width import beside, filled, flowed
from attendo_course.book import translated
from attendo_course.grader.trials import Failure, Property, numbers

Status = Literal["holds", "fails", "not offered", "not tried"]

NEVER_THERE = ("gradient",)
"""Properties that are not counted if the function does not offer them, as a NumPy function cannot offer a gradient."""

WIDTH = 79
SMALL = 12
"""The maximum number of entries of an array that is shown completely."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one property: the number of tested inputs, and the smallest input that fails.

    `note` is the reason why the property is not offered or was not tested.
    """

    property: Property
    status: Status
    tried: int = 0
    failure: Failure | None = None
    note: Localized | None = None


@dataclass(frozen=True, repr=False)
class Report:
    """The result of `check`, which `print` shows as a table.

    Attributes:
        ok: Whether no property fails. A property that the function does not offer (for example a mask) fails only if
            it is required.
        remarks: Further remarks about the function.
    """

    function: str
    outcomes: tuple[Outcome, ...]
    remarks: tuple[Localized, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no property fails."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """The ids of the properties that fail."""
        return tuple(outcome.property.id for outcome in self.outcomes if outcome.status == "fails")

    @property
    def not_offered(self) -> tuple[str, ...]:
        """The ids of the properties that the function does not offer, with one id per reason."""
        absent = [outcome for outcome in self.outcomes if outcome.status == "not offered"]
        return tuple({outcome.note: outcome.property.id for outcome in reversed(absent)}.values())[::-1]

    @property
    def not_tried(self) -> tuple[str, ...]:
        """The ids of the properties that neither hold nor fail, because they are not offered or were not tested."""
        left = ("not offered", "not tried")
        return tuple(outcome.property.id for outcome in self.outcomes if outcome.status in left)

    @property
    def hint(self) -> Localized | None:
        """The first hint, or the outcome of the first failed property if there is no hint."""
        failures = [outcome.failure for outcome in self.outcomes if outcome.failure is not None]
        said = [failure.hint for failure in failures if failure.hint is not None]
        said += [failure.got for failure in failures]
        said += [o.note for o in self.outcomes if o.status == "fails" and o.note is not None]
        return said[0] if said else None

    @property
    def counts(self) -> tuple[int, int]:
        """The number of properties that hold, and the number of all properties (for NumPy: without the gradient)."""
        statuses = [outcome.status for outcome in self.outcomes]
        absent = [o.status == "not offered" and o.property.id in NEVER_THERE for o in self.outcomes]
        return statuses.count("holds"), len(statuses) - sum(absent)

    def lines(self, language: Language = "en") -> list[str]:
        """Return the report as text lines of at most 79 columns."""
        n_held, n = self.counts
        absent = named(self.not_offered)
        head = Localized(
            f"{self.function}: {n_held} of {n} properties hold" + (absent.en and f", {absent.en} not offered"),
            f"{self.function}：{n} 個の性質のうち {n_held} 個が成り立つ" + (absent.ja and f"。対象外：{absent.ja}"),
        )
        return [
            *flowed(head.text(language), WIDTH),
            *chain(*(_outcome_lines(found, language) for found in self.outcomes)),
            *chain(*(beside("! ", remark.text(language), WIDTH) for remark in self.remarks)),
        ]

    def as_json(self, language: Language = "en") -> dict[str, Any]:
        """Return the report as a dictionary of JSON types."""
        return {
            "function": self.function,
            "ok": self.ok,
            "failed": list(self.failed),
            "remarks": [remark.text(language) for remark in self.remarks],
            "properties": [_outcome_json(outcome, language) for outcome in self.outcomes],
        }

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def named(ids: Sequence[str]) -> Localized:
    """Return property names as a list in a sentence. The Japanese list also contains the ids.

    >>> named(["scale", "mask"]).ja
    'scale（スケール）、mask（マスク）'
    """
    return Localized(", ".join(ids), "、".join(f"{id}（{translated(id).ja}）" for id in ids))


def _outcome_lines(outcome: Outcome, language: Language) -> list[str]:
    mark = {"holds": "✓", "fails": "✗"}.get(outcome.status, "–")
    title = outcome.property.title.text(language)
    if outcome.note is not None:
        said = {
            "fails": translated("required, not offered"),
            "not offered": translated("not offered"),
            "not tried": translated("not tried"),
        }
        status = said[outcome.status]
        title = labelled(status, outcome.note.text(language), language)
    lines = beside(f"{mark} {outcome.property.id:<12}", title, WIDTH)
    if outcome.failure is None:
        return lines
    case, failure = outcome.failure.case, outcome.failure
    names = (translated("on"), translated("expected"), translated("got"), translated("hint"))
    given = [f"{name} {_shown(array)}" for name, array in case.arrays.items()]
    given += [] if case.scale is None else [f"scale {case.scale:g}"]
    texts = [*given, failure.expected.text(language), failure.got.text(language)]
    labels = [names[0], *[translated("")] * (len(given) - 1), names[1], names[2]]
    if failure.hint is not None:
        texts, labels = [*texts, failure.hint.text(language)], [*labels, names[3]]
    for label, text in zip(labels, texts, strict=True):
        lines += beside(f"    {filled(label.text(language), 10)}", text, WIDTH)
    return lines


def _shown(array: Tensor) -> str:
    if array.numel() > SMALL:
        return str(list(array.shape))
    return f"{list(array.shape)} = {array.tolist() if array.dtype == torch.bool else numbers(array).en}"


def _outcome_json(outcome: Outcome, language: Language) -> dict[str, Any]:
    found: dict[str, Any] = {
        "property": outcome.property.id,
        "title": outcome.property.title.text(language),
        "status": outcome.status,
        "tried": outcome.tried,
        "note": None if outcome.note is None else outcome.note.text(language),
        "failure": None,
    }
    if outcome.failure is not None:
        case, failure = outcome.failure.case, outcome.failure
        found["failure"] = {
            "shapes": {name: list(array.shape) for name, array in case.arrays.items()},
            "input": {name: array.tolist() if array.numel() <= SMALL else None for name, array in case.arrays.items()},
            "scale": case.scale,
            "expected": failure.expected.text(language),
            "got": failure.got.text(language),
            "hint": None if failure.hint is None else failure.hint.text(language),
        }
    return found
