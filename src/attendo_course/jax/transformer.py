"""A decoder-only Transformer in Equinox, equal to `attendo.models.DecoderLM` on the same weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from attendo.model_config import ModelConfig
from attendo_course.jax.attention import MultiHeadAttention, linear, per_token

ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": jax.nn.gelu,
    "silu": jax.nn.silu,
}
OFFERED = {
    "architecture", "vocab_size", "d_model", "d_ff", "n_heads", "n_encoder_layers", "n_decoder_layers",
    "max_len", "dropout", "norm_first", "norm_eps", "activation", "attention_bias", "feed_forward_bias",
    "positions", "embedding_scale", "initialization",
}  # fmt: skip
"""The settings of `ModelConfig` that may differ from their defaults. The others select parts that are not in JAX."""


def sinusoidal_encoding(n: int, d_model: int, base: float = 10000.0) -> Float[np.ndarray, "n d_model"]:
    """Return PE[p, 2i] = sin(p/base^(2i/d)), PE[p, 2i+1] = cos of this angle (Vaswani et al. 2017, section 3.5).

    The result is a constant of the model, so NumPy computes it in float64.

    >>> sinusoidal_encoding(2, 4)[1].round(5).tolist()
    [0.84147, 0.5403, 0.01, 0.99995]
    """
    angles = np.arange(n)[:, None] * base ** (-np.arange(0, d_model, 2) / d_model)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(n, -1)[:, :d_model]


class FeedForward(eqx.Module):
    """The feed-forward network W₂ · activation(W₁x + b₁) + b₂ of each position (Vaswani et al. 2017, eq. 2)."""

    in_proj: eqx.nn.Linear
    out_proj: eqx.nn.Linear
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(self, config: ModelConfig, *, key: PRNGKeyArray):
        in_key, out_key = jax.random.split(key)
        bias = config.feed_forward_bias
        self.in_proj = linear(config.d_model, config.d_ff, bias=bias, key=in_key)
        self.out_proj = linear(config.d_ff, config.d_model, bias=bias, key=out_key)
        self.activation = ACTIVATIONS[config.activation]

    def __call__(self, x: Float[Array, "len d_model"]) -> Float[Array, "len d_model"]:
        """Return the output for each position."""
        return per_token(self.out_proj, self.activation(per_token(self.in_proj, x)))


class Residual(eqx.Module):
    """A residual connection with LayerNorm: norm(x + f(x)) or, with `norm_first`, x + f(norm(x)).

    Sources: Vaswani et al. 2017, section 3.1; Xiong et al. 2020.
    """

    norm: eqx.nn.LayerNorm
    norm_first: bool = eqx.field(static=True)

    def __init__(self, config: ModelConfig):
        self.norm = eqx.nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.norm_first = config.norm_first

    def __call__(self, x: Float[Array, "len d_model"], sublayer: Callable[[Array], Array]) -> Array:
        """Return the sum of `x` and the output of the sublayer, normalized before the sublayer or after the sum."""
        if self.norm_first:
            return x + sublayer(per_token(self.norm, x))
        return per_token(self.norm, x + sublayer(x))


class DecoderBlock(eqx.Module):
    """Self-attention and a feed-forward network, each with a residual connection (Vaswani et al. 2017, section 3.1)."""

    self_attention: MultiHeadAttention
    self_attention_residual: Residual
    feed_forward: FeedForward
    feed_forward_residual: Residual

    def __init__(self, config: ModelConfig, *, key: PRNGKeyArray):
        attention_key, forward_key = jax.random.split(key)
        self.self_attention = MultiHeadAttention(
            config.d_model, config.n_heads, bias=config.attention_bias, key=attention_key
        )
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config, key=forward_key)
        self.feed_forward_residual = Residual(config)

    def __call__(self, x: Float[Array, "len d_model"], mask: Bool[Array, "len len"]) -> Array:
        """Return the new hidden states. The mask must hide all later positions."""
        x = self.self_attention_residual(x, lambda h: self.self_attention(h, h, mask))
        return self.feed_forward_residual(x, self.feed_forward)


class DecoderLM(eqx.Module):
    """A decoder-only model, which predicts each token from the tokens before it (Phuong & Hutter 2022, algorithm 10).

    The embedding matrix is also the output layer. There is no dropout. The model is a pytree:
    `equinox.filter_value_and_grad` returns the gradient as a pytree of the same structure.

    Args:
        config: The settings, as for `attendo.models.DecoderLM`.
        key: Random key for the initial weights.

    Raises:
        ValueError: A setting selects a part that is not available in JAX, for example `positions="rotary"`.

    >>> sizes = dict(vocab_size=11, d_model=8, d_ff=16, n_heads=2, n_encoder_layers=0, n_decoder_layers=1)
    >>> config = ModelConfig(architecture="decoder", **sizes)
    >>> model = eqx.filter_eval_shape(DecoderLM, config, key=jax.random.key(0))  # shapes alone
    >>> eqx.filter_eval_shape(model, np.array([1, 5, 7])).shape  # one text; for a batch, use jax.vmap(model)
    (3, 11)
    """

    tokens: eqx.nn.Embedding
    positions: eqx.nn.Embedding | None
    blocks: list[DecoderBlock]
    norm: eqx.nn.LayerNorm | None
    sinusoidal: bool = eqx.field(static=True)
    scale: float = eqx.field(static=True)

    def __init__(self, config: ModelConfig, *, key: PRNGKeyArray):
        _require_offered(config)
        width = config.d_model
        token_key, position_key, *block_keys = jax.random.split(key, 2 + config.n_decoder_layers)
        tokens, positions = (
            eqx.nn.Embedding(weight=jax.random.normal(table_key, (n, width)) * width**-0.5)
            for n, table_key in ((config.vocab_size, token_key), (config.max_len, position_key))
        )
        self.tokens = tokens
        self.positions = positions if config.positions == "learned" else None
        self.blocks = [DecoderBlock(config, key=block_key) for block_key in block_keys]
        self.norm = eqx.nn.LayerNorm(width, eps=config.norm_eps) if config.norm_first else None
        self.sinusoidal = config.positions == "sinusoidal"
        self.scale = width**0.5 if config.embedding_scale else 1.0

    def __call__(self, token_ids: Int[Array, " len"]) -> Float[Array, "len vocab"]:
        """Return the logits for the token after each position."""
        x = self.tokens.weight[token_ids] * self.scale
        if self.positions is not None:
            x = x + self.positions.weight[: len(x)]
        elif self.sinusoidal:
            x = x + sinusoidal_encoding(*x.shape).astype(x.dtype)
        mask = jnp.tril(jnp.ones((len(x), len(x)), dtype=bool))
        for block in self.blocks:
            x = block(x, mask)
        return (x if self.norm is None else per_token(self.norm, x)) @ self.tokens.weight.T


def _require_offered(config: ModelConfig) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in OFFERED and value != field.default:
            raise ValueError(f"{field.name}={value!r} is not available in JAX. Remove it")
    if config.architecture != "decoder":
        raise ValueError(f"architecture={config.architecture!r} must be 'decoder' in JAX")
    if config.positions not in ("sinusoidal", "learned", "none"):
        raise ValueError(f"positions={config.positions!r} must be 'sinusoidal', 'learned' or 'none' in JAX")
