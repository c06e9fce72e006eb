"""What attention with a mask must do, and what its gradient must be (the other half of F07's properties)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attendo.theory.checking.student import Case, Student
from attendo.theory.checking.trials import Failure, Trials, close, compared, draw, drawn_masks, numbers
from attendo.words import Words

STEP = 1e-6
"""Of the finite differences that are shown beside a wrong gradient."""


def no_mask(student: Student) -> Words | None:
    """Why a function offers no mask.

    >>> no_mask(Student(abs, "mine")).en
    'no parameter with `mask` in its name'
    """
    if student.mask_name is not None:
        return None
    return Words("no parameter with `mask` in its name", "名前に mask を含む引数がない")


def no_gradient(student: Student) -> Words | None:
    """Why a function offers no gradient.

    >>> no_gradient(Student(abs, "mine", kind="numpy")).en
    'a NumPy function'
    """
    return Words("a NumPy function", "NumPy の関数である") if student.kind == "numpy" else None


def mask(student: Student) -> Trials:
    """Forbidden keys have no part, exactly: a query's output is that of the keys it may attend to.

    >>> from attendo.nn.attention import attention
    >>> any(mask(Student(attention, "mine", mask_name="mask")))
    False
    """
    for case in drawn_masks(student):
        assert case.mask is not None
        answer = student(case)
        failure = compared(case, _row_by_row(student, case), answer.output)
        if failure is None and answer.weights is not None and bool((answer.weights[~case.mask] != 0).any()):
            failure = Failure(
                case,
                Words("weights of 0 where the mask is False", "マスクが False の位置の重みが 0"),
                numbers(answer.weights),
            )
        yield failure
    for case in drawn_masks(student):
        yield _leak(student, case)


def _row_by_row(student: Student, case: Case) -> Tensor:
    """The function's own output for each query from the keys that it may attend to alone, without a mask."""
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
    """A failure if any of the first query's forbidden values shows, however large, however well their keys match."""
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
        Words(
            "exactly 0, since every value that may be seen is 0", "見てよい値がすべて 0 なので、ちょうど 0"
        ),
        numbers(output),
        Words(
            "what is added to forbidden scores is too small to make their weights 0; use -inf",
            "禁止された位置のスコアに足す数が小さく、重みが 0 にならない。-inf を使うこと",
        ),
    )


def empty_row(student: Student) -> Trials:
    """A query that may attend to no key gets zeros, not NaN, in value and in gradient.

    >>> from attendo.nn.attention import attention
    >>> any(empty_row(Student(attention, "mine", mask_name="mask")))
    False
    """
    for size in ((1, 1, 1, 1), (1, 2, 1, 1), (2, 2, 2, 2), (2, 3, 2, 2)):
        case = draw(size, student.lead)
        allowed = (torch.arange(size[0]) > 0)[:, None].expand(size[0], size[1])
        case = replace(case, mask=allowed.expand(*student.lead, *allowed.shape))
        answer = student(case)
        output = answer.output[..., :1, :]
        zeros = torch.zeros_like(output)
        if not close(output, zeros):
            yield Failure(case, _zeros(zeros), numbers(output), _empty_hint(output))
        elif answer.weights is not None and not close(
            answer.weights[..., :1, :], torch.zeros_like(answer.weights[..., :1, :])
        ):
            weights = answer.weights[..., :1, :]
            yield Failure(case, Words("weights of 0", "重みが 0"), numbers(weights), _empty_hint(weights))
        else:
            yield None if student.kind == "numpy" else _empty_gradient(student, case)


def _zeros(zeros: Tensor) -> Words:
    shown = numbers(zeros)
    return Words(f"first row {shown.en}", f"先頭の行 {shown.ja}")


def _empty_hint(found: Tensor) -> Words:
    if bool(found.isnan().any()):
        return Words(
            "a softmax over -inf alone is 0/0; set the rows without keys to 0 afterwards",
            "すべて -inf の softmax は 0/0 になる。キーのない行は後で 0 にすること",
        )
    return Words(
        "with a finite floor such as -1e9 a row without keys mixes forbidden values; set its weights to 0",
        "-1e9 のような有限の値では、キーのない行に禁止された値が混ざる。その行の重みを 0 にすること",
    )


def _empty_gradient(student: Student, case: Case) -> Failure | None:
    """A failure if a row without keys makes any gradient NaN."""
    arrays = {name: case.arrays[name].clone().requires_grad_() for name in ("query", "key", "value")}
    output = student(replace(case, **arrays)).output
    if not output.requires_grad:  # the property `gradient` says so
        return None
    output.sum().backward()
    for name, array in arrays.items():
        if array.grad is not None and not bool(array.grad.isfinite().all()):
            return Failure(
                case,
                Words(f"a gradient of numbers for {name}", f"{name} の勾配が有限の数"),
                numbers(array.grad),
                Words(
                    "NaN that is replaced after the softmax stays in the gradient; fill with a finite floor, then 0",
                    "softmax のあとで NaN を置き換えても勾配には残る。有限の下限で埋め、その後 0 にすること",
                ),
            )
    return None


def gradient(student: Student) -> Trials:
    """Gradients for query, key and value that agree with finite differences (torch's gradcheck).

    >>> from attendo.nn.attention import attention
    >>> cut = Student(lambda q, k, v: attention(q, k, v.detach()), "mine")
    >>> any(gradient(Student(attention, "mine"))), any(gradient(cut))
    (False, True)
    """
    for size in ((1, 2, 1, 1), (2, 3, 2, 2)):
        case = draw(size, student.lead)
        for name in ("query", "key", "value"):

            def output(array: Tensor, name: str = name, case: Case = case) -> Tensor:
                return student(replace(case, **{name: array})).output

            array = case.arrays[name].clone().requires_grad_()
            first = output(array)
            is_single = torch.equal(first.float().double(), first)  # float32 inside: `agreement` says so
            step, tolerance = (1e-3, 1e-2) if is_single else (1e-6, 1e-5)
            if not first.requires_grad:
                found: Words | None = Words(
                    "no gradient: the output is cut off", "勾配がない: 出力が切り離されている"
                )
            elif torch.autograd.gradcheck(output, (array,), eps=step, atol=tolerance, raise_exception=False):
                found = None
            else:
                (slope,) = torch.autograd.grad(output(array).sum(), array, allow_unused=True)
                found = numbers(torch.zeros_like(array) if slope is None else slope)
            yield None if found is None else _cut(case, name, found, _slope(output, array.detach()))


def _cut(case: Case, name: str, found: Words, wanted: Tensor) -> Failure:
    shown = numbers(wanted)
    return Failure(
        case,
        Words(f"d(sum of the output)/d{name} = {shown.en}", f"d(出力の和)/d{name} = {shown.ja}"),
        found,
        Words(
            "detach(), .data, .item(), torch.no_grad() or NumPy inside cut the gradient off",
            "detach()、.data、.item()、torch.no_grad()、NumPy が勾配を切っている",
        ),
    )


def _slope(output: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The derivative of the output's sum by central differences."""
    slope = torch.zeros_like(at)
    for i in range(at.numel()):
        step = torch.zeros_like(at)
        step.view(-1)[i] = STEP
        slope.view(-1)[i] = (output(at + step).sum() - output(at - step).sum()) / (2 * STEP)
    return slope
