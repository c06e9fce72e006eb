"""Search on tables that can be added up: against brute force, a plain loop, and forced scores."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from search_table import BOS, EOS, SPECIAL, Table, every_text, search

from attendo.decoding.beam import DecodingConfig, beam_search, best_tokens, length_norm
from attendo.decoding.options import SpecialIds
from attendo.decoding.protocols import Hypothesis
from attendo.decoding.searcher import SearchBackend, Searcher
from attendo.errors import AttendoError


def plain_beam(table, source, limit, config):
    """The definition in `BeamSearch` once more: lists, full sorts, one source, no early stop."""
    beams, finished = [((), ())], []
    for length in range(1, limit + 1):
        candidates = []
        for number, (ids, steps) in enumerate(beams):
            for token, log_prob in enumerate(table.log_probs(source, ids)):
                if token != BOS:
                    total = float(np.float64(np.add.accumulate((0.0, *steps, log_prob))[-1]))
                    candidates.append((-total, token, number, log_prob))
        candidates.sort()
        placed = candidates[: config.beam - len(finished)]
        ended = [c for c in placed if c[1] == EOS]
        for _, _, number, log_prob in ended:
            ids, steps = beams[number]
            log_prob = math.fsum((*steps, log_prob))
            finished.append((ids, log_prob, log_prob / length_norm(length, config.length_penalty), True))
        going_on = [c for c in placed if c[1] != EOS]
        beams = [((*beams[n][0], token), (*beams[n][1], log_prob)) for _, token, n, log_prob in going_on]
    finished.sort(key=lambda text: -text[2])
    if len(finished) < config.n_best:
        sums = [(ids, math.fsum(steps)) for ids, steps in beams]
        unfinished = [
            (ids, total, total / length_norm(limit, config.length_penalty), False) for ids, total in sums
        ]
        finished += sorted(unfinished, key=lambda text: -text[2])
    return finished[: config.n_best]


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


def as_tuples(hypotheses):
    return [(h.token_ids, h.log_prob, h.score, h.finished) for h in hypotheses]


def mean_log_prob(hypothesis: Hypothesis) -> float:
    return hypothesis.log_prob / len(hypothesis.token_log_probs)


# the definition


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    limit=st.integers(1, 4),
    alpha=st.sampled_from([-0.5, 0.0, 0.6, 1.0, 2.0]),
    n_best=st.integers(1, 15),
)
def test_a_beam_as_large_as_the_space_lists_all_texts_in_order(seed, limit, alpha, n_best):
    table = Table(seed=seed)
    config = DecodingConfig(beam=32, n_best=n_best, length_penalty=alpha)
    found = search(table, [(7,)], [limit], config)[0]
    expected = every_text(table, (7,), limit, alpha)[:n_best]
    ended = [h for h in found if h.finished]
    assert [h.token_ids for h in ended] == [ids for ids, _, _ in expected]
    assert [h.log_prob for h in ended] == pytest.approx([log_prob for _, log_prob, _ in expected], abs=1e-12)
    assert [h.score for h in ended] == pytest.approx([score for _, _, score in expected], abs=1e-12)


@settings(max_examples=250, deadline=None)
@given(seed=st.integers(0, 10**6), levels=st.sampled_from([None, 0, 1, 3]))
def test_search_is_its_definition_also_where_scores_are_equal(seed, levels):
    rng = np.random.default_rng(seed)
    table = Table(
        seed=seed, vocab=int(rng.integers(3, 9)), levels=levels, end_bias=float(rng.integers(-1, 2))
    )
    beam, alpha = int(rng.integers(1, 7)), float(rng.choice([-1.0, 0.0, 0.6, 2.0]))
    config = DecodingConfig(beam=beam, n_best=int(rng.integers(1, beam + 1)), length_penalty=alpha)
    limit = int(rng.integers(1, 8))
    found = as_tuples(search(table, [(5,)], [limit], config)[0])
    assert found == plain_beam(table, (5,), limit, config)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), levels=st.sampled_from([None, 1]))
def test_beam_one_is_greedy(seed, levels):
    table = Table(seed=seed, vocab=8, levels=levels)
    ids, total = (), 0.0
    while len(ids) < 10:
        log_probs = [p if token != BOS else -math.inf for token, p in enumerate(table.log_probs((3,), ids))]
        token = log_probs.index(max(log_probs))
        total += log_probs[token]
        if token == EOS:
            break
        ids = (*ids, token)
    best = search(table, [(3,)], [10], DecodingConfig(beam=1))[0][0]
    assert best.token_ids == ids
    assert best.log_prob == pytest.approx(total, abs=1e-12)


def test_the_exercise_of_two_words():
    """Greedy takes the likelier first half and ends at .04; beam 2 finds the text of probability .06."""
    table = Table(vocab=4)
    probabilities = {
        (): [0.3, 0, 0.4, 0.3],
        (2,): [0.8, 0, 0.1, 0.1],
        (3,): [0.7, 0, 0.2, 0.1],
    } | {ids: [0, 1, 0, 0] for ids in itertools.product((2, 3), repeat=2)}
    with np.errstate(divide="ignore"):
        table.entries = {((1,), prefix): np.log(np.array(p)) for prefix, p in probabilities.items()}
    greedy = search(table, [(1,)], [3], DecodingConfig(beam=1))[0][0]
    best = search(table, [(1,)], [3], DecodingConfig(beam=2))[0][0]
    assert (greedy.token_ids, best.token_ids) == ((2, 2), (3, 2))
    assert math.exp(greedy.log_prob) == pytest.approx(0.04)
    assert math.exp(best.log_prob) == pytest.approx(0.06)


def test_sums_and_scores():
    for hypothesis in search(Table(seed=4), [(1,)], [6], DecodingConfig(beam=4, n_best=4))[0]:
        generated = hypothesis.token_ids + (EOS,) * hypothesis.finished
        expected = [Table(seed=4).log_probs((1,), generated[:i])[token] for i, token in enumerate(generated)]
        assert hypothesis.token_log_probs == pytest.approx(expected, abs=1e-12)
        assert hypothesis.log_prob == pytest.approx(sum(expected), abs=1e-12)
        assert hypothesis.score == pytest.approx(hypothesis.log_prob / ((5 + len(generated)) / 6) ** 0.6)


# edges


@pytest.mark.parametrize("beam", [1, 3])
def test_a_model_that_never_ends_stops_at_its_limit(beam):
    table = Table(vocab=5, end_bias=-math.inf)
    found = search(table, [(1,), (2,)], [4, 7], DecodingConfig(beam=beam, n_best=beam))
    assert [len(h) for h in found] == [beam, beam]
    assert [{len(x.token_ids) for x in h} for h in found] == [{4}, {7}]
    assert not any(x.finished for h in found for x in h)
    assert len(table.n_rows) == 7


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
    table.entries = {
        ((1,), ids): np.full(4, -np.inf) for n in range(3) for ids in itertools.product((2, 3), repeat=n)
    }
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
