"""The fused loss is the readable one: in value and in both gradients, in chunks of any size."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attendo.nn.layers import CappedLinear
from attendo.training import losses
from attendo.training.losses import contrastive_losses, linear_cross_entropy, token_losses


def test_a_limit_of_the_logits_changes_the_loss_and_its_gradients():
    torch.manual_seed(0)
    output, targets = CappedLinear(5, 7, cap=2.0), torch.tensor([1, 6, 0])
    hidden = (3 * torch.randn(3, 5)).requires_grad_()
    found = linear_cross_entropy(hidden, output, targets)
    logits = 2.0 * (nn.functional.linear(hidden, output.weight, output.bias) / 2.0).tanh()
    wanted = nn.functional.cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(loss, hidden)[0] for loss in (found, wanted)))


def both(n, d, vocab, smoothing, factor, dtype, chunk, seed=0, bias=False):
    """(loss, gradient of the states, gradients of the weight and the bias, if any), fused and readable."""
    torch.manual_seed(seed)
    output = nn.Linear(d, vocab, bias=bias, dtype=dtype)
    hidden = (3 * torch.randn(n, d, dtype=dtype)).requires_grad_()
    targets = torch.randint(0, vocab, (n,))
    losses.CHUNK_VALUES, before = chunk, losses.CHUNK_VALUES
    try:
        fused = linear_cross_entropy(hidden, output, targets, smoothing, factor)
        found = (fused.detach(), *torch.autograd.grad(fused, (hidden, *output.parameters())))
    finally:
        losses.CHUNK_VALUES = before
    plain = factor * token_losses(output(hidden), targets, smoothing).sum()
    return found, (plain.detach(), *torch.autograd.grad(plain, (hidden, *output.parameters())))


@given(
    n=st.integers(1, 9),
    d=st.integers(1, 5),
    vocab=st.integers(2, 7),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    factor=st.sampled_from([1.0, 0.25]),
    chunk=st.integers(1, 40),
    seed=st.integers(0, 1000),
    bias=st.booleans(),
)
def test_fused_equals_readable_in_value_and_gradients(n, d, vocab, smoothing, factor, chunk, seed, bias):
    found = both(n, d, vocab, smoothing, factor, torch.float64, chunk, seed, bias)
    for fused, plain in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-10, atol=1e-10)


def test_fused_equals_readable_in_float32_at_a_real_size():
    for fused, plain in zip(*both(300, 32, 4000, 0.1, 1 / 300, torch.float32, 400_000), strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-6)


def test_fused_in_bfloat16_is_near_float32():
    torch.manual_seed(0)
    output, targets = nn.Linear(64, 100, bias=False), torch.randint(0, 100, (50,))
    hidden = torch.randn(50, 64, requires_grad=True)
    exact = linear_cross_entropy(hidden, output, targets, 0.1)
    (wanted,) = torch.autograd.grad(exact, hidden)
    with torch.autocast("cpu", torch.bfloat16):
        near = linear_cross_entropy(hidden, output, targets, 0.1)
    (found,) = torch.autograd.grad(near, hidden)
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, exact, rtol=1e-2, atol=0)
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.02)


def test_an_upstream_gradient_scales_both():
    torch.manual_seed(0)
    output = nn.Linear(3, 5, bias=False, dtype=torch.float64)
    hidden = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 1, 4, 4])
    once = torch.autograd.grad(linear_cross_entropy(hidden, output, targets), (hidden, output.weight))
    thrice = torch.autograd.grad(3 * linear_cross_entropy(hidden, output, targets), (hidden, output.weight))
    for one, three in zip(once, thrice, strict=True):
        torch.testing.assert_close(three, 3 * one)


def test_a_second_backward_pass_through_one_loss_is_refused():
    output, hidden = nn.Linear(3, 5, bias=False), torch.randn(4, 3, requires_grad=True)
    loss = linear_cross_entropy(hidden, output, torch.tensor([0, 1, 4, 4]))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_of_several_parts_add_up():
    torch.manual_seed(0)
    output, hidden = nn.Linear(3, 5, bias=False, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    targets = torch.tensor([0, 1, 4, 4, 2, 3])
    linear_cross_entropy(hidden, output, targets, 0.1).backward()
    whole = output.weight.grad
    output.weight.grad = None
    for part in (slice(0, 2), slice(2, 6)):
        linear_cross_entropy(hidden[part], output, targets[part], 0.1).backward()
    torch.testing.assert_close(output.weight.grad, whole)


def test_extreme_logits_stay_finite():
    output = nn.Linear(1, 3, bias=False)
    output.weight.data = torch.tensor([[1e4], [0.0], [-1e4]])
    hidden = torch.ones(2, 1, requires_grad=True)
    loss = linear_cross_entropy(hidden, output, torch.tensor([0, 2]))
    loss.backward()
    assert loss.item() == pytest.approx(2e4)
    assert hidden.grad is not None and hidden.grad.isfinite().all()


def test_smoothing_has_the_entropy_of_its_target_as_floor():
    vocab, smoothing = 37_000, 0.1
    q = torch.full((vocab,), smoothing / vocab, dtype=torch.float64)
    q[5] += 1 - smoothing
    floor = token_losses(q.log()[None], torch.tensor([5]), smoothing).item()
    assert floor == pytest.approx(1.37691, abs=5e-6)
    other = token_losses((q * 1.5).log()[None] + 0.01 * torch.randn(vocab), torch.tensor([5]), smoothing)
    assert other.item() > floor


def test_without_smoothing_it_is_the_plain_cross_entropy():
    logits, targets = torch.randn(6, 9), torch.randint(0, 9, (6,))
    plain = nn.functional.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(token_losses(logits, targets), plain)
    assert token_losses(torch.zeros(1, 8), torch.tensor([3])).item() == pytest.approx(math.log(8))


def test_contrastive_losses_are_those_of_the_definition():
    torch.manual_seed(0)
    vectors, classes = torch.randn(9, 5), torch.tensor([0, 1, 2, 0, 1, 0, 3, 1, 0])
    units = vectors / vectors.norm(dim=1, keepdim=True)
    found = contrastive_losses(vectors, classes)
    for i in range(9):
        others = [j for j in range(9) if j != i]
        total = sum(math.exp(10 * float(units[i] @ units[j])) for j in others)
        terms = [
            math.log(math.exp(10 * float(units[i] @ units[j])) / total) for j in others if classes[j] == classes[i]
        ]
        assert float(found[i]) == pytest.approx(-sum(terms) / len(terms) if terms else 0.0, abs=1e-4)
