"""Checks an attention function that somebody else wrote, and says what fails on which input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor

from attendo.microscope.flow import flowed
from attendo.microscope.labels import columns
from attendo.theory.checking import mask_properties, properties
from attendo.theory.checking.student import Case, RefusedError, Student, meet
from attendo.theory.checking.suspects import MASK_MISTAKES, Diagnosis, diagnose
from attendo.theory.checking.trials import Failure, Property, draw, drawn_masks, numbers
from attendo.words import Language, Words

Status = Literal["holds", "fails", "not offered", "not tried"]

WIDTH = 79
SMALL = 12
"""Up to so many numbers of an array are shown."""

PROPERTIES = (
    Property(
        "shapes",
        Words("output [..., q_len, value_dim]", "出力の形 [..., q_len, value_dim]"),
        properties.shapes,
    ),
    Property("rows", Words("weights are ≥ 0 and sum to 1", "重みは 0 以上で和が 1"), properties.rows),
    Property(
        "scale", Words("scores are multiplied by 1/√head_dim", "スコアは 1/√head_dim 倍"), properties.scale
    ),
    Property(
        "agreement",
        Words("as attendo's attention, to 1e-10", "attendo の注意機構と 1e-10 まで一致"),
        properties.agreement,
    ),
    Property(
        "mask",
        Words("forbidden keys have no part, exactly", "禁止されたキーはまったく寄与しない"),
        mask_properties.mask,
        mask_properties.no_mask,
    ),
    Property(
        "empty row",
        Words("a query without keys gets zeros, no NaN", "キーのないクエリは NaN でなく 0"),
        mask_properties.empty_row,
        mask_properties.no_mask,
    ),
    Property(
        "permutation",
        Words("the order of keys does not matter", "キーの順序によらない"),
        properties.permutation,
    ),
    Property(
        "stability",
        Words("scores of 1e4 and -1e4 give numbers", "スコアが 1e4 や -1e4 でも NaN にならない"),
        properties.stability,
    ),
    Property(
        "gradient",
        Words("as finite differences give it", "勾配が差分と一致"),
        mask_properties.gradient,
        mask_properties.no_gradient,
    ),
    Property("inputs", Words("inputs stay as they were", "入力を書き換えない"), properties.inputs),
)
MASKED = ("mask", "empty row")
NO_BATCH = Words(
    "it works with a batch only; @ and axes counted from the end work with and without one",
    "バッチがあるときだけ動く。@ と末尾から数えた軸を使えば、バッチの有無によらない",
)
BATCH = Words(
    "it does not work with (more) batch axes: .T turns every axis, and axis 0 or 1 counts from the front; take"
    " key.mT (NumPy: np.swapaxes(key, -1, -2)) and axis -1",
    "バッチの軸(が増える)と動かない。.T はすべての軸を入れ替え、軸 0 や 1 は先頭から数える。"
    "key.mT(NumPy では np.swapaxes(key, -1, -2))と軸 -1 を使うこと",
)
LENGTHS = Words(
    "there may be more or fewer keys than queries: QKᵀ is [q_len, k_len], and V has k_len rows",
    "キーとクエリの個数は異なってよい。QKᵀ は [q_len, k_len]、V は k_len 行である",
)
VALUE_WIDTH = Words("values may have a width of their own", "値の幅はクエリ・キーの幅と異なってよい")


@dataclass(frozen=True)
class Outcome:
    """What came of one property: tried inputs, and the smallest one found on which it fails.

    note: why it is not offered, or was not tried.
    """

    property: Property
    status: Status
    tried: int = 0
    failure: Failure | None = None
    note: Words | None = None


@dataclass(frozen=True, repr=False)
class Report:
    """What `check` found; printed, it reads as a table.

    ok: no property fails; one that the function does not offer (a mask, say) does not count.
    """

    function: str
    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """Whether no property fails."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """The ids of the properties that fail."""
        return tuple(outcome.property.id for outcome in self.outcomes if outcome.status == "fails")

    def lines(self, language: Language = "en") -> list[str]:
        """The report for a reader, at most 79 columns wide (a line of an input's numbers is wrapped)."""
        offered = [outcome for outcome in self.outcomes if outcome.status in ("holds", "fails")]
        n_held = sum(outcome.status == "holds" for outcome in offered)
        head = Words(
            f"{self.function}: {n_held} of {len(offered)} properties hold",
            f"{self.function}: {len(offered)} 個の性質のうち {n_held} 個が成り立つ",
        )
        return [
            head.in_language(language),
            *chain(*(_outcome_lines(found, language) for found in self.outcomes)),
        ]

    def as_json(self, language: Language = "en") -> dict[str, Any]:
        """The report as JSON's own types."""
        return {
            "function": self.function,
            "ok": self.ok,
            "failed": list(self.failed),
            "properties": [_outcome_json(outcome, language) for outcome in self.outcomes],
        }

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def check(function: Callable[..., Any]) -> Report:
    """Tries the properties of attention on a function `f(query, key, value[, mask][, scale])` (F07).

    The function takes arrays `[..., q_len, head_dim]`, `[..., k_len, head_dim]`, `[..., k_len, value_dim]`, of torch or
    of NumPy, in float64, and returns the output `[..., q_len, value_dim]`, or (output, weights). Its mask is the first
    further parameter with `mask` in its name: `[..., q_len, k_len]` of bool, True = may attend (of 0 and 1 if it raises
    for bool). Its scale is the first with `scale` in it: what multiplies the scores. A property of what it has not (a
    mask; in NumPy a gradient) is reported as not offered and does not fail. Inputs are tried from small to large,
    always the same ones, and the first that fails is reported with the usual mistake that explains it.
    Raises AttendoError for what is no function of three arrays.

    >>> import torch
    >>> def mine(query, key, value):
    ...     return torch.softmax(query @ key.mT, -1) @ value
    >>> report = check(mine)
    >>> report.ok, report.failed
    (False, ('scale', 'agreement'))
    >>> print(report.outcomes[3].failure.hint.en)
    forgot the scale: multiply the scores by 1/√head_dim
    """
    student = meet(function)
    if student.broken is not None:
        return Report(student.name, _broken(student))
    outcomes = [_outcome(student, found) for found in PROPERTIES]
    if any(outcome.status == "fails" for outcome in outcomes):
        usual, masked = _diagnoses(student)
        outcomes = [_with_hint(outcome, student, usual, masked) for outcome in outcomes]
    return Report(student.name, tuple(outcomes))


def _broken(student: Student) -> tuple[Outcome, ...]:
    """The outcomes for a function that works on no input at all."""
    assert student.broken is not None
    case = draw((2, 2, 2, 2))
    hint = None
    if "returned None" in student.broken:
        hint = Words("the function has no `return`", "return がない")
    failure = Failure(case, Words("an array", "配列"), Words(student.broken, student.broken), hint)
    note = Words("the function works on no input", "どの入力でも動かない")
    rest = (Outcome(found, "not tried", note=note) for found in PROPERTIES[1:])
    return (Outcome(PROPERTIES[0], "fails", 1, failure), *rest)


def _outcome(student: Student, property: Property) -> Outcome:
    missing = property.missing(student)
    if missing is not None:
        return Outcome(property, "not offered", note=missing)
    tried = 0
    try:
        for failure in property.trials(student):
            tried += 1
            if failure is not None:
                return Outcome(property, "fails", tried, failure)
    except RefusedError as refused:
        said = Words(str(refused), str(refused))
        failure = Failure(refused.case, Words("an array", "配列"), said, is_refusal=True)
        return Outcome(property, "fails", tried + 1, failure)
    return Outcome(property, "holds", tried)


def _diagnoses(student: Student) -> tuple[Diagnosis, Diagnosis]:
    """What explains the function's output, and its output with a mask."""
    sizes = ((2, 2, 2, 2), (3, 3, 4, 2), (2, 3, 4, 5))
    cases = [draw(size, student.lead, seed=7) for size in sizes] + [draw((3, 3, 4, 4), (2,), seed=7)]
    usual = diagnose(student, cases)
    if student.mask_name is None:
        return usual, Diagnosis()
    return usual, diagnose(student, list(drawn_masks(student))[2:], MASK_MISTAKES)


def _with_hint(outcome: Outcome, student: Student, usual: Diagnosis, masked: Diagnosis) -> Outcome:
    """The outcome with what explains its failure best."""
    failure = outcome.failure
    if failure is None:
        return outcome
    hint = failure.hint
    if usual.random is not None:
        hint = usual.random
    elif outcome.property.id in MASKED and masked.mistake is not None:
        hint = masked.hint
    elif failure.is_refusal or outcome.property.id == "shapes":
        is_known = usual.mistake is not None and usual.mistake.misshapes
        hint = hint or (usual.hint if is_known else _size_hint(student, failure.case))
    return replace(outcome, failure=replace(failure, hint=hint or usual.hint))


def _works(student: Student, size: tuple[int, ...], lead: tuple[int, ...]) -> bool:
    q_len, k_len, head_dim, value_dim = size
    try:
        output = student(draw((q_len, k_len, head_dim, value_dim), lead)).output
    except RefusedError:
        return False
    return output.shape == (*lead, q_len, value_dim)


def _size_hint(student: Student, case: Case) -> Words | None:
    """What an input of such a shape needs, where it is the shape that the function cannot do."""
    lead, (q_len, head_dim) = tuple(case.query.shape[:-2]), case.query.shape[-2:]
    k_len, value_dim = case.value.shape[-2:]
    if _works(student, (q_len, k_len, head_dim, value_dim), lead):
        return None
    if lead != student.lead and _works(student, (q_len, k_len, head_dim, value_dim), student.lead):
        return BATCH if len(lead) > len(student.lead) else NO_BATCH
    if q_len != k_len and _works(student, (q_len, q_len, head_dim, value_dim), lead):
        return LENGTHS
    if head_dim != value_dim and _works(student, (q_len, k_len, head_dim, head_dim), lead):
        return VALUE_WIDTH
    return None


def _outcome_lines(outcome: Outcome, language: Language) -> list[str]:
    mark = {"holds": "✓", "fails": "✗"}.get(outcome.status, "–")
    title = outcome.property.title.in_language(language)
    if outcome.note is not None:
        status = (
            Words("not offered", "対象外")
            if outcome.status == "not offered"
            else Words("not tried", "未検査")
        )
        title = f"{status.in_language(language)}: {outcome.note.in_language(language)}"
    lines = _indented(f"{mark} {outcome.property.id:<12}", title)
    if outcome.failure is None:
        return lines
    case, failure = outcome.failure.case, outcome.failure
    names = Words("on", "入力"), Words("expected", "期待値"), Words("got", "結果"), Words("hint", "ヒント")
    given = [f"{name} {_shown(array)}" for name, array in case.arrays.items()]
    given += [] if case.scale is None else [f"scale {case.scale:g}"]
    texts = [*given, failure.expected.in_language(language), failure.got.in_language(language)]
    labels = [names[0], *[Words("", "")] * (len(given) - 1), names[1], names[2]]
    if failure.hint is not None:
        texts, labels = [*texts, failure.hint.in_language(language)], [*labels, names[3]]
    for label, text in zip(labels, texts, strict=True):
        word = label.in_language(language)
        lines += _indented(f"    {word}{' ' * (10 - columns(word))}", text)
    return lines


def _indented(first: str, text: str) -> list[str]:
    """A text behind a label, wrapped beside it."""
    left = columns(first)
    parts = flowed(text, WIDTH - left)
    return [first + parts[0], *(" " * left + part for part in parts[1:])]


def _shown(array: Tensor) -> str:
    if array.numel() > SMALL:
        return str(list(array.shape))
    return f"{list(array.shape)} = {array.tolist() if array.dtype == torch.bool else numbers(array).en}"


def _outcome_json(outcome: Outcome, language: Language) -> dict[str, Any]:
    found: dict[str, Any] = {
        "property": outcome.property.id,
        "title": outcome.property.title.in_language(language),
        "status": outcome.status,
        "tried": outcome.tried,
        "note": None if outcome.note is None else outcome.note.in_language(language),
        "failure": None,
    }
    if outcome.failure is not None:
        case, failure = outcome.failure.case, outcome.failure
        found["failure"] = {
            "shapes": {name: list(array.shape) for name, array in case.arrays.items()},
            "input": {
                name: array.tolist() if array.numel() <= SMALL else None
                for name, array in case.arrays.items()
            },
            "scale": case.scale,
            "expected": failure.expected.in_language(language),
            "got": failure.got.in_language(language),
            "hint": None if failure.hint is None else failure.hint.in_language(language),
        }
    return found
