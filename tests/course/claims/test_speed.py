"""Claims C38 and C39: products are counted as by hand, and slower layers fail. Times are never compared."""

import numpy as np
import pytest
import torch
from claim_findings import SMALL, failing, finding
from torch import nn

from attendo.nn.attention import Attention
from attendo_course.claims import speed
from attendo_course.lecture import stacked_projection

C38, C39 = SMALL["C38"], SMALL["C39"]


def test_products_are_counted():
    assert speed.multiplications(lambda: torch.ones(5, 3) @ torch.ones(3, 7)) == 5 * 3 * 7
    layer, x = Attention(8, 2, bias=False), torch.ones(1, 6, 8)
    assert speed.multiplications(lambda: layer(x, x)) == 4 * 6 * 8 * 8 + 2 * 6 * 6 * 8


def test_times_are_per_round_and_call_and_the_number_of_threads_is_restored():
    calls, before = [], torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = speed.times([lambda: calls.append("a"), lambda: calls.append("b")], rounds=3)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert calls == ["a", "b"] * 4  # a first round is not counted
    assert found.shape == (3, 2)
    assert (found >= 0.0).all()


@pytest.mark.parametrize("name", ["C38", "C39"])
def test_times_are_shown_and_not_checked(name):
    checks = finding(name).checks
    assert all((check.relation == "shown") is ("time of" in check.name.en) for check in checks)
    shown = [check.value for check in checks if check.relation == "shown"]
    assert len(shown) == 4
    assert np.isfinite(finding(name).picture.values).all()


def test_a_stack_in_another_order_or_of_two_fails():
    swapped = speed.stacking_saves_no_products(lambda q, k, v: stacked_projection(q, v, k), **C38)
    assert failing(swapped) == {"largest |stacked - three products|"}

    def four(q, k, v):
        return stacked_projection(q, k, v, v)

    assert "stacked: multiplications, 3nd²" in failing(speed.stacking_saves_no_products(four, **C38))


def test_a_layer_that_waits_fails():
    cell = nn.RNN(8, 8, bias=False, batch_first=True)

    def waiting(x):
        return cell.to(x.dtype)(x)[0]

    wrong = failing(speed.recurrence_waits(waiting, **C39))
    assert {"attention: products, 4nd² + 2n²d", "layer: steps in a row, 2n more than n"} <= wrong
