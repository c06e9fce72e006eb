"""Calls of a user's function as attention: with torch, NumPy or JAX, and with a mask and a scale if it accepts them."""

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
from attendo_course.grader.jax_functions import as_torch, uses_jax
from attendo_course.grader.loading import ASKS, TimeUpError, UnfitError, time_limit, too_late

Kind = Literal["torch", "numpy", "jax"]
WAYS: tuple[tuple[Kind, bool], ...] = (("torch", True), ("numpy", False), ("torch", False))
"""The ways to call a function: (array type, with gradients). Code that converts to NumPy fails with gradients."""
ENDLESS = passage("student.text")
NO_RETURN = translated("the function has no `return`")
NO_ARRAY = translated("return the output itself, or (output, weights)")


@dataclass(frozen=True, eq=False)
class Case:
    """One input of an attention function. True in the mask means that the query may attend to the key."""

    query: Float[Tensor, "*batch q_len head_dim"]
    key: Float[Tensor, "*batch k_len head_dim"]
    value: Float[Tensor, "*batch k_len value_dim"]
    mask: Bool[Tensor, "*batch q_len k_len"] | None = None
    scale: float | None = None

    @property
    def arrays(self) -> dict[str, Tensor]:
        """The arrays of the input by name, including the mask if there is a mask."""
        named = {"query": self.query, "key": self.key, "value": self.value}
        return named if self.mask is None else named | {"mask": self.mask}

    @property
    def wanted(self) -> list[int]:
        """The shape that the output must have."""
        return [*self.query.shape[:-1], self.value.shape[-1]]


@dataclass(frozen=True, eq=False)
class Answer:
    """The result of a function: the output, and the weights if the function returned (output, weights).

    `is_tensor` is True if the output was a torch tensor.
    """

    output: Tensor
    weights: Tensor | None = None
    is_tensor: bool = True


class NoAnswerError(Exception):
    """The error for an input for which the function has no valid result. `said` is the message."""

    def __init__(self, case: Case, said: Localized, hint: Localized | None = None):
        super().__init__(said.en)
        self.case, self.said, self.hint = case, said, hint


class RefusedError(NoAnswerError):
    """The error for a function that raised an exception, or whose result has not as many axes as the query."""


class SlowError(NoAnswerError):
    """The error for a function that was stopped at the time limit."""


@dataclass(frozen=True)
class Student:
    """A function to test, and the way to call it.

    Attributes:
        mask_name, scale_name: The names of the mask and scale parameters, or None if the function has no such
            parameter.
        needs_mask, needs_scale: Whether the mask or scale parameter has no default value.
        has_signature: Whether the parameters of the function can be read.
        kind: The type of arrays that the function accepts: "torch" or "numpy". A JAX function is called with torch
            tensors by `as_torch`, so its kind is "torch", or "jax" if JAX cannot differentiate the function.
        lead: The batch dimensions that the function requires.
        number_mask: Whether the mask must contain 0 and 1, because the function raises an exception for a boolean
            mask.
        broken: The error if the function works for no input, otherwise None.
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
        """Call the function on copies of the input. Gradients pass through the copies.

        Raises RefusedError if the function raises an exception or its result is not an array of real numbers, and
        SlowError at the time limit.
        """
        return self.answer(case, self.arguments(case))

    def arguments(self, case: Case) -> dict[str, Any]:
        """Return copies of the arrays that the function receives, with the names of `Case.arrays`."""
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
        """Call the function with `arguments`, which contain the input `case` in the form that the function accepts."""
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
    name, text = type(error).__name__, " ".join(str(error).split())
    if isinstance(error, NotImplementedError) and not text:
        return translated("the function raises {name}: it is not written yet", name=name)
    said = f"{name}: {text}" if text else name
    return Localized(said, said)


def meet(function: Callable[..., Any], name: str | None = None) -> Student:
    """Determine how a function must be called: with torch, NumPy or JAX, and with or without a batch, mask and scale.

    The first three parameters are query, key and value. Among the other parameters, the first name that contains
    `mask` is the mask, and the first name that contains `scale` is the scale. Both are passed by name. A function
    counts as a NumPy function if it accepts arrays, but raises an exception or does not return a tensor for tensors.
    A function from a file that imports JAX is first called with JAX arrays. `name` is the name of the function in the
    report. Raises UnfitError if the function cannot be called with three arrays.

    >>> meet(lambda query, key, value, attn_mask=None: value).mask_name
    'attn_mask'
    """
    student = _with_parameters(function, name)
    square = torch.tensor([[1.0, 0.5], [-0.5, 1.0]], dtype=torch.float64)  # fits rows and columns, heads and values
    callers = [(student, *way) for way in WAYS]
    if uses_jax(function):
        in_jax = replace(student, function=as_torch(function))
        callers = [(in_jax, "torch", True), (in_jax, "jax", False), *callers]
    refusals: list[RefusedError] = []
    for lead in ((), (1,), (1, 1)):
        even = square.expand(*lead, 2, 2)
        case = Case(even, even, even)
        for caller, kind, gradient in callers:
            way = replace(caller, kind=kind, lead=lead)
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
    """Return the masks to try, boolean or as numbers. The last item has no mask, to find other errors."""
    allowed = torch.ones(*lead, 2, 2, dtype=torch.bool)
    found: list[tuple[Tensor | None, bool]] = []
    if way.mask_name is not None:
        found += [(allowed, False), (allowed, True)]
    return found if way.needs_mask else [*found, (None, False)]


def _as_numpy(way: Student, case: Case) -> Student:
    """Return the call with NumPy arrays if it also works, since the function converted the tensors."""
    numpy = replace(way, kind="numpy")
    try:
        numpy(case)
    except RefusedError:
        return way
    return numpy


def _with_parameters(function: Callable[..., Any], called: str | None) -> Student:
    if not callable(function):
        raise UnfitError(translated("{function!r} is no function; give one of query, key and value", function=function))
    name = called or getattr(function, "__name__", type(function).__name__)
    if isinstance(function, type):
        raise UnfitError(translated("{name} is a class; give an instance of it, as attention = {name}(...)", name=name))
    target = function.forward if isinstance(function, torch.nn.Module) else function
    if any(map(inspect.iscoroutinefunction, (target, getattr(target, "__call__", None)))):  # noqa: B004
        raise UnfitError(translated("{name} is async; write a plain `def` that returns the output", name=name))
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
            raise UnfitError(translated("{name} wants {p.name}; give that parameter a default", name=name, p=p))
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
