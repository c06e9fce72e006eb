"""Sampling by the Gumbel-max method: the token with the largest sum of filtered logit and noise is drawn.

A temperature of 0 is greedy search. The noise is a function of seed, step and token (`splitmix64`). A text therefore
depends only on the model, the prompt, the settings and the seed. Neither the batch nor a resumption in the middle of
the text changes the result.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attendo.decoding.beam import log_prob_type
from attendo.decoding.logit_filters import SamplingConfig, allowed
from attendo.decoding.options import SpecialIds
from attendo.decoding.protocols import Step, TokenRows
from attendo.errors import AttendoError

_BITS = 52  # of each random number n, because float64 represents n + 1/2 exactly up to n = 2⁵² - 1


def _signed(bits: int) -> int:
    """Return the int64 with the given 64 bits."""
    return bits - 2**64 if bits >= 2**63 else bits


_GAMMA = _signed(0x9E3779B97F4A7C15)  # 2⁶⁴ divided by the golden ratio
_FACTORS = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)))


def splitmix64(seed: Int[Tensor, "*shape"], index: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Return output number `index` (from 0) of the SplitMix64 random number generator with the given seed, as int64.

    The output is mix(seed + (index + 1)·γ) with γ = 2⁶⁴/φ, modulo 2⁶⁴, and is equal on every machine. Source: Steele,
    Lea & Flood 2014, "Fast splittable pseudorandom number generators", section 5. The mixing function is Stafford's
    variant 13, as in Java and in Vigna's C code.

    >>> splitmix64(torch.tensor(1234567), torch.arange(2))
    tensor([6457827717110365317, 3203168211198807973])
    """
    bits = torch.add(seed + _GAMMA, index, alpha=_GAMMA)
    rest = torch.empty_like(bits)
    for shift, factor in _FACTORS:
        bits.bitwise_xor_(_shifted(bits, shift, rest)).mul_(factor)
    return bits.bitwise_xor_(_shifted(bits, 31, rest))


def _shifted(bits: Tensor, n: int, out: Tensor) -> Tensor:
    """Shift to the right by n bits, with zeros at the left. torch itself repeats the sign bit of an int64."""
    return torch.bitwise_right_shift(bits, n, out=out).bitwise_and_(2 ** (64 - n) - 1)


def step_seeds(seeds: Int[Tensor, " rows"], steps: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """Return the seed of a sampling step for each text.

    The first random number of the text seed is the seed of a second generator. Random number `step` (from 0) of the
    second generator is the step seed, from which `uniform` computes one random number per token. Neighboring text
    seeds, steps and tokens therefore have independent noise.

    >>> step_seeds(torch.tensor([7, 7, 8]), torch.tensor([0, 1, 0]))
    tensor([-5137267319001854395, -6461814455296669442,  4918744596714539366])
    """
    return splitmix64(splitmix64(seeds, torch.zeros_like(seeds)), steps)


def uniform(step_seed: Int[Tensor, "*shape"], token_ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return a uniform float64 in (0, 1) for each token of a step.

    A value is (n + 1/2) / 2⁵², where n is the upper 52 bits of the token's random number. All values are exact,
    equally likely, symmetric about 1/2, and equal on every machine.

    >>> uniform(step_seeds(torch.tensor([7]), torch.tensor([0])), torch.arange(3))
    tensor([0.6094, 0.4092, 0.9967], dtype=torch.float64)
    """
    bits = splitmix64(step_seed, token_ids)
    return _shifted(bits, 64 - _BITS, bits).double().add_(0.5).mul_(2.0**-_BITS)


def gumbel(step_seed: Int[Tensor, "*shape"], token_ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return standard Gumbel noise -ln(-ln u) in float64, between -3.7 and 36.8, where u is `uniform` noise.

    The argmax of ln p + g is a draw from p: P(argmax = i) = pᵢ (Gumbel 1954; Maddison, Tarlow & Minka 2014, section 2).

    >>> gumbel(step_seeds(torch.tensor([7]), torch.tensor([0])), torch.arange(3))
    tensor([0.7026, 0.1125, 5.7235], dtype=torch.float64)
    """
    return uniform(step_seed, token_ids).log_().neg_().log_().neg_()


_CHUNK = 2**17  # numbers that fit into the cache of a CPU


def drawn(logits: Float[Tensor, "rows vocab"], uniform: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """Draw one token per row from softmax(logits), by inverse transform sampling with the given uniform random numbers.

    The cumulative distribution is in the order of token ids. A token with probability 0 is never drawn.

    >>> drawn(torch.tensor([[0.25, 0.0, 0.75]]).log().expand(3, 3), torch.tensor([0.1, 0.25, 0.9]))
    tensor([0, 2, 2])
    """
    sums = logits.softmax(-1, dtype=torch.float64).cumsum(-1)
    # after rounding, u · total is still below total for every u < 1, so each draw is within the last interval
    at = uniform.double()[:, None] * sums[:, -1:]
    return torch.searchsorted(sums, at, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)  # NaN: past the end


def gumbel_max(logits: Float[Tensor, "rows vocab"], seeds: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """Draw one token per row from softmax(x), as argmaxᵢ (xᵢ + gᵢ) for logits x and the noise g of the row's step seed.

    In a tie, the lowest token id is drawn. Each token has its own noise, so a filter does not reorder the other tokens.

    >>> gumbel_max(torch.tensor([[0.25, 0.0, 0.75]]).log().expand(5, 3), torch.arange(5))
    tensor([0, 2, 2, 2, 2])
    """
    possible = logits > -torch.inf
    if 4 * int(possible.count_nonzero()) < possible.numel():
        return _gumbel_max_of_few(logits, possible, seeds)
    token_ids = torch.arange(logits.shape[1], device=logits.device)
    return (gumbel(seeds[:, None], token_ids) + logits).argmax(-1)


def _gumbel_max_of_few(
    logits: Float[Tensor, "rows vocab"], possible: Bool[Tensor, "rows vocab"], seeds: Int[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """Return the result of `gumbel_max`, with noise computed only for the possible tokens."""
    rows, token_ids = possible.nonzero(as_tuple=True)
    scores = gumbel(seeds[rows], token_ids) + logits[rows, token_ids]
    best = scores.new_full((len(seeds),), -torch.inf).scatter_reduce_(0, rows, scores, "amax")
    first = (scores == best[rows]).nonzero()[:, 0]
    chosen = torch.zeros_like(seeds)
    return chosen.scatter_reduce_(0, rows[first], token_ids[first], "amin", include_self=False)


@dataclass(frozen=True)
class SampledToken:
    """A drawn token and its log-probability under the model in nats, before any penalty or filter."""

    token_id: int
    log_prob: float


@dataclass
class _Row:
    """A text so far. `token_ids` contains the prompt and the `n_drawn` drawn tokens."""

    config: SamplingConfig
    seed: int
    token_ids: list[int]
    n_drawn: int


class Sampler:
    """A sampler that draws each row's next token with the row's settings and seed, independently of other rows.

    The repetition penalty counts the prompts as seen. A seed of None is replaced by a random seed.

    >>> sampler = Sampler([[2], [2]], [SamplingConfig(seed=1), SamplingConfig(temperature=0.0)])
    >>> [token.token_id for token in sampler.draw(torch.tensor([[0.0, 2.0, 1.0], [0.0, 2.0, 1.0]]))]
    [1, 1]
    """

    def __init__(self, prompts: TokenRows, configs: Sequence[SamplingConfig], banned_ids: tuple[int, ...] = ()) -> None:
        self.banned_ids = list(banned_ids)
        self.rows: list[_Row] = []
        self._seen: Tensor | None = None
        self.join(prompts, configs)

    def join(self, prompts: TokenRows, configs: Sequence[SamplingConfig], n_drawn: Sequence[int] | None = None) -> None:
        """Append one row per prompt. The last `n_drawn` tokens of each prompt count as drawn tokens (default: 0)."""
        counts = [0] * len(prompts) if n_drawn is None else n_drawn
        for prompt, config, count in zip(prompts, configs, counts, strict=True):
            seed = fresh_seed() if config.seed is None else config.seed
            self.rows.append(_Row(config, seed, list(prompt), count))
        self._changed()

    def keep(self, rows: Sequence[int]) -> None:
        """Select rows: new row `i` continues old row `rows[i]`, and all other rows are dropped."""
        self.rows = [self.rows[row] for row in rows]
        self._changed()

    def _changed(self) -> None:
        self._seen = None
        self._groups: dict[SamplingConfig, list[int]] = {}
        for number, row in enumerate(self.rows):
            alike = replace(row.config, max_tokens=0, stop=(), seed=None)
            self._groups.setdefault(alike, []).append(number)

    def draw(self, logits: Float[Tensor, "rows vocab"]) -> list[SampledToken]:
        """Draw one token per row. Raises AttendoError if the logits contain NaN or leave no possible token."""
        chosen = torch.zeros(len(self.rows), 1, dtype=torch.int64, device=logits.device)
        log_probs = torch.zeros(len(self.rows), dtype=torch.float64, device=logits.device)
        seeds = self._step_seeds().to(logits.device)
        for config, rows in self._parts(logits):
            seen = self._seen_by(logits)[rows] if config.repetition_penalty != 1.0 else None
            chosen[rows], log_probs[rows] = self._choose(logits[rows], config, seeds[rows], seen)
        numbers = log_probs.tolist()
        if not all(map(math.isfinite, numbers)):
            raise AttendoError(
                "sampling failed: the logits leave no token to draw (NaN, or -inf for all tokens). The "
                "weights are damaged, or training diverged"
            )
        if self._seen is not None:
            self._seen.scatter_(-1, chosen, True)
        found = [SampledToken(*pair) for pair in zip(chosen[:, 0].tolist(), numbers, strict=True)]
        for row, token in zip(self.rows, found, strict=True):
            row.token_ids.append(token.token_id)
            row.n_drawn += 1
        return found

    def _step_seeds(self) -> Int[Tensor, " rows"]:
        if all(config.temperature == 0.0 for config in self._groups):
            return torch.zeros(len(self.rows), dtype=torch.int64)  # greedy search uses no noise
        seeds = torch.tensor([row.seed for row in self.rows])
        return step_seeds(seeds, torch.tensor([row.n_drawn for row in self.rows]))

    def _parts(self, logits: Float[Tensor, "rows vocab"]) -> Iterator[tuple[SamplingConfig, slice | Tensor]]:
        """Yield the rows that are filtered together: rows with the same settings that, on a CPU, fit into its cache."""
        most = len(self.rows) if logits.is_cuda else max(1, _CHUNK // logits.shape[-1])
        for config, rows in self._groups.items():
            for first in range(0, len(rows), most):
                part = rows[first : first + most]
                together = part[-1] - part[0] == len(part) - 1
                yield (
                    config,
                    slice(part[0], part[-1] + 1) if together else torch.tensor(part, device=logits.device),
                )

    def _choose(
        self,
        logits: Float[Tensor, "rows vocab"],
        config: SamplingConfig,
        seeds: Int[Tensor, " rows"],
        seen: Bool[Tensor, "rows vocab"] | None,
    ) -> tuple[Int[Tensor, "rows 1"], Float[Tensor, " rows"]]:
        """Return the token of each row and its log-probability, which is NaN if no token was possible."""
        precise = log_prob_type(logits)
        log_probs = logits.log_softmax(-1, dtype=precise)
        offered = logits.to(precise)
        if self.banned_ids:
            offered = offered.index_fill(-1, torch.tensor(self.banned_ids, device=logits.device), -torch.inf)
        offered = allowed(offered, config, seen)
        greedy = config.temperature == 0.0
        chosen = (offered.argmax(-1) if greedy else gumbel_max(offered, seeds))[:, None]
        # a chosen token that is excluded shows that the row has no possible token
        found = log_probs.gather(-1, chosen).where(offered.gather(-1, chosen) > -torch.inf, torch.nan)
        return chosen, found[:, 0].double()

    def _seen_by(self, logits: Tensor) -> Bool[Tensor, "rows vocab"]:
        if self._seen is None:
            self._seen = torch.zeros_like(logits, dtype=torch.bool)
            for seen, row in zip(self._seen, self.rows, strict=True):
                seen[row.token_ids] = True
        return self._seen


def fresh_seed() -> int:
    """Return a random seed of 32 bits, which is short enough to type."""
    return secrets.randbelow(2**32)


def configs_of_lines(config: SamplingConfig, first: int, n: int) -> list[SamplingConfig]:
    """Return sampling settings with a separate seed for each of `n` lines, from line number `first`.

    The seed of a line consists of 53 bits of `splitmix64(config.seed, line number)`. Sampling can therefore resume at
    any line of a file.

    >>> [config.seed for config in configs_of_lines(SamplingConfig(seed=7), first=3, n=2)]
    [7577217395468747, 5413335610565082]
    """
    numbers = torch.arange(first, first + n)
    seeds = splitmix64(torch.tensor(config.seed or 0), numbers) & (2**53 - 1)
    return [dataclasses.replace(config, seed=seed) for seed in seeds.tolist()]


def configs_of_parts(config: SamplingConfig, n: int) -> list[SamplingConfig]:
    """Return sampling settings with a separate seed for each of `n` parts of a text.

    The first part has the seed of the text. A text with a single part therefore keeps its seed.

    >>> [config.seed for config in configs_of_parts(SamplingConfig(seed=7), n=3)]
    [7, 3444597933762076, 6826321073220098]
    """
    return [config, *configs_of_lines(config, 1, n - 1)][:n] if n else []


def configs_of_texts(configs: SamplingConfig | Sequence[SamplingConfig], n: int) -> list[SamplingConfig]:
    """Return one config per text for `n` texts, where a missing seed is replaced by a random seed.

    Raises AttendoError if a config has stop texts, or if the number of configs is not `n`.

    >>> [config.seed for config in configs_of_texts(SamplingConfig(seed=7), n=2)]
    [7, 7]
    """
    each = [configs] * n if isinstance(configs, SamplingConfig) else configs
    if len(each) != n:
        raise AttendoError(f"{len(each)} configs for {n} texts (expected one config per text, or one for all)")
    if any(config.stop for config in each):
        raise AttendoError("stop is not supported for given texts, which are scored to their end. Remove it")
    return [config if config.seed is not None else dataclasses.replace(config, seed=fresh_seed()) for config in each]


class Sampling:
    """A batch of texts that are sampled together, one per row of a cache. `advance` draws one token per text.

    Texts are numbered from 0. The row of a finished text is dropped from the cache before the next step.

    Args:
        step: The function that feeds one token per row and returns the logits (`Step` in `protocols.py`).
        cache: A cache whose rows have read all token ids of their prompts except the last.
        prompts: Token ids of each prompt, at least one id per text.
        configs: Sampling settings of each text. Stop texts are ignored, so the caller must handle them.
        special_ids: The token ids that begin and end a text, and the token ids that are never generated.
        device: Device of the token ids that are passed to `step`.
        n_drawn: Number of tokens at the end of each prompt that count as already drawn (default: 0).
    """

    def __init__(
        self,
        step: Step,
        cache: Any,
        prompts: TokenRows,
        configs: Sequence[SamplingConfig],
        special_ids: SpecialIds,
        device: torch.device | str = "cpu",
        n_drawn: Sequence[int] | None = None,
    ) -> None:
        self.step = step
        self.cache = cache
        self.special_ids = special_ids
        self.device = device
        self.n_texts = 0
        self._numbers: list[int] = []
        self._going_on: set[int] = set()
        self._sampler = Sampler([], [], special_ids.banned_ids)
        self._take(prompts, configs, n_drawn)

    @property
    def going_on(self) -> list[int]:
        """The numbers of the unfinished texts, in the order of their cache rows."""
        return [number for number in self._numbers if number in self._going_on]

    @torch.inference_mode()
    def advance(self) -> list[tuple[int, SampledToken]]:
        """Draw one token for every unfinished text.

        A text is finished after its end token, or after `max_tokens` tokens.

        Returns:
            Pairs of the number of a text and its next token, in the order of the cache rows.

        Raises:
            AttendoError: The logits contain NaN or leave no possible token.
        """
        self._drop_ended()
        last = torch.tensor([row.token_ids[-1:] for row in self._sampler.rows], device=self.device)
        found = self._sampler.draw(self.step(last, self.cache))
        for number, row, token in zip(self._numbers, self._sampler.rows, found, strict=True):
            if token.token_id == self.special_ids.eos_id or row.n_drawn >= row.config.max_tokens:
                self.end(number)
        return list(zip(self._numbers, found, strict=True))

    def has_ended(self, number: int) -> bool:
        """Return whether a text is finished.

        Args:
            number: Number of the text, from 0.
        """
        return number not in self._going_on

    def end(self, number: int) -> None:
        """Finish a text. No further token is drawn for the text.

        Args:
            number: Number of the text, from 0.
        """
        self._going_on.discard(number)

    @torch.inference_mode()
    def join(
        self,
        add_rows: Callable[[Any], None],
        prompts: TokenRows,
        configs: Sequence[SamplingConfig],
        n_drawn: Sequence[int] | None = None,
    ) -> None:
        """Add texts, whose numbers follow the numbers of all earlier texts.

        Args:
            add_rows: A function that appends the rows of the new texts to the cache.
            prompts: Token ids of each prompt, at least one id per text.
            configs: Sampling settings of each text.
            n_drawn: Number of tokens at the end of each prompt that count as already drawn (default: 0).
        """
        self._drop_ended()
        add_rows(self.cache)
        self._take(prompts, configs, n_drawn)

    def _take(self, prompts: TokenRows, configs: Sequence[SamplingConfig], n_drawn: Sequence[int] | None) -> None:
        assert all(prompts), "each text must start with at least one token, for example the begin id"
        self._sampler.join(prompts, configs, n_drawn)
        numbers = range(self.n_texts, self.n_texts + len(prompts))
        self.n_texts += len(prompts)
        self._numbers += numbers
        new = self._sampler.rows[len(self._sampler.rows) - len(prompts) :]
        self._going_on |= {n for n, row in zip(numbers, new, strict=True) if row.n_drawn < row.config.max_tokens}

    def _drop_ended(self) -> None:
        kept = [row for row, number in enumerate(self._numbers) if number in self._going_on]
        if len(kept) < len(self._numbers):
            self.cache.keep(torch.tensor(kept, dtype=torch.int64, device=self.device))
            self._sampler.keep(kept)
            self._numbers = [self._numbers[row] for row in kept]
