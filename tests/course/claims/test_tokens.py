"""C42 and C43: sums of tokens and positions, and tokens that are numbers, against sums done by hand."""

import numpy as np
import pytest
import torch
from claim_findings import failing

from attendo.nn.attention import attention
from attendo_course.claims import tokens
from attendo_course.claims.samples import normal


def test_two_lines_in_a_plane_are_separated_by_hand():
    m = tokens.separation(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    assert torch.allclose(torch.tensor([[5.0, 2.0]]) @ m, torch.tensor([[3.0, 0.0]]), atol=1e-6)


@pytest.mark.parametrize(("d", "exact"), [(7, True), (6, False)])
def test_matrices_need_a_dimension_for_each_difference(d, exact):
    e, p = normal(0, 5, d), normal(1, 4, d)  # 4 + 3 differences
    m = tokens.separation(e, p)
    lost = (e[1:] - e[0]) @ m - (e[1:] - e[0])
    left = (p[1:] - p[0]) @ m
    assert (max(lost.abs().max(), left.abs().max()) < 1e-9) == exact


def test_too_few_dimensions_fail():
    assert failing(tokens.sums_can_be_taken_apart(16)) == {
        "d = 16: |M(e + p) - e| up to a constant",
        "d = 16: |weights from e + p - weights from p|",
    }
    shares = [tokens.share_read(d) for d in tokens.WIDTHS]
    assert shares == sorted(shares)
    assert shares[0] < 0.05


def test_attention_with_another_scale_or_weights_is_found_out():
    found = tokens.tokens_may_be_numbers(lambda q, k, v: attention(q, k, v, scale=1.0))
    assert failing(found) == {"50 numbers: |attention - kernel regression|"}
    uniform = tokens.tokens_may_be_numbers(lambda q, k, v: v.mean(0).expand(len(q), 1))
    assert "sin 2πx from 50 numbers: largest error" in failing(uniform)
    assert np.isfinite(uniform.picture.values).all()
