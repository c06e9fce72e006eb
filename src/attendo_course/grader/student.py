"""Calling a user's function as attention: with torch or NumPy, with a mask and a scale if it has them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attendo.display.i18n import Localized
from attendo_course.book import passage, translated
from attendo_course.grader.loading import ASKS, TimeUpError, UnfitError, time_limit, too_late

Kind = Literal["torch", "numpy"]
WAYS: tuple[tuple[Kind, bool], ...] = (("torch", True), ("numpy", False), ("torch", False))
"""How a function is tried: (arrays, with gradients). Detached NumPy code inside makes torch with gradients raise."""
ENDLESS = passage("student.text")
NO_RETURN = translated("the function has no `return`")
NO_ARRAY = translated("return the output itself, or (output, weights)")


@dataclass(frozen=True, eq=False)
class Case:
    """One input; True in the mask means may attend."""

    query: Float[Tensor, "*batch q_len head_dim"]
    key: Float[Tensor, "*batch k_len head_dim"]
    value: Float[Tensor, "*batch k_len value_dim"]
    mask: Bool[Tensor, "*batch q_len k_len"] | None = None
    scale: float | None = None

    @property
    def arrays(self) -> dict[str, Tensor]:
        """The arrays by their names; the mask only where there is one."""
        named = {"query": self.query, "key": self.key, "value": self.value}
        return named if self.mask is None else named | {"mask": self.mask}

    @property
    def wanted(self) -> list[int]:
        """The output's shape."""
        return [*self.query.shape[:-1], self.value.shape[-1]]


@dataclass(frozen=True, eq=False)
class Answer:
    """What the function gave; weights: where it returned (output, weights). is_tensor: the output was one."""

    output: Tensor
    weights: Tensor | None = None
    is_tensor: bool = True


class NoAnswerError(Exception):
    """The function gave no result for this input; `said` describes what happened instead."""

    def __init__(self, case: Case, said: Localized, hint: Localized | None = None):
        super().__init__(said.en)
        self.case, self.said, self.hint = case, said, hint


class RefusedError(NoAnswerError):
    """The function raised, or returned what is no array with the axes of the query."""


class SlowError(NoAnswerError):
    """The function was stopped when its time was up."""


@dataclass(frozen=True)
class Student:
    """A function and how it is to be called.

    mask_name, scale_name: its parameters for them, None where it has none. needs_mask, needs_scale: without a
    default. kind: the arrays it works on. lead: the batch dimensions it cannot do without. number_mask: the mask
    must be of 0 and 1, since it raises for one of False and True. has_signature: its parameters can be
    read. broken: what happens, if it works for no input.
    """

    function: Callable[..., Any]
    name: str
    mask_name: str | None = None
    scale_name: str | None = None
    needs_mask: bool = False
    needs_scale: bool = False
    has_signature: bool = True
    kind: Kind = "torch"
    lead: tuple[int, ...] = ()
    number_mask: bool = False
    broken: NoAnswerError | None = None

    def __call__(self, case: Case) -> Answer:
        """Call it on copies of the input; a copy of what requires a gradient passes the gradient on.

        Raises RefusedError for whatever it raises, and for a result that is no array of real numbers; SlowError when
        its time is up.
        """
        return self.answer(case, self.arguments(case))

    def arguments(self, case: Case) -> dict[str, Any]:
        """The arrays that it is given, by `Case.arrays`' names, copied."""
        mask = case.mask
        if mask is None and self.needs_mask:
            shape = (*case.query.shape[:-1], case.key.shape[-2])
            mask = torch.ones(shape, dtype=torch.bool)
        if mask is not None and self.number_mask:
            mask = mask.to(case.query.dtype)
        arrays = replace(case, mask=mask).arrays
        if self.kind == "numpy":
            return {name: array.detach().numpy().copy() for name, array in arrays.items()}
        return {name: array.clone() for name, array in arrays.items()}

    def answer(self, case: Case, arguments: dict[str, Any]) -> Answer:
        """Call the function with `arguments`, the form of the input `case`."""
        named: dict[str, Any] = {}
        if self.mask_name is not None and "mask" in arguments:
            named[self.mask_name] = arguments["mask"]
        if self.scale_name is not None and (case.scale is not None or self.needs_scale):
            named[self.scale_name] = case.query.shape[-1] ** -0.5 if case.scale is None else case.scale
        try:
            with time_limit(), warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                result = self.function(arguments["query"], arguments["key"], arguments["value"], **named)
                return _answer(case, result)
        except TimeUpError:
            raise SlowError(case, too_late(), ENDLESS) from None
        except RefusedError:
            raise
        except EOFError:
            raise RefusedError(case, ASKS) from None
        except (Exception, SystemExit) as error:  # whatever it raises is the finding
            raise RefusedError(case, _raised(error)) from error


def _raised(error: BaseException) -> Localized:
    """The description of an exception that a function raised."""
    name, text = type(error).__name__, " ".join(str(error).split())
    if isinstance(error, NotImplementedError) and not text:
        return translated("the function raises {name}: it is not written yet", name=name)
    said = f"{name}: {text}" if text else name
    return Localized(said, said)


def meet(function: Callable[..., Any], name: str | None = None) -> Student:
    """Find out how a function is to be called: its mask, its scale, torch or NumPy, with or without a batch.

    The first three parameters are query, key and value. The mask is the first further parameter with `mask` in its
    name, the scale the first with `scale` in it; both are passed by name. A function is a NumPy function if it
    raises for tensors, or gives no tensor for them, but takes arrays. name: what it is called in the report.
    Raises UnfitError if it cannot be called with three arrays.

    >>> meet(lambda query, key, value, attn_mask=None: value).mask_name
    'attn_mask'
    """
    student = _with_parameters(function, name)
    square = torch.tensor(
        [[1.0, 0.5], [-0.5, 1.0]], dtype=torch.float64
    )  # fits rows and columns, heads and values
    refusals: list[RefusedError] = []
    for lead in ((), (1,), (1, 1)):
        even = square.expand(*lead, 2, 2)
        case = Case(even, even, even)
        for kind, gradient in WAYS:
            way = replace(student, kind=kind, lead=lead)
            query, key, value = (array.clone().requires_grad_(gradient) for array in (even, even, even))
            given = Case(query, key, value)
            for mask, number_mask in _masks(way, lead):
                way = replace(way, number_mask=number_mask)
                try:
                    answer = way(replace(given, mask=mask))
                except SlowError as slow:  # other ways would take as long
                    return replace(way, broken=SlowError(replace(case, mask=mask), slow.said, slow.hint))
                except RefusedError as refused:
                    refusals.append(RefusedError(replace(case, mask=mask), refused.said, refused.hint))
                else:
                    return way if kind == "numpy" or answer.is_tensor else _as_numpy(way, case)
    return replace(student, broken=refusals[0])


def _masks(way: Student, lead: tuple[int, ...]) -> list[tuple[Tensor | None, bool]]:
    """The masks to try, in bool or as numbers; finally none, so that a failing mask does not hide the rest."""
    allowed = torch.ones(*lead, 2, 2, dtype=torch.bool)
    found: list[tuple[Tensor | None, bool]] = []
    if way.mask_name is not None:
        found += [(allowed, False), (allowed, True)]
    return found if way.needs_mask else [*found, (None, False)]


def _as_numpy(way: Student, case: Case) -> Student:
    """The call with NumPy arrays, if it works too: the function converted tensors."""
    numpy = replace(way, kind="numpy")
    try:
        numpy(case)
    except RefusedError:
        return way
    return numpy


def _with_parameters(function: Callable[..., Any], called: str | None) -> Student:
    if not callable(function):
        raise UnfitError(
            translated("{function!r} is no function; give one of query, key and value", function=function)
        )
    name = called or getattr(function, "__name__", type(function).__name__)
    if isinstance(function, type):
        raise UnfitError(
            translated("{name} is a class; give an instance of it, as attention = {name}(...)", name=name)
        )
    target = function.forward if isinstance(function, torch.nn.Module) else function
    if any(map(inspect.iscoroutinefunction, (target, getattr(target, "__call__", None)))):  # noqa: B004
        raise UnfitError(
            translated("{name} is async; write a plain `def` that returns the output", name=name)
        )
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):  # some built-in functions have no signature
        return Student(function, name, has_signature=False)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 3 and not any(p.kind == p.VAR_POSITIONAL for p in parameters):
        n_arrays = "1 array" if len(positional) == 1 else f"{len(positional)} arrays"
        raise UnfitError(
            translated(
                "{name} takes {n_arrays}; write {name}(query, key, value)",
                name=name,
                n_arrays=n_arrays,
                n_taken=len(positional),
            )
        )
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    named = [p for p in named if p not in positional[:3]]
    mask = next((p for p in named if "mask" in p.name.lower()), None)
    scale = next((p for p in named if "scale" in p.name.lower()), None)
    for p in [p for p in parameters if p not in positional[:3]]:
        is_known = any(p is known for known in (mask, scale)) or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if not is_known and p.default is p.empty:
            raise UnfitError(
                translated("{name} wants {p.name}; give that parameter a default", name=name, p=p)
            )
    if scale is not None and isinstance(scale.default, bool):  # a switch is not the number meant here
        scale = None
    return Student(
        function,
        name,
        mask_name=None if mask is None else mask.name,
        scale_name=None if scale is None else scale.name,
        needs_mask=mask is not None and mask.default is mask.empty,
        needs_scale=scale is not None and scale.default is scale.empty,
    )


def _answer(case: Case, result: Any) -> Answer:
    output, weights = result, None
    if isinstance(result, tuple) and result:
        output, weights = result[0], result[1] if len(result) > 1 else None
    is_array = isinstance(weights, Tensor | np.ndarray)
    found = _tensor(case, output)
    if found.ndim != case.query.ndim:  # so that every property may count on the axes
        said = translated("output of shape {shape}", shape=list(found.shape))
        raise RefusedError(case, said)
    return Answer(found, _tensor(case, weights) if is_array else None, isinstance(output, Tensor))


def _tensor(case: Case, array: Any) -> Tensor:
    if array is None:
        raise RefusedError(case, translated("it returned None"), NO_RETURN)
    if not isinstance(array, Tensor):
        kind = type(array).__name__
        array = np.asarray(array)
        if array.dtype.kind not in "fiub":
            of = f"an array of {array.dtype}" if array.dtype != object else f"a value of type {kind}"
            ja = f"{array.dtype} の配列" if array.dtype != object else f"{kind} 型の値"
            raise RefusedError(case, translated("it returned {of}", of=of, ja=ja), NO_ARRAY)
        array = torch.from_numpy(np.array(array))
    return array.double()  # what float32 has lost shows in the numbers
