"""Algorithms 1 to 7 of Phuong & Hutter 2022: embeddings, attention, layer normalization and unembedding."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.func import functional_call

from attendo.nn import attention, layers, masks, positions
from attendo.nn.layers import TokenEmbedding

Text = Sequence[int] | Int[Tensor, " ell"]
"""A text in the notation of the paper: a sequence of token ids from 1 to N_V."""


class SpecialIds(NamedTuple):
    """The special token ids: the last three ids of the vocabulary.

    >>> SpecialIds(8, 9, 10).eos
    10
    """

    mask_token: int
    bos: int
    eos: int


def special_ids(N_V: int) -> SpecialIds:
    """Return mask_token = N_V - 2, bos = N_V - 1, eos = N_V (Phuong & Hutter 2022, section 4).

    Args:
        N_V: The vocabulary size, at least 3.

    Raises:
        ValueError: The vocabulary size is less than 3.

    >>> special_ids(10)
    SpecialIds(mask_token=8, bos=9, eos=10)
    """
    if N_V < 3:
        raise ValueError(f"N_V={N_V} is too small for mask_token, bos and eos; use at least 3")
    return SpecialIds(N_V - 2, N_V - 1, N_V)


def core_ids(text: Text, N_V: int, ell_max: int, name: str = "x") -> Int[Tensor, " ell"]:
    """Check the token ids and the length of a text, and return its ids as counted by attendo, from 0.

    The algorithms of the paper do not check their input. `name` is the name of the text in error messages.

    Raises ValueError if the text is empty, if it has more than `ell_max` tokens, or if an id is outside 1..N_V.

    >>> core_ids([1, 5], N_V=5, ell_max=8)
    tensor([0, 4])
    """
    ids = torch.as_tensor(text)
    if ids.ndim != 1 or ids.numel() == 0:
        raise ValueError(f"{name} has shape {tuple(ids.shape)}; it must be a vector of at least one id")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"{name} has the type {ids.dtype}; ids are integers")
    if len(ids) > ell_max:
        raise ValueError(f"{name} has {len(ids)} tokens, but positions end at ell_max={ell_max}; shorten it")
    outside = ((ids < 1) | (ids > N_V)).nonzero().flatten()
    if len(outside):
        first = int(outside[0])
        raise ValueError(f"{name}[{first + 1}]={int(ids[first])} is not in 1..{N_V}; ids start at 1 here")
    return ids.long() - 1


class AttentionParameters(NamedTuple):
    """The projection matrices and biases W_qkv of one attention head (Phuong & Hutter 2022, algorithm 4).

    >>> AttentionParameters(*[torch.eye(2), torch.zeros(2)] * 3).W_v.shape
    torch.Size([2, 2])
    """

    W_q: Float[Tensor, "d_attn d_x"]
    b_q: Float[Tensor, " d_attn"]
    W_k: Float[Tensor, "d_attn d_z"]
    b_k: Float[Tensor, " d_attn"]
    W_v: Float[Tensor, "d_out d_z"]
    b_v: Float[Tensor, " d_out"]


class MHAttentionParameters(NamedTuple):
    """The parameters W of all attention heads and of the output projection (Phuong & Hutter 2022, algorithm 5).

    d_mid is the width of the values of a head.

    >>> one = AttentionParameters(*[torch.eye(2), torch.zeros(2)] * 3)
    >>> len(MHAttentionParameters([one] * 3, W_o=torch.ones(2, 6), b_o=torch.zeros(2)).heads)
    3
    """

    heads: Sequence[AttentionParameters]
    W_o: Float[Tensor, "d_out H_times_d_mid"]
    b_o: Float[Tensor, " d_out"]


def token_embedding(v: int, W_e: Float[Tensor, "d_e N_V"]) -> Float[Tensor, " d_e"]:
    """Compute algorithm 1, the embedding of a token: e = W_e[:, v] (Phuong & Hutter 2022).

    Args:
        v: The token id, from 1.
        W_e: The embedding matrix, with one column per token id.

    Returns:
        The embedding e of the token.

    Raises:
        ValueError: v is not an integer in 1..N_V.

    >>> token_embedding(2, torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    tensor([2., 5.])
    >>> token_embedding(1.0, torch.eye(3))
    Traceback (most recent call last):
    ValueError: v=1.0 is not an integer; ids are integers from 1
    """
    v = _whole("v", v, "ids")
    d_e, N_V = W_e.shape
    if not 1 <= v <= N_V:
        raise ValueError(f"v={v} is not in 1..{N_V}; ids start at 1 here")
    with torch.device("meta"):
        tokens = TokenEmbedding(N_V, d_e, scaled=False)
    return functional_call(tokens, {"weight": W_e.T}, (torch.tensor(v - 1, device=W_e.device),))


def positional_embedding(ell: int, W_p: Float[Tensor, "d_e ell_max"]) -> Float[Tensor, " d_e"]:
    """Compute algorithm 2, the embedding of a position: e_p = W_p[:, ℓ] (Phuong & Hutter 2022).

    Args:
        ell: The position ℓ, from 1.
        W_p: A matrix with one column per position, either learned or from `hard_coded_positions`.

    Returns:
        The embedding e_p of the position.

    Raises:
        ValueError: ℓ is not an integer in 1..ℓ_max.

    >>> positional_embedding(1, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([1., 3.])
    """
    ell = _whole("ell", ell, "positions")
    d_e, ell_max = W_p.shape
    if not 1 <= ell <= ell_max:
        raise ValueError(f"ell={ell} is not in 1..{ell_max}; positions start at 1 here")
    with torch.device("meta"):
        learned = positions.LearnedPositions(d_e, ell_max)
    place = torch.tensor([ell - 1], device=W_p.device)
    return functional_call(learned, {"weight": W_p.T}, (place, ell))[0]


def hard_coded_positions(d_e: int, ell_max: int, dtype: torch.dtype | None = None) -> Float[Tensor, "d_e ell_max"]:
    """Return the fixed W_p: W_p[2i-1, t] = sin(t/ℓ_max^(2i/d_e)), W_p[2i, t] = cos of this angle, t, i ≥ 1.

    The formula is in section 5 of Phuong & Hutter 2022. The base is ℓ_max, and i starts at 1. In Vaswani et al. 2017,
    the base is 10000 and i starts at 0. If d_e is odd, the paper leaves the last row undefined, but this function
    uses the sine of the next i.

    Args:
        d_e: The width of the embedding.
        ell_max: The number of positions.
        dtype: The floating-point type of the result (default: torch's default type).

    >>> hard_coded_positions(5, 50)[:4, 0]
    tensor([0.2076, 0.9782, 0.0437, 0.9990])
    """
    t = torch.arange(1, ell_max + 1)
    return positions.sinusoidal_encoding(t, d_e, base=float(ell_max), first_index=1, dtype=dtype).T


def single_query_attention(
    e: Float[Tensor, " d_x"], e_t: Float[Tensor, "d_z T"], W_qkv: AttentionParameters
) -> Float[Tensor, " d_out"]:
    """Compute algorithm 3: ṽ = Σ_t α_t v_t, α = softmax_t(qᵀk_t/√d_attn) (Phuong & Hutter 2022).

    The query is q = W_q e + b_q. The key and the value of each token in the context are k_t = W_k e_t + b_k and v_t =
    W_v e_t + b_v.

    Args:
        e: The vector of the token that attends.
        e_t: The vectors of the context, one token per column.
        W_qkv: The projection matrices and biases of the head.

    Returns:
        The output vector ṽ.

    Raises:
        ValueError: The shapes of the arguments do not match.

    >>> one = AttentionParameters(*[torch.eye(2), torch.zeros(2)] * 3)
    >>> single_query_attention(torch.zeros(2), torch.tensor([[1.0, 3.0], [0.0, 2.0]]), one)
    tensor([2., 1.])
    """
    _check_widths(e[:, None], e_t, W_qkv)
    query = F.linear(e, W_qkv.W_q, W_qkv.b_q)
    key, value = F.linear(e_t.T, W_qkv.W_k, W_qkv.b_k), F.linear(e_t.T, W_qkv.W_v, W_qkv.b_v)
    return attention.attention(query[None], key, value)[0]


def Attention(
    X: Float[Tensor, "d_x ell_x"],
    Z: Float[Tensor, "d_z ell_z"],
    W_qkv: AttentionParameters,
    Mask: Shaped[Tensor, "ell_z ell_x"] | None = None,
) -> Float[Tensor, "d_out ell_x"]:
    """Compute algorithm 4: Ṽ = V · softmax_columns(KᵀQ/√d_attn), masked scores at -∞ (Phuong & Hutter 2022).

    The projections are Q = W_q X + b_q 1ᵀ, K = W_k Z + b_k 1ᵀ and V = W_v Z + b_v 1ᵀ.

    Args:
        X: The tokens that attend, one per column.
        Z: The tokens to which X attends, one per column.
        W_qkv: The projection matrices and biases of the head.
        Mask: Mask[t_z, t_x] = 1 if token t_x of X may attend to token t_z of Z: `bidirectional` (the default) or
            `unidirectional`. The output of a token that may attend to no token is 0. The formula of the paper returns
            0/0.

    Returns:
        The output, one column per token of X.

    Raises:
        ValueError: The shapes of the arguments do not match.

    >>> one = AttentionParameters(*[torch.eye(1), torch.zeros(1)] * 3)
    >>> X = torch.tensor([[0.0, 0.0, 0.0]])
    >>> Attention(X, torch.tensor([[1.0, 2.0, 6.0]]), one, unidirectional(3, 3))
    tensor([[1.0000, 1.5000, 3.0000]])
    """
    _check_widths(X, Z, W_qkv)
    query = F.linear(X.T, W_qkv.W_q, W_qkv.b_q)
    key, value = F.linear(Z.T, W_qkv.W_k, W_qkv.b_k), F.linear(Z.T, W_qkv.W_v, W_qkv.b_v)
    return attention.attention(query, key, value, _allowed(Mask, X, Z)).T


def MHAttention(
    X: Float[Tensor, "d_x ell_x"],
    Z: Float[Tensor, "d_z ell_z"],
    W: MHAttentionParameters,
    Mask: Shaped[Tensor, "ell_z ell_x"] | None = None,
) -> Float[Tensor, "d_out ell_x"]:
    """Compute algorithm 5: Ṽ = W_o [Y¹; …; Y^H] + b_o 1ᵀ, Y^h = Attention(X, Z | W^h, Mask) (Phuong & Hutter 2022).

    One matrix multiplication computes a projection for all heads together, as in `attendo.nn`.

    Args:
        X: The tokens that attend, one per column.
        Z: The tokens to which X attends, one per column.
        W: The parameters of all heads and of the output projection.
        Mask: The allowed pairs of tokens, as in `Attention` (default: all pairs).

    Returns:
        The output, one column per token of X.

    Raises:
        ValueError: The shapes of the arguments do not match, or two heads have different shapes.

    >>> one = AttentionParameters(*[torch.eye(1), torch.zeros(1)] * 3)
    >>> W = MHAttentionParameters([one, one], W_o=torch.tensor([[1.0, 10.0]]), b_o=torch.tensor([100.0]))
    >>> MHAttention(torch.zeros(1, 1), torch.tensor([[1.0, 2.0, 6.0]]), W)
    tensor([[133.]])
    """
    _check_heads(X, Z, W)
    H, first = len(W.heads), W.heads[0]
    (d_attn, d_x), (d_mid, d_z) = first.W_q.shape, first.W_v.shape
    with torch.device("meta"):  # the shape of the core's module; its parameters are those given
        module = attention.Attention(
            d_x,
            H,
            head_dim=d_attn,
            value_dim=d_mid,
            d_memory=d_z,
            out_proj=nn.Linear(H * d_mid, W.W_o.shape[0]),
        )
    parameters = {"out_proj.weight": W.W_o, "out_proj.bias": W.b_o}
    for part in "qkv":
        for name, symbol in (("weight", "W"), ("bias", "b")):
            stacked = torch.cat([getattr(head, f"{symbol}_{part}") for head in W.heads])
            parameters[f"{part}_proj.{name}"] = stacked
    allowed = _allowed(Mask, X, Z)
    mask = None if allowed is None else masks.Mask(allowed=allowed)
    return functional_call(module, parameters, (X.T[None], Z.T[None], mask))[0].T


def bidirectional(ell_z: int, ell_x: int) -> Bool[Tensor, "ell_z ell_x"]:
    """Return Mask ≡ 1: each token may attend to all tokens (Phuong & Hutter 2022, section 5).

    Args:
        ell_z: The number of tokens of Z.
        ell_x: The number of tokens of X.

    >>> bidirectional(1, 2)
    tensor([[True, True]])
    """
    return masks.Mask().dense(ell_x, ell_z)[0, 0].T


def unidirectional(ell_z: int, ell_x: int) -> Bool[Tensor, "ell_z ell_x"]:
    """Return Mask[t_z, t_x] = [[t_z ≤ t_x]]: no token may attend to later tokens (Phuong & Hutter 2022, section 5).

    The unidirectional mask aligns the first tokens of Z and X, but the causal mask of attendo aligns the last tokens.
    For ℓ_z = ℓ_x, the unidirectional mask equals the causal mask of attendo.

    Args:
        ell_z: The number of tokens of Z.
        ell_x: The number of tokens of X.

    >>> unidirectional(2, 3).int()
    tensor([[1, 1, 1],
            [0, 1, 1]], dtype=torch.int32)
    """
    longer = max(ell_z, ell_x)
    return masks.causal(longer, longer)[:ell_x, :ell_z].T


def layer_norm(
    e: Float[Tensor, "d_e *ell"],
    gamma: Float[Tensor, " d_e"],
    beta: Float[Tensor, " d_e"] | None = None,
    eps: float = 0.0,
    *,
    rms: bool = False,
) -> Float[Tensor, "d_e *ell"]:
    """Compute algorithm 6: ê = (e - m)/√v ⊙ γ + β, m = mean(e), v = mean((e - m)²) (Phuong & Hutter 2022).

    Args:
        e: The vector of one token, or a matrix with one token per column.
        gamma: The scale γ.
        beta: The offset β (default: 0).
        eps: The ε in √(v + ε) (default: 0, as in the paper). With ε = 0, a vector of equal entries returns 0/0 = NaN.
        rms: Whether to compute RMSNorm, with m = β = 0.

    Returns:
        The normalized tokens ê.

    Raises:
        ValueError: `rms` is True and β is set.

    >>> layer_norm(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0]), torch.tensor([5.0, 5.0]))
    tensor([4., 7.])
    >>> layer_norm(torch.tensor([1.0, 7.0]), torch.ones(2), rms=True)
    tensor([0.2000, 1.4000])
    """
    if rms and beta is not None:
        raise ValueError("beta is given, but RMSnorm has none (m = β = 0); leave it out, or rms=False")
    rows = e.movedim(0, -1)
    normed = layers.rms_norm(rows, gamma, eps) if rms else layers.layer_norm(rows, gamma, beta, eps)
    return normed.movedim(-1, 0)


def unembedding(e: Float[Tensor, "d_e *ell"], W_u: Float[Tensor, "N_V d_e"]) -> Float[Tensor, "N_V *ell"]:
    """Compute algorithm 7, the distribution over the vocabulary: p = softmax(W_u e) (Phuong & Hutter 2022).

    Args:
        e: The vector of one token, or a matrix with one token per column.
        W_u: The unembedding matrix, for example W_eᵀ (`W_e.T`).

    Returns:
        One probability distribution per token.

    >>> unembedding(torch.tensor([2.0, 0.0]), torch.tensor([[0.0, 1.0], [0.0, 2.0]]))
    tensor([0.5000, 0.5000])
    """
    return F.linear(e.movedim(0, -1), W_u).movedim(-1, 0).softmax(0)


def _whole(name: str, number: int, what: str) -> int:
    try:
        return index(number)
    except TypeError:
        raise ValueError(f"{name}={number!r} is not an integer; {what} are integers from 1") from None


def _allowed(Mask: Tensor | None, X: Tensor, Z: Tensor) -> Bool[Tensor, "ell_x ell_z"] | None:
    """Return the paper's mask in the orientation of the core, with queries first. The mask is transposed only here."""
    if Mask is None:
        return None
    if Mask.shape != (Z.shape[1], X.shape[1]):
        raise ValueError(
            f"Mask is {tuple(Mask.shape)}, but Z has {Z.shape[1]} tokens and X has {X.shape[1]}; its rows are the"
            " tokens of Z, its columns those of X"
        )
    return Mask.bool().T


def _check_widths(X: Tensor, Z: Tensor, W_qkv: AttentionParameters) -> None:
    d_attn, d_out = W_qkv.W_q.shape[0], W_qkv.W_v.shape[0]
    wanted = {
        "W_q": (d_attn, X.shape[0]),
        "b_q": (d_attn,),
        "W_k": (d_attn, Z.shape[0]),
        "b_k": (d_attn,),
        "W_v": (d_out, Z.shape[0]),
        "b_v": (d_out,),
    }
    for name, shape in wanted.items():
        found = tuple(getattr(W_qkv, name).shape)
        if found != shape:
            raise ValueError(f"{name} is {found}, but {shape} fits X, Z and the other parameters")


def _check_heads(X: Tensor, Z: Tensor, W: MHAttentionParameters) -> None:
    if not W.heads:
        raise ValueError("W has no heads; give at least one")
    for number, head in enumerate(W.heads, 1):
        _check_widths(X, Z, head)
        for name in ("W_q", "W_v"):
            found, first = tuple(getattr(head, name).shape), tuple(getattr(W.heads[0], name).shape)
            if found != first:
                raise ValueError(f"{name} of head {number} is {found}, that of head 1 is {first}; make them alike")
    width = len(W.heads) * W.heads[0].W_v.shape[0]
    if W.W_o.shape[1] != width or W.b_o.shape != W.W_o.shape[:1]:
        raise ValueError(
            f"W_o is {tuple(W.W_o.shape)} and b_o {tuple(W.b_o.shape)}, but H·d_mid={width} wants"
            f" (d_out, {width}) and (d_out,)"
        )
