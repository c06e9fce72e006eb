"""Which tokens are hidden, and what stands in their place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendo.data.masking import MASK_ID, hidden_tokens

rows = st.lists(st.integers(0, 20), min_size=1, max_size=30).map(np.array)


@given(ids=rows, share=st.floats(0.0, 1.0), rule=st.sampled_from(["mask", "80/10/10"]), seed=st.integers(0, 99))
def test_targets_are_the_tokens_and_specials_stay(ids, share, rule, seed):
    inputs, targets = hidden_tokens(ids, share, rule, 21, np.random.default_rng(seed))
    asked = targets != -1
    assert (targets[asked] == ids[asked]).all()
    assert (inputs[~asked] == ids[~asked]).all()
    assert not asked[ids < 4].any()
    assert asked.any() == (ids >= 4).any()
    if rule == "mask":
        assert (inputs[asked] == MASK_ID).all()
    else:
        assert ((inputs[asked] == MASK_ID) | (inputs[asked] >= 4)).all()


@pytest.mark.parametrize("share", [0.15, 0.4])
def test_the_shares_are_those_of_the_rule(share):
    ids = np.full(200_000, 5)
    inputs, targets = hidden_tokens(ids, share, "80/10/10", 1004, np.random.default_rng(0))
    asked = targets != -1
    n = asked.sum()
    assert abs(n / len(ids) - share) < 0.005
    found = np.array([(inputs[asked] == MASK_ID).sum(), (inputs[asked] == 5).sum()]) / n
    assert np.abs(found - [0.8, 0.1 + 0.1 / 1000]).max() < 0.01  # a drawn token may be the same one
    kinds = np.unique(inputs[asked & (inputs != MASK_ID) & (inputs != 5)])
    assert len(kinds) > 900 and kinds.min() >= 4 and kinds.max() == 1003


def test_the_same_generator_gives_the_same():
    ids = np.arange(4, 104)
    first, second = (hidden_tokens(ids, 0.15, "80/10/10", 104, np.random.default_rng(3)) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
