"""Sampling: the allowed tokens equal those found by counting, the draws have the probabilities they should have."""

import bisect
import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from search_table import BOS, EOS, SPECIAL, Table

from attendo.decoding.sampling import (
    Sampler,
    SamplingConfig,
    allowed,
    drawn,
    fresh_seed,
    generate,
    min_p,
    penalized,
    tempered,
    top_k,
    top_p,
)
from attendo.decoding.step import SpecialIds
from attendo.errors import AttendoError

# few different values, so that many are equal; a row of 700 does not fit a short list of the best
rows = st.one_of(
    st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=9),
    st.lists(st.floats(-8, 8, allow_subnormal=False), min_size=1, max_size=9),
    st.builds(
        lambda seed, n, spread: (
            spread * torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        ).tolist(),
        st.integers(0, 10**6),
        st.integers(60, 700),
        st.sampled_from([0.01, 1.0, 3.0]),
    ),
)


def softmax(logits):
    weights = [math.exp(x - max(logits)) for x in logits]
    return [weight / math.fsum(weights) for weight in weights]


def by_rank(logits):
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))


def kept_by_k(logits, k):
    return set(by_rank(logits)[:k])


def kept_by_p(logits, p):
    probabilities, kept = softmax(logits), []
    for i in by_rank(logits):
        kept.append(i)
        total = math.fsum(probabilities[j] for j in kept)
        assume(abs(total - p) > 1e-9)
        if total > p:
            break
    return set(kept)


def kept_by_share(logits, share):
    probabilities = softmax(logits)
    assume(all(abs(p / max(probabilities) - share) > 1e-9 for p in probabilities if share < 1))
    return {i for i, p in enumerate(probabilities) if p >= share * max(probabilities)}


def check(found, logits, kept):
    """The kept tokens have their logits, all others -inf."""
    wanted = [x if i in kept else -math.inf for i, x in enumerate(logits)]
    assert found[0].tolist() == wanted


def one(logits):
    return torch.tensor([logits], dtype=torch.float64)


@given(rows, st.integers(1, 12))
def test_top_k_keeps_the_k_best(logits, k):
    check(top_k(one(logits), k), logits, kept_by_k(logits, k))


@given(rows, st.floats(0.001, 0.999))
def test_top_p_keeps_the_smallest_nucleus(logits, p):
    check(top_p(one(logits), p), logits, kept_by_p(logits, p))


@given(rows, st.one_of(st.floats(0.001, 0.999), st.just(1.0)))
def test_min_p_keeps_what_is_at_least_that_share_of_the_best(logits, share):
    check(min_p(one(logits), share), logits, kept_by_share(logits, share))


@given(st.lists(st.lists(st.integers(-3, 3).map(float), min_size=5, max_size=5), min_size=2, max_size=4))
def test_rows_do_not_see_one_another(many):
    together = torch.tensor(many, dtype=torch.float64)
    for keep in (
        lambda x: top_k(x, 2),
        lambda x: top_p(x, 0.61),
        lambda x: min_p(x, 0.3),
        lambda x: tempered(x, 0.0),
    ):
        assert torch.equal(keep(together), torch.cat([keep(row[None]) for row in together]))


def test_a_wide_nucleus_beside_a_narrow_one():
    logits = torch.zeros(2, 200, dtype=torch.float64)
    logits[0, 7] = 20.0
    kept = top_p(logits, 0.503) > -torch.inf
    assert kept[0].nonzero().tolist() == [[7]]
    assert kept[1].nonzero().flatten().tolist() == list(range(101))


@given(
    rows,
    st.floats(0.2, 3),
    st.integers(0, 6),
    st.one_of(st.just(1.0), st.floats(0.05, 0.95)),
    st.floats(0, 0.9),
    st.floats(0.5, 2),
)
def test_the_steps_come_in_their_order_and_one_token_always_stays(logits, temperature, k, p, share, penalty):
    config = SamplingConfig(
        temperature=temperature, top_k=k, top_p=p, min_p=share, repetition_penalty=penalty
    )
    seen = [i % 2 == 0 for i in range(len(logits))]
    changed = [(x / penalty if x > 0 else x * penalty) if s else x for x, s in zip(logits, seen, strict=True)]
    changed = [x / temperature for x in changed]
    assume(all(a == b or abs(a - b) > 1e-9 for a, b in itertools.pairwise(sorted(changed))))
    kept = kept_by_k(changed, k) if k else set(range(len(changed)))
    for keep, value, off in ((kept_by_p, p, 1.0), (kept_by_share, share, 0.0)):
        if value != off:
            ids = sorted(kept)
            kept = {ids[i] for i in keep([changed[i] for i in ids], value)}
    weights = {i: math.exp(changed[i] - max(changed)) for i in kept}
    found = allowed(one(logits), config, torch.tensor([seen])).softmax(-1)[0].tolist()
    assert [i for i, q in enumerate(found) if q > 0] == sorted(kept)
    assert found == pytest.approx([weights.get(i, 0) / sum(weights.values()) for i in range(len(logits))])


def test_nothing_happens_by_default():
    logits = one([0.3, -2.0, 1.0])
    assert allowed(logits, SamplingConfig()) is logits
    assert allowed(logits, SamplingConfig(), torch.tensor([[True, True, True]])) is logits


def test_a_penalty_makes_what_was_seen_less_probable_whatever_its_sign():
    logits, seen = one([3.0, -3.0, 0.0, 3.0]), torch.tensor([[True, True, True, False]])
    assert penalized(logits, seen, 1.5)[0].tolist() == [2.0, -4.5, 0.0, 3.0]
    assert penalized(logits, seen, 1.0)[0].tolist() == logits[0].tolist()


@given(st.lists(st.integers(-40, 40), min_size=1, max_size=9, unique=True))
def test_a_temperature_near_0_is_greedy(values):
    logits = one([float(value) for value in values])
    greedy = tempered(logits, 0.0).softmax(-1)
    assert greedy.argmax().item() == values.index(max(values))
    for temperature in (1e-3, 1e-30, 5e-324):
        assert torch.equal(tempered(logits, temperature).softmax(-1), greedy)


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


# ---- texts from a table


def stepping(table):
    """A step over the table that keeps count of the ids that it was fed."""
    fed = []

    def step(ids):
        fed.extend(ids)
        return torch.from_numpy(table.logits((), tuple(fed[1:])))[None]

    return step, fed


def text_of(table, config):
    step, _ = stepping(table)
    return list(generate(step, [BOS], config, SPECIAL))


def exact(table, config, prefix=()):
    """Every text of at most max_tokens tokens, the end token included, and its probability, by lists and loops."""
    if len(prefix) == config.max_tokens or prefix[-1:] == (EOS,):
        return {prefix: 1.0}
    logits = [x if i != BOS else -math.inf for i, x in enumerate(table.logits((), prefix))]
    ranked = by_rank([x / config.temperature for x in logits])
    kept = ranked[: config.top_k or None]
    weights = {i: math.exp(logits[i] / config.temperature) for i in kept if logits[i] > -math.inf}
    found = {}
    for token, weight in weights.items():
        for text, probability in exact(table, config, (*prefix, token)).items():
            found[text] = probability * weight / sum(weights.values())
    return found


@pytest.mark.parametrize("options", [{}, {"temperature": 2.5, "top_k": 3}])
def test_texts_come_as_often_as_the_table_says(options):
    table, n = Table(seed=3, vocab=5), 3000
    config = SamplingConfig(max_tokens=3, **options)
    probabilities = exact(table, config)
    assert sum(probabilities.values()) == pytest.approx(1)
    counts = Counter(
        tuple(t.token_id for t in text_of(table, SamplingConfig(max_tokens=3, seed=seed, **options)))
        for seed in range(n)
    )
    assert counts.keys() <= probabilities.keys()
    often = [text for text, p in probabilities.items() if n * p >= 5]
    groups = [(counts[text], n * probabilities[text]) for text in often]
    groups.append((n - sum(c for c, _ in groups), n - sum(e for _, e in groups)))  # all the rare ones
    chi_square = sum((count - expected) ** 2 / expected for count, expected in groups if expected > 1e-9)
    df = torch.tensor((len(groups) - 1) / 2, dtype=torch.float64)
    p_value = torch.special.gammaincc(df, torch.tensor(chi_square / 2, dtype=torch.float64)).item()
    assert len(often) >= 8 and p_value > 0.01


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
        config = SamplingConfig(max_tokens=3, temperature=0.0, repetition_penalty=penalty)
        special = SpecialIds(bos_id=0, eos_id=1)
        return [token.token_id for token in generate(lambda _: logits, prompt, config, special)]

    assert ids(1.0, [0]) == [2, 2, 2]
    assert ids(1.2, [0]) == [2, 3, 4]
    assert ids(1.2, [0, 3]) == [2, 4, 2]


def test_a_text_ends_with_its_end_token_or_at_its_limit():
    table = Table(vocab=4, end_bias=50.0)
    assert [t.token_id for t in text_of(table, SamplingConfig(seed=0))] == [EOS]
    table = Table(vocab=4, end_bias=-50.0)
    assert len(text_of(table, SamplingConfig(max_tokens=7, seed=0))) == 7
    assert text_of(table, SamplingConfig(max_tokens=0)) == []


def test_a_token_comes_before_the_next_step_is_taken_and_inference_mode_stays_inside():
    modes = []
    step, fed = stepping(Table(vocab=4, end_bias=-50.0))

    def watched(ids):
        modes.append(torch.is_inference_mode_enabled())
        return step(ids)

    tokens = generate(watched, [BOS, 2, 3], SamplingConfig(seed=0), SPECIAL)
    assert fed == []
    first = next(tokens)
    assert fed == [BOS, 2, 3] and not torch.is_inference_mode_enabled()
    next(tokens)
    assert fed == [BOS, 2, 3, first.token_id] and modes == [True, True]


def test_a_seed_gives_the_same_row_whatever_rows_are_beside_it():
    torch.manual_seed(0)
    seeds, prompts = [11, 5, 11, 7], [[2], [3, 4], [2], []]
    config = SamplingConfig(top_k=6, top_p=0.95, repetition_penalty=1.3)
    logits = torch.randn(12, 4, 9)
    logits[:, 2] = logits[:, 0]
    together = Sampler(config, prompts, seeds)
    alone = [Sampler(config, [prompt], [seed]) for prompt, seed in zip(prompts, seeds, strict=True)]
    columns = []
    for step in logits:
        found = together.draw(step)
        columns.append(found)
        for row, (sampler, token) in enumerate(zip(alone, found, strict=True)):
            [single] = sampler.draw(step[row : row + 1])
            assert single.token_id == token.token_id
            assert single.log_prob == pytest.approx(token.log_prob, abs=1e-6)
    first, second, third, _ = zip(*columns, strict=True)
    assert first == third != second


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
    sampler = Sampler(SamplingConfig(temperature=temperature, top_p=0.9), [[]], [0], never=(0,))
    with pytest.raises(AttendoError, match="leave no token to draw"):
        sampler.draw(torch.tensor([logits]))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("max_tokens", -1, "max_tokens is -1; it must be 0 or more"),
        ("temperature", -0.5, "temperature is -0.5; it must be 0 (greedy) or"),
        ("temperature", math.inf, "temperature is inf;"),
        ("temperature", math.nan, "temperature is nan;"),
        ("top_k", -3, "top_k is -3; it must be 1 or more, or 0"),
        ("top_p", 0.0, "top_p is 0.0; it must be above 0"),
        ("top_p", 1.5, "top_p is 1.5;"),
        ("min_p", -0.1, "min_p is -0.1; it must be between 0"),
        ("min_p", 1.1, "min_p is 1.1;"),
        ("repetition_penalty", 0.0, "repetition_penalty is 0.0; it must be a number above 0"),
        ("stop", "END", "stop is the text 'END'; it must be a list of texts: ['END']"),
        ("stop", ("a", ""), "stop has an empty text"),
        ("seed", -1, "seed is -1; it must be between 0 and 2**63 - 1"),
        ("seed", 2**63, "seed is 9223372036854775808;"),
    ],
)
def test_options_out_of_range_are_refused_with_the_remedy(field, value, said):
    with pytest.raises(ValueError) as caught:
        SamplingConfig(**{field: value})
    assert str(caught.value).startswith(said)


def test_the_largest_seed_works():
    assert Sampler(SamplingConfig(), [[]], [2**63 - 1]).draw(torch.zeros(1, 3))
