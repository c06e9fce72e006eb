"""Attention functions in JAX and Equinox have the same test as functions in PyTorch."""

from dataclasses import replace

import attentions
import attentions_in_jax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from attentions import outcome

from attendo_course import check
from attendo_course.grader import checker, properties, trials
from attendo_course.grader.jax_functions import as_torch, uses_jax
from attendo_course.grader.student import Student, meet
from attendo_course.jax.attention import attention

SIZE = (2, 3, 2, 2)
COMPILED = jax.jit(attentions_in_jax.with_mask)


@pytest.fixture
def few_shapes(monkeypatch):
    """JAX compiles a function for each shape: here a few shapes and properties are enough, and all take seconds."""
    for module in (properties, trials):
        monkeypatch.setattr(module, "SIZES", (SIZE, SIZE))
    monkeypatch.setattr(properties, "LEADS", ((),))
    chosen = ("shapes", "agreement", "gradient")
    left = tuple(found for found in checker.PROPERTIES if found.id in chosen)
    monkeypatch.setattr(checker, "PROPERTIES", left)


def test_a_module_passes_with_its_gradient(few_shapes):
    report = check(attentions_in_jax.Module(jnp.ones(())))
    assert (report.counts, report.remarks) == ((3, 3), ()), report
    assert not jax.config.jax_enable_x64
    case = trials.draw(SIZE)
    masked = replace(case, mask=torch.tensor([[False] * 3, [True] * 3]))
    assert properties._empty_gradient(meet(COMPILED), masked) is None


@pytest.mark.full
@pytest.mark.parametrize("function", [attentions_in_jax.with_mask, attention], ids=["student's", "attendo's"])
def test_a_right_one_has_all_properties(function):
    assert check(function, require=["mask", "scale", "gradient"]).counts == (10, 10)


def test_a_wrong_one_is_found(few_shapes):
    student = meet(attentions_in_jax.unscaled)
    assert any(properties.agreement(student)) and not any(properties.shapes(student))


def test_a_wrong_gradient_is_found():
    @jax.jit
    def halved(query, key, value):
        half = jax.lax.stop_gradient(value) / 2
        return attentions_in_jax.with_mask(query, key, value / 2 + half)

    failure = next(found for found in properties.gradient(Student(as_torch(halved), "mine")) if found)
    assert failure.expected.en.startswith("d(sum of the output)/dvalue")


@pytest.mark.full
def test_a_gradient_that_jax_cannot_compute_is_not_checked(few_shapes):
    report = check(attentions_in_jax.through_numpy)
    found = outcome(report, "gradient")
    assert (found.status, report.failed, report.counts) == ("not offered", (), (2, 2))
    assert found.note.en.startswith("JAX cannot differentiate it")


def test_the_error_of_jax_is_the_one_that_is_reported(few_shapes):
    failure = outcome(check(attentions_in_jax.broken), "shapes").failure
    assert failure.got.en.endswith("has no attribute nothing")
    assert "Tensor" not in failure.got.en


@pytest.mark.full
def test_whose_work_it_is():
    def remarks(function):
        case = trials.draw((2, 2, 2, 2))
        as_torch(function)(case.query, case.key, case.value)  # compiled, so that its Python code no longer runs
        return [remark.en for remark in checker.borrowed(Student(as_torch(function), "mine"))]

    @jax.jit
    def of_jax(query, key, value):
        return jax.nn.dot_product_attention(query[:, None], key[:, None], value[:, None])[:, 0]

    assert remarks(of_jax) == ["it leaves the work to jax._src.nn.functions.dot_product_attention"]
    assert remarks(jax.jit(lambda q, k, v: attention(q, k, v))) == [
        "it leaves the work to attendo_course.jax.attention.attention"
    ]
    assert remarks(COMPILED) == []


def test_which_functions_are_called_with_jax_arrays():
    assert uses_jax(eqx.filter_jit(attentions_in_jax.with_mask)) and uses_jax(COMPILED)
    assert uses_jax(attentions_in_jax.Module(jnp.ones(())))
    alone = type(lambda: None)(attentions_in_jax.imports_inside.__code__, {"__builtins__": __builtins__})
    assert uses_jax(alone) and meet(alone).kind == "torch"  # called in float64, with gradients
    assert not uses_jax(attentions.with_mask) and not uses_jax(attentions.in_numpy)
    assert meet(attentions.in_numpy).kind == "numpy"


def test_a_jax_function_has_a_gradient_in_torch():
    double = as_torch(lambda array, factor: (array**2 * factor, array.sum()))
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    squares, total = double(x, factor=torch.tensor([1.0, 10.0], dtype=torch.float64))
    assert squares.dtype == torch.float64
    (squares.sum() + total).backward()
    assert x.grad.tolist() == [3.0, 41.0]
    assert as_torch(lambda array: None)(x) is None
    assert np.asarray(as_torch(lambda array: np.ones(2))(x.detach())).tolist() == [1.0, 1.0]
