"""The properties of every attention function (F07), each tested on inputs from small to large."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import isnan, log, nan

import torch
from torch import Tensor

from attendo.display.i18n import Localized
from attendo.nn.attention import attention_weights
from attendo_course.book import passage, translated
from attendo_course.grader.student import Case, RefusedError, Student
from attendo_course.grader.trials import (
    LEADS,
    SIZES,
    TOLERANCE,
    Failure,
    Trials,
    close,
    compared,
    draw,
    drawn,
    drawn_masks,
    numbers,
    right,
)

NO_GRADIENT = translated("no gradient: the output is cut off")
CUT = translated("detach(), .data, .item(), torch.no_grad() or NumPy inside cut the gradient off")
JUMP = translated("the output jumps here: an argmax or a comparison stands where a softmax belongs")
PARTLY_CUT = translated("a part of the way is cut off (detach(), .data, .item()), or a backward of your own is wrong")


def no_mask(student: Student) -> Localized | None:
    """Return a message if a function has no mask parameter, otherwise None.

    >>> no_mask(Student(abs, "mine")).en
    'no parameter with `mask` in its name'
    """
    return None if student.mask_name is not None else no_parameter(student, "mask")


def no_parameter(student: Student, called: str) -> Localized:
    """Return the message for a function that has no parameter with this word in its name.

    >>> no_parameter(Student(abs, "mine", has_signature=False), "mask").en
    "a built-in function, whose parameters can't be read; call it in a `def` of your own"
    """
    if not student.has_signature:
        return passage("properties.no_parameter")
    return translated("no parameter with `{called}` in its name", called=called)


def no_gradient(student: Student) -> Localized | None:
    """Return a message if a function has no gradient, or None if torch or JAX can differentiate it.

    >>> no_gradient(Student(abs, "mine", kind="numpy")).en
    'a NumPy function'
    """
    if student.kind == "jax":
        return translated("JAX cannot differentiate it; NumPy or float() inside ends the gradient")
    return translated("a NumPy function") if student.kind == "numpy" else None


def mask(student: Student) -> Trials:
    """Test that masked keys have no effect: the output equals that of the allowed keys alone.

    >>> from attendo.nn.attention import attention
    >>> any(mask(Student(attention, "mine", mask_name="mask")))
    False
    """
    for case in drawn_masks(student):
        assert case.mask is not None
        answer = student(case)
        failure = compared(case, _row_by_row(student, case), answer.output)
        weights = answer.weights
        if weights is None or weights.shape != case.mask.shape:  # `shapes` says so
            weights = torch.zeros_like(case.mask)
        if failure is None and bool((weights[~case.mask] != 0).any()):
            said = translated("weights of 0 where the mask is False")
            failure = Failure(case, said, numbers(weights))
        yield failure
    for case in drawn_masks(student):
        yield _leak(student, case)


def _row_by_row(student: Student, case: Case) -> Tensor:
    """Compute the function's output for each query from its allowed keys only, without a mask."""
    assert case.mask is not None
    outputs = []
    for i, allowed in enumerate(case.mask.reshape(-1, *case.mask.shape[-2:])[0]):
        one = replace(
            case,
            query=case.query[..., i : i + 1, :],
            key=case.key[..., allowed, :],
            value=case.value[..., allowed, :],
            mask=None,
        )
        outputs.append(student(one).output)
    return torch.cat(outputs, -2)


def _leak(student: Student, case: Case) -> Failure | None:
    """Return a failure if huge values of masked keys, whose scores are high, change the output of the first query."""
    assert case.mask is not None
    forbidden = ~case.mask[..., :1, :].mT
    first = case.query[..., :1, :]
    loud = replace(
        case,
        query=first,
        key=torch.where(forbidden, 20 * first, case.key),
        value=torch.where(forbidden, 1e100, torch.zeros_like(case.value)),
        mask=case.mask[..., :1, :],
    )
    output = student(loud).output
    if bool((output == 0).all()):
        return None
    return Failure(
        loud,
        translated("exactly 0, since every value that may be seen is 0"),
        numbers(output),
        translated("what is added to forbidden scores is too small to make their weights 0; use -inf"),
    )


def empty_row(student: Student) -> Trials:
    """Test that a query with no allowed key returns zeros, not NaN, and that its gradients are finite.

    >>> from attendo.nn.attention import attention
    >>> any(empty_row(Student(attention, "mine", mask_name="mask")))
    False
    """
    for size in ((1, 1, 1, 1), (1, 2, 1, 1), (2, 2, 2, 2), (2, 3, 2, 2)):
        case = draw(size, student.lead)
        allowed = (torch.arange(size[0]) > 0)[:, None].expand(size[0], size[1])
        mask = allowed.expand(*student.lead, *allowed.shape)
        case = replace(case, mask=mask)
        answer = student(case)
        output, weights = answer.output[..., :1, :], answer.weights
        if weights is not None:
            weights = weights[..., :1, :] if weights.shape == mask.shape else None
        zeros = torch.zeros_like(output)
        if not close(output, zeros):
            yield Failure(case, _zeros(zeros), numbers(output), _empty_hint(output))
        elif weights is not None and not close(weights, torch.zeros_like(weights)):
            yield Failure(case, translated("weights of 0"), numbers(weights), _empty_hint(weights))
        else:
            yield _empty_gradient(student, case) if student.kind == "torch" else None


def _zeros(zeros: Tensor) -> Localized:
    shown = numbers(zeros)
    return translated("first row {shown.en}", shown=shown)


def _empty_hint(found: Tensor) -> Localized:
    if bool(found.isnan().any()):
        return translated("a softmax over -inf alone is 0/0; set the rows without keys to 0 afterwards")
    return passage("properties.empty_hint")


def _empty_gradient(student: Student, case: Case) -> Failure | None:
    """Return a failure if a query with no allowed key makes a gradient non-finite."""
    arrays = {name: case.arrays[name].clone().requires_grad_() for name in ("query", "key", "value")}
    output = student(replace(case, **arrays)).output
    if not output.requires_grad:  # the property `gradient` says so
        return None
    output.sum().backward()
    for name, array in arrays.items():
        if array.grad is not None and not bool(array.grad.isfinite().all()):
            return Failure(
                case,
                translated("a gradient of numbers for {name}", name=name),
                numbers(array.grad),
                passage("properties.empty_gradient"),
            )
    return None


def gradient(student: Student) -> Trials:
    """Test that the gradients of query, key and value agree with finite differences (torch's gradcheck).

    >>> from attendo.nn.attention import attention
    >>> cut = Student(lambda q, k, v: attention(q, k, v.detach()), "mine")
    >>> any(gradient(Student(attention, "mine"))), any(gradient(cut))
    (False, True)
    """
    for size in ((1, 2, 1, 1), (2, 3, 2, 2)):
        case = draw(size, student.lead)
        for name in ("query", "key", "value"):
            yield _wrong_gradient(student, case, name)


def _wrong_gradient(student: Student, case: Case, name: str) -> Failure | None:
    def output(array: Tensor) -> Tensor:
        return student(replace(case, **{name: array})).output

    array = case.arrays[name].clone().requires_grad_()
    first = output(array)
    is_single = torch.equal(first.float().double(), first)  # float32 inside: `agreement` says so
    step, tolerance = (1e-3, 1e-2) if is_single else (1e-6, 1e-5)
    has_gradient = first.requires_grad
    if has_gradient and torch.autograd.gradcheck(output, (array,), eps=step, atol=tolerance, raise_exception=False):
        return None
    wanted = _slopes(output, array.detach(), step)
    got = _gradients(output(array), array) if has_gradient else torch.zeros_like(wanted)
    hint = PARTLY_CUT if bool(got.any()) else CUT
    if bool(wanted.isfinite().all()) and not close(_slopes(output, array.detach(), 10 * step), wanted, 0.1):
        hint = JUMP
    places = [f"output{list(place)}" for place in product(*map(range, first.shape))]
    pairs = [("(sum of the output)", "（出力の和）", wanted.sum(0), got.sum(0))]
    pairs += [(place, place, *both) for place, *both in zip(places, wanted, got, strict=True)]
    for en, ja, slope, found in pairs:
        if not close(found, slope, tolerance):
            shown = numbers(slope, found)
            expected = translated("d{en}/d{name} = {shown.en}", en=en, name=name, shown=shown, ja=ja)
            return Failure(case, expected, numbers(found, slope) if has_gradient else NO_GRADIENT, hint)
    if not has_gradient:  # and there is none to have: nothing changes with this input
        return None
    return Failure(
        case,
        translated("the same gradient for {name} at every call", name=name),
        translated("gradients that differ from call to call"),
    )


def _slopes(output: Callable[[Tensor], Tensor], at: Tensor, step: float) -> Tensor:
    """Compute the derivative of each output entry by central differences. The shape is [n_outputs, *at.shape]."""
    slopes = []
    for i in range(at.numel()):
        moved = torch.zeros_like(at)
        moved.view(-1)[i] = step
        slopes.append((output(at + moved) - output(at - moved)).flatten() / (2 * step))
    return torch.stack(slopes, -1).unflatten(-1, at.shape)


def _gradients(output: Tensor, array: Tensor) -> Tensor:
    """Return the derivative of each output entry by automatic differentiation, in shape [n_outputs, *array.shape]."""
    zeros = torch.zeros_like(array)
    found = [torch.autograd.grad(n, array, retain_graph=True, allow_unused=True)[0] for n in output.flatten()]
    return torch.stack([zeros if slope is None else slope for slope in found])


FACTOR_TOLERANCE = ORDER_TOLERANCE = 1e-6
"""The tolerance is loose here: computing in float32 then fails in `agreement` only, not in every property."""
WIDTHS = (1, 2, 4, 16, 64)
"""The widths of the heads with which the scale is measured."""
PAIR = translated("return (output, weights), in this order")


def shapes(student: Student) -> Trials:
    """Test that the output has the shape [..., q_len, value_dim] for all lengths, widths and batch dimensions.

    >>> from attendo.nn.attention import attention
    >>> any(shapes(Student(attention, "mine"))), any(shapes(Student(lambda q, k, v: k, "mine")))
    (False, True)
    """
    for lead, size in sorted(product(LEADS, SIZES), key=lambda found: len(found[0])):
        case = draw(size, lead)
        answer = student(case)
        wanted = [((*lead, size[0], size[3]), answer.output, "output", "出力")]
        if answer.weights is not None:
            wanted.append(((*lead, size[0], size[1]), answer.weights, "weights", "重み"))
        wrong = [found for found in wanted if found[1].shape != found[0]]
        failure = None
        for shape, found, en, ja in wrong[:1]:
            failure = Failure(
                case,
                translated("{en} of shape {shape}", en=en, shape=list(shape), ja=ja),
                translated("{en} of shape {shape}", en=en, shape=list(found.shape), ja=ja),
                PAIR if len(wrong) == 2 and found.shape == wrong[1][0] else None,
            )
        yield failure


def rows(student: Student) -> Trials:
    """Test that the weights of each query are non-negative and sum to 1. If all values are 1, the output must be 1.

    >>> from attendo.nn.attention import attention
    >>> any(rows(Student(attention, "mine"))), any(rows(Student(lambda q, k, v: q @ k.mT @ v, "mine")))
    (False, True)
    """
    ones_give_ones = translated("values of ones give ones: the weights of a query sum to 1")
    for case in drawn(student):
        ones = replace(case, value=torch.ones_like(case.value))
        failure = compared(ones, torch.ones_like(right(ones)), student(ones).output)
        if failure is not None:
            yield replace(failure, expected=ones_give_ones)
            continue
        k_len = case.key.shape[-2]
        seen = replace(case, value=torch.eye(k_len).double().expand(*student.lead, k_len, k_len))
        answer = student(seen)
        arrays = [array for array in (answer.output, answer.weights) if array is not None]
        wrong = [array for array in arrays if not _is_distribution(array)]
        said = translated("weights ≥ 0 of sum 1")
        yield Failure(seen, said, numbers(wrong[0])) if wrong else None


def _is_distribution(weights: Tensor) -> bool:
    sums = weights.sum(-1)
    return bool((weights >= -TOLERANCE).all()) and close(sums, torch.ones_like(sums))


def scale(student: Student) -> Trials:
    """Test that the scores are multiplied by 1/√head_dim, or by the scale that the caller passes.

    >>> from attendo.nn.attention import attention
    >>> unscaled = Student(lambda q, k, v: attention(q, k, v, scale=1.0), "mine")
    >>> [failure.got.en for failure in scale(unscaled) if failure][0]
    'scores · 1, 1, 1, 1, 1 at head_dim 1, 2, 4, 16, 64: unscaled'
    """
    factors = {width: _factor(student, width) for width in WIDTHS}
    for width, got in factors.items():
        expected = width**-0.5
        if abs(got - expected) <= FACTOR_TOLERANCE:
            yield None
            continue
        name, shown = _scale_name(factors), ", ".join(f"{factor:.4g}" for factor in factors.values())
        widths = ", ".join(map(str, factors))
        said = translated("scores · {shown} at head_dim {widths}: {name.en}", shown=shown, widths=widths, name=name)
        yield Failure(
            _two_keys(student, width),
            translated("scores · {expected:.4g} = 1/√{width}", expected=expected, width=width),
            name if any(map(isnan, factors.values())) else said,
        )
    for given in (1.0, 0.25) if student.scale_name is not None else ():
        got = _factor(student, 4, given)
        failure = Failure(
            _two_keys(student, 4, given),
            translated("scores · {given:g}, the scale that is given", given=given),
            translated("scores · {got:.4g}", got=got),
            passage("properties.scale", student=student),
        )
        yield None if abs(got - given) <= FACTOR_TOLERANCE else failure


def no_scale(student: Student) -> Localized | None:
    """Return a message if a function has no scale parameter, otherwise None.

    >>> no_scale(Student(abs, "mine")).en
    'no parameter with `scale` in its name'
    """
    return None if student.scale_name is not None else no_parameter(student, "scale")


def has_no_scale(student: Student) -> Localized | None:
    """Return a message if the scale cannot be computed from a function's output, otherwise None.

    >>> has_no_scale(Student(lambda q, k, v: k, "mine")).en
    'no output of the right shape to read it from'
    """
    for width in WIDTHS:
        case = _two_keys(student, width)
        with suppress(RefusedError):
            if list(student(case).output.shape) == case.wanted:
                continue
        return translated("no output of the right shape to read it from")
    return None


def _two_keys(student: Student, width: int, given: float | None = None) -> Case:
    """Return an input with one query, two keys with the unscaled scores 1 and 0, and values that show the weights."""
    unit = torch.eye(1, width).double()
    arrays = (unit, torch.cat([unit, 0 * unit]), torch.eye(2).double())
    query, key, value = (array.expand(*student.lead, *array.shape) for array in arrays)
    return Case(query, key, value, scale=given)


def _factor(student: Student, width: int, given: float | None = None) -> float:
    """Measure the factor of the scores from the ratio of two weights. Return NaN if a weight is not positive."""
    weights = student(_two_keys(student, width, given)).output.flatten()
    if weights.shape != (2,) or not bool((weights > 0).all()):
        return nan
    return log(float(weights[0]) / float(weights[1]))


def _scale_name(factors: dict[int, float]) -> Localized:
    usual = (
        (translated("unscaled"), 0.0),
        (translated("1/head_dim"), -1.0),
        (translated("√head_dim"), 0.5),
        (translated("head_dim"), 1.0),
    )
    for words, power in usual:
        if all(abs(factor - width**power) <= 1e-5 * width**power for width, factor in factors.items()):
            return words
    if all(abs(factor) < 1e-8 for factor in factors.values()):
        return translated("the scores have no effect")
    if any(isnan(factor) for factor in factors.values()):
        return translated("the weights are no softmax of the scores")
    return translated("none of the usual scales")


def agreement(student: Student) -> Trials:
    """Test that the output agrees with the attention function of attendo.

    >>> from attendo.nn.attention import attention
    >>> any(agreement(Student(attention, "mine")))
    False
    """
    thirds = (Case(case.query / 3, case.key / 3, case.value / 3) for case in drawn(student, seeds=1))
    for case in (*drawn(student), *thirds):  # halves are exact in float32, thirds are not
        answer = student(case)
        failure = compared(case, right(case), answer.output)
        if failure is None and answer.weights is not None:
            failure = compared(case, attention_weights(case.query, case.key), answer.weights)
        yield failure
    for lead in LEADS[2:]:
        case = draw(SIZES[-2], lead)
        with suppress(RefusedError):  # `shapes` says so
            yield compared(case, right(case), student(case).output)


def permutation(student: Student) -> Trials:
    """Test that permuting keys with their values does not change the output, and permuting queries permutes the output.

    >>> from attendo.nn.attention import attention
    >>> mixed = Student(lambda q, k, v: attention(q, k, v.flip(-2)), "mine")
    >>> any(permutation(Student(attention, "mine"))), any(permutation(mixed))
    (False, True)
    """
    for case in drawn(student, seeds=1):
        output = student(case).output
        keys = replace(case, key=case.key.roll(1, -2), value=case.value.roll(1, -2))
        yield compared(keys, output, student(keys).output, ORDER_TOLERANCE)
        queries = replace(case, query=case.query.roll(1, -2))
        yield compared(queries, output.roll(1, -2), student(queries).output, ORDER_TOLERANCE)


def stability(student: Student) -> Trials:
    """Test that scores of ±10⁴ lead to finite numbers, and to weights with the same sum as for smaller scores.

    >>> from attendo.nn.attention import attention
    >>> any(stability(Student(attention, "mine")))
    False
    """
    hint = passage("properties.stability")
    for keys in ((100.0, 0.0), (-100.0, -101.0), (100.0, 100.0)):
        arrays = (torch.tensor([[100.0]]), torch.tensor([[key] for key in keys]), torch.ones(2, 1))
        query, key, value = (array.double().expand(*student.lead, *array.shape) for array in arrays)
        case = Case(query, key, value)
        expected, got = student(replace(case, query=query / 1e4)).output, student(case).output
        is_same = got.shape == expected.shape and torch.allclose(got, expected, 1e-6, 1e-6)
        yield None if is_same else Failure(case, numbers(expected), numbers(got), hint)


def inputs(student: Student) -> Trials:
    """Test that the function does not change its inputs.

    >>> [failure.got.en for failure in inputs(Student(lambda q, k, v: v.zero_(), "mine")) if failure][0]
    'value became [[0]]'
    """
    with_masks = drawn_masks(student) if student.mask_name is not None else ()
    for case in (*drawn(student, seeds=1), *with_masks):
        before, given = student.arguments(case), student.arguments(case)
        student.answer(case, given)
        failure = None
        for name, array in given.items():
            kept, now = torch.as_tensor(before[name]), torch.as_tensor(array)
            if failure is None and not torch.equal(kept, now):
                failure = Failure(
                    case,
                    _said(f"{name} stays", f"{name} は変わらない：", kept),
                    _said(f"{name} became", f"{name} が変わった：", now),
                    passage("properties.inputs"),
                )
        yield failure


def _said(en: str, ja: str, array: Tensor) -> Localized:
    return Localized(f"{en} {numbers(array).en}", f"{ja}{numbers(array).ja}")
