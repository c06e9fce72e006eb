"""Texts in one batch: each is what it is alone, in any place, with settings of its own, when it joins late."""

import torch
from exact_sampling import texts_of
from hypothesis import given, settings
from hypothesis import strategies as st
from search_table import BOS, EOS, SPECIAL, Table

from attendo.decoding.logit_filters import SamplingConfig
from attendo.decoding.sampling import Sampler, Sampling

configs = st.builds(
    SamplingConfig,
    max_tokens=st.integers(0, 7),
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.9]),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    seed=st.integers(0, 3),
)


@settings(max_examples=40)
@given(st.lists(st.tuples(configs, st.integers(0, 2)), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_text_is_the_same_in_any_batch_and_any_place_of_it(pairs, random):
    table = Table(seed=8, vocab=9, end_bias=0.5)

    def together(some):
        return texts_of(table, [config for config, _ in some], [number for _, number in some])

    alone = [together([pair])[0] for pair in pairs]
    assert together(pairs) == alone
    order = random.sample(range(len(pairs)), len(pairs))
    assert together([pairs[i] for i in order]) == [alone[i] for i in order]
    for (config, _), text in zip(pairs, alone, strict=True):
        ids = [token.token_id for token in text]
        assert EOS not in ids[:-1] and (EOS in ids or len(ids) == config.max_tokens)


def test_rows_that_have_ended_leave_the_cache_before_the_next_step():
    table = Table(vocab=6, end_bias=-50.0)
    configs = [SamplingConfig(max_tokens=n, seed=0) for n in (3, 0, 1, 3)]
    assert [len(text) for text in texts_of(table, configs)] == [3, 0, 1, 3]
    assert table.n_rows == [3, 2, 2]


@settings(max_examples=40)
@given(st.integers(0, 5), st.integers(1, 5), st.integers(0, 2**63 - 1))
def test_texts_that_join_later_are_those_they_would_be_alone(n_before, n_rows, seed):
    table, special = Table(seed=4, vocab=8, end_bias=-1.0), SPECIAL
    configs = [SamplingConfig(max_tokens=4 + i, top_p=0.9, seed=seed - i & 2**63 - 1) for i in range(2 * n_rows)]
    sampling = Sampling(table.step, table.start([()] * n_rows, 1, 99), [[BOS]] * n_rows, configs[:n_rows], special)
    found = [[] for _ in configs]

    def go_on():
        for number, token in sampling.advance():
            found[number].append(token)

    for _ in range(n_before):
        if sampling.going_on:
            go_on()

    def joining(cache):
        cache.sources += [()] * n_rows
        cache.prefixes += [()] * n_rows

    sampling.join(joining, [[BOS]] * n_rows, configs[n_rows:])
    while sampling.going_on:
        go_on()
    assert found == texts_of(table, configs)


def test_a_text_may_be_ended_from_outside():
    table = Table(vocab=6, end_bias=-50.0)
    configs = [SamplingConfig(max_tokens=5, seed=seed) for seed in range(2)]
    sampling = Sampling(table.step, table.start([(), ()], 1, 9), [[BOS]] * 2, configs, SPECIAL)
    sampling.advance()
    sampling.end(0)
    assert sampling.has_ended(0) and not sampling.has_ended(1) and sampling.going_on == [1]
    assert [number for number, _ in sampling.advance()] == [1]


@settings(max_examples=60)
@given(configs, st.integers(0, 7))
def test_a_text_taken_up_again_in_its_middle_goes_on_as_it_would_have(config, n_before):
    table = Table(seed=5, vocab=9, end_bias=-2.0)
    [whole] = texts_of(table, [config])
    before = [token.token_id for token in whole[:n_before]]
    if len(before) < n_before or EOS in before:
        return
    cache = table.start([()], 1, 99)
    cache.prefixes = [(BOS, *before[:-1])] if before else [()]
    sampling = Sampling(table.step, cache, [[BOS, *before]], [config], SPECIAL, n_drawn=[n_before])
    rest = []
    while sampling.going_on:
        rest += [token for _, token in sampling.advance()]
    assert rest == whole[n_before:]


def test_more_rows_than_fit_into_the_cache_of_a_processor():
    logits = 3 * torch.randn(5, 50_000, generator=torch.Generator().manual_seed(0))
    configs = [SamplingConfig(seed=i, top_p=0.9, repetition_penalty=1.2) for i in range(5)]
    found = Sampler([[i] for i in range(5)], configs).draw(logits)
    assert found == [Sampler([[i]], [configs[i]]).draw(logits[i : i + 1])[0] for i in range(5)]
