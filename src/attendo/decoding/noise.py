"""Noise for sampling that has no state: a function of (seed, step, token id), whatever else is computed beside it.

A generator that hands out one number after the other makes a text depend on what was drawn before it: on the batch,
on the slot, on a restart. Here every number has an address instead (Salmon et al. 2011, "Parallel random numbers: as
easy as 1, 2, 3"). The bits come from SplitMix64 (Steele, Lea & Flood 2014), whose i-th output is a function of its
seed and i: far fewer operations than Philox4x32-10 has, each of them one on vectors of 64-bit integers.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

_BITS = 52  # (2⁵² - 1) + 1/2 is the largest number of its kind that float64 holds


def _signed(bits: int) -> int:
    """The int64 of these 64 bits."""
    return bits - 2**64 if bits >= 2**63 else bits


_GAMMA = _signed(0x9E3779B97F4A7C15)  # 2⁶⁴ divided by the golden ratio
_FACTORS = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)))


def splitmix64(seed: Int[Tensor, "*shape"], index: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Output number `index`, from 0, of the SplitMix64 generator with this seed: 64 bits as int64.

    mix(seed + (index + 1)·γ) with γ = 2⁶⁴/φ, all modulo 2⁶⁴; seed and index are broadcast. Steele, Lea & Flood 2014,
    "Fast splittable pseudorandom number generators", section 5, with Stafford's variant 13 of the mixing function, as
    in Java and in Vigna's C code. The same bits on every machine and device.

    >>> splitmix64(torch.tensor(1234567), torch.arange(2))
    tensor([6457827717110365317, 3203168211198807973])
    """
    bits = torch.add(seed + _GAMMA, index, alpha=_GAMMA)
    rest = torch.empty_like(bits)
    for shift, factor in _FACTORS:
        bits.bitwise_xor_(_shifted(bits, shift, rest)).mul_(factor)
    return bits.bitwise_xor_(_shifted(bits, 31, rest))


def _shifted(bits: Tensor, n: int, out: Tensor) -> Tensor:
    """The bits moved right by n, zeros behind them: of an int64, torch repeats the sign there."""
    return torch.bitwise_right_shift(bits, n, out=out).bitwise_and_(2 ** (64 - n) - 1)


def step_seeds(seeds: Int[Tensor, " rows"], steps: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """The seed of a step of a text: the first output of the text's seed is the seed of all its steps.

    Token `i` then has output `i` of the step's seed. Each of the three is SplitMix64, so that neighboring seeds, steps
    and tokens have nothing in common.

    >>> step_seeds(torch.tensor([7, 7, 8]), torch.tensor([0, 1, 0]))
    tensor([-5137267319001854395, -6461814455296669442,  4918744596714539366])
    """
    return splitmix64(splitmix64(seeds, torch.zeros_like(seeds)), steps)


def uniform(step_seed: Int[Tensor, "*shape"], token_ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """A number strictly between 0 and 1 for each token of a step, float64; the two are broadcast.

    (n + 1/2) / 2⁵² with n the upper 52 bits of the token's output: every value is exact and as likely as the others,
    and the values lie symmetrically about 1/2, the outer ones 2⁻⁵³ away from 0 and 1. The same on every machine.

    >>> uniform(step_seeds(torch.tensor([7]), torch.tensor([0])), torch.arange(3))
    tensor([0.6094, 0.4092, 0.9967], dtype=torch.float64)
    """
    bits = splitmix64(step_seed, token_ids)
    return _shifted(bits, 64 - _BITS, bits).double().add_(0.5).mul_(2.0**-_BITS)


def gumbel(step_seed: Int[Tensor, "*shape"], token_ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """-ln(-ln u) of `uniform`: standard Gumbel noise, float64, between -3.7 and 36.8; the two are broadcast.

    The token with the largest ln p + g is a draw from p, which need not be normalized: P(argmax = i) = pᵢ (Gumbel 1954;
    Maddison, Tarlow & Minka 2014, section 2). The same on every machine but for how its ln rounds the last bit.

    >>> gumbel(step_seeds(torch.tensor([7]), torch.tensor([0])), torch.arange(3))
    tensor([0.7026, 0.1125, 5.7235], dtype=torch.float64)
    """
    return uniform(step_seed, token_ids).log_().neg_().log_().neg_()
