"""Masks from and to torch's: what one side hides, the other hides."""

import pytest
import torch
from torch import nn
from torch_masks import mask_from_torch, mask_to_torch
from torch_modules import from_torch

from attendo.errors import AttendoError
from attendo.nn.masks import Mask

D, HEADS, BATCH, SRC, TGT = 12, 3, 3, 5, 4
LENGTHS = torch.tensor([5, 1, 3])
PADDING = torch.arange(SRC) >= LENGTHS[:, None]  # torch's sense: True is hidden


pytestmark = pytest.mark.usefixtures("float64")


def test_masks_there_and_back():
    hidden = torch.rand(BATCH * HEADS, TGT, SRC) < 0.4
    floating = torch.zeros(TGT, SRC).masked_fill(hidden[0], -torch.inf)
    assert torch.equal(mask_to_torch(mask_from_torch(hidden[0]), TGT, SRC), hidden[0])
    assert torch.equal(mask_to_torch(mask_from_torch(floating), TGT, SRC), hidden[0])
    many = mask_from_torch(hidden, n_heads=HEADS)
    assert torch.equal(mask_to_torch(many, TGT, SRC, n_heads=HEADS, batch=BATCH), hidden)
    both = mask_from_torch(hidden[0], PADDING)
    there = mask_to_torch(both, TGT, SRC, n_heads=HEADS, batch=BATCH)
    assert torch.equal(there.view(BATCH, HEADS, TGT, SRC)[:, 1], hidden[0] | PADDING[:, None])
    assert mask_from_torch() is None


# every query has a key: torch gives NaN without
@pytest.mark.parametrize("mask", [Mask(causal=True), Mask(key_lengths=torch.tensor([5, 3, 4]), window=4)])
@pytest.mark.parametrize("floating", [False, True])
def test_both_sides_compute_the_same_under_a_mask(mask, floating):
    theirs = nn.MultiheadAttention(D, HEADS, batch_first=True)
    x = torch.randn(BATCH, TGT, D, requires_grad=True)
    memory = torch.randn(BATCH, SRC, D)
    attn_mask = mask_to_torch(mask, TGT, SRC, n_heads=HEADS, batch=BATCH)
    assert attn_mask.any()
    if floating:
        attn_mask = torch.zeros(attn_mask.shape).masked_fill(attn_mask, -torch.inf)
    expected, _ = theirs(x, memory, memory, attn_mask=attn_mask)
    ours = from_torch(theirs)
    for same in (mask, mask_from_torch(attn_mask, n_heads=HEADS)):
        mixed, slope = ours(x, memory, same), torch.randn(BATCH, TGT, D)
        torch.testing.assert_close(mixed, expected, rtol=1e-10, atol=1e-10)
        by_ours, by_theirs = (torch.autograd.grad(y, x, slope, retain_graph=True) for y in (mixed, expected))
        torch.testing.assert_close(by_ours, by_theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"attn_mask": torch.tensor([[0.0, -1.5]])}, "a bias on the scores"),
        ({"attn_mask": torch.tensor([[0.0, -0.5]])}, "a bias on the scores"),
        ({"attn_mask": torch.tensor([[0, 1]])}, "the type torch.int64"),
        ({"attn_mask": torch.zeros(6, 1, 1)}, "n_heads=None"),
        ({"attn_mask": torch.zeros(6, 1, 1), "n_heads": 4}, "n_heads=4"),
        ({"attn_mask": torch.zeros(2)}, "1 axes"),
        ({"key_padding_mask": torch.zeros(2)}, "1 axes"),
    ],
)
def test_masks_that_are_none_are_refused(arguments, named):
    with pytest.raises(AttendoError, match=named):
        mask_from_torch(**arguments)


def test_a_mask_for_another_batch_is_refused():
    with pytest.raises(AttendoError, match="3 rows and 1 heads, not for batch=2"):
        mask_to_torch(Mask(key_lengths=LENGTHS), TGT, SRC, batch=2)
    three_heads = Mask(allowed=torch.ones(1, 3, TGT, SRC, dtype=torch.bool))
    with pytest.raises(AttendoError, match="1 rows and 3 heads, not for batch=1, n_heads=2"):
        mask_to_torch(three_heads, TGT, SRC, n_heads=2)
