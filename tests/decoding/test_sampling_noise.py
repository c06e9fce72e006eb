"""The noise: SplitMix64 as published, the same wherever it is computed, and nothing that a statistic could find."""

import math

import pytest
import torch
from exact_sampling import p_value
from hypothesis import given
from hypothesis import strategies as st

from attendo.decoding.sampling import gumbel, splitmix64, step_seeds, uniform

MASK = 2**64 - 1
ids = st.integers(0, 2**40)
signed = st.integers(-(2**63), 2**63 - 1)


def mixed(z):
    """Vigna's splitmix64.c, on numbers without a limit."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def output(seed, index):
    return mixed((seed + (index + 1) * 0x9E3779B97F4A7C15) & MASK)


def unmixed(z):
    """The number that is mixed to z."""
    for shift, factor in ((31, 1), (27, 0x94D049BB133111EB), (30, 0xBF58476D1CE4E5B9)):
        if shift != 31:
            z = z * pow(factor, -1, 2**64) & MASK
        found = z
        for _ in range(64 // shift):
            found = z ^ (found >> shift)
        z = found
    return z


def unsigned(x):
    return [value & MASK for value in x.flatten().tolist()]


def test_published_outputs():
    found = splitmix64(torch.tensor(1234567), torch.arange(5))
    assert unsigned(found) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert unsigned(splitmix64(torch.tensor(0), torch.arange(2))) == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


@given(st.lists(signed, min_size=1, max_size=3), st.integers(0, 2**31), st.integers(1, 70))
def test_it_is_what_numbers_without_a_limit_give(seeds, first, n):
    found = splitmix64(torch.tensor(seeds)[:, None], torch.arange(first, first + n))
    assert found.shape == (len(seeds), n)
    assert unsigned(found) == [output(seed, index) for seed in seeds for index in range(first, first + n)]


@given(st.integers(0, 2**63 - 1), ids, ids)
def test_seed_step_and_token_are_three_generators_one_in_the_other(seed, step, token):
    of_step = step_seeds(torch.tensor([seed]), torch.tensor([step]))
    bits = output(output(output(seed, 0), step), token)
    assert uniform(of_step, torch.tensor([token])).item() == ((bits >> 12) + 0.5) / 2**52


def test_the_noise_of_a_seed_stays_what_it_is():
    """A text that a seed gave once is given again by later versions."""
    of_steps = step_seeds(torch.tensor([0, 1, 2**63 - 1]), torch.tensor([0, 7, 2047]))
    found = uniform(of_steps, torch.tensor([0, 3, 31_999]))
    assert [x.hex() for x in found.tolist()] == PINNED
    assert gumbel(of_steps, torch.tensor([0, 3, 31_999])).tolist() == pytest.approx(
        [-math.log(-math.log(float.fromhex(x))) for x in PINNED], rel=1e-13
    )


PINNED = ["0x1.1c13ade1c7e5cp-3", "0x1.f1e69aa342a36p-2", "0x1.758c723b8ab76p-2"]


@pytest.mark.parametrize(("bits", "u"), [(0, 2**-53), (MASK, 1 - 2**-53), (2**63, 0.5 + 2**-53)])
def test_it_is_never_0_nor_1_and_its_noise_is_finite(bits, u):
    seed = torch.tensor([unmixed(bits) - 0x9E3779B97F4A7C15 & MASK]).to(torch.uint64).view(torch.int64)
    assert unsigned(splitmix64(seed, torch.tensor([0]))) == [bits]
    assert uniform(seed, torch.tensor([0])).item() == u
    assert gumbel(seed, torch.tensor([0])).item() == pytest.approx(-math.log(-math.log(u)))


# ---- the same wherever it is computed


@given(
    st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4),
    st.lists(ids, min_size=1, max_size=40),
    st.randoms(use_true_random=False),
)
def test_a_number_does_not_depend_on_those_beside_it(seeds, tokens, random):
    steps = [random.randrange(3000) for _ in seeds]
    of_steps = step_seeds(torch.tensor(seeds), torch.tensor(steps))
    block = uniform(of_steps[:, None], torch.tensor(tokens))
    row, column = random.randrange(len(seeds)), random.randrange(len(tokens))
    of_step = step_seeds(torch.tensor([seeds[row]]), torch.tensor([steps[row]]))
    assert uniform(of_step, torch.tensor([tokens[column]])).item() == block[row, column].item()
    order = random.sample(range(len(tokens)), len(tokens))
    assert torch.equal(uniform(of_steps[:, None], torch.tensor(tokens)[order]), block[:, order])


def test_any_number_of_threads_gives_the_same():
    of_steps, tokens = step_seeds(torch.arange(8), torch.arange(8))[:, None], torch.arange(32_001)
    alone, n_threads = uniform(of_steps, tokens), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(uniform(of_steps, tokens), alone)
    finally:
        torch.set_num_threads(n_threads)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU at hand")
def test_a_gpu_gives_the_same():
    seeds, steps, tokens = torch.arange(4) * 2**61, torch.arange(4) * 511, torch.arange(32_001)
    here = step_seeds(seeds, steps)[:, None]
    there = step_seeds(seeds.cuda(), steps.cuda())[:, None]
    assert torch.equal(uniform(there, tokens.cuda()).cpu(), uniform(here, tokens))
    assert torch.allclose(gumbel(there, tokens.cuda()).cpu(), gumbel(here, tokens), rtol=1e-13, atol=1e-15)


# ---- statistics: each test once with numbers that are always the same, at a level of 1e-4 or below

N = 2**16
AXES = ("seed", "step", "token")


def along(axis, n=N, start=0):
    """The 64 bits of n neighbors on one axis, at an arbitrary place of the two others."""
    places = {"seed": torch.tensor(12_345), "step": torch.tensor(67), "token": torch.tensor(890)}
    places[axis] = torch.arange(start, start + n)
    seeds, steps, tokens = torch.broadcast_tensors(*places.values())
    return splitmix64(step_seeds(seeds, steps), tokens), uniform(step_seeds(seeds, steps), tokens)


def is_uniform(cell_numbers, n):
    """Whether chance explains how often each of n cells occurs."""
    counts = torch.bincount(cell_numbers, minlength=n).tolist()
    return p_value(counts, [len(cell_numbers) / n] * n) > 1e-4


def cells(u, n):
    return (u * n).long().clamp(max=n - 1)


@pytest.mark.parametrize("axis", AXES)
def test_numbers_along_an_axis_are_uniform(axis):
    _, u = along(axis)
    for n in (2, 256):
        assert is_uniform(cells(u, n), n)
    # the lower digits too: within a cell of 2⁻¹⁶ as over the whole
    assert is_uniform(cells(u * 2**16 % 1, 64), 64)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("distance", [1, 2, 64, 1000])
def test_neighbors_on_an_axis_are_independent(axis, distance):
    _, u = along(axis)
    first, second = u[:-distance], u[distance:]
    assert is_uniform(16 * cells(first, 16) + cells(second, 16), 256)
    correlation = torch.corrcoef(torch.stack([first, second]))[0, 1].item()
    assert abs(correlation) < 4 / math.sqrt(len(first))


@pytest.mark.parametrize("axis", AXES)
def test_triples_fill_the_cube(axis):
    _, u = along(axis, 3 * N)
    a, b, c = cells(u, 8).view(N, 3).unbind(1)
    assert is_uniform(64 * a + 8 * b + c, 512)


@pytest.mark.parametrize("axis", AXES)
def test_rows_and_columns_of_a_table_have_nothing_in_common(axis):
    """256 streams beside one another: no two of them are correlated."""
    places = {name: torch.arange(100, 101) for name in AXES}
    other = "token" if axis != "token" else "step"
    places[axis], places[other] = torch.arange(256)[:, None], torch.arange(1024)
    seeds, steps, tokens = torch.broadcast_tensors(*places.values())
    u = uniform(step_seeds(seeds, steps), tokens)
    correlations = torch.corrcoef(u).triu(1).abs()
    assert correlations.max() < 6 / math.sqrt(1024)
    squares = (correlations**2).sum().item() * 1024 / (256 * 255 / 2)
    assert squares == pytest.approx(1, abs=4 * math.sqrt(2 / (256 * 255 / 2)))


@pytest.mark.parametrize("axis", AXES)
def test_a_flipped_bit_of_a_key_flips_each_bit_of_the_number_half_of_the_time(axis):
    n = 4096
    keys = {name: splitmix64(torch.tensor(99 + i), torch.arange(n)) & (2**62 - 1) for i, name in enumerate(AXES)}
    bit = torch.arange(62)[:, None]
    plain = splitmix64(step_seeds(keys["seed"], keys["step"]), keys["token"])
    keys[axis] = keys[axis] ^ (1 << bit)
    seeds, steps, tokens = torch.broadcast_tensors(*keys.values())
    changed = splitmix64(step_seeds(seeds, steps), tokens) ^ plain
    flips = torch.stack([((changed >> out) & 1).sum(1) for out in range(64)])
    assert (flips - n / 2).abs().max().item() < 5.5 * math.sqrt(n) / 2  # of 3,968 counts


def test_keys_do_not_add_up():
    """Nor are they exchanged: 24³ neighbors have numbers that all differ."""
    seeds, steps, tokens = torch.cartesian_prod(*[torch.arange(24)] * 3).unbind(1)
    assert splitmix64(step_seeds(seeds, steps), tokens).unique().numel() == 24**3


def test_gumbel_noise_has_the_moments_of_its_distribution():
    g = gumbel(step_seeds(torch.tensor([5]), torch.tensor([0])), torch.arange(4 * N))
    n, variance = len(g), math.pi**2 / 6
    assert g.mean().item() == pytest.approx(0.5772156649, abs=4 * math.sqrt(variance / n))
    assert g.var().item() == pytest.approx(variance, abs=4 * math.sqrt(4.4 * variance**2 / n))  # kurtosis 27/5
    # P(g < x) = exp(-exp(-x))
    for x in (-1.0, 0.0, 1.0, 5.0):
        p = math.exp(-math.exp(-x))
        assert (g < x).double().mean().item() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / n))
