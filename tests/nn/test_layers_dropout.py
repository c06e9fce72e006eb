"""Dropout: its rate, its mean, its randomness and its gradient."""

import pytest
import torch

from attendo.nn.layers import Dropout, keep_mask


@pytest.mark.parametrize("p", [0.1, 0.25, 0.3, 0.5, 0.75, 0.9])
def test_the_rate_is_p_and_the_mean_stays(p):
    torch.manual_seed(0)
    n = 2**20
    mask = keep_mask(torch.zeros(n // 4, 4), p)
    sigma = (p * (1 - p) / n) ** 0.5
    assert (mask == 0).double().mean().item() == pytest.approx(p, abs=5 * sigma + 1 / 65536)
    assert mask.double().mean().item() == pytest.approx(1.0, abs=5 * sigma / (1 - p))
    # four values share one 64-bit draw: each of them keeps the rate, and no two agree more than by chance
    lanes = (mask == 0).double()
    assert lanes.mean(0).sub(p).abs().max() < 10 * sigma + 1 / 65536
    assert torch.corrcoef(lanes.T).fill_diagonal_(0.0).abs().max() < 5 * (4 / n) ** 0.5


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_rate_is_right_to_one_65536th(steps):
    torch.manual_seed(1)
    n = 2**22
    dropped = (keep_mask(torch.zeros(n), steps / 65536) == 0).sum().item()
    expected = n * steps / 65536  # 64, 128, 192: one step is more than four standard deviations
    assert dropped == pytest.approx(expected, abs=4 * expected**0.5)


def test_kept_values_grow_by_the_rate_really_used():
    mask = keep_mask(torch.zeros(1000, dtype=torch.float64), 0.1)
    assert set(mask.tolist()) == {0.0, 65536 / (65536 - 6554)}


@pytest.mark.parametrize("shape", [(), (1,), (7,), (0, 3), (3, 5, 7)])
def test_any_shape(shape):
    assert keep_mask(torch.zeros(shape), 0.5).shape == shape
    assert keep_mask(torch.zeros(shape, dtype=torch.bfloat16), 0.5).dtype == torch.bfloat16


def test_one_value_in_65536_is_kept_at_the_highest_rate():
    torch.manual_seed(0)
    mask = keep_mask(torch.zeros(2**20), 1 - 1 / 65536)
    assert set(mask.tolist()) == {0.0, 65536.0}


def test_a_rate_next_to_one_stays_finite():
    assert keep_mask(torch.zeros(1000), 1 - 1e-9).isfinite().all()


def test_the_same_seed_draws_the_same_mask_and_the_next_draw_another():
    x = torch.ones(4, 100)
    torch.manual_seed(7)
    first, second = keep_mask(x, 0.5), keep_mask(x, 0.5)
    torch.manual_seed(7)
    assert keep_mask(x, 0.5).equal(first)
    assert not second.equal(first)


def test_the_module_draws_its_mask_the_cheap_way():
    x = torch.randn(3, 50)
    torch.manual_seed(7)
    dropped = Dropout(0.4)(x)
    torch.manual_seed(7)
    assert dropped.equal(x * keep_mask(x, 0.4))


def test_nothing_is_dropped_or_copied_outside_training():
    x = torch.randn(3, 4)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    state = torch.get_rng_state()
    Dropout(0.5).eval()(x)
    assert torch.get_rng_state().equal(state)  # evaluating does not shift what training draws next


def test_the_gradient_passes_through_the_same_mask():
    x = torch.randn(50, 40, dtype=torch.float64, requires_grad=True)
    y = Dropout(0.4)(x)
    slope = torch.randn_like(x)
    y.backward(slope)
    mask = (y / x).detach()
    assert 0.3 < (mask == 0).double().mean() < 0.5
    torch.testing.assert_close(x.grad, mask * slope)


def test_gradients_of_first_and_second_order_are_right():
    def dropped(x):
        torch.manual_seed(3)
        return Dropout(0.3)(x)

    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(dropped, x)
    assert torch.autograd.gradgradcheck(dropped, x)


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_what_is_no_rate_is_refused(p):
    with pytest.raises(ValueError, match="dropout="):
        Dropout(p)
