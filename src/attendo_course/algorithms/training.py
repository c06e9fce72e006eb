"""Algorithms 11 to 13 of Phuong & Hutter 2022: training, by plain gradient descent, one text a step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.models import DecoderLM, EncoderDecoder, MaskedLM
from attendo.training.losses import token_losses
from attendo_course.algorithms.ids import Text, special_ids
from attendo_course.algorithms.transformers import d_logits, e_logits, ed_logits, model_ids

ModelT = TypeVar("ModelT", EncoderDecoder, MaskedLM, DecoderLM)
ExampleT = TypeVar("ExampleT")


class Trained(NamedTuple, Generic[ModelT]):
    """What training gives: θ̂, and the loss of each step, in nats, as it was before the step."""

    theta: ModelT
    losses: list[float]


def EDTraining(
    texts: Sequence[tuple[Text, Text]], theta: EncoderDecoder, *, N_epochs: int, eta: float
) -> Trained[EncoderDecoder]:
    """A11: θ ← θ - η ∇loss for each pair (z_n, x_n) in turn, N_epochs times. Phuong & Hutter 2022, algorithm 11.

    loss = -Σ_{t=1}^{ℓ-1} log P[x[t+1], t] with P = EDTransformer(z_n, x_n | θ): a sum, not a mean. `theta` stays as
    it is, θ̂ is a copy. Raises ValueError as `EDTransformer`.

    >>> from attendo_course.algorithms import build_formal_ed, formal_ed_config
    >>> _ = torch.manual_seed(0)
    >>> theta = build_formal_ed(formal_ed_config(N_V=9, ell_max=6, L_enc=1, L_dec=1, H=2, d_e=8, d_mlp=16))
    >>> theta_hat, losses = EDTraining([([1, 2], [8, 2, 1, 9])], theta, N_epochs=10, eta=0.1)
    >>> losses[-1] < losses[0] / 2
    True
    """
    return _descend(texts, theta, lambda pair, model: ed_loss(*pair, model), N_epochs, eta)


def ETraining(
    texts: Sequence[Text],
    theta: MaskedLM,
    *,
    N_epochs: int,
    eta: float,
    p_mask: float,
    generator: torch.Generator | None = None,
) -> Trained[MaskedLM]:
    """A12: as A11, where each token turns into mask_token with probability p_mask. Phuong & Hutter 2022, algorithm 12.

    loss = -Σ_{t∈T̃} log P[x[t], t] over the masked positions T̃, P = ETransformer(x̃ | θ) (`masked`, `e_loss`); new
    masks in each epoch. Where nothing was masked, which the paper passes over, the sum is empty: the loss is 0, and
    the step changes nothing. Raises ValueError as `ETransformer`, and for a p_mask outside 0..1.

    >>> from attendo_course.algorithms import formal_e_config
    >>> theta = MaskedLM(formal_e_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))
    >>> ETraining([[8, 1, 2, 9]], theta, N_epochs=2, eta=0.1, p_mask=0.0).losses
    [0.0, 0.0]
    """
    if not 0.0 <= p_mask <= 1.0:
        raise ValueError(f"p_mask={p_mask} is no probability; take one of 0 to 1")
    N_V = theta.config.vocab_size
    return _descend(
        texts, theta, lambda x, model: e_loss(x, masked(x, N_V, p_mask, generator), model), N_epochs, eta
    )


def DTraining(texts: Sequence[Text], theta: DecoderLM, *, N_epochs: int, eta: float) -> Trained[DecoderLM]:
    """A13: as A11 without z: loss = -Σ_{t=1}^{ℓ-1} log P[x[t+1], t], P = DTransformer(x_n | θ). Algorithm 13.

    Phuong & Hutter 2022. `theta` stays as it is, θ̂ is a copy. Raises ValueError as `DTransformer`.

    >>> from attendo_course.algorithms import formal_d_config
    >>> _ = torch.manual_seed(0)
    >>> theta = DecoderLM(formal_d_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))
    >>> theta_hat, losses = DTraining([[8, 2, 1, 9]], theta, N_epochs=10, eta=0.1)
    >>> losses[-1] < losses[0] / 2
    True
    """
    return _descend(texts, theta, d_loss, N_epochs, eta)


def ed_loss(z: Text, x: Text, theta: EncoderDecoder) -> Float[Tensor, ""]:
    """-Σ_{t=1}^{ℓ-1} log P[x[t+1], t], P = EDTransformer(z, x | θ), in nats. The loss of algorithm 11.

    >>> from attendo_course.algorithms import build_formal_ed, formal_ed_config
    >>> theta = build_formal_ed(formal_ed_config(N_V=9, ell_max=6, L_enc=1, L_dec=1, H=2, d_e=8, d_mlp=16))
    >>> _ = torch.nn.init.zeros_(theta.output_proj.weight)
    >>> ed_loss([1, 2], [8, 2, 9], theta) / 2  # ln 9
    tensor(2.1972, grad_fn=<DivBackward0>)
    """
    logits = ed_logits(z, x, theta)
    return token_losses(logits[:-1], model_ids(x, theta)[0, 1:]).sum()


def e_loss(x: Text, x_masked: Text, theta: MaskedLM) -> Float[Tensor, ""]:
    """-Σ_{t∈T̃} log P[x[t], t], P = ETransformer(x̃ | θ), T̃ = {t: x̃[t] = mask_token}, in nats. Algorithm 12.

    x_masked: x̃. Raises ValueError where x and x̃ differ in length.

    >>> from attendo_course.algorithms import formal_e_config
    >>> theta = MaskedLM(formal_e_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))
    >>> _ = torch.nn.init.zeros_(theta.output_proj.weight)
    >>> e_loss([8, 2, 1, 9], [8, 7, 1, 7], theta) / 2  # ln 9
    tensor(2.1972, grad_fn=<DivBackward0>)
    """
    if len(x) != len(x_masked):
        raise ValueError(f"x has {len(x)} tokens and x_masked {len(x_masked)}; they must be as many")
    logits = e_logits(x_masked, theta)
    mask_token = special_ids(theta.config.vocab_size).mask_token
    chosen = model_ids(x_masked, theta, "x_masked")[0] == mask_token - 1
    return token_losses(logits[chosen], model_ids(x, theta)[0, chosen]).sum()


def d_loss(x: Text, theta: DecoderLM) -> Float[Tensor, ""]:
    """-Σ_{t=1}^{ℓ-1} log P[x[t+1], t], P = DTransformer(x | θ), in nats. The loss of algorithm 13.

    >>> from attendo_course.algorithms import formal_d_config
    >>> theta = DecoderLM(formal_d_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))
    >>> _ = torch.nn.init.zeros_(theta.output_proj.weight)
    >>> d_loss([8, 2, 9], theta) / 2  # ln 9
    tensor(2.1972, grad_fn=<DivBackward0>)
    """
    return token_losses(d_logits(x, theta)[:-1], model_ids(x, theta)[0, 1:]).sum()


def masked(x: Text, N_V: int, p_mask: float, generator: torch.Generator | None = None) -> Int[Tensor, " ell"]:
    """x̃: each token of x turned into mask_token with probability p_mask. Algorithm 12.

    >>> masked([8, 1, 2, 9], N_V=9, p_mask=1.0)
    tensor([7, 7, 7, 7])
    """
    ids = torch.as_tensor(x)
    draws = torch.rand(len(ids), dtype=torch.float64, generator=generator)
    return ids.masked_fill((draws < p_mask).to(ids.device), special_ids(N_V).mask_token)


def _descend(
    examples: Sequence[ExampleT],
    theta: ModelT,
    loss_of: Callable[[ExampleT, ModelT], Tensor],
    N_epochs: int,
    eta: float,
) -> Trained[ModelT]:
    theta = copy.deepcopy(theta)
    descent = torch.optim.SGD(theta.parameters(), lr=eta)
    losses = []
    for _ in range(N_epochs):
        for example in examples:
            loss = loss_of(example, theta)
            losses.append(loss.item())
            descent.zero_grad()
            loss.backward()
            descent.step()
    return Trained(theta, losses)
