"""The frequencies of scaled rotary positions, as config.json of Hugging Face describes them.

Scaled positions make long texts look shorter to a model that was trained on short texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attendo.nn.positions import frequencies

Omega = Float[Tensor, " half"]


class Rotation(NamedTuple):
    """The rotary positions of a head: the base, the number of rotated entries, the frequencies, and a factor.

    `factor` multiplies the rotated entries of queries and keys. The frequencies of all other entries are 0.
    """

    base: float
    n_rotated: int
    omega: Omega
    factor: float


def rotation(theirs: Mapping[str, Any], width: int) -> Rotation:
    """Return the rotary positions that a config.json describes for heads of a width.

    >>> rotation({"rope_theta": 100.0, "partial_rotary_factor": 0.5}, 8).omega
    tensor([1.0000, 0.1000, 0.0000, 0.0000], dtype=torch.float64)
    """
    table = theirs.get("rope_parameters") or {}
    table = table.get("full_attention", table)  # blocks with a window have their own base
    base = float(table.get("rope_theta", theirs.get("rope_theta", 10000.0)))
    share = table.get("partial_rotary_factor", theirs.get("partial_rotary_factor")) or 1.0
    n_rotated = int(width * share)
    scaling = theirs.get("rope_scaling") or table
    if (original := theirs.get("original_max_position_embeddings")) is not None:
        scaling = {"original_max_position_embeddings": original, **scaling}
    omega, factor = scaled(scaling, n_rotated, base, theirs.get("max_position_embeddings", 2048))
    return Rotation(base, n_rotated, torch.cat([omega, omega.new_zeros((width - n_rotated) // 2)]), factor)


def scaled(table: Mapping[str, Any], width: int, base: float, longest: int) -> tuple[Omega, float]:
    """Return the frequencies of a rope table, and the factor by which it multiplies queries and keys.

    Args:
        table: The table `rope_parameters` or `rope_scaling`. Its kind is one of KINDS.
        width: The width of a head.
        base: The base of the frequencies.
        longest: The context length.

    >>> scaled({"rope_type": "linear", "factor": 4.0}, 4, 10000.0, 99)
    (tensor([0.2500, 0.0025], dtype=torch.float64), 1.0)
    """
    omega = frequencies(width // 2, width, base)
    match kind_of(table):
        case "linear":
            return omega / table["factor"], 1.0
        case "llama3":
            return _llama3(omega, table), 1.0
        case "yarn":
            return _yarn(omega, base, table, longest)
        case "longrope" | "su":
            return _longrope(omega, table, longest)
        case _:
            return omega, 1.0


KINDS = ("default", "linear", "llama3", "yarn", "dynamic", "longrope", "su")
"""The supported kinds of scaling. The kind "dynamic" only changes texts that are longer than the context. The kind
"longrope", once called "su", changes all frequencies of texts that are longer than the original context."""


def kind_of(table: Mapping[str, Any]) -> str:
    """Return the kind of scaling that a table contains.

    >>> kind_of({}), kind_of({"type": "yarn"})
    ('default', 'yarn')
    """
    return table.get("rope_type", table.get("type", "default"))


def _llama3(omega: Omega, table: Mapping[str, Any]) -> Omega:
    """Return ω / factor for long wavelengths, ω for short ones, and a mixture between (Llama 3.1, 2024)."""
    n_periods = table["original_max_position_embeddings"] * omega / (2 * math.pi)  # in the original context
    low, high = table["low_freq_factor"], table["high_freq_factor"]
    kept = ((n_periods - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * omega / table["factor"] + kept * omega


def _yarn(omega: Omega, base: float, table: Mapping[str, Any], longest: int) -> tuple[Omega, float]:
    """Return the frequencies and the factor of YaRN (Peng et al. 2023, section 3.2 and equation 22)."""
    width, original = 2 * len(omega), table.get("original_max_position_embeddings") or longest
    factor = table.get("factor") or longest / original

    def index_of(n_periods: float) -> float:
        """Return the index of the frequency that has `n_periods` periods in the original context."""
        return width * math.log(original / (n_periods * 2 * math.pi)) / (2 * math.log(base))

    first, last = index_of(table.get("beta_fast") or 32), index_of(table.get("beta_slow") or 1)
    if table.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    ramp = (torch.arange(len(omega)) - first) / max(last - first, 0.001)
    kept = 1 - ramp.double().clamp(0.0, 1.0)
    of_heads = table.get("attention_factor") or _temperature(factor, table)
    return omega / factor * (1 - kept) + omega * kept, of_heads


def _longrope(omega: Omega, table: Mapping[str, Any], longest: int) -> tuple[Omega, float]:
    """Return the frequencies and the factor of LongRoPE within the original context (Ding et al. 2024)."""
    original = table["original_max_position_embeddings"]
    factor = table.get("factor") or longest / original
    of_heads = table.get("attention_factor") or math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original))
    return omega / torch.tensor(table["short_factor"], dtype=torch.float64), of_heads


def _temperature(factor: float, table: Mapping[str, Any]) -> float:
    def of(weight: float) -> float:
        return 0.1 * weight * math.log(max(factor, 1.0)) + 1.0

    above, below = table.get("mscale"), table.get("mscale_all_dim")
    return of(above) / of(below) if above and below else of(1.0)


def described(omega: Sequence[float], base: float) -> dict[str, Any]:
    """Return the rope table of linear or Llama 3 scaling with these frequencies. Other frequencies match neither.

    >>> described([0.25, 0.0025], 10000.0)
    {'rope_type': 'linear', 'factor': 4.0}
    """
    plain = frequencies(len(omega), 2 * len(omega), base)
    factors = plain / torch.tensor(omega, dtype=torch.float64)
    factor = round(float(factors[-1]), 9)
    if torch.allclose(factors, factors[-1]):
        return {"rope_type": "linear", "factor": factor}
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
