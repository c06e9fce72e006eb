"""What the check says about right attention functions and about wrong ones of every usual kind."""

import json
import math

import attentions
import numpy as np
import pytest
import torch
from attentions import RIGHT, WRONG, outcome, plain, unscaled, with_mask

from attendo.display.width import columns
from attendo.errors import AttendoError
from attendo.nn.attention import attention
from attendo_course import check
from attendo_course.grader.checker import PROPERTIES
from attendo_course.grader.properties import _gradients, _slopes
from attendo_course.grader.student import meet
from attendo_course.grader.trials import SIZES, draw, numbers

MASKED = ("mask", "empty row")


def named(function):
    return getattr(function, "__name__", type(function).__name__)


@pytest.mark.some(4)
@pytest.mark.parametrize("function", RIGHT, ids=named)
def test_right_ones_pass(function):
    report = check(function)
    assert report.ok, report
    has_mask = function is not torch.nn.functional.scaled_dot_product_attention and "mask" in str(
        getattr(function, "__code__", None) and function.__code__.co_varnames
    )
    for found in report.outcomes:
        is_offered = has_mask if found.property.id in MASKED else True
        if found.property.id == "gradient" and function is attentions.in_numpy:
            is_offered = False
        assert (found.status, found.tried > 0) == (("holds", True) if is_offered else ("not offered", False))


@pytest.mark.some(8)
@pytest.mark.parametrize(("function", "failed", "where", "hint"), WRONG, ids=named)
def test_wrong_ones_fail_in_the_right_place_with_the_right_hint(function, failed, where, hint):
    torch.manual_seed(0)  # one of them draws: which of the other properties fail is up to chance
    report = check(function)
    wanted = {name.replace("-", " ") for name in failed.split()}
    if "+" in wanted:  # one mistake of shape raises in many places
        assert wanted - {"+"} <= set(report.failed)
    else:
        assert wanted == set(report.failed)
    failure = outcome(report, where).failure
    assert failure.hint is not None and (hint is None or hint in failure.hint.en)
    for language in ("en", "ja"):
        lines = report.lines(language)
        assert max(map(columns, lines)) <= 79
        assert all(getattr(words, language) for words in (failure.expected, failure.got, failure.hint))
    json.dumps(report.as_json("ja"), allow_nan=False)


def test_the_failing_input_is_the_smallest_and_its_numbers_are_true():
    failure = outcome(check(unscaled), "agreement").failure
    case = failure.case
    assert [tuple(array.shape) for array in case.arrays.values()] == [(1, 2), (2, 2), (2, 1)]
    assert failure.expected.en == numbers(attention(case.query, case.key, case.value)).en
    assert failure.got.en == numbers(unscaled(case.query, case.key, case.value)).en
    smaller = SIZES[: SIZES.index((1, 2, 2, 1))]  # with heads of width 1 nothing is wrong
    for size in smaller:
        small = draw(size)
        torch.testing.assert_close(
            unscaled(small.query, small.key, small.value), plain(small.query, small.key, small.value)
        )


def test_the_report_reads_as_a_table():
    report = check(unscaled)
    lines = repr(report).splitlines()
    assert lines[0] == "unscaled: 6 of 10 properties hold, mask not offered"
    assert "✗ scale       scores are multiplied by 1/√head_dim" in lines
    assert "              64: unscaled" in repr(report) or "64: unscaled" in repr(report)
    assert "– mask        not offered: no parameter with `mask` in its name" in lines
    assert report.lines("ja")[0] == "unscaled：10 個の性質のうち 6 個が成り立つ。対象外：mask（マスク）"
    facts = report.as_json()
    assert (facts["function"], facts["ok"], facts["failed"]) == ("unscaled", False, ["scale", "agreement"])
    assert [found["property"] for found in facts["properties"]] == [found.id for found in PROPERTIES]
    failure = facts["properties"][2]["failure"]
    assert failure["shapes"] == {"query": [1, 2], "key": [2, 2], "value": [2, 2]}
    assert failure["input"]["key"] == [[1.0, 0.0], [0.0, 0.0]]


def test_a_function_of_lists_is_called_with_arrays():
    def by_loops(query, key, value):
        rows = []
        for q in query:
            powers = [math.exp(sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q))) for k in key]
            mixed = [sum(p * v[j] for p, v in zip(powers, value, strict=True)) for j in range(len(value[0]))]
            rows.append([x / sum(powers) for x in mixed])
        return rows

    assert meet(by_loops).kind == "numpy"
    report = check(by_loops)
    assert set(report.failed) == {"shapes", "stability"}  # no batch, and exp(10⁴) raises
    assert "OverflowError" in outcome(report, "stability").failure.got.en


def test_how_a_function_is_met():
    def masks(query, key, value, key_padding_mask=None, mask=None, *, softmax_scale=1.0):
        return value

    student = meet(masks)
    assert (student.mask_name, student.scale_name) == ("key_padding_mask", "softmax_scale")
    assert (meet(with_mask).kind, meet(with_mask).lead, meet(with_mask).number_mask) == ("torch", (), False)
    assert meet(attentions.with_number_mask).number_mask
    assert meet(attentions.with_batch_only).lead == (1,)
    assert meet(attentions.in_numpy).kind == "numpy"
    assert meet(attentions.detached).kind == "torch"
    assert meet(lambda q, k, v, scale=True: v).scale_name is None  # a switch is no scale
    assert meet(lambda *arrays: arrays[2]).broken is None


def test_numpy_has_no_gradient_to_miss():
    report = check(attentions.in_numpy, require=["mask"])
    assert report.counts == (9, 9)
    assert report.lines("ja")[0] == "in_numpy：9 個の性質のうち 9 個が成り立つ。対象外：gradient（勾配）"
    assert check(attentions.in_numpy, require=["gradient"]).counts == (9, 10)


def heads_of_torch(query, key, value):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def masked_by_attendo(query, key, value, mask=None):
    return plain(query, key, value) if mask is None else attention(query, key, value, mask)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (heads_of_torch, ["it leaves the work to torch's scaled_dot_product_attention"]),
        (masked_by_attendo, ["it leaves the work to attendo.nn.attention.attention"]),
        (torch.nn.functional.scaled_dot_product_attention, ["this is torch's own function"]),
        (attention, ["this is attendo's own function"]),
        (with_mask, []),
    ],
)
def test_whose_work_it_is(function, said):
    report = check(function, require=["scale"])
    assert [remark.en for remark in report.remarks] == said
    if said == ["this is torch's own function"]:
        assert "parameters can't be read" in outcome(report, "scale").note.en


async def waiting(query, key, value):
    return value


class Waiting:
    async def __call__(self, query, key, value):
        return value


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (3, "3 is no function"),
        (lambda q, k: q, "takes 2 arrays; write <lambda>(query, key, value)"),
        (lambda q: q, "takes 1 array;"),
        (lambda q, k, v, heads: v, "wants heads; give that parameter a default"),
        (attentions.Module, "Module is a class; give an instance of it, as attention = Module(...)"),
        (waiting, "waiting is async; write a plain `def`"),
        (Waiting(), "Waiting is async"),
    ],
)
def test_what_is_no_attention_is_refused(function, said):
    with pytest.raises(AttendoError, match=said.replace("(", r"\(").replace(")", r"\)")):
        check(function)


def test_a_function_that_always_raises_is_tried_once():
    def broken(query, key, value):
        raise SystemExit("no")

    report = check(broken)
    assert report.failed == ("shapes",)
    assert [found.status for found in report.outcomes[1:]] == ["not tried"] * (len(PROPERTIES) - 1)
    assert "SystemExit: no" in repr(report)
    with_text = check(lambda q, k, v: np.array([["a"]]))
    assert "it returned an array of <U1" in repr(with_text)


@pytest.mark.parametrize(
    ("result", "said", "hint"),
    [
        ({"output": 1}, "it returned a value of type dict", "return the output itself, or (output, weights)"),
        (None, "it returned None", "the function has no `return`"),
        (1.0, "output of shape []", None),
    ],
)
def test_what_is_no_output_is_said_and_what_is_wanted(result, said, hint):
    report = check(lambda q, k, v: result)
    failure = outcome(report, "shapes").failure
    assert report.failed == ("shapes",)
    assert (failure.got.en, failure.hint and failure.hint.en) == (said, hint)
    assert failure.expected.en == "output of shape [2, 2]"
    assert "の形 [2, 2]" in "\n".join(report.lines("ja"))


def test_a_scale_that_cannot_be_read_is_not_tried():
    report = check(lambda q, k, v: v)
    found = outcome(report, "scale")
    assert (found.status, "scale" in report.failed, "nan" in repr(report)) == ("not tried", False, False)
    assert "– scale       not tried: no output of the right shape to read it from" in report.lines()
    both = check(lambda q, k, v: attentions.without_batch(math.sqrt(q.shape[-1]) * q, k, v))
    assert "scale" in both.failed  # batches fail here, and the scale can still be read
    assert "unscaled" in outcome(both, "scale").failure.got.en


def test_weights_of_a_wrong_shape_fail_as_shapes_only():
    report = check(lambda q, k, v, mask=None: (with_mask(q, k, v, mask), q.sum()))
    assert {"shapes"} <= set(report.failed) <= {"shapes", "rows", "agreement"}


# ---- gradients


def test_an_input_without_influence_needs_no_gradient():
    def even(q, k, v):
        return v.mean(-2, keepdim=True).expand(*q.shape[:-1], v.shape[-1])

    assert outcome(check(even), "gradient").status == "holds"
    constant = check(lambda q, k, v: plain(q, k, v).detach())
    failure = outcome(constant, "gradient").failure
    assert failure.got.en == "no gradient: the output is cut off"
    assert failure.expected.en.startswith("d(sum of the output)/dquery = [[0.0")


def test_gradients_that_look_equal_are_not_printed_as_equal():
    class Swapped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, array):
            return array.clone()

        @staticmethod
        def backward(ctx, slope):
            return slope.flip(-1)

    class Noisy(Swapped):
        @staticmethod
        def backward(ctx, slope):
            return slope * (1 + 1e-7 * torch.rand(()))

    swapped = outcome(check(lambda q, k, v: Swapped.apply(plain(q, k, v))), "gradient").failure
    assert swapped.expected.en.startswith("doutput[0, 0]/dquery = ")  # that of the sum is right
    assert swapped.expected.en.split(" = ")[1] != swapped.got.en
    assert "a backward of your own is wrong" in swapped.hint.en
    noisy = outcome(check(lambda q, k, v: Noisy.apply(plain(q, k, v))), "gradient").failure
    assert noisy.got.en == "gradients that differ from call to call"


def test_weights_that_are_returned_are_checked_too():
    def wrong_weights(q, k, v, mask=None):
        return with_mask(q, k, v, mask), (q @ k.mT).softmax(-1)

    report = check(wrong_weights)
    assert report.failed == ("agreement", "mask", "empty row")
    assert outcome(report, "mask").failure.expected.en == "weights of 0 where the mask is False"

    def unnormalized(q, k, v):
        return plain(q, k, v), (q @ k.mT).exp()

    assert "rows" in check(unnormalized).failed


def test_student_code_may_warn_and_leaves_its_inputs_alone():
    def warning(q, k, v):
        np.log(-1.0)
        return torch.tensor((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v)  # torch warns of the copy

    assert check(warning).failed == ("gradient",)
    case = draw((2, 3, 4, 2))
    kept = [array.clone() for array in case.arrays.values()]
    check(attentions.scaling_in_place)
    assert all(map(torch.equal, draw((2, 3, 4, 2)).arrays.values(), kept))


def test_finite_differences():
    cube = torch.tensor([1.0, 2.0], dtype=torch.float64)
    wanted = torch.diag(3 * cube**2)
    torch.testing.assert_close(_slopes(lambda x: x**3, cube, 1e-6), wanted, rtol=1e-6, atol=1e-12)
    cube.requires_grad_()
    assert torch.equal(_gradients(cube**3, cube), wanted)


def test_numbers_that_differ_late_are_shown_with_enough_digits():
    assert numbers(torch.tensor([1.0]), torch.tensor([1.0 + 1e-6])).en == "[1]"
    double = torch.tensor([1 / 3], dtype=torch.float64)
    assert numbers(double + 1e-9, double).en == "[0.333333334333]"
    assert numbers(torch.tensor([math.nan])).en == "[nan]"
