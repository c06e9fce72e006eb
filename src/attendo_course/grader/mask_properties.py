"""What attention with a mask must do, and what its gradient must be (the other half of F07's properties)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from attendo.display.i18n import Localized
from attendo_course.grader.student import Case, Student
from attendo_course.grader.trials import Failure, Trials, close, compared, draw, drawn_masks, numbers

NO_GRADIENT = Localized("no gradient: the output is cut off", "勾配がない：出力が切り離されている")
CUT = Localized(
    "detach(), .data, .item(), torch.no_grad() or NumPy inside cut the gradient off",
    "detach()、.data、.item()、torch.no_grad()、NumPy が勾配を切っている",
)
JUMP = Localized(
    "the output jumps here: an argmax or a comparison stands where a softmax belongs",
    "ここで出力が跳んでいる。softmax の代わりに argmax や比較が使われている",
)
PARTLY_CUT = Localized(
    "a part of the way is cut off (detach(), .data, .item()), or a backward of your own is wrong",
    "経路の一部が切れている（detach()、.data、.item()）か、自作の backward が誤っている",
)


def no_mask(student: Student) -> Localized | None:
    """Why a function offers no mask.

    >>> no_mask(Student(abs, "mine")).en
    'no parameter with `mask` in its name'
    """
    if student.mask_name is not None:
        return None
    return no_parameter(student, "mask")


def no_parameter(student: Student, called: str) -> Localized:
    """What is said of a function without such a parameter.

    >>> no_parameter(Student(abs, "mine", has_signature=False), "mask").en
    "a built-in function, whose parameters can't be read; call it in a `def` of your own"
    """
    if not student.has_signature:
        return Localized(
            "a built-in function, whose parameters can't be read; call it in a `def` of your own",
            "組み込み関数なので、引数を読み取れない。自分の def の中で呼び出すこと",
        )
    return Localized(f"no parameter with `{called}` in its name", f"名前に {called} を含む引数がない")


def no_gradient(student: Student) -> Localized | None:
    """Why a function offers no gradient.

    >>> no_gradient(Student(abs, "mine", kind="numpy")).en
    'a NumPy function'
    """
    return Localized("a NumPy function", "NumPy の関数である") if student.kind == "numpy" else None


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
        weights = answer.weights
        if weights is None or weights.shape != case.mask.shape:  # `shapes` says so
            weights = torch.zeros_like(case.mask)
        if failure is None and bool((weights[~case.mask] != 0).any()):
            said = Localized("weights of 0 where the mask is False", "マスクが False の位置の重みが 0")
            failure = Failure(case, said, numbers(weights))
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
        Localized(
            "exactly 0, since every value that may be seen is 0",
            "見てよいバリューがすべて 0 なので、ちょうど 0",
        ),
        numbers(output),
        Localized(
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
            yield Failure(case, Localized("weights of 0", "重みが 0"), numbers(weights), _empty_hint(weights))
        else:
            yield None if student.kind == "numpy" else _empty_gradient(student, case)


def _zeros(zeros: Tensor) -> Localized:
    shown = numbers(zeros)
    return Localized(f"first row {shown.en}", f"先頭の行 {shown.ja}")


def _empty_hint(found: Tensor) -> Localized:
    if bool(found.isnan().any()):
        return Localized(
            "a softmax over -inf alone is 0/0; set the rows without keys to 0 afterwards",
            "すべて -inf の softmax は 0/0 になる。キーのない行は後で 0 にすること",
        )
    return Localized(
        "with a finite floor such as -1e9 a row without keys mixes forbidden values; set its weights to 0",
        "-1e9 のような有限の値では、キーのない行に禁止されたバリューが混ざる。その行の重みを 0 にすること",
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
                Localized(f"a gradient of numbers for {name}", f"{name} の勾配が有限の数"),
                numbers(array.grad),
                Localized(
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
            yield _wrong_gradient(student, case, name)


def _wrong_gradient(student: Student, case: Case, name: str) -> Failure | None:
    def output(array: Tensor) -> Tensor:
        return student(replace(case, **{name: array})).output

    array = case.arrays[name].clone().requires_grad_()
    first = output(array)
    is_single = torch.equal(first.float().double(), first)  # float32 inside: `agreement` says so
    step, tolerance = (1e-3, 1e-2) if is_single else (1e-6, 1e-5)
    has_gradient = first.requires_grad
    if has_gradient and torch.autograd.gradcheck(
        output, (array,), eps=step, atol=tolerance, raise_exception=False
    ):
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
            expected = Localized(f"d{en}/d{name} = {shown.en}", f"d{ja}/d{name} = {shown.ja}")
            return Failure(case, expected, numbers(found, slope) if has_gradient else NO_GRADIENT, hint)
    if not has_gradient:  # and there is none to have: nothing changes with this input
        return None
    return Failure(
        case,
        Localized(f"the same gradient for {name} at every call", f"{name} の勾配がどの呼び出しでも同じ"),
        Localized("gradients that differ from call to call", "呼び出すたびに異なる勾配"),
    )


def _slopes(output: Callable[[Tensor], Tensor], at: Tensor, step: float) -> Tensor:
    """The derivative of each number of the output by central differences: [n_outputs, *at.shape]."""
    slopes = []
    for i in range(at.numel()):
        moved = torch.zeros_like(at)
        moved.view(-1)[i] = step
        slopes.append((output(at + moved) - output(at - moved)).flatten() / (2 * step))
    return torch.stack(slopes, -1).unflatten(-1, at.shape)


def _gradients(output: Tensor, array: Tensor) -> Tensor:
    """The derivative of each number of the output as torch gives it: [n_outputs, *array.shape]."""
    zeros = torch.zeros_like(array)
    found = [torch.autograd.grad(n, array, retain_graph=True, allow_unused=True)[0] for n in output.flatten()]
    return torch.stack([zeros if slope is None else slope for slope in found])
