"""Search on tables that can be added up: against brute force, a plain loop, and forced scores."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from search_table import EOS, SPECIAL, Table, search

from attendo.decoding.beam import DecodingConfig, beam_search, best_tokens
from attendo.decoding.options import SpecialIds
from attendo.decoding.protocols import Hypothesis
from attendo.decoding.searcher import SearchBackend, Searcher
from attendo.errors import AttendoError


def test_a_likely_text_is_not_crowded_out_by_unlikely_ones_that_end_sooner():
    table, vocab = Table(vocab=8), 8
    for length in range(7):
        for ids in itertools.product((4, 5), repeat=length):
            likely = EOS if length == 6 else 5
            table.entries[(5,), ids] = np.log(np.where(np.arange(vocab) == likely, 0.9, 0.1 / (vocab - 1)))
    for beam in (1, 2, 3):
        found = search(table, [(5,)], [9], DecodingConfig(beam=beam, length_penalty=0.6))[0][0]
        assert found.token_ids == (5,) * 6
    crowded = DecodingConfig(beam=3, length_penalty=0.6, refill=True)
    assert search(table, [(5,)], [9], crowded)[0][0].token_ids != (5,) * 6


def mean_log_prob(hypothesis: Hypothesis) -> float:
    return hypothesis.log_prob / len(hypothesis.token_log_probs)


# the definition


def test_the_exercise_of_two_words():
    """Greedy takes the likelier first half and ends at .04; beam 2 finds the text of probability .06."""
    table = Table(vocab=4)
    probabilities = {(): [0.3, 0, 0.4, 0.3], (2,): [0.8, 0, 0.1, 0.1], (3,): [0.7, 0, 0.2, 0.1]} | {
        ids: [0, 1, 0, 0] for ids in itertools.product((2, 3), repeat=2)
    }
    with np.errstate(divide="ignore"):
        table.entries = {((1,), prefix): np.log(np.array(p)) for prefix, p in probabilities.items()}
    greedy = search(table, [(1,)], [3], DecodingConfig(beam=1))[0][0]
    best = search(table, [(1,)], [3], DecodingConfig(beam=2))[0][0]
    assert (greedy.token_ids, best.token_ids) == ((2, 2), (3, 2))
    assert math.exp(greedy.log_prob) == pytest.approx(0.04)
    assert math.exp(best.log_prob) == pytest.approx(0.06)


# edges


def test_pad_and_bos_are_never_generated():
    table = Table(vocab=6)
    special = SpecialIds(bos_id=2, eos_id=EOS, banned_ids=(0, 2, 5))
    rng = np.random.default_rng(0)
    for n in range(5):
        for ids in itertools.product(range(6), repeat=n):
            table.entries[(1,), ids] = rng.normal(size=6) + np.array([9, 0, 9, 0, 0, 9.0])
    config = DecodingConfig(beam=6, n_best=6)
    found = beam_search(table.step, table.start([(1,)], 6, 5), [5], config, special)[0]
    assert {token for h in found for token in h.token_ids} <= {3, 4}
    assert all(mean_log_prob(h) < -8 for h in found)  # what is banned keeps its share of the probability


@pytest.mark.parametrize("everywhere", [True, False])
def test_every_candidate_masked(everywhere):
    """Where no token may follow, the text so far is returned unfinished."""
    table = Table(vocab=4)
    table.entries = {((1,), ids): np.full(4, -np.inf) for n in range(3) for ids in itertools.product((2, 3), repeat=n)}
    if not everywhere:
        table.entries[(1,), ()] = np.array([-np.inf, -np.inf, 1.0, 0.0])
    found = search(table, [(1,), (2,)], [5, 5], DecodingConfig(beam=2))
    assert found[0][0].token_ids == (() if everywhere else (2,))
    assert not found[0][0].finished
    assert found[1] == search(table, [(2,)], [5], DecodingConfig(beam=2))[0]


def test_only_banned_candidates_left_beside_a_finished_text():
    table = Table(vocab=3)
    table.entries = {((1,), ()): np.array([0.0, 0.0, 0.0]), ((1,), (2,)): np.array([0.0, -np.inf, -np.inf])}
    found = search(table, [(1,)], [5], DecodingConfig(beam=4, n_best=4))[0]
    assert [(h.token_ids, h.finished) for h in found] == [((), True)]
    assert found[0].log_prob == pytest.approx(-math.log(3))


def test_nan_is_an_error_and_not_a_text():
    table = Table(vocab=4)
    table.entries[(1,), ()] = np.array([0.0, np.nan, 0.0, 0.0])
    with pytest.raises(AttendoError, match="NaN"):
        search(table, [(1,)], [5], DecodingConfig(beam=2))


def test_beam_larger_than_the_vocabulary_and_no_sources():
    found = search(Table(vocab=3), [(1,)], [3], DecodingConfig(beam=50, n_best=50))[0]
    assert [h.finished for h in found] == [True, True, True, False]
    assert Searcher(SearchBackend(Table().start, Table().step), SPECIAL, 5).search([], DecodingConfig()) == []


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(2, 40),
    k=st.integers(1, 8),
    levels=st.sampled_from([0, 1, 3, 1000]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_best_tokens_are_those_of_a_full_stable_sort(seed, vocab, k, levels, dtype):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(np.round(rng.normal(size=(3, vocab)) * levels)).to(dtype)
    logits[rng.random((3, vocab)) < 0.2] = -torch.inf
    logits[:, 0] = 1.0
    before = logits.clone()
    tokens, log_probs = best_tokens(logits, k, banned_ids=(1,))
    assert torch.equal(logits, before)
    full = logits.log_softmax(-1, dtype=torch.promote_types(dtype, torch.float32)).double()
    full[:, 1] = -torch.inf
    values, ids = full.sort(dim=1, descending=True, stable=True)
    assert np.array_equal(log_probs, values[:, :k])
    possible = log_probs > -np.inf
    assert np.array_equal(tokens[possible], ids[:, :k].numpy()[possible])


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"beam": 0}, "beam=0 must be"),
        ({"beam": 2, "n_best": 3}, "n_best=3 must be between 1 and beam=2"),
        ({"n_best": 0}, "n_best=0 must be"),
        ({"length_penalty": math.nan}, "length_penalty"),
        ({"max_length_ratio": -1.0}, "max_length_ratio"),
        ({"max_length_extra": 0}, "max_length_extra"),
        ({"batch_tokens": 0}, "batch_tokens"),
        ({"refill": True, "beam_groups": 2}, "refill cannot be used with beam_groups above 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings_, message):
    with pytest.raises(ValueError, match=message):
        DecodingConfig(**settings_)
    with pytest.raises(ValueError, match="banned_ids contains eos_id 3"):
        SpecialIds(bos_id=2, eos_id=3, banned_ids=(0, 3))


def test_the_limit_is_the_models_where_that_is_shorter():
    assert DecodingConfig(max_length_ratio=1.5, max_length_extra=4).max_length(10, 100) == 19
    assert DecodingConfig().max_length(1000, 64) == 64
    with pytest.raises(AttendoError, match="limit of 0"):
        search(Table(), [(1,)], [0], DecodingConfig())
