"""Diverse groups: each a beam search, kept apart by the tokens of those before it."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from search_definition import find, trace
from search_table import EOS, Table, search

from attendo.decoding.beam import DecodingConfig

SEEDS = st.integers(0, 10**6)
LEVELS = st.sampled_from([None, 0, 1])


def keeps(tree, beams):
    """What the steps of a tree kept in these beams: (token, log-probability, parent)."""
    return [
        [(node.token, node.log_prob, node.parent - beams.start) for node in nodes if node.parent in beams]
        for nodes in tree.steps
    ]


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, levels=LEVELS, size=st.integers(1, 3), groups=st.integers(2, 3))
def test_the_first_group_is_plain_and_without_a_penalty_so_are_all(seed, levels, size, groups):
    table = Table(seed, vocab=6, levels=levels)
    plain = DecodingConfig(beam=size, n_best=size)
    _, (tree,) = trace(table, [(1,)], [5], plain)
    expected = keeps(tree, range(size))
    for strength in (0.0, 2.0):
        beam = size * groups
        config = DecodingConfig(beam=beam, n_best=beam, beam_groups=groups, diversity_penalty=strength)
        found, (tree,) = trace(table, [(1,)], [5], config)
        for group in range(groups if strength == 0 else 1):
            steps = keeps(tree, range(group * size, (group + 1) * size))
            assert [nodes for nodes in steps if nodes] == expected
        if strength == 0:
            assert found == search(table, [(1,)], [5], plain)  # what all groups find is returned once


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, levels=LEVELS, vocab=st.integers(4, 8), groups=st.integers(1, 6), size=st.integers(1, 2))
@example(seed=1, levels=None, vocab=5, groups=4, size=2)
def test_strongly_repelled_groups_start_with_different_tokens(seed, levels, vocab, groups, size):
    beam = size * groups
    config = DecodingConfig(beam=beam, n_best=beam, beam_groups=groups, diversity_penalty=1e6)
    texts = find(Table(seed, vocab, levels), [(1,)], [4], config)[0]
    first = {(*ids, EOS)[0] for ids, _, _, _ in texts}
    # all but the begin id can stand first; a group begins with `size` of them and may end with texts of one
    assert len(first) >= min(groups, (vocab - 1) // size)
    plain = find(Table(seed, vocab, levels), [(1,)], [4], DecodingConfig(beam=beam, n_best=beam))[0]
    if size == 1:
        assert len(first) >= len({(*ids, EOS)[0] for ids, _, _, _ in plain})


def test_the_penalty_counts_how_often_earlier_groups_took_a_token():
    """Three tokens, each 1 less likely than the one before; a group of one row takes one of them."""
    table = Table(vocab=6)
    logits = np.array([-99.0, -99.0, 0.0, -1.0, -2.0, -9.0])
    for ids in itertools.chain(*(itertools.product(range(2, 6), repeat=n) for n in range(2))):
        table.entries[(1,), ids] = logits
    for strength, first in ((0.5, [2, 2, 2]), (0.7, [2, 2, 3]), (1.5, [2, 3, 2]), (2.5, [2, 3, 4])):
        config = DecodingConfig(beam=3, n_best=3, beam_groups=3, diversity_penalty=strength)
        _, (tree,) = trace(table, [(1,)], [1], config)
        assert [node.token for node in tree.steps[0]] == first


BAD = [
    *((name, value, "must be between 0 and") for name in ("min_length", "no_repeat_ngram") for value in (-1, math.inf)),
    *(
        (name, value, "must be between 0 and")
        for name in ("coverage_penalty", "diversity_penalty")
        for value in (-0.1, math.nan, math.inf)
    ),
    *(("beam_groups", groups, "must be at least 1 and divide beam") for groups in (0, -1, 3, 8)),
    ("length_norm", "mean", "must be gnmt or plain"),
]


@pytest.mark.parametrize(("name", "value", "remedy"), BAD)
def test_options_out_of_range_are_refused_in_one_line(name, value, remedy):
    with pytest.raises(ValueError, match=f"^{name}=.*{remedy}.*$") as error:
        DecodingConfig(**{name: value})
    assert str(value) in str(error.value)
