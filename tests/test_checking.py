"""What the check says about right attention functions and about wrong ones of every usual kind."""

import json
import math

import attentions
import numpy as np
import pytest
import torch
from attentions import RIGHT, WRONG, plain, unscaled, with_mask

from attendo.errors import AttendoError
from attendo.microscope.labels import columns
from attendo.nn.attention import attention
from attendo.theory import check
from attendo.theory.checking.checker import PROPERTIES
from attendo.theory.checking.loading import load_function
from attendo.theory.checking.mask_properties import _slope
from attendo.theory.checking.student import Case, meet
from attendo.theory.checking.trials import SIZES, draw, numbers

MASKED = ("mask", "empty row")


def named(function):
    return getattr(function, "__name__", type(function).__name__)


def outcome(report, name):
    return next(found for found in report.outcomes if found.property.id == name)


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


def test_attendos_own_passes():
    assert check(attention).failed == ()
    assert [found.status for found in check(attention).outcomes] == ["holds"] * len(PROPERTIES)


@pytest.mark.parametrize(("function", "failed", "where", "hint"), WRONG, ids=named)
def test_wrong_ones_fail_in_the_right_place_with_the_right_hint(function, failed, where, hint):
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
    assert lines[0] == "unscaled: 6 of 8 properties hold"
    assert "✗ scale       scores are multiplied by 1/√head_dim" in lines
    assert "              64: unscaled" in repr(report) or "64: unscaled" in repr(report)
    assert "– mask        not offered: no parameter with `mask` in its name" in lines
    assert report.lines("ja")[0] == "unscaled: 8 個の性質のうち 6 個が成り立つ"
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
            powers = [
                math.exp(sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q))) for k in key
            ]
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


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (3, "3 is no function"),
        (lambda q, k: q, "takes 2 arrays; write <lambda>(query, key, value)"),
        (lambda q, k, v, heads: v, "wants heads; give that parameter a default"),
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
    torch.testing.assert_close(_slope(lambda x: x**3, cube), 3 * cube**2, rtol=1e-6, atol=0)


def test_numbers_that_differ_late_are_shown_with_enough_digits():
    assert numbers(torch.tensor([1.0]), torch.tensor([1.0 + 1e-6])).en == "[1]"
    double = torch.tensor([1 / 3], dtype=torch.float64)
    assert numbers(double + 1e-9, double).en == "[0.333333334333]"
    assert numbers(torch.tensor([math.nan])).en == "[nan]"


def test_a_case_names_its_arrays():
    ones = torch.ones(1, 1)
    assert list(Case(ones, ones, ones).arrays) == ["query", "key", "value"]
    assert list(Case(ones, ones, ones, ones > 0).arrays) == ["query", "key", "value", "mask"]


# ---- files


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "from other import softmax\n"
        "@dataclass\n"
        "class Sizes:\n"
        "    d: 'int' = 4\n"
        "def right(query, key, value):\n"
        "    return softmax(query @ key.mT / query.shape[-1] ** 0.5) @ value\n"
        "def second():\n"
        "    pass\n"
        "number = 3\n"
        "assert __name__ != '__main__'\n"
    )
    (tmp_path / "other.py").write_text("import torch\ndef softmax(x):\n    return x.softmax(-1)\n")
    return path


def test_a_function_is_loaded_from_a_file_with_its_neighbors(file):
    assert check(load_function(f"{file}:right")).ok
    assert sorted(path.name for path in file.parent.glob("mine*")) == ["mine.py"]


@pytest.mark.parametrize(
    ("place", "text", "said"),
    [
        ("F", None, "write FILE.py:FUNCTION"),
        (":f", None, "write FILE.py:FUNCTION"),
        ("no.py:f", None, "no.py: No such file or directory; give a Python file"),
        (".:f", None, "Is a directory"),
        ("mine.py:third", None, "third is no function there; there are: right, second"),
        ("mine.py:number", None, "number is no function there"),
        ("new.py:f", "x = 1", "f is no function there; there are: no functions"),
        ("new.py:f", "x = 1\ny = (\n", "new.py:2: syntax error: '(' was never closed"),
        ("new.py:f", "x = 1\nx = x / 0\n", "new.py:2: ZeroDivisionError: division by zero"),
        ("new.py:f", "import sys\n\nsys.exit(3)", "new.py:3: SystemExit: 3"),
        ("new.py:f", "import nothing_of_this_name", "new.py:1: ModuleNotFoundError"),
        ("new.py:f", "x = '\0'", "null bytes"),
        ("new.py:f", b"x = '\xff'", "syntax error"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(file, place, text, said, monkeypatch):
    monkeypatch.chdir(file.parent)
    if text is not None:
        (file.parent / "new.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(AttendoError) as caught:
        load_function(place)
    assert said in str(caught.value) and "\n" not in str(caught.value)
