"""Algorithms 14 and 15 of Phuong & Hutter 2022: a text is drawn token by token, on the core's cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attendo.models import DecoderLM, EncoderDecoder
from attendo.nn.attention import masked_softmax
from attendo_course.algorithms.hyperparameters import check_theta
from attendo_course.algorithms.ids import Text, special_ids
from attendo_course.algorithms.transformers import model_ids


class Drawn(NamedTuple):
    """One token y and the distribution q ∝ p^{1/τ} that it was drawn from.

    >>> y, q = Drawn(2, torch.tensor([0.25, 0.75]))
    >>> q[y - 1].item()  # ids count from 1
    0.75
    """

    y: int
    q: Float[Tensor, " N_V"]


class Inferred(NamedTuple):
    """What A15 gives: x̂, from bos on, and whether it ended with eos; if not, it met the limit.

    >>> Inferred([8, 1, 9], ended=True)
    Inferred(x_hat=[8, 1, 9], ended=True)
    """

    x_hat: list[int]
    ended: bool


def DInference(
    x: Text, theta: DecoderLM, *, ell_gen: int, tau: float, generator: torch.Generator | None = None
) -> list[int]:
    """A14: y, the ℓ_gen tokens that continue the prompt x. Phuong & Hutter 2022, algorithm 14.

    Again and again: p = P[:, last] of DTransformer(x | θ), draw y from q ∝ p^{1/τ}, append it. tau: the temperature;
    1 is faithful to p, `math.inf` uniform over the vocabulary, and 0, which is no value but a limit in the paper,
    the most probable token (the first of equals). Raises ValueError as `DTransformer`, for a negative τ or ℓ_gen,
    and where x and y together outgrow ℓ_max (the last token of y need not fit: nothing is predicted from it).

    >>> from attendo_course.algorithms import DTransformer, formal_d_config
    >>> theta = DecoderLM(formal_d_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))
    >>> y = DInference([8, 1], theta, ell_gen=2, tau=0.0)
    >>> y == (DTransformer([8, 1, y[0]], theta)[:, 1:].argmax(0) + 1).tolist()
    True
    """
    return [drawn.y for drawn in d_inference_steps(x, theta, ell_gen=ell_gen, tau=tau, generator=generator)]


def EDInference(
    z: Text,
    theta: EncoderDecoder,
    *,
    tau: float,
    generator: torch.Generator | None = None,
    max_len: int | None = None,
) -> Inferred:
    """A15: x̂ from bos to eos, given z. Phuong & Hutter 2022, algorithm 15.

    As A14, from p = P[:, last] of EDTransformer(z, x̂ | θ), until eos is drawn. max_len: how many tokens x̂ may
    have, bos and eos included; ℓ_max + 1 unless given, the most that can be predicted. The paper has no limit and
    may never stop; where ours is met, `ended` is False. Raises ValueError as `EDTransformer`, for a negative τ, and
    for a max_len outside 2..ℓ_max + 1.

    >>> from attendo_course.algorithms import build_formal_ed, formal_ed_config
    >>> _ = torch.manual_seed(0)
    >>> theta = build_formal_ed(formal_ed_config(N_V=9, ell_max=6, L_enc=1, L_dec=1, H=2, d_e=8, d_mlp=16))
    >>> _ = torch.nn.init.zeros_(theta.output_proj.weight)  # all tokens alike, of which 0 takes the first
    >>> EDInference([1, 2, 3], theta, tau=0.0, max_len=4)
    Inferred(x_hat=[8, 1, 1, 1], ended=False)
    """
    ell_max, (_, bos, eos) = theta.config.max_len, special_ids(theta.config.vocab_size)
    max_len = ell_max + 1 if max_len is None else max_len
    if not 2 <= max_len <= ell_max + 1:
        raise ValueError(
            f"max_len={max_len} must lie in 2..{ell_max + 1}: positions end at ell_max={ell_max}"
        )
    x_hat = [bos]
    for drawn in islice(ed_inference_steps(z, theta, tau=tau, generator=generator), max_len - 1):
        x_hat.append(drawn.y)
    return Inferred(x_hat, x_hat[-1] == eos)


def d_inference_steps(
    x: Text, theta: DecoderLM, *, ell_gen: int, tau: float, generator: torch.Generator | None = None
) -> Iterator[Drawn]:
    """A14 step by step: each token with the distribution that it was drawn from. Raises ValueError as `DInference`.

    >>> from attendo_course.algorithms import formal_d_config
    >>> theta = DecoderLM(formal_d_config(N_V=4, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))
    >>> [drawn.q.tolist() for drawn in d_inference_steps([3, 1], theta, ell_gen=1, tau=torch.inf)]
    [[0.25, 0.25, 0.25, 0.25]]
    """
    check_theta(theta, "A10")
    beta, prompt, ell_max = _inverse(tau), model_ids(x, theta), theta.config.max_len
    if ell_gen < 0 or prompt.shape[1] + ell_gen - 1 > ell_max:
        raise ValueError(
            f"ell_gen={ell_gen} must lie in 0..{ell_max - prompt.shape[1] + 1}: positions end at"
            f" ell_max={ell_max}, and x has {prompt.shape[1]} tokens"
        )
    cache = theta.start(capacity=ell_max)
    return islice(_draw(lambda new: theta.step(new, cache), prompt, beta, generator), ell_gen)


def ed_inference_steps(
    z: Text, theta: EncoderDecoder, *, tau: float, generator: torch.Generator | None = None
) -> Iterator[Drawn]:
    """A15 step by step, up to eos or for ℓ_max steps; the encoder runs once. Raises ValueError as `EDInference`.

    >>> from attendo_course.algorithms import build_formal_ed, formal_ed_config
    >>> theta = build_formal_ed(formal_ed_config(N_V=9, ell_max=6, L_enc=1, L_dec=1, H=2, d_e=8, d_mlp=16))
    >>> 1 <= len(list(ed_inference_steps([1, 2], theta, tau=1.0))) <= 6
    True
    """
    check_theta(theta, "A8")
    beta, source, ell_max = _inverse(tau), model_ids(z, theta, "z"), theta.config.max_len
    _, bos, eos = special_ids(theta.config.vocab_size)
    with torch.no_grad():
        cache = theta.start(source, capacity=ell_max)
    steps = _draw(lambda new: theta.step(new, cache), model_ids([bos], theta), beta, generator)
    return _up_to(eos, islice(steps, ell_max))


def distribution(logits: Float[Tensor, " N_V"], tau: float) -> Float[Tensor, " N_V"]:
    """q ∝ p^{1/τ} = softmax(logits/τ), on the CPU in float64. Algorithms 14 and 15.

    Raises ValueError for a negative τ.

    >>> distribution(torch.tensor([0.0, 1.0, 1.0]), tau=0.0)
    tensor([0., 1., 0.], dtype=torch.float64)
    """
    return _tempered(logits, _inverse(tau))


def _draw(
    step: Callable[[Tensor], Tensor], new: Tensor, beta: float, generator: torch.Generator | None
) -> Iterator[Drawn]:
    """Feeds `new`, then each token drawn; `step` gives the logits after those it is fed and remembers them."""
    while True:
        with torch.no_grad():
            q = _tempered(step(new)[0, -1], beta)
        new = torch.multinomial(q, 1, generator=generator)[None].to(new.device)
        yield Drawn(int(new) + 1, q)


def _up_to(y: int, steps: Iterator[Drawn]) -> Iterator[Drawn]:
    for drawn in steps:
        yield drawn
        if drawn.y == y:
            return


def _tempered(logits: Tensor, beta: float) -> Tensor:
    # from the largest, so that a β near infinity meets 0 there and not infinity
    scores = logits.cpu().double()
    scores = scores - scores.max()
    return masked_softmax(scores[None], inverse_temperature=beta)[0]


def _inverse(tau: float) -> float:
    if not tau >= 0.0:
        raise ValueError(f"tau={tau} must be 0 or more (0 takes the most probable token)")
    return 1.0 / tau if tau else math.inf
