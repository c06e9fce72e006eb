"""Filters of next-token logits: repetition penalty, temperature, top-k, top-p and min-p.

Each filter is a function from logits to logits. The result of a row depends only on that row, bit for bit.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_SHORTLIST = 64  # most nuclei have at most this many tokens


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """The settings of random sampling.

    The filters are applied in this order: repetition penalty, temperature, top-k, top-p, min-p.

    Attributes:
        max_tokens: Largest number of generated tokens, including the end token.
        temperature: Divisor of the logits. Temperatures above 1 make texts more varied, and 0 is greedy search.
        top_k: Number of most probable tokens to sample from. 0 allows all tokens.
        top_p: Total probability of the most probable tokens to sample from. 1 allows all tokens.
        min_p: Smallest probability of a sampled token, divided by the highest probability. 0 allows all tokens.
        repetition_penalty: Penalty on tokens that the text already contains. Penalties above 1 make repetitions less
            probable, and 1 has no effect.
        stop: Texts that end the generation. The output ends before the stop text.
        seed: Random seed, which determines the text (None: a new random seed for each text).
    """

    max_tokens: int = 200
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise ValueError(f"max_tokens={self.max_tokens} must be at least 0")
        if not 0.0 <= self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature} must be 0 (greedy) or a finite number above 0")
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k} must be at least 1, or 0 for all tokens")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p={self.top_p} must be above 0 and at most 1 (1 keeps all tokens)")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p={self.min_p} must be between 0 (keeps all tokens) and 1")
        if not 0.0 < self.repetition_penalty < math.inf:
            raise ValueError(
                f"repetition_penalty={self.repetition_penalty} must be a finite number above 0 (1: no penalty)"
            )
        if isinstance(self.stop, str):
            raise ValueError(f"stop={self.stop!r} must be a list of texts: [{self.stop!r}]")
        if "" in self.stop:
            raise ValueError("stop contains an empty text, at which each text would end. Remove it")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed} must be between 0 and 2**63 - 1, or not set")


def penalized(
    logits: Float[Tensor, "rows vocab"], seen: Bool[Tensor, "rows vocab"], penalty: float
) -> Float[Tensor, "rows vocab"]:
    """Lower the logits x of seen tokens by a penalty θ > 1, to x/θ if x > 0 and to x·θ if x < 0.

    In Keskar et al. 2019 (CTRL), section 4.1, all logits of seen tokens are divided by θ, which raises negative logits.

    >>> penalized(torch.tensor([[2.0, -2.0, 2.0]]), torch.tensor([[True, True, False]]), 2.0)
    tensor([[ 1., -4.,  2.]])
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def tempered(logits: Float[Tensor, "rows vocab"], temperature: float) -> Float[Tensor, "rows vocab"]:
    """Compute (x - max x) / τ for the logits x and a temperature τ (Ackley et al. 1985).

    The softmax of the result is proportional to p^(1/τ), where p is softmax(x). At τ = 0 only the most probable token
    remains. In a tie, the lowest token id remains.

    >>> tempered(torch.tensor([[0.0, 2.0, 2.0]]), 0.5)
    tensor([[-4.,  0.,  0.]])
    >>> tempered(torch.tensor([[0.0, 2.0, 2.0]]), 0.0)
    tensor([[-inf, 0., -inf]])
    """
    # subtract the maximum first: a τ near 0 then leaves 0 for the best token, not infinity
    below = logits - logits.amax(-1, keepdim=True)
    if temperature > 0.0:
        return below / temperature
    best = logits.argmax(-1, keepdim=True)
    return torch.full_like(logits, -torch.inf).scatter(-1, best, below.gather(-1, best))


def top_k(logits: Float[Tensor, "rows vocab"], k: int) -> Float[Tensor, "rows vocab"]:
    """Set the logits of all tokens except the k most probable to -inf (Fan et al. 2018).

    In a tie, the tokens with the lowest ids are kept.

    >>> top_k(torch.tensor([[1.0, 3.0, 2.0, 2.0]]), 2)
    tensor([[-inf, 3., 2., -inf]])
    """
    if k >= logits.shape[-1]:
        return logits
    return _best(logits, logits.topk(k).values[:, -1:], torch.tensor([[k]], device=logits.device))


def top_p(logits: Float[Tensor, "rows vocab"], p: float) -> Float[Tensor, "rows vocab"]:
    """Keep the smallest set of most probable tokens whose total probability is at least p.

    The logits of all other tokens are set to -inf. Source: Holtzman et al. 2020, section 3.1.

    >>> top_p(torch.tensor([[0.1, 0.6, 0.3]]).log(), 0.7).exp()
    tensor([[0.0000, 0.6000, 0.3000]])
    """
    if p >= 1.0:
        return logits
    # log Σ exp x, by way of log_softmax, which is the fastest kernel
    at = logits.argmax(-1, keepdim=True)
    log_total = logits.gather(-1, at) - logits.log_softmax(-1, dtype=torch.float64).gather(-1, at)
    best = logits.topk(min(_SHORTLIST, logits.shape[-1])).values
    edge, n_kept, mass = _nucleus(best, log_total, p)
    wide = (mass < p).nonzero()[:, 0]
    if len(wide) and best.shape[-1] < logits.shape[-1]:
        edge[wide], n_kept[wide], _ = _nucleus(_falling(logits[wide]), log_total[wide], p)
    return _best(logits, edge, n_kept)


def _nucleus(
    best: Float[Tensor, "rows n"], log_total: Float[Tensor, "rows 1"], p: float
) -> tuple[Float[Tensor, "rows 1"], Int[Tensor, "rows 1"], Float[Tensor, " rows"]]:
    """Return the smallest logit and the size of each row's nucleus, and the total probability of the n best tokens."""
    sums = (best.double() - log_total).exp().cumsum(-1)
    n_kept = 1 + (sums[:, :-1] < p).sum(-1, keepdim=True)
    return best.gather(-1, n_kept - 1), n_kept, sums[:, -1]


def _falling(logits: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows vocab"]:
    """Return the logits in descending order. On a CPU, NumPy sorts many times faster than torch."""
    if logits.device.type != "cpu":
        return logits.sort(-1, descending=True).values
    return torch.from_numpy(np.sort(logits.detach().numpy(), axis=-1)).flip(-1)


def min_p(logits: Float[Tensor, "rows vocab"], share: float) -> Float[Tensor, "rows vocab"]:
    """Keep the tokens with at least `share` times the probability of the most probable token (Nguyen et al. 2024).

    The logits of all other tokens are set to -inf.

    >>> min_p(torch.tensor([[0.6, 0.1, 0.3]]).log(), 0.4).exp()
    tensor([[0.6000, 0.0000, 0.3000]])
    """
    if share <= 0.0:
        return logits
    floor = logits.amax(-1, keepdim=True) + math.log(share)
    return logits.masked_fill(logits < floor, -torch.inf)


def _best(
    logits: Float[Tensor, "rows vocab"], edge: Float[Tensor, "rows 1"], n: Int[Tensor, "rows_or_1 1"]
) -> Float[Tensor, "rows vocab"]:
    """Keep the n largest logits of each row, the smallest of which is `edge`. In a tie, the lowest ids are kept."""
    out = logits < edge
    if bool((out.sum(-1, keepdim=True) + n < logits.shape[-1]).any()):
        tied = logits == edge
        room = n - (logits > edge).sum(-1, keepdim=True)
        out |= tied & (tied.cumsum(-1) > room)
    return logits.masked_fill(out, -torch.inf)


def allowed(
    logits: Float[Tensor, "rows vocab"],
    config: SamplingConfig,
    seen: Bool[Tensor, "rows vocab"] | None = None,
) -> Float[Tensor, "rows vocab"]:
    """Apply the repetition penalty, temperature, top-k, top-p and min-p to next-token logits, in this order.

    The repetition penalty applies to the tokens marked in `seen`. At least one token of each row remains possible.

    >>> allowed(torch.tensor([[0.5, 0.3, 0.2]]).log(), SamplingConfig(top_k=2)).softmax(-1)
    tensor([[0.6250, 0.3750, 0.0000]])
    """
    if seen is not None and config.repetition_penalty != 1.0:
        logits = penalized(logits, seen, config.repetition_penalty)
    if config.temperature != 1.0:
        logits = tempered(logits, config.temperature)
    if config.temperature == 0.0:
        return logits
    if config.top_k:
        logits = top_k(logits, config.top_k)
    return min_p(top_p(logits, config.top_p), config.min_p)
