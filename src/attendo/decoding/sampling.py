"""Sampling: which next tokens are allowed, how probable they are made, and the draw; greedy where temperature is 0."""

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attendo.decoding.step import SpecialIds
from attendo.errors import AttendoError

_SHORTLIST = 64  # most nuclei are found among so few


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How a text is continued.

    max_tokens: the most tokens that are drawn, the end token included. temperature: above 1 more even, below 1 more
    sure, 0 greedy: always the most probable token. top_k: only so many, 0 for all. top_p: only the most probable that
    together reach this probability, 1 for all. min_p: none whose probability is below this share of the most
    probable's, 0 for all. repetition_penalty: 1 is none; what was there before gets less probable above 1. They take
    effect in the order penalty, temperature, top_k, top_p, min_p. stop: texts before which the text ends. seed: the
    same one gives the same text; None draws another each time.
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
            raise ValueError(f"max_tokens is {self.max_tokens}; it must be 0 or more")
        if not 0.0 <= self.temperature < math.inf:
            raise ValueError(f"temperature is {self.temperature}; it must be 0 (greedy) or a number above 0")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; it must be 1 or more, or 0 for all tokens")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(
                f"top_p is {self.top_p}; it must be above 0 and at most 1, which takes all tokens"
            )
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p is {self.min_p}; it must be between 0, which takes all tokens, and 1")
        if not 0.0 < self.repetition_penalty < math.inf:
            raise ValueError(
                f"repetition_penalty is {self.repetition_penalty}; it must be a number above 0, and 1 is none"
            )
        if isinstance(self.stop, str):
            raise ValueError(f"stop is the text {self.stop!r}; it must be a list of texts: [{self.stop!r}]")
        if "" in self.stop:
            raise ValueError("stop has an empty text, before which every text would end; leave it out")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}; it must be between 0 and 2**63 - 1, or left out")


def penalized(
    logits: Float[Tensor, "rows vocab"], seen: Bool[Tensor, "rows vocab"], penalty: float
) -> Float[Tensor, "rows vocab"]:
    """Seen tokens made less probable by a penalty θ above 1: x/θ if x > 0, x·θ if x < 0. Others stay.

    Keskar et al. 2019 (CTRL), section 4.1, divide every seen logit, which would make one below 0 more probable;
    multiplying it keeps the intent.

    >>> penalized(torch.tensor([[2.0, -2.0, 2.0]]), torch.tensor([[True, True, False]]), 2.0)
    tensor([[ 1., -4.,  2.]])
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def tempered(logits: Float[Tensor, "rows vocab"], temperature: float) -> Float[Tensor, "rows vocab"]:
    """(x - max x) / τ: softmax(x/τ) is p^(1/τ), normalized. Ackley et al. 1985.

    Its limit at τ = 0 allows the most probable token alone, the one of the lowest id among equals.

    >>> tempered(torch.tensor([[0.0, 2.0, 2.0]]), 0.5)
    tensor([[-4.,  0.,  0.]])
    >>> tempered(torch.tensor([[0.0, 2.0, 2.0]]), 0.0)
    tensor([[-inf, 0., -inf]])
    """
    # from the largest, so that a τ near 0 leaves 0 there and not infinity
    below = logits - logits.amax(-1, keepdim=True)
    if temperature > 0.0:
        return below / temperature
    best = logits.argmax(-1, keepdim=True)
    return torch.full_like(logits, -torch.inf).scatter(-1, best, below.gather(-1, best))


def top_k(logits: Float[Tensor, "rows vocab"], k: int) -> Float[Tensor, "rows vocab"]:
    """The k most probable tokens; all others get -inf. Equals go by lower id. Fan et al. 2018.

    >>> top_k(torch.tensor([[1.0, 3.0, 2.0, 2.0]]), 2)
    tensor([[-inf, 3., 2., -inf]])
    """
    if k >= logits.shape[-1]:
        return logits
    return _best(logits, logits.topk(k).values[:, -1:], torch.tensor([[k]], device=logits.device))


def top_p(logits: Float[Tensor, "rows vocab"], p: float) -> Float[Tensor, "rows vocab"]:
    """The nucleus: the fewest tokens, most probable first, whose probabilities sum to p or more; others get -inf.

    Equals go by lower id. Holtzman et al. 2020, section 3.1. With p = 1 all stay.

    >>> top_p(torch.tensor([[0.1, 0.6, 0.3]]).log(), 0.7).exp()
    tensor([[0.0000, 0.6000, 0.3000]])
    """
    if p >= 1.0:
        return logits
    vocab = logits.shape[-1]
    log_total = logits.double().logsumexp(-1, keepdim=True)
    n = min(_SHORTLIST, vocab)
    while True:  # to sort the whole vocabulary takes far longer than to find the best few
        best = logits.topk(n).values
        sums = (best.double() - log_total).exp().cumsum(-1)
        if n == vocab or bool((sums[:, -1] >= p).all()):
            break
        n = 16 * n if n < vocab // 16 else vocab
    n_kept = 1 + (sums[:, :-1] < p).sum(-1, keepdim=True)
    return _best(logits, best.gather(-1, n_kept - 1), n_kept)


def min_p(logits: Float[Tensor, "rows vocab"], share: float) -> Float[Tensor, "rows vocab"]:
    """The tokens at least `share` times as probable as the most probable one; others get -inf.

    Nguyen et al. 2024. With share = 0 all stay.

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
    """The n largest of each row, of which `edge` is the last; of its equals those of lowest id."""
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
    """The logits that are drawn from: penalty, temperature, top-k, top-p, min-p, in this order.

    seen: the tokens that the penalty is for. At least one token stays. A step that does nothing costs nothing.

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


def drawn(logits: Float[Tensor, "rows vocab"], uniform: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """The token in whose stretch of [0, 1) the uniform number lies: the inverse of the cumulative distribution.

    One stretch a token, softmax(logits) long, in the order of the ids; a token of probability 0 has none.

    >>> drawn(torch.tensor([[0.25, 0.0, 0.75]]).log().expand(3, 3), torch.tensor([0.1, 0.25, 0.9]))
    tensor([0, 2, 2])
    """
    sums = logits.softmax(-1, dtype=torch.float64).cumsum(-1)
    # rounded, u · total stays below total for every u below 1, so no draw falls behind the last stretch
    at = uniform.double()[:, None] * sums[:, -1:]
    return torch.searchsorted(sums, at, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)  # beyond it for NaN


@dataclass(frozen=True)
class Drawn:
    """A token, and the log-probability that the model itself gave it, in nats: before any penalty or filter."""

    token_id: int
    log_prob: float


class Sampler:
    """Draws the next token of each row, and remembers what the rows need: their random numbers and their tokens.

    prompts: the ids that each row starts with, which the repetition penalty counts as seen. seeds: one a row; a row's
    tokens depend on its own seed and logits alone, whatever rows are beside it. never: ids that are not drawn.
    """

    def __init__(
        self,
        config: SamplingConfig,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        never: tuple[int, ...] = (),
    ) -> None:
        self.config = config
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.never = list(never)
        self._prompts = prompts
        self._seen: Tensor | None = None

    def draw(self, logits: Float[Tensor, "rows vocab"]) -> list[Drawn]:
        """One token a row, after these logits. Raises AttendoError for NaN, and where no token is possible."""
        precise = torch.promote_types(logits.dtype, torch.float32)
        log_probs = logits.log_softmax(-1, dtype=precise)
        offered = logits.to(precise)
        if self.never:
            offered = offered.index_fill(-1, torch.tensor(self.never, device=logits.device), -torch.inf)
        seen = self._seen_by(offered) if self.config.repetition_penalty != 1.0 else None
        offered = allowed(offered, self.config, seen)
        if self.config.temperature == 0.0:
            chosen = offered.argmax(-1)
        else:
            # on the processor, so that a seed means the same on every device
            uniform = [
                torch.rand((), generator=generator, dtype=torch.float64) for generator in self.generators
            ]
            chosen = drawn(offered, torch.stack(uniform).to(logits.device))
        column = chosen[:, None]
        if seen is not None:
            seen.scatter_(-1, column, True)
        # what is not offered was not drawn: there was nothing to draw from
        found = log_probs.gather(-1, column).where(offered.gather(-1, column) > -torch.inf, torch.nan)
        numbers = found[:, 0].tolist()
        if not all(map(math.isfinite, numbers)):
            raise AttendoError(
                "the model's logits leave no token to draw (they are not numbers, or all impossible); its weights are"
                " damaged or diverged"
            )
        return [Drawn(*pair) for pair in zip(chosen.tolist(), numbers, strict=True)]

    def _seen_by(self, logits: Tensor) -> Bool[Tensor, "rows vocab"]:
        if self._seen is None:
            self._seen = torch.zeros_like(logits, dtype=torch.bool)
            for row, prompt in zip(self._seen, self._prompts, strict=True):
                row[list(prompt)] = True
        return self._seen


def fresh_seed() -> int:
    """A seed that nobody has asked for, short enough to be typed."""
    return secrets.randbelow(2**32)


def generate(
    step: Callable[[Sequence[int]], Float[Tensor, "1 vocab"]],
    prompt_ids: Sequence[int],
    config: SamplingConfig,
    special: SpecialIds,
) -> Iterator[Drawn]:
    """The tokens that go on from a prompt, each as it is drawn; the end token is the last, where the text ends.

    step: takes the ids that follow those it was given before, and gives the logits of the next; it is called under
    `torch.inference_mode`, with the whole prompt first. prompt_ids: at least one. At most `config.max_tokens` are
    drawn; `config.stop` is for who turns them into text. Raises AttendoError where `Sampler.draw` does.
    """
    assert prompt_ids, "a text starts with a token, if only the begin id"
    seed = fresh_seed() if config.seed is None else config.seed
    sampler = Sampler(config, [prompt_ids], [seed], special.never)
    new_ids = prompt_ids
    for _ in range(config.max_tokens):
        with torch.inference_mode():  # closed before the yield: it must not leak into the caller's code
            [token] = sampler.draw(step(new_ids))
        yield token
        if token.token_id == special.eos_id:
            return
        new_ids = [token.token_id]
