"""Algorithms 8 to 10 of Phuong & Hutter 2022: the three Transformers, forward. θ is a model of the core."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from attendo.models import DecoderLM, EncoderDecoder, MaskedLM
from attendo_course.algorithms.hyperparameters import check_theta
from attendo_course.algorithms.ids import Text, core_ids


def EDTransformer(z: Text, x: Text, theta: EncoderDecoder) -> Float[Tensor, "N_V ell_x"]:
    """A8: P ∈ (0,1)^{N_V×ℓ_x}; column t is the distribution of x[t+1] given x[1:t] and z. Algorithm 8.

    Phuong & Hutter 2022: post-norm, ReLU; encoder and cross-attention see all of z, the decoder's self-attention
    x[1:t]; one W_e and one W_p for both. theta: made by `build_formal_ed`. Differentiable. Raises ValueError where
    θ is not A8's, for an id outside 1..N_V, and for a text that is empty or longer than ℓ_max.

    >>> from attendo_course.algorithms import build_formal_ed, formal_ed_config
    >>> theta = build_formal_ed(formal_ed_config(N_V=9, ell_max=6, L_enc=1, L_dec=1, H=2, d_e=8, d_mlp=16))
    >>> EDTransformer([1, 2, 3, 4], [8, 5], theta).shape
    torch.Size([9, 2])
    """
    return columns(ed_logits(z, x, theta))


def ETransformer(x: Text, theta: MaskedLM) -> Float[Tensor, "N_V ell_x"]:
    """A9 (BERT): P ∈ (0,1)^{N_V×ℓ_x}; column t is the distribution of x[t] given all of x. Algorithm 9.

    Phuong & Hutter 2022: post-norm, GELU, Mask ≡ 1; then GELU(W_f X + b_f 1ᵀ), layer norm, unembedding. theta: a
    model of `formal_e_config`. Raises ValueError as `EDTransformer`.

    >>> from attendo_course.algorithms import formal_e_config
    >>> theta = MaskedLM(formal_e_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16, d_f=5))
    >>> ETransformer([8, 1, 7, 9], theta).shape
    torch.Size([9, 4])
    """
    return columns(e_logits(x, theta))


def DTransformer(x: Text, theta: DecoderLM) -> Float[Tensor, "N_V ell_x"]:
    """A10 (GPT): P ∈ (0,1)^{N_V×ℓ_x}; column t is the distribution of x[t+1] given x[1:t]. Algorithm 10.

    Phuong & Hutter 2022: pre-norm and a last norm, GELU, causal. theta: a model of `formal_d_config`. Raises
    ValueError as `EDTransformer`.

    >>> from attendo_course.algorithms import formal_d_config
    >>> theta = DecoderLM(formal_d_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))
    >>> DTransformer([8, 1, 2], theta).sum(0).detach().round(decimals=4)
    tensor([1., 1., 1.])
    """
    return columns(d_logits(x, theta))


def ed_logits(z: Text, x: Text, theta: EncoderDecoder) -> Float[Tensor, "ell_x N_V"]:
    """W_u X of A8 by rows: what the loss of A11 is taken of.

    >>> from attendo_course.algorithms import build_formal_ed, formal_ed_config
    >>> theta = build_formal_ed(formal_ed_config(N_V=9, ell_max=6, L_enc=1, L_dec=1, H=2, d_e=8, d_mlp=16))
    >>> ed_logits([1, 2, 3, 4], [8, 5], theta).shape
    torch.Size([2, 9])
    """
    check_theta(theta, "A8")
    return theta(model_ids(z, theta, "z"), model_ids(x, theta))[0]


def e_logits(x: Text, theta: MaskedLM) -> Float[Tensor, "ell_x N_V"]:
    """W_u X of A9 by rows: what the loss of A12 is taken of.

    >>> from attendo_course.algorithms import formal_e_config
    >>> e_logits([1, 2, 3], MaskedLM(formal_e_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))).shape
    torch.Size([3, 9])
    """
    check_theta(theta, "A9")
    return theta(model_ids(x, theta))[0]


def d_logits(x: Text, theta: DecoderLM) -> Float[Tensor, "ell_x N_V"]:
    """W_u X of A10 by rows: what the loss of A13 is taken of.

    >>> from attendo_course.algorithms import formal_d_config
    >>> d_logits([1, 2, 3], DecoderLM(formal_d_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16))).shape
    torch.Size([3, 9])
    """
    check_theta(theta, "A10")
    return theta(model_ids(x, theta))[0]


def model_ids(
    text: Text, theta: EncoderDecoder | MaskedLM | DecoderLM, name: str = "x"
) -> Int[Tensor, "1 ell"]:
    """The text as the model takes it: a batch of one, ids from 0, on the model's device; checked by `core_ids`.

    >>> from attendo_course.algorithms import formal_d_config
    >>> model_ids([1, 9], DecoderLM(formal_d_config(N_V=9, ell_max=6, L=1, H=2, d_e=8, d_mlp=16)))
    tensor([[0, 8]])
    """
    ids = core_ids(text, theta.config.vocab_size, theta.config.max_len, name)
    return ids[None].to(theta.output_proj.weight.device)


def columns(logits: Float[Tensor, "ell N_V"]) -> Float[Tensor, "N_V ell"]:
    """P = softmax(W_u X): one distribution a column.

    >>> import torch
    >>> columns(torch.zeros(1, 2))
    tensor([[0.5000],
            [0.5000]])
    """
    return logits.softmax(-1).T
