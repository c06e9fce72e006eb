"""The tree of a search holds its results, and costs nothing where it is not asked for."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_configs import random_config
from search_definition import trace
from search_table import EOS, Table, search

from attendo.decoding.beam import DecodingConfig


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), levels=st.sampled_from([None, 1]))
def test_walking_the_parents_rebuilds_every_hypothesis(seed, levels):
    rng = np.random.default_rng(seed)
    config = random_config(rng)
    table = Table(seed, vocab=int(rng.integers(3, 7)), levels=levels, end_bias=float(rng.integers(-1, 2)))
    found, trees = trace(table, [(5,), (6, 7)], [5, 3], config, [(), (2,)])
    for texts, tree, source in zip(found, trees, [(5,), (6, 7)], strict=True):
        paths = {}
        for step, nodes in enumerate(tree.steps):
            assert len(nodes) <= config.beam * (1 + config.refill)  # those that go on, and those that end
            for number, node in enumerate(nodes):
                ids, log_probs = tree.path(step, number)
                assert (len(ids), ids[-1]) == (step + 1, node.token)
                assert node.finished == (node.token == EOS) == (node.beam is None)
                expected = [table.log_probs(source, ids[:i])[token] for i, token in enumerate(ids)]
                assert log_probs == pytest.approx(expected, abs=1e-12)
                paths[ids] = log_probs
        for text in texts:
            ids = text.token_ids + (EOS,) * text.finished
            assert paths.get(ids, ()) == text.token_log_probs
            assert math.fsum(text.token_log_probs) == text.log_prob


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), levels=st.sampled_from([None, 1]))
def test_a_trace_changes_nothing(seed, levels):
    table = Table(seed, vocab=5, levels=levels)
    config = DecodingConfig(beam=3, n_best=2)
    found, trees = trace(table, [(5,), (6,)], [6, 4], config)
    assert found == search(table, [(5,), (6,)], [6, 4], config)
    assert len(trees) == 2


def test_every_ended_text_of_the_tree_is_a_finished_hypothesis():
    config = DecodingConfig(beam=4, n_best=4)
    found, (tree,) = trace(Table(3, vocab=6), [(5,)], [8], config)
    ended = {
        tree.path(step, number)[0][:-1]
        for step, nodes in enumerate(tree.steps)
        for number, node in enumerate(nodes)
        if node.finished
    }
    assert ended == {text.token_ids for text in found[0] if text.finished}
    assert ended


def test_the_tree_of_two_words():
    """beam 2; the first step keeps tokens 2 and 3, the second ends one of them."""
    table = Table(vocab=4)
    with np.errstate(divide="ignore"):
        table.entries = {
            ((1,), ()): np.log([0, 0, 0.6, 0.4]),
            ((1,), (2,)): np.log([0, 0.2, 0.5, 0.3]),
            ((1,), (3,)): np.log([0, 0.9, 0.1, 0]),
        }
    _, (tree,) = trace(table, [(1,)], [2], DecodingConfig(beam=2))
    first, second = ([dataclasses.astuple(node) for node in nodes] for nodes in tree.steps)
    assert first == [
        (2, pytest.approx(math.log(0.6)), 0, 0, False),
        (3, pytest.approx(math.log(0.4)), 0, 1, False),
    ]
    assert second == [
        (EOS, pytest.approx(math.log(0.9)), 1, None, True),
        (2, pytest.approx(math.log(0.5)), 0, 0, False),
    ]


def test_where_nothing_may_follow_the_tree_is_empty():
    table = Table(vocab=3)
    table.entries[(1,), ()] = np.full(3, -np.inf)
    found, (tree,) = trace(table, [(1,)], [3], DecodingConfig(beam=2))
    assert (found[0][0].token_ids, tree.steps) == ((), ())
