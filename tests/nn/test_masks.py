"""Masks on examples small enough to read; the properties stand in properties/test_attention_properties.py."""

import dataclasses

import pytest
import torch

from attendo.nn.masks import Mask, banded, causal, within_lengths


def drawing(text):
    """The mask drawn row by row with x for "may attend"."""
    return torch.tensor([[mark == "x" for mark in row] for row in text.split()])


def test_causal_is_aligned_at_the_last_query_and_the_last_key():
    assert causal(3, 3).equal(drawing("x.. xx. xxx"))
    assert causal(1, 3).equal(drawing("xxx"))
    assert causal(3, 2).equal(drawing(".. x. xx"))  # the first query stands before every key


def test_a_window_is_aligned_at_the_last_query_and_the_last_key():
    assert banded(2, 4, 2).equal(drawing(".xxx ..xx"))
    assert banded(4, 4, 1).equal(torch.eye(4, dtype=torch.bool))


def test_lengths_beyond_the_keys_allow_them_all():
    assert within_lengths(torch.tensor([0, 2, 9]), 2).equal(drawing(".. xx xx"))


def test_no_condition_allows_everything():
    assert Mask().dense(2, 3).equal(torch.ones(1, 1, 2, 3, dtype=torch.bool))


def test_all_conditions_hold_at_once():
    mask = Mask(
        causal=True,
        key_lengths=torch.tensor([4, 3]),
        segments=torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]]),
        window=3,
        allowed=drawing("xxxx xxxx x.xx xxxx"),
    )
    assert mask.dense(4, 4)[0, 0].equal(drawing("x... xx.. ..x. ..xx"))
    assert mask.dense(4, 4)[1, 0].equal(drawing("x... xx.. x.x. .xx."))


def test_segments_of_a_continued_text_are_those_of_the_last_queries():
    mask = Mask(segments=torch.tensor([[1, 1, 2, 2]]))
    assert mask.dense(2, 4)[0, 0].equal(drawing("..xx ..xx"))


def test_segments_joined_stay_apart_whatever_their_numbers():
    one, two = torch.tensor([[0, 1, 0, -5]]), torch.tensor([[0, -1, 7, 7]])
    both = (Mask(segments=one) & Mask(segments=two)).dense(4, 4)
    assert both.equal(Mask(segments=one).dense(4, 4) & Mask(segments=two).dense(4, 4))


def test_only_causal_is_what_kernels_have_a_fast_path_for():
    assert Mask(causal=True).only_causal
    assert (Mask(causal=True) & Mask()).only_causal
    assert not Mask().only_causal
    assert not Mask(causal=True, window=2).only_causal
    assert not Mask(causal=True, key_lengths=torch.tensor([1])).only_causal


def test_a_mask_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Mask().causal = True  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("mask", "q_len", "k_len", "message"),
    [
        (Mask(segments=torch.zeros(1, 3, dtype=torch.long)), 4, 4, "segments have 3 positions"),
        (Mask(segments=torch.zeros(1, 3, dtype=torch.long)), 4, 3, "4 queries and 3 keys"),
        (Mask(allowed=torch.ones(2, 3, dtype=torch.bool)), 3, 3, r"allowed has shape \(2, 3\)"),
        (Mask(allowed=torch.ones(3, 2, dtype=torch.bool)), 3, 3, r"allowed has shape \(3, 2\)"),
    ],
)
def test_a_part_that_does_not_fit_is_refused(mask, q_len, k_len, message):
    with pytest.raises(ValueError, match=message):
        mask.dense(q_len, k_len)


def test_conditions_are_given_by_name():
    with pytest.raises(TypeError, match="positional"):
        Mask(True)  # pyright: ignore[reportCallIssue]


def test_masks_are_compared_as_things():
    """Two masks of tensors have no truth of being equal."""
    lengths = torch.tensor([1, 2])
    mask = Mask(key_lengths=lengths)
    assert mask == mask
    assert mask != Mask(key_lengths=lengths)
    assert len({mask, Mask(key_lengths=lengths)}) == 2
