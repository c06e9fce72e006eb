"""Searches with rules for what a text may be, against all texts and against the definition."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_configs import random_config
from search_definition import attending, attention, best_texts, find, plain_search, repeats, score
from search_table import BOS, EOS, SPECIAL, Table, search

from attendo.decoding.beam import DecodingConfig, beam_search, best_possible_score, coverage_penalty
from attendo.decoding.constraints import repeating_tokens
from attendo.errors import AttendoError

OPTIONS = {
    "plain": {"length_norm": "plain", "length_penalty": 1.0},
    "coverage": {"coverage_penalty": 0.7},
    "minimum": {"min_length": 3},
    "no repeat": {"no_repeat_ngram": 1},
    "no repeated pair": {"no_repeat_ngram": 2},
    "groups": {"beam": 64, "beam_groups": 2},
    "prefix": {},
}


def optimum_is_found(table, limit, config, prefix):
    source = (7, 8, 7)
    expected = best_texts(table, source, limit, config, prefix)
    found = find(table, [source], [limit], config, [prefix] if prefix else None)[0]
    ended = [text for text in found if text[3]]
    assert [text[0] for text in ended] == [text[0] for text in expected[: config.n_best]]
    for text, wanted in zip(ended, expected, strict=False):
        assert text[1:3] == pytest.approx(wanted[1:], abs=1e-12)
    return len(expected)


@pytest.mark.parametrize("option", OPTIONS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), limit=st.integers(2, 4), alpha=st.sampled_from([-0.5, 0.6, 2.0]))
def test_a_beam_as_large_as_the_space_lists_the_allowed_texts_in_order(option, seed, limit, alpha):
    config = DecodingConfig(**{"beam": 32, "n_best": 16, "length_penalty": alpha} | OPTIONS[option])
    prefix = (3,) if option == "prefix" else ()
    assert optimum_is_found(Table(seed=seed), limit, config, prefix) > 0


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6), limit=st.integers(2, 4))
def test_it_does_so_under_all_options_together(data, seed, limit):
    config = DecodingConfig(
        beam=64,
        n_best=data.draw(st.integers(1, 32)),
        beam_groups=data.draw(st.sampled_from([1, 2])),
        diversity_penalty=data.draw(st.sampled_from([0.0, 0.5, 9.0])),
        length_norm=data.draw(st.sampled_from(["gnmt", "plain"])),
        length_penalty=data.draw(st.sampled_from([-0.5, 0.0, 0.6, 2.0])),
        coverage_penalty=data.draw(st.sampled_from([0.0, 0.7])),
        min_length=data.draw(st.integers(0, 5)),
        no_repeat_ngram=data.draw(st.integers(0, 3)),
    )
    prefix = data.draw(st.sampled_from([(), (3,), (2, 2), (3, 2, 3)]).filter(lambda ids: len(ids) < limit))
    optimum_is_found(Table(seed=seed), limit, config, prefix)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), levels=st.sampled_from([None, 0, 1, 3]))
def test_search_is_its_definition_under_every_option(seed, levels):
    """Also where scores are equal, in a batch, and though the definition never stops early."""
    rng = np.random.default_rng(seed)
    table = Table(seed, vocab=int(rng.integers(3, 8)), levels=levels, end_bias=float(rng.integers(-1, 2)))
    config = random_config(rng)
    sources = [(5,), (6, 7, 5)]
    limits = rng.integers(1, 7, 2).tolist()
    prefixes = [tuple(rng.integers(2, table.vocab, rng.integers(0, limit)).tolist()) for limit in limits]
    found = find(table, sources, limits, config, prefixes)
    for source, limit, prefix, texts in zip(sources, limits, prefixes, found, strict=True):
        expected = plain_search(table, source, limit, config, prefix)
        assert [text[:2] + text[3:] for text in texts] == [text[:2] + text[3:] for text in expected]
        assert [text[2] for text in texts] == pytest.approx([text[2] for text in expected], abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_model_that_never_ends_stops_at_its_limit_under_every_option(seed):
    rng = np.random.default_rng(seed)
    table, limits = Table(seed, vocab=6, end_bias=-math.inf), [3, 8]
    with np.errstate(divide="ignore"):
        found = find(table, [(1,), (2,)], limits, random_config(rng), [(), (4,)])
    assert len(table.n_rows) <= 8
    for texts, limit in zip(found, limits, strict=True):
        assert texts
        assert all(len(ids) <= limit and not finished for ids, _, _, finished in texts)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    alpha=st.sampled_from([-2.0, -0.5, 0.0, 0.6, 1.0, 3.0]),
    norm=st.sampled_from(["gnmt", "plain"]),
    beta=st.sampled_from([0.0, 0.5]),
)
def test_no_text_beats_what_was_thought_possible_at_any_of_its_tokens(seed, alpha, norm, beta):
    table, source, limit = Table(seed, vocab=4), (7, 8), 5
    config = DecodingConfig(length_penalty=alpha, length_norm=norm, coverage_penalty=beta)
    for ids, _, final in best_texts(table, source, limit, config):
        total = 0.0
        for length, token in enumerate(ids):
            bound = best_possible_score(
                np.array([total]), np.array([length]), np.array([limit]), alpha, config.length_norm
            )
            assert final <= bound[0]
            total += table.log_probs(source, ids[:length])[token]


# each rule by itself


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.lists(st.integers(2, 4), max_size=8), min_size=1, max_size=4), n=st.integers(1, 4))
def test_repeating_tokens_are_those_that_would_repeat(rows, n):
    tokens = np.full((len(rows), 8), 3)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = ids
    found = zip(*repeating_tokens(tokens, np.array([len(ids) for ids in rows]), n), strict=True)
    expected = {
        (number, token)
        for number, ids in enumerate(rows)
        for token in range(2, 5)
        if repeats([*ids, token], n, given=len(ids))
    }
    assert set(found) == expected


def test_where_the_limit_is_below_the_minimum_a_text_may_end_there():
    table = Table(vocab=4, end_bias=99.0)
    for limit, length in ((2, 1), (5, 2), (9, 2)):
        (text,) = search(table, [(1,)], [limit], DecodingConfig(beam=2, min_length=3))[0]
        assert (len(text.token_ids), text.finished) == (length, True)


def test_a_text_that_can_neither_go_on_nor_end_is_returned_unfinished():
    """Every candidate masked: three words, none twice, and too short to end."""
    config = DecodingConfig(beam=3, n_best=3, min_length=6, no_repeat_ngram=1)
    found = search(Table(vocab=5), [(1,)], [9], config)[0]
    assert len(found) == 3
    assert all(sorted(text.token_ids) == [2, 3, 4] and not text.finished for text in found)


def test_a_forced_prefix_has_the_probability_the_model_gives_it():
    table, prefix = Table(vocab=9), (8, 8, 3, 8)
    text = search_with(table, prefix, DecodingConfig(beam=3, no_repeat_ngram=2))
    generated = (*text.token_ids, *(EOS,) * text.finished)
    assert generated[:4] == prefix
    expected = [table.log_probs((1,), generated[:i])[token] for i, token in enumerate(generated)]
    assert text.token_log_probs == pytest.approx(expected, abs=1e-12)


def test_a_prefix_that_the_model_holds_impossible_leads_nowhere():
    table = Table(vocab=5)
    table.entries[(1,), (2,)] = np.array([0.0, 0.0, 0.0, -np.inf, 0.0])
    text = search_with(table, (2, 3, 4), DecodingConfig(beam=2))
    assert (text.token_ids, text.finished) == ((2,), False)


def search_with(table, prefix, config, limit=9):
    cache = table.start([(1,)], config.beam, limit)
    return beam_search(table.step, cache, [limit], config, SPECIAL, prefixes=[prefix])[0][0]


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ((2, 3, 2), "prefix of source 0 has 3 tokens, but its translation may have 3"),
        ((2, EOS), f"token id {EOS}, which no text contains"),
        ((BOS,), f"token id {BOS}, which no text contains"),
        ((-2,), "token id -2, which no text contains"),
        ((2, 4), "token id 4, but the vocabulary has 4"),
    ],
)
def test_a_prefix_that_no_text_can_have_is_refused(prefix, message):
    with pytest.raises(AttendoError, match=message):
        search_with(Table(vocab=4), prefix, DecodingConfig(beam=2), limit=3)
    with pytest.raises(AttendoError, match="1 prefixes for 2 sources"):
        find(Table(), [(1,), (2,)], [3, 3], DecodingConfig(), [()])


# coverage


def test_coverage_changes_the_score_and_nothing_else():
    table, source = Table(3, vocab=6), (4, 5, 6)
    with_it, without = (
        find(table, [source], [5], DecodingConfig(beam=4, n_best=4, coverage_penalty=beta))[0] for beta in (0.3, 0.0)
    )
    scores = {ids: (log_prob, total) for ids, log_prob, total, _ in without}
    for ids, log_prob, total, finished in with_it:
        seen = sum(attention(source, (*ids, EOS)[:j]) for j in range(len(ids) + finished))
        if ids in scores:
            assert log_prob == scores[ids][0]
            assert total == pytest.approx(scores[ids][1] + 0.3 * np.log(np.minimum(seen, 1)).sum())
    assert {text[0] for text in with_it} & set(scores)


def test_a_text_that_leaves_out_half_of_the_source_loses():
    """'2 end' is likelier, '3 2 end' looks at both words."""
    table, source = Table(vocab=4), (1, 2)
    with np.errstate(divide="ignore"):
        for ids in itertools.chain(*(itertools.product((2, 3), repeat=n) for n in range(4))):
            table.entries[source, ids] = np.log([0, 0, 0.6, 0.4] if not ids else np.eye(4)[2])
            if ids and ids[-1] == 2:
                table.entries[source, ids] = np.log(np.eye(4)[EOS])
    looks = {(): 0.0, (2,): 0.0, (3,): 1.0, (3, 2): 1.0}

    def step(token_ids, cache):
        logits = table.step(token_ids, cache)
        second = np.array([looks.get(prefix[1:], 0.5) for prefix in cache.prefixes])
        return logits, torch_pairs(second)

    found = {}
    for beta in (0.0, 0.001, 0.1):
        config = DecodingConfig(beam=2, coverage_penalty=beta, length_penalty=0.0)
        cache = table.start([source], 2, 5)
        found[beta] = beam_search(table.step, cache, [5], config, SPECIAL, attending=step)[0][0]
    assert {beta: text.token_ids for beta, text in found.items()} == {0.0: (2,), 0.001: (3, 2), 0.1: (3, 2)}
    assert all(math.isfinite(text.score) for text in found.values())
    assert coverage_penalty(np.array([2.0, 0.0]), 1.0) > -800


def torch_pairs(second):
    return torch.from_numpy(np.stack([1 - second, second], 1))


def test_coverage_without_attention_is_refused():
    with pytest.raises(AttendoError, match="requires attention weights"):
        search(Table(), [(1,)], [3], DecodingConfig(coverage_penalty=0.2))
    table = Table()
    cache = table.start([(1,)], 4, 3)
    assert beam_search(table.step, cache, [3], DecodingConfig(), SPECIAL, attending=attending(table))
    assert score((1,), (2, EOS), -3.0, DecodingConfig(length_penalty=0.0)) == -3.0
