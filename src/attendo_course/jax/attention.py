"""Attention in JAX: pure functions of arrays, a pure function of a pytree of parameters, and Equinox modules."""

from __future__ import annotations

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray


def masked_softmax(
    scores: Float[Array, "*batch q_len k_len"], mask: Bool[Array, "*#batch #q_len #k_len"] | None = None
) -> Float[Array, "*batch q_len k_len"]:
    """Compute the softmax over the allowed keys of each query. The weight of each masked key is exactly 0.

    Args:
        scores: Attention scores.
        mask: Allowed keys, where True means allowed. If no key is allowed for a query, all weights of the query are 0.

    >>> masked_softmax(jnp.zeros((2, 2)), jnp.array([[True, False], [False, False]])).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    if mask is None:
        return jax.nn.softmax(scores, axis=-1)
    # a finite minimum: with -inf, the gradient of a query without keys would be NaN
    return jnp.where(mask, jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1), 0.0)


def attention(
    query: Float[Array, "*batch q_len head_dim"],
    key: Float[Array, "*batch k_len head_dim"],
    value: Float[Array, "*batch k_len value_dim"],
    mask: Bool[Array, "*#batch #q_len #k_len"] | None = None,
    scale: float | None = None,
) -> Float[Array, "*batch q_len value_dim"]:
    """Compute softmax(QKᵀ · scale)V, each query's weighted mean of the values (Vaswani et al. 2017, eq. 1).

    Tokens are rows, as in `attendo.nn.attention.attention`.

    Args:
        query: Queries, one vector per position.
        key: Keys, one vector per position.
        value: Values, one vector per position.
        mask: Allowed keys, as in `masked_softmax` (default: all keys).
        scale: Factor of QKᵀ (default: 1/√head_dim).

    >>> attention(jnp.zeros((1, 4)), jnp.zeros((2, 4)), jnp.array([[1.0], [3.0]])).tolist()
    [[2.0]]
    """
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    return masked_softmax(scores, mask) @ value


def single_query_attention(
    parameters: Mapping[str, Array], e: Float[Array, " d_in"], context: Float[Array, "d_in T"]
) -> Float[Array, " d_out"]:
    """Compute ṽ = Σ_t α_t v_t, α = softmax_t(qᵀk_t/√d_attn) (Phuong & Hutter 2022, algorithm 3; the weather post).

    The query is q = W_q e + b_q. The key and the value of each token in the context are k_t = W_k e_t + b_k and v_t =
    W_v e_t + b_v. `SingleQueryAttention` is the same
    computation as a module.

    Args:
        parameters: A pytree of parameters: a dictionary of w_q, b_q, w_k, b_k, w_v and b_v.
        e: The vector of the token that attends.
        context: The vectors of the context. Tokens are columns, as in both sources.

    >>> parameters = {name: jnp.ones((1, 2)) for name in ("w_q", "w_k", "w_v")}
    >>> parameters |= {name: jnp.zeros(1) for name in ("b_q", "b_k", "b_v")}
    >>> context = jnp.array([[1.0, 3.0], [0.0, 2.0]])
    >>> loss = lambda parameters: single_query_attention(parameters, jnp.zeros(2), context)[0]
    >>> value, gradient = jax.jit(jax.value_and_grad(loss))(parameters)
    >>> value.tolist(), gradient["w_v"].tolist()  # q = 0: the mean of both tokens
    (3.0, [[2.0, 1.0]])
    """
    query = parameters["w_q"] @ e + parameters["b_q"]
    key = parameters["w_k"] @ context + parameters["b_k"][:, None]
    value = parameters["w_v"] @ context + parameters["b_v"][:, None]
    return attention(query[None], key.T, value.T)[0]


class SingleQueryAttention(eqx.Module):
    """Attention of one token to a context, the class of the weather post without its mistakes (errata 21 to 24).

    Tokens are columns, as in the post. W_q and W_k are d_attn × d_in, and W_v is d_out × d_in. The scale 1/√d_attn
    follows from the shape, so it is not a field. The initial weights have the variance 2/(inputs + outputs), and the
    biases are 0 (Glorot & Bengio 2010).

    Args:
        d_in: Width of the embedded tokens.
        d_attn: Width of query and keys.
        d_out: Width of values and output.
        key: Random key for the initial weights.

    >>> layer = eqx.filter_jit(SingleQueryAttention)(4, 6, 3, key=jax.random.key(0))
    >>> E = jnp.ones((4, 10))  # 10 tokens
    >>> all_queries = jax.vmap(layer, in_axes=(1, None), out_axes=1)
    >>> jax.eval_shape(layer, E[:, -1], E).shape, jax.jit(all_queries)(E, E).shape
    ((3,), (3, 10))
    """

    w_q: Float[Array, "d_attn d_in"]
    b_q: Float[Array, " d_attn"]
    w_k: Float[Array, "d_attn d_in"]
    b_k: Float[Array, " d_attn"]
    w_v: Float[Array, "d_out d_in"]
    b_v: Float[Array, " d_out"]

    def __init__(self, d_in: int, d_attn: int, d_out: int, *, key: PRNGKeyArray):
        draw = jax.nn.initializers.glorot_normal()
        q_key, k_key, v_key = jax.random.split(key, 3)
        self.w_q, self.b_q = draw(q_key, (d_attn, d_in)), jnp.zeros(d_attn)
        self.w_k, self.b_k = draw(k_key, (d_attn, d_in)), jnp.zeros(d_attn)
        self.w_v, self.b_v = draw(v_key, (d_out, d_in)), jnp.zeros(d_out)

    def __call__(self, e: Float[Array, " d_in"], context: Float[Array, "d_in T"]) -> Float[Array, " d_out"]:
        """Return the output vector ṽ.

        Args:
            e: The vector of the token that attends.
            context: The vectors of the context, one token per column.
        """
        return single_query_attention(vars(self), e, context)


def per_token(layer: eqx.Module, x: Float[Array, "len d_in"]) -> Float[Array, "len d_out"]:
    """Apply an Equinox layer, which takes one vector, to each row of a matrix.

    >>> per_token(eqx.nn.LayerNorm(2, eps=0.0), jnp.array([[1.0, 3.0], [4.0, 2.0]])).tolist()
    [[-1.0, 1.0], [1.0, -1.0]]
    """
    return jax.vmap(layer)(x)  # pyright: ignore[reportArgumentType]


def linear(n_in: int, n_out: int, *, bias: bool = True, key: PRNGKeyArray) -> eqx.nn.Linear:
    """Return a linear layer with weights of variance 2/(inputs + outputs) and a bias of 0 (Glorot & Bengio 2010).

    >>> layer = eqx.filter_jit(linear)(2, 4, key=jax.random.key(0))
    >>> bool(abs(layer.weight).max() <= 1.0), layer.bias.tolist()  # uniform in ±√(6 / (2 + 4))
    (True, [0.0, 0.0, 0.0, 0.0])
    """
    layer = eqx.nn.Linear(n_in, n_out, use_bias=bias, key=key)
    weight = jax.nn.initializers.glorot_uniform()(key, layer.weight.shape)
    zeros = None if layer.bias is None else jnp.zeros_like(layer.bias)
    return eqx.tree_at(lambda one: (one.weight, one.bias), layer, (weight, zeros), is_leaf=lambda x: x is None)


class MultiHeadAttention(eqx.Module):
    """Multi-head attention with its projections, as `attendo.nn.Attention` (Vaswani et al. 2017, section 3.2.2).

    Tokens are rows, as in the core. There is no batch axis: use `jax.vmap`.

    Args:
        d_model: Width of the output, and of the input that is projected to queries.
        n_heads: Number of heads.
        d_memory: Width of the attended input (default: `d_model`).
        bias: Whether the projections have a bias.
        key: Random key for the initial weights.

    Raises:
        ValueError: `d_model` is not divisible by `n_heads`.

    >>> layer = eqx.filter_jit(MultiHeadAttention)(8, 2, key=jax.random.key(0))
    >>> eqx.filter_jit(layer)(jnp.ones((3, 8)), jnp.ones((5, 8))).shape
    (3, 8)
    """

    q_proj: eqx.nn.Linear
    k_proj: eqx.nn.Linear
    v_proj: eqx.nn.Linear
    out_proj: eqx.nn.Linear
    n_heads: int = eqx.field(static=True)

    def __init__(
        self, d_model: int, n_heads: int, *, d_memory: int | None = None, bias: bool = True, key: PRNGKeyArray
    ):
        if d_model % n_heads:
            raise ValueError(f"d_model={d_model} is not divisible by n_heads={n_heads}. Change one of them")
        q_key, k_key, v_key, out_key = jax.random.split(key, 4)
        d_memory = d_model if d_memory is None else d_memory
        self.n_heads = n_heads
        self.q_proj = linear(d_model, d_model, bias=bias, key=q_key)
        self.k_proj = linear(d_memory, d_model, bias=bias, key=k_key)
        self.v_proj = linear(d_memory, d_model, bias=bias, key=v_key)
        self.out_proj = linear(d_model, d_model, bias=bias, key=out_key)

    def __call__(
        self,
        x: Float[Array, "q_len d_model"],
        memory: Float[Array, "k_len d_memory"],
        mask: Bool[Array, "#q_len #k_len"] | None = None,
    ) -> Float[Array, "q_len d_model"]:
        """Return the output of self-attention (`memory` is `x`) or cross-attention (`memory` is the encoder output).

        Args:
            x: Input that is projected to queries.
            memory: Attended input.
            mask: Allowed keys (default: all keys).
        """
        query, key, value = (
            per_token(layer, tokens).reshape(len(tokens), self.n_heads, -1).swapaxes(0, 1)
            for layer, tokens in ((self.q_proj, x), (self.k_proj, memory), (self.v_proj, memory))
        )
        mixed = attention(query, key, value, mask)  # [heads, q_len, head_dim]
        return per_token(self.out_proj, mixed.swapaxes(0, 1).reshape(len(x), -1))
