"""The inputs on which an attention function is tested, from small to large, and the description of a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from attendo.display.i18n import Localized
from attendo.nn.attention import attention
from attendo_course.book import passage, translated
from attendo_course.grader.student import Case, Student

TOLERANCE = 1e-10
"""The tolerance in float64: relative to the largest entry, or absolute if this entry is less than 1."""

SIZES = (
    (1, 1, 1, 1),
    (1, 2, 1, 1),
    (2, 1, 1, 1),
    (2, 2, 1, 1),
    (1, 2, 2, 1),
    (1, 2, 2, 2),
    (2, 2, 2, 2),
    (2, 3, 2, 2),
    (3, 2, 2, 2),
    (2, 3, 4, 2),
    (4, 5, 3, 6),
)
"""The sizes of the inputs: (q_len, k_len, head_dim, value_dim)."""
LEADS = ((), (1,), (2,), (2, 3))
"""The batch dimensions of the inputs."""
IMPRECISE = passage("trials.text")


@dataclass(frozen=True, eq=False)
class Failure:
    """An input on which a property fails, with the expected output and the output of the function.

    `is_refusal` is True if the function raised an exception or did not return an array.
    """

    case: Case
    expected: Localized
    got: Localized
    hint: Localized | None = None
    is_refusal: bool = False


Trials = Iterator[Failure | None]
"""The results of one property: one item per tested input, which is None if the property holds."""


@dataclass(frozen=True)
class Property:
    """A property of attention, and its test on a function.

    `missing` returns the reason why a tested function does not offer the property, otherwise None.
    """

    id: str
    title: Localized
    trials: Callable[[Student], Trials]
    missing: Callable[[Student], Localized | None] = lambda student: None


def draw(size: tuple[int, int, int, int], lead: tuple[int, ...] = (), seed: int = 0) -> Case:
    """Return a random input of this size, whose entries are multiples of 1/2 from -2 to 2 (short to print).

    >>> draw((1, 2, 1, 1)).key
    tensor([[-2.],
            [-1.]], dtype=torch.float64)
    """
    q_len, k_len, head_dim, value_dim = size
    generator = torch.Generator().manual_seed(seed)
    shapes = ((q_len, head_dim), (k_len, head_dim), (k_len, value_dim))
    query, key, value = (torch.randint(-4, 5, (*lead, *shape), generator=generator).double() / 2 for shape in shapes)
    return Case(query, key, value)


def drawn(student: Student, seeds: int = 2) -> Iterator[Case]:
    """Yield random inputs from small to large, with the batch dimensions that the function requires.

    >>> [tuple(case.query.shape) for case in drawn(Student(attention, "mine"), seeds=1)][:5]
    [(1, 1), (1, 1), (2, 1), (2, 1), (1, 2)]
    """
    for size, seed in product(SIZES, range(seeds)):
        yield draw(size, student.lead, seed)


def drawn_masks(student: Student) -> Iterator[Case]:
    """Yield inputs with a mask that allows each query at least one key and forbids at least one key.

    >>> next(drawn_masks(Student(attention, "mine"))).mask
    tensor([[ True, False]])
    """
    for case in drawn(student, seeds=1):
        q_len, k_len = case.query.shape[-2], case.key.shape[-2]
        if k_len > 1:
            for first in (0, 1):
                allowed = (torch.arange(q_len)[:, None] + torch.arange(k_len) + first) % k_len < max(1, k_len // 2)
                yield replace(case, mask=allowed.expand(*student.lead, q_len, k_len))


def right(case: Case) -> Tensor:
    """Return the output of attendo's own attention function.

    >>> right(draw((1, 1, 1, 1)))
    tensor([[-1.]], dtype=torch.float64)
    """
    return attention(case.query, case.key, case.value, case.mask, case.scale)


def close(first: Tensor, second: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Return whether two arrays have the same shape and agree within the tolerance. NaN is not equal to any number.

    >>> close(torch.ones(1), torch.ones(1) + 1e-6), close(torch.ones(1), torch.ones(2))
    (False, False)
    """
    if first.shape != second.shape:
        return False
    scale = max(1.0, float(second.abs().max())) if second.numel() else 1.0
    return bool(((first - second).abs() <= tolerance * scale).all())


def numbers(array: Tensor, other: Tensor | None = None) -> Localized:
    """Return an array as text: all entries of a small array, otherwise the shape and one entry.

    If the array differs from `other`, the text shows an entry that differs, with enough digits.

    >>> numbers(torch.tensor([[0.5, 1 / 3]])).en
    '[[0.5, 0.3333]]'
    >>> numbers(torch.zeros(9, 9), torch.eye(9)).en
    '0 at [0, 0] of [9, 9]'
    """
    array, digits, place = array.detach().double(), 4, (0,) * array.ndim
    if other is not None and other.shape == array.shape and array.numel():
        difference = (array - other.double()).abs().nan_to_num(torch.inf, torch.inf)
        place = tuple(int(i) for i in torch.unravel_index(difference.argmax(), array.shape))
        if 0.0 < float(difference[place]) < 1e-3 * max(1.0, abs(float(array[place]))):
            digits = 12
    if array.numel() <= 16:
        text = _nested(array.tolist(), digits)
    else:
        text = f"{float(array[place]):.{digits}g} at {list(place)} of {list(array.shape)}"
    return Localized(text, text)


def _nested(values: object, digits: int) -> str:
    if isinstance(values, list):
        return "[" + ", ".join(_nested(value, digits) for value in values) + "]"
    assert isinstance(values, float)
    return f"{values + 0.0:.{digits}g}"


def compared(case: Case, expected: Tensor, got: Tensor, tolerance: float = TOLERANCE) -> Failure | None:
    """Return a failure if two arrays do not agree, otherwise None.

    >>> compared(draw((1, 1, 1, 1)), torch.zeros(1), torch.ones(1)).got.en
    '[1]'
    """
    if close(got, expected, tolerance):
        return None
    if got.shape != expected.shape:
        return Failure(case, _shape(expected), _shape(got))
    is_near = torch.allclose(got, expected, 1e-5, 1e-5)
    return Failure(case, numbers(expected, got), numbers(got, expected), IMPRECISE if is_near else None)


def _shape(array: Tensor) -> Localized:
    return translated("shape {shape}", shape=list(array.shape))
