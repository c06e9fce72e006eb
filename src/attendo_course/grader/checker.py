"""The test of a user's attention function: it reports each failed property with an input that shows the failure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch.nn import functional

from attendo.display.i18n import Localized
from attendo.errors import AttendoError
from attendo_course.book import passage, translated
from attendo_course.grader import properties
from attendo_course.grader.jax_functions import not_compiled
from attendo_course.grader.loading import UnfitError, load_function, quiet
from attendo_course.grader.report import Outcome, Report
from attendo_course.grader.student import Case, NoAnswerError, RefusedError, SlowError, Student, meet
from attendo_course.grader.suspects import MASK_MISTAKES, Diagnosis, diagnose
from attendo_course.grader.trials import Failure, Property, draw, drawn_masks

OURS = ("attendo.nn.attention", "attendo_course.algorithms.", "attendo_course.lecture", "attendo_course.jax.")
WHOLE = (torch.nn.MultiheadAttention.forward.__code__, functional.multi_head_attention_forward.__code__)


def borrowed(student: Student) -> tuple[Localized, ...]:
    """Return a remark if a function calls an attention function of attendo, torch or JAX on two small inputs.

    >>> from attendo.nn.attention import attention
    >>> borrowed(Student(lambda query, key, value: attention(query, key, value), "mine"))[0].en
    'it leaves the work to attendo.nn.attention.attention'
    >>> borrowed(Student(lambda query, key, value: (query @ key.mT).softmax(-1) @ value, "mine"))
    ()
    """
    called: list[str] = []

    def note(frame: FrameType, event: str, what: object) -> None:
        if event == "call":
            module = frame.f_globals.get("__name__", "")
            name = frame.f_code.co_qualname
            ours = module.startswith(OURS) and "<" not in name
            of_jax = module.startswith(("jax.", "equinox.")) and name == "dot_product_attention"
            if ours or of_jax or frame.f_code in WHOLE:
                called.append(f"{module}.{name}")
        elif event == "c_call" and what is functional.scaled_dot_product_attention:
            called.append("torch's scaled_dot_product_attention")

    case, former = draw((2, 2, 2, 2), student.lead), sys.getprofile()
    allowed = torch.ones(*student.lead, 2, 2, dtype=torch.bool)
    sys.setprofile(note)
    try:
        for mask in (None, allowed):
            with suppress(NoAnswerError), not_compiled():
                student(replace(case, mask=mask))
    finally:
        sys.setprofile(former)
    if not called:
        return ()
    return (translated("it leaves the work to {called[0]}", called=called),)


PROPERTIES = (
    Property("shapes", translated("output [..., q_len, value_dim]"), properties.shapes),
    Property("rows", translated("weights are ≥ 0 and sum to 1"), properties.rows),
    Property("scale", translated("scores are multiplied by 1/√head_dim"), properties.scale),
    Property("agreement", translated("as attendo's attention, to 1e-10"), properties.agreement),
    Property("mask", translated("forbidden keys have no part, exactly"), properties.mask, properties.no_mask),
    Property(
        "empty row",
        translated("a query without keys gets zeros, no NaN"),
        properties.empty_row,
        properties.no_mask,
    ),
    Property("permutation", translated("the order of keys does not matter"), properties.permutation),
    Property("stability", translated("scores of 1e4 and -1e4 give numbers"), properties.stability),
    Property("gradient", translated("as finite differences give it"), properties.gradient, properties.no_gradient),
    Property("inputs", translated("inputs stay as they were"), properties.inputs),
)
SCALE = [property.id for property in PROPERTIES].index("scale")
MASKED = ("mask", "empty row")
Missing = Callable[[Student], Localized | None]
OWED: dict[str, tuple[Missing, tuple[str, ...]]] = {
    "mask": (properties.no_mask, MASKED),
    "scale": (properties.no_scale, ("scale",)),
    "gradient": (properties.no_gradient, ("gradient",)),
}
"""The parts that can be required of a function: why the function lacks the part, and the properties that then fail."""
NO_INPUT = translated("the function works on no input")
TOO_LONG = translated("a call took too long")
NO_BATCH = translated("it works with a batch only; @ and axes counted from the end work with and without one")
BATCH = passage("checker.text")
LENGTHS = translated("there may be more or fewer keys than queries: QKᵀ is [q_len, k_len], and V has k_len rows")
VALUE_WIDTH = translated("values may have a width of their own")


def check(function: Callable[..., Any], name: str | None = None, require: Sequence[str] = ()) -> Report:
    """Test an attention function `f(query, key, value[, mask][, scale])` for the properties of attention (F07).

    The function takes float64 arrays `[..., q_len, head_dim]`, `[..., k_len, head_dim]`, `[..., k_len, value_dim]` of
    torch, NumPy or JAX. It can be an instance of a PyTorch or Equinox module. The function returns the output
    `[..., q_len, value_dim]` or the pair (output, weights). After query, key and value, the first parameter with
    `mask` in its name is the mask `[..., q_len, k_len]`. The mask is boolean, and True means that the query may attend
    to the key. If the function raises an exception for a boolean mask, the mask contains 0 and 1. The first parameter
    with `scale` in its name is the factor of the scores.

    The inputs are fixed and ordered from small to large. The report contains the first failure of each property and
    the common mistake that explains it. Text that the function prints is hidden, and the report mentions it. Standard
    input is empty. A call that takes more than 10 seconds is stopped. After such a call, the property fails, and
    later properties are not tested. The time limit requires an alarm signal. There is no time limit on Windows or
    outside the main thread.

    Args:
        function: The function to test.
        name: The name of the function in the report (default: the name in its definition).
        require: The names of required parts: "mask", "scale" (a parameter for the scale) or "gradient". If the
            function lacks a required part, the properties of this part fail. The properties of other missing parts
            are reported as not offered.

    Returns:
        The result of each property.

    Raises:
        AttendoError: The function does not take three arrays, or `require` contains an unknown name.

    >>> import torch
    >>> def mine(query, key, value):
    ...     return torch.softmax(query @ key.mT, -1) @ value
    >>> report = check(mine)
    >>> report.ok, report.failed
    (False, ('scale', 'agreement'))
    >>> print(report.outcomes[3].failure.hint.en)
    forgot the scale: multiply the scores by 1/√head_dim
    """
    try:
        return try_out(function, name, require)
    except UnfitError as unfit:
        raise AttendoError(str(unfit)) from None


def try_out(function: Callable[..., Any], name: str | None, require: Sequence[str]) -> Report:
    """Test a function as in `check`. Raise UnfitError if the object is not a function of three arrays.

    >>> try_out(lambda query, key: key, "mine", ())
    Traceback (most recent call last):
    ...
    attendo_course.grader.loading.UnfitError: mine takes 2 arrays; write mine(query, key, value)
    """
    refuse_unknown(require)
    with quiet() as heard:
        student = meet(function, name)
        outcomes = _outcomes(student)
        whose = _whose(function) or (() if student.broken else borrowed(student))
    outcomes = _with_owed(student, outcomes, require)
    return Report(student.name, outcomes, (*whose, *heard.remarks))


def _outcomes(student: Student) -> tuple[Outcome, ...]:
    if student.broken is not None:
        note = TOO_LONG if isinstance(student.broken, SlowError) else NO_INPUT
        return _ended(student.broken, [], note)
    outcomes: list[Outcome] = []
    try:
        for property in PROPERTIES:
            outcomes.append(_outcome(student, property))
        no_scale = properties.has_no_scale(student) if outcomes[0].status == "fails" else None
    except SlowError as slow:
        return _ended(slow, outcomes, TOO_LONG)
    if no_scale is not None:
        outcomes[SCALE] = Outcome(PROPERTIES[SCALE], "not tried", note=no_scale)
    if any(outcome.status == "fails" for outcome in outcomes):
        with suppress(SlowError):  # a function that is slow only now and then goes without hints
            usual, masked = _diagnoses(student)
            outcomes = [_with_hint(outcome, student, usual, masked) for outcome in outcomes]
    return tuple(outcomes)


def refuse_unknown(require: Sequence[str]) -> None:
    """Raise AttendoError if `require` contains a name that is not "mask", "scale" or "gradient".

    >>> refuse_unknown(["dropout"])
    Traceback (most recent call last):
    ...
    attendo.errors.AttendoError: 'dropout' cannot be required; give one of mask, scale, gradient
    """
    unknown = [name for name in require if name not in OWED]
    if unknown:
        raise AttendoError(f"{unknown[0]!r} cannot be required; give one of {', '.join(OWED)}")


def _with_owed(student: Student, outcomes: tuple[Outcome, ...], require: Sequence[str]) -> tuple[Outcome, ...]:
    """Return the outcomes. A property of a required part that the function lacks has the outcome "fails"."""
    why = {id: OWED[name][0](student) for name in require for id in OWED[name][1]}
    return tuple(
        Outcome(outcome.property, "fails", note=why[outcome.property.id])
        if outcome.status in ("holds", "not offered") and why.get(outcome.property.id) is not None
        else outcome
        for outcome in outcomes
    )


def _whose(function: Callable[..., Any]) -> tuple[Localized, ...]:
    library = (getattr(function, "__module__", None) or "").split(".")[0]
    if library not in ("attendo", "attendo_course", "torch", "numpy", "jax", "equinox"):
        return ()
    return (translated("this is {library}'s own function", library=library),)


def check_file(place: str, require: Sequence[str] = ()) -> Report:
    """Test the function at "FILE.py:FUNCTION" as in `check`. The report contains the function name.

    Raises AttendoError with the name of the file if the function cannot be loaded or does not take three arrays.

    >>> check_file("mine.py")
    Traceback (most recent call last):
    ...
    attendo.errors.AttendoError: mine.py: write FILE.py:FUNCTION, the function's name behind a colon
    """
    try:
        return try_file(place, require)
    except UnfitError as unfit:
        raise AttendoError(str(unfit)) from None


def try_file(place: str, require: Sequence[str]) -> Report:
    """Test a function as in `check_file`. Raise UnfitError for a function that cannot be loaded or tested.

    >>> try_file("none.py:attention", ())
    Traceback (most recent call last):
    ...
    attendo_course.grader.loading.UnfitError: none.py: No such file or directory; give a Python file
    """
    refuse_unknown(require)
    with quiet() as heard:
        function = load_function(place)
    file, _, name = place.rpartition(":")
    try:
        report = try_out(function, name, require)
    except UnfitError as unfit:
        raise UnfitError(unfit.said, file) from None
    return replace(report, remarks=tuple(dict.fromkeys((*report.remarks, *heard.remarks))))


def _ended(error: NoAnswerError, before: list[Outcome], note: Localized) -> tuple[Outcome, ...]:
    """Return all outcomes of a function whose test ends with the property after the outcomes in `before`."""
    failing, *rest = PROPERTIES[len(before) :]
    ended = Outcome(failing, "fails", 1, _no_answer(error))
    return (*before, ended, *(Outcome(property, "not tried", note=note) for property in rest))


def _no_answer(error: NoAnswerError) -> Failure:
    shape = error.case.wanted
    wanted = translated("output of shape {shape}", shape=shape)
    return Failure(error.case, wanted, error.said, error.hint, is_refusal=True)


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
        return Outcome(property, "fails", tried + 1, _no_answer(refused))
    return Outcome(property, "holds", tried)


def _diagnoses(student: Student) -> tuple[Diagnosis, Diagnosis]:
    """Return the explanations of the function's output without a mask and with a mask."""
    sizes = ((2, 2, 2, 2), (3, 3, 4, 2), (2, 3, 4, 5))
    cases = [draw(size, student.lead, seed=7) for size in sizes] + [draw((3, 3, 4, 4), (2,), seed=7)]
    usual = diagnose(student, cases)
    if student.mask_name is None:
        return usual, Diagnosis()
    return usual, diagnose(student, list(drawn_masks(student))[2:], MASK_MISTAKES)


def _with_hint(outcome: Outcome, student: Student, usual: Diagnosis, masked: Diagnosis) -> Outcome:
    """Return the outcome with the hint that best explains its failure."""
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
        if hint is not None and outcome.property.id == "agreement" and usual.hint not in (None, hint):
            hint = translated("{hint.en}; and {usual.hint.en}", hint=hint, usual=usual)
    return replace(outcome, failure=replace(failure, hint=hint or usual.hint))


def _works(student: Student, size: tuple[int, ...], lead: tuple[int, ...]) -> bool:
    q_len, k_len, head_dim, value_dim = size
    try:
        output = student(draw((q_len, k_len, head_dim, value_dim), lead)).output
    except RefusedError:
        return False
    return output.shape == (*lead, q_len, value_dim)


def _size_hint(student: Student, case: Case) -> Localized | None:
    """Return a hint about the shapes that the function requires, if it fails only for other shapes."""
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
