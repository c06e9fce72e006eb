"""Sampling: draws have exactly the probabilities they should have, and a text knows nothing of those beside it."""

import bisect
import dataclasses
import itertools
import math
from collections import Counter
from functools import partial

import pytest
import torch
from exact_sampling import exact_texts, p_value, probabilities, softmax, texts_of
from hypothesis import assume, given
from hypothesis import strategies as st
from search_table import BOS, EOS, Table

from attendo.decoding.logit_filters import SamplingConfig
from attendo.decoding.sampling import Sampler, drawn, fresh_seed, gumbel, gumbel_max, step_seeds
from attendo.errors import AttendoError

LEVEL = 1e-4  # of every χ² test; the seeds are fixed, so what passes once passes always


def one(logits):
    return torch.tensor([logits], dtype=torch.float64)


rows = st.lists(st.floats(-8, 8, allow_subnormal=False), min_size=1, max_size=9)


@given(rows, st.floats(0, 1, exclude_max=True))
def test_a_draw_inverts_the_cumulative_distribution(logits, u):
    sums = list(itertools.accumulate(softmax(logits)))
    assume(all(abs(u - total) > 1e-9 for total in sums))
    at = torch.tensor([u], dtype=torch.float64)
    assert drawn(one(logits), at).item() == bisect.bisect(sums, u)


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2**-53])
def test_a_token_without_probability_is_never_drawn(u):
    torch.manual_seed(0)
    logits = torch.randn(200, 50, dtype=torch.float64)
    logits[torch.rand(200, 50) < 0.5] = -torch.inf
    logits[:, [0, -1]] = -torch.inf
    chosen = drawn(logits, torch.full((200,), u, dtype=torch.float64))
    assert (logits.gather(-1, chosen[:, None]) > -torch.inf).all()


# ---- the draws of one token against the exact distribution

LAWS = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 2.5},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.1},
    "penalty": {"repetition_penalty": 1.8},
    "all": {"temperature": 1.4, "top_k": 9, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.3},
}
LOGITS = [1.5, -0.5, 3.0, 0.0, 2.2, -1.0, 1.5, 2.9, -3.0, 0.7, 1.1, 2.0]
NEVER, SEEN = (7,), (2, 4, 5)
OFFERED = [-math.inf if i in NEVER else x for i, x in enumerate(LOGITS)]


def counts_of(token_ids):
    return torch.bincount(torch.tensor(token_ids), minlength=len(LOGITS)).tolist()


@pytest.mark.parametrize("law", LAWS)
def test_tokens_come_as_often_as_they_should_over_many_seeds(law):
    n, config = 5000, SamplingConfig(**LAWS[law])
    configs = [dataclasses.replace(config, seed=seed) for seed in range(n)]
    sampler = Sampler([SEEN] * n, configs, NEVER)
    counts = counts_of([token.token_id for token in sampler.draw(one(LOGITS).expand(n, -1))])
    exact = probabilities(OFFERED, config, SEEN)
    assert all(p > 0 for count, p in zip(counts, exact, strict=True) if count)
    assert p_value(counts, [n * p for p in exact]) > LEVEL
    if law != "plain":  # the test sees the difference
        assert p_value(counts, [n * p for p in softmax(LOGITS)]) < LEVEL


@pytest.mark.parametrize("law", ["plain", "top-p", "min-p"])
def test_tokens_come_as_often_as_they_should_over_the_steps_of_one_text(law):
    n, config = 1500, SamplingConfig(**LAWS[law], seed=77)
    sampler = Sampler([[0]], [config], NEVER)
    tokens = [sampler.draw(one(LOGITS))[0].token_id for _ in range(n)]
    exact = probabilities(OFFERED, config)
    assert p_value(counts_of(tokens), [n * p for p in exact]) > LEVEL
    # a token and the next one are independent
    pairs = Counter(itertools.pairwise(tokens))
    wanted = {(i, j): (n - 1) * p * q for i, p in enumerate(exact) for j, q in enumerate(exact) if p * q > 0}
    assert p_value([pairs[pair] for pair in wanted], list(wanted.values())) > LEVEL


def test_neighboring_seeds_and_steps_share_no_noise():
    n, logits = 300, torch.zeros(300, 1000)
    sampler = Sampler([[]] * n, [SamplingConfig(seed=seed) for seed in range(n)])
    first, second = ([token.token_id for token in sampler.draw(logits)] for _ in range(2))
    for one, other in ((first, first[1:]), (second, first[1:]), (first, second), (first, second[1:])):
        assert sum(map(int.__eq__, one, other)) < 5  # 0.3 by chance


def test_a_vocabulary_of_thousands():
    n, vocab = 1000, 2000
    logits = torch.linspace(0, -4, vocab, dtype=torch.float64)[None]
    chosen = gumbel_max(logits.expand(n, -1), step_seeds(torch.arange(n), torch.zeros(n, dtype=torch.int64)))
    exact = logits.softmax(-1)[0].view(-1, 50).sum(-1)
    counts = torch.bincount(chosen // 50, minlength=vocab // 50)
    assert p_value(counts.tolist(), (n * exact).tolist()) > LEVEL


@given(rows, st.integers(0, 2**63 - 1), st.data())
def test_a_filter_does_not_change_which_of_the_others_wins(logits, seed, data):
    """The argmax of logit plus noise, whether few tokens have noise or all."""
    wide = torch.tensor([[*logits, *[-math.inf] * 99]], dtype=torch.float64)
    seeds = torch.tensor([seed])
    [few], [all_] = gumbel_max(wide, seeds).tolist(), gumbel_max(one(logits), seeds).tolist()
    scores = gumbel(seeds[:, None], torch.arange(len(logits))) + one(logits)
    assert few == all_ == scores.argmax().item()
    gone = data.draw(st.integers(0, len(logits) - 1))
    if gone != all_:
        wide[0, gone] = -math.inf
        assert gumbel_max(wide, seeds).item() == all_


def test_of_equal_scores_the_lowest_id_wins_and_of_none_the_first():
    seeds = torch.tensor([1, 2, 3])
    logits = torch.full((3, 50), -torch.inf)
    logits[1, [7, 9]] = 1e30
    assert gumbel_max(logits, seeds).tolist() == [0, 7, 0]
    assert gumbel_max(torch.full((3, 5), 1e30), seeds).tolist() == [0, 0, 0]


# ---- texts from a table


def text_of(table, config):
    return texts_of(table, [config])[0]


@pytest.mark.parametrize("options", [{}, {"temperature": 2.5, "top_k": 3}, {"top_p": 0.9}, {"min_p": 0.15}])
def test_texts_come_as_often_as_the_table_says(options):
    table, n = Table(seed=3, vocab=5), 1500
    config = SamplingConfig(max_tokens=3, **options)
    wanted = exact_texts(partial(table.logits, ()), config, never=(BOS,), end=EOS)
    assert sum(wanted.values()) == pytest.approx(1)
    found = texts_of(table, [dataclasses.replace(config, seed=seed) for seed in range(n)])
    counts = Counter(tuple(token.token_id for token in text) for text in found)
    assert counts.keys() <= wanted.keys() and len(wanted) >= 6
    assert p_value([counts[text] for text in wanted], [n * p for p in wanted.values()]) > LEVEL


def test_log_probs_are_the_models_own():
    table = Table(seed=1, vocab=5)
    config = SamplingConfig(max_tokens=6, temperature=3.0, top_k=3, repetition_penalty=1.7, seed=2)
    found = text_of(table, config)
    ids = tuple(token.token_id for token in found)
    wanted = [table.log_probs((), ids[:i])[token] for i, token in enumerate(ids)]
    assert [token.log_prob for token in found] == pytest.approx(wanted)


def test_greedy_takes_the_best_that_may_be_drawn():
    table = Table(seed=5, vocab=6, end_bias=-4.0)
    ids = [token.token_id for token in text_of(table, SamplingConfig(max_tokens=9, temperature=0.0))]
    assert len(ids) == 9
    for i, token in enumerate(ids):
        logits = table.logits((), tuple(ids[:i])).copy()
        logits[BOS] = -math.inf
        assert token == logits.argmax()


def test_the_begin_id_is_never_drawn_though_it_is_the_likeliest():
    table = Table(vocab=4)
    table.entries = {((), ids): torch.tensor([9.0, -9.0, 0.0, 0.0]).numpy() for ids in [(), (2,), (3,)]}
    for seed in range(20):
        [first, _] = text_of(table, SamplingConfig(max_tokens=2, seed=seed))
        assert first.token_id in (2, 3) and first.log_prob < -9


def test_prompt_and_text_are_what_the_penalty_counts_as_seen():
    logits = torch.tensor([[0.0, 0.0, 2.0, 1.9, 1.8]])

    def ids(penalty, prompt):
        config = SamplingConfig(temperature=0.0, repetition_penalty=penalty)
        sampler = Sampler([prompt], [config])
        return [sampler.draw(logits)[0].token_id for _ in range(3)]

    assert ids(1.0, [0]) == [2, 2, 2]
    assert ids(1.2, [0]) == [2, 3, 4]
    assert ids(1.2, [0, 3]) == [2, 4, 2]


def test_a_text_ends_with_its_end_token_or_at_its_limit():
    table = Table(vocab=4, end_bias=50.0)
    assert [t.token_id for t in text_of(table, SamplingConfig(seed=0))] == [EOS]
    table = Table(vocab=4, end_bias=-50.0)
    assert len(text_of(table, SamplingConfig(max_tokens=7, seed=0))) == 7
    assert text_of(table, SamplingConfig(max_tokens=0)) == []


def test_seeds_reproduce_and_none_means_another_text_each_time():
    table = Table(seed=2, vocab=12, end_bias=-50.0)
    same = [text_of(table, SamplingConfig(max_tokens=12, seed=4)) for _ in range(2)]
    assert same[0] == same[1] != text_of(table, SamplingConfig(max_tokens=12, seed=5))
    table = Table(seed=2, vocab=12, end_bias=-50.0)
    assert text_of(table, SamplingConfig(max_tokens=12)) != text_of(table, SamplingConfig(max_tokens=12))
    assert fresh_seed() != fresh_seed()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "logits",
    [
        [math.nan] * 4,
        [0.0, 1.0, math.nan, 0.0],
        [0.0, 0.0, math.inf, 0.0],
        [0.0, -math.inf, -math.inf, -math.inf],
    ],
)
def test_logits_that_allow_no_token_are_an_error(logits, temperature):
    sampler = Sampler([[]], [SamplingConfig(temperature=temperature, top_p=0.9, seed=0)], banned_ids=(0,))
    with pytest.raises(AttendoError, match="leave no token to draw"):
        sampler.draw(torch.tensor([logits]))


def test_the_largest_seed_works():
    assert Sampler([[]], [SamplingConfig(seed=2**63 - 1)]).draw(torch.zeros(1, 3))
