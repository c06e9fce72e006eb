"""What every attention function must do (F07), each property tried on inputs from small to large."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import isnan, log, nan

import torch
from torch import Tensor

from attendo.display.i18n import Localized
from attendo.nn.attention import attention_weights
from attendo_course.grader.mask_properties import no_parameter
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

FACTOR_TOLERANCE = ORDER_TOLERANCE = 1e-6
"""So that one fault, float32 inside, fails in `agreement` and not everywhere."""
WIDTHS = (1, 2, 4, 16, 64)
"""Of heads, for the scale."""
PAIR = Localized("return (output, weights), in this order", "（出力, 重み）の順に返すこと")


def shapes(student: Student) -> Trials:
    """Output [..., q_len, value_dim], whatever the lengths, widths and batch dimensions.

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
                Localized(f"{en} of shape {list(shape)}", f"{ja}の形 {list(shape)}"),
                Localized(f"{en} of shape {list(found.shape)}", f"{ja}の形 {list(found.shape)}"),
                PAIR if len(wrong) == 2 and found.shape == wrong[1][0] else None,
            )
        yield failure


def rows(student: Student) -> Trials:
    """Each query's weights are not negative and sum to 1: values of ones give ones.

    >>> from attendo.nn.attention import attention
    >>> any(rows(Student(attention, "mine"))), any(rows(Student(lambda q, k, v: q @ k.mT @ v, "mine")))
    (False, True)
    """
    ones_give_ones = Localized(
        "values of ones give ones: the weights of a query sum to 1",
        "バリューがすべて 1 なら出力も 1（重みの和が 1）",
    )
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
        said = Localized("weights ≥ 0 of sum 1", "重みが 0 以上で和が 1")
        yield Failure(seen, said, numbers(wrong[0])) if wrong else None


def _is_distribution(weights: Tensor) -> bool:
    sums = weights.sum(-1)
    return bool((weights >= -TOLERANCE).all()) and close(sums, torch.ones_like(sums))


def scale(student: Student) -> Trials:
    """The scores are multiplied by 1/√head_dim, or by the scale that is given.

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
        said = Localized(
            f"scores · {shown} at head_dim {widths}: {name.en}",
            f"head_dim {widths} でスコア × {shown}：{name.ja}",
        )
        yield Failure(
            _two_keys(student, width),
            Localized(f"scores · {expected:.4g} = 1/√{width}", f"スコア × {expected:.4g} = 1/√{width}"),
            name if any(map(isnan, factors.values())) else said,
        )
    for given in (1.0, 0.25) if student.scale_name is not None else ():
        got = _factor(student, 4, given)
        failure = Failure(
            _two_keys(student, 4, given),
            Localized(f"scores · {given:g}, the scale that is given", f"スコア × {given:g}（渡した値）"),
            Localized(f"scores · {got:.4g}", f"スコア × {got:.4g}"),
            Localized(
                f"{student.scale_name} takes the place of 1/√head_dim and multiplies the scores",
                f"{student.scale_name} は 1/√head_dim の代わりにスコアに掛かる",
            ),
        )
        yield None if abs(got - given) <= FACTOR_TOLERANCE else failure


def no_scale(student: Student) -> Localized | None:
    """Why a function offers no scale of the caller's own.

    >>> no_scale(Student(abs, "mine")).en
    'no parameter with `scale` in its name'
    """
    if student.scale_name is not None:
        return None
    return no_parameter(student, "scale")


def has_no_scale(student: Student) -> Localized | None:
    """Why the scale cannot be read off a function's output.

    >>> has_no_scale(Student(lambda q, k, v: k, "mine")).en
    'no output of the right shape to read it from'
    """
    for width in WIDTHS:
        case = _two_keys(student, width)
        with suppress(RefusedError):
            if list(student(case).output.shape) == case.wanted:
                continue
        return Localized("no output of the right shape to read it from", "形の正しい出力がなく、読み取れない")
    return None


def _two_keys(student: Student, width: int, given: float | None = None) -> Case:
    """One query whose scores for two keys are 1 and 0 before scaling, and values that show the weights."""
    unit = torch.eye(1, width).double()
    arrays = (unit, torch.cat([unit, 0 * unit]), torch.eye(2).double())
    query, key, value = (array.expand(*student.lead, *array.shape) for array in arrays)
    return Case(query, key, value, scale=given)


def _factor(student: Student, width: int, given: float | None = None) -> float:
    """What multiplies the scores: ln of the two weights' ratio where the scores differ by 1; NaN if it has none."""
    weights = student(_two_keys(student, width, given)).output.flatten()
    if weights.shape != (2,) or not bool((weights > 0).all()):
        return nan
    return log(float(weights[0]) / float(weights[1]))


def _scale_name(factors: dict[int, float]) -> Localized:
    """Which of the usual wrong scales this is."""
    usual = (
        (Localized("unscaled", "スケールなし"), 0.0),
        (Localized("1/head_dim", "1/head_dim"), -1.0),
        (Localized("√head_dim", "√head_dim"), 0.5),
        (Localized("head_dim", "head_dim"), 1.0),
    )
    for words, power in usual:
        if all(abs(factor - width**power) <= 1e-5 * width**power for width, factor in factors.items()):
            return words
    if all(abs(factor) < 1e-8 for factor in factors.values()):
        return Localized("the scores have no effect", "スコアが効いていない")
    if any(isnan(factor) for factor in factors.values()):
        return Localized("the weights are no softmax of the scores", "重みがスコアの softmax ではない")
    return Localized("none of the usual scales", "よくあるスケールのどれでもない")


def agreement(student: Student) -> Trials:
    """Output as attendo's own function gives it.

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
    """Keys in another order with their values change nothing; queries in another order turn the rows with them.

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
    """Scores of 10⁴ and -10⁴ give numbers, and weights with the sum that smaller scores have.

    >>> from attendo.nn.attention import attention
    >>> any(stability(Student(attention, "mine")))
    False
    """
    hint = Localized(
        "subtract each query's largest score before exp; exp(10⁴) is infinite, and exp(-10⁴) is 0",
        "exp の前にクエリごとの最大のスコアを引くこと。exp(10⁴) は無限大に、exp(-10⁴) は 0 になる",
    )
    for keys in ((100.0, 0.0), (-100.0, -101.0), (100.0, 100.0)):
        arrays = (torch.tensor([[100.0]]), torch.tensor([[key] for key in keys]), torch.ones(2, 1))
        query, key, value = (array.double().expand(*student.lead, *array.shape) for array in arrays)
        case = Case(query, key, value)
        expected, got = student(replace(case, query=query / 1e4)).output, student(case).output
        is_same = got.shape == expected.shape and torch.allclose(got, expected, 1e-6, 1e-6)
        yield None if is_same else Failure(case, numbers(expected), numbers(got), hint)


def inputs(student: Student) -> Trials:
    """The function leaves its inputs as they were.

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
                    Localized(
                        "an operation in place (x /= …, x[...] = …, masked_fill_) writes into the caller's array",
                        "その場で書き換える演算（x /= …、x[...] = …、masked_fill_）が呼び出し側の配列を変えている",
                    ),
                )
        yield failure


def _said(en: str, ja: str, array: Tensor) -> Localized:
    """A sentence, and an array after it."""
    return Localized(f"{en} {numbers(array).en}", f"{ja}{numbers(array).ja}")
