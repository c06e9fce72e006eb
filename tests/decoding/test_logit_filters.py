"""Filters: the allowed tokens equal those found by counting, one after the other."""

import itertools
import math

import pytest
import torch
from exact_sampling import by_rank, softmax
from hypothesis import assume, given
from hypothesis import strategies as st

from attendo.decoding.logit_filters import SamplingConfig, allowed, min_p, penalized, tempered, top_k, top_p

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


@given(
    st.integers(0, 10**6),
    st.integers(2, 5),
    st.sampled_from([torch.float32, torch.float64]),
    st.floats(0.01, 0.99),
)
def test_to_the_last_bit_rows_do_not_see_one_another(seed, n, dtype, p):
    many = 3 * torch.randn(n, 300, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    many[0] *= 9
    config = SamplingConfig(temperature=0.7, top_k=200, top_p=p, min_p=0.001)
    assert torch.equal(allowed(many, config), torch.cat([allowed(row[None], config) for row in many]))


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
    config = SamplingConfig(temperature=temperature, top_k=k, top_p=p, min_p=share, repetition_penalty=penalty)
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


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("max_tokens", -1, "max_tokens=-1 must be at least 0"),
        ("temperature", -0.5, "temperature=-0.5 must be 0 (greedy) or"),
        ("temperature", math.inf, "temperature=inf must be"),
        ("temperature", math.nan, "temperature=nan must be"),
        ("top_k", -3, "top_k=-3 must be at least 1, or 0"),
        ("top_p", 0.0, "top_p=0.0 must be above 0"),
        ("top_p", 1.5, "top_p=1.5 must be"),
        ("min_p", -0.1, "min_p=-0.1 must be between 0"),
        ("min_p", 1.1, "min_p=1.1 must be"),
        ("repetition_penalty", 0.0, "repetition_penalty=0.0 must be a finite number above 0"),
        ("stop", "END", "stop='END' must be a list of texts: ['END']"),
        ("stop", ("a", ""), "stop contains an empty text"),
        ("seed", -1, "seed=-1 must be between 0 and 2**63 - 1"),
        ("seed", 2**63, "seed=9223372036854775808 must be"),
    ],
)
def test_options_out_of_range_are_refused_with_the_remedy(field, value, said):
    with pytest.raises(ValueError) as caught:
        SamplingConfig(**{field: value})
    assert str(caught.value).startswith(said)
