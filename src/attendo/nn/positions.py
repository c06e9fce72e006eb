"""Positional encodings: vectors added to embeddings, rotations of queries and keys, and biases of scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

PhaseOrder = Literal["sincos", "cossin", "halves"]


def frequencies(n: int, d_model: int, base: float = 10000.0, first_index: int = 0) -> Float[Tensor, " n"]:
    """Return ω_i = base^(-2i/d) for n indices i from `first_index`, in float64 (Vaswani et al. 2017, section 3.5).

    >>> frequencies(2, 4)
    tensor([1.0000, 0.0100], dtype=torch.float64)
    """
    indices = torch.arange(first_index, first_index + n, dtype=torch.float64)
    return base ** (-2.0 * indices / d_model)


def sinusoidal_encoding(
    positions: Int[Tensor, "*batch"],
    d_model: int,
    base: float = 10000.0,
    *,
    first_index: int = 0,
    order: PhaseOrder = "sincos",
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*batch d_model"]:
    """Return the encoding PE[p, 2i] = sin(p ω_i), PE[p, 2i+1] = cos(p ω_i) (Vaswani et al. 2017, section 3.5).

    The frequencies are ω_i = base^(-2i/d). The first index i is `first_index`, which is 1 in Phuong & Hutter 2022. The
    order "sincos" alternates sines and cosines. The order "cossin" omits the first sine (cos ω_0, sin ω_1, cos ω_1,
    ...). The order "halves" contains all sines before all cosines. For an odd width, the encoding of the next even
    width is truncated. The encoding is computed in float64 and returned as `dtype`.

    >>> sinusoidal_encoding(torch.tensor([1]), 4)
    tensor([[0.8415, 0.5403, 0.0100, 0.9999]])
    >>> sinusoidal_encoding(torch.tensor([1]), 4, order="halves")
    tensor([[0.8415, 0.0100, 0.5403, 0.9999]])
    """
    skipped = 1 if order == "cossin" else 0
    n_pairs = (d_model + skipped + 1) // 2
    omega = frequencies(n_pairs, d_model, base, first_index).to(positions.device)
    angles = positions[..., None] * omega
    if order == "halves":
        encoding = torch.cat([angles.sin(), angles.cos()], dim=-1)
    else:
        encoding = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return encoding[..., skipped : d_model + skipped].to(dtype or torch.get_default_dtype())


def ramp_encoding(positions: Int[Tensor, "*batch"], length: int) -> Float[Tensor, "*batch 1"]:
    """Return p / length for each position p: a single number, which is added to every entry of the embedding.

    >>> ramp_encoding(torch.tensor([1, 5]), 10).flatten()
    tensor([0.1000, 0.5000])
    """
    return positions[..., None].to(torch.get_default_dtype()) / length


def inverse_encoding(positions: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch 1"]:
    """Return 1 / p for each position p from 1: a single number, which is added to every entry of the embedding.

    >>> inverse_encoding(torch.tensor([1, 4])).flatten()
    tensor([1.0000, 0.2500])
    """
    return 1.0 / positions[..., None].to(torch.get_default_dtype())


class FixedPositions(nn.Module):
    """A fixed positional encoding, stored in a table that grows on demand.

    Args:
        encode: Function from positions `[n]` to encodings `[n, d_model]` or `[n, 1]`.
        max_len: Initial number of positions in the table.
        start: Number that `encode` receives for the first position.

    >>> from functools import partial
    >>> positions = FixedPositions(partial(sinusoidal_encoding, d_model=4), max_len=2)
    >>> positions(torch.tensor([0, 1]), end=2)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    >>> positions(torch.tensor([9]), end=10).shape, positions.table.shape  # the table has grown
    (torch.Size([1, 4]), torch.Size([20, 4]))
    """

    table: Tensor

    def __init__(self, encode: Callable[[Tensor], Tensor], max_len: int = 64, start: int = 0):
        super().__init__()
        self.encode = encode
        self.start = start
        self.register_buffer("table", encode(torch.arange(start, start + max_len)), persistent=False)

    def forward(self, positions: Int[Tensor, "*batch len"], end: int) -> Float[Tensor, "*batch len d_model_or_1"]:
        """Return the encoding of each position.

        Args:
            positions: Positions, counted from 0.
            end: A number above all positions.
        """
        if end > self.table.shape[0]:
            numbers = torch.arange(self.start, self.start + 2 * end, device=self.table.device)
            self.table = self.encode(numbers).to(self.table.dtype)
        return self.table[positions]


class LearnedPositions(nn.Module):
    """A learned positional encoding: a trainable vector for each position (Phuong & Hutter 2022, algorithm 2).

    Args:
        d_model: Width of the vectors.
        max_len: Number of positions.

    >>> positions = LearnedPositions(d_model=4, max_len=2)
    >>> positions(torch.tensor([0, 1]), end=2).shape
    torch.Size([2, 4])
    >>> positions(torch.tensor([2]), end=3)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: the text has 3 tokens, but the learned positions end at max_len=2. Split the text, ...
    """

    def __init__(self, d_model: int, max_len: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(max_len, d_model))

    def forward(self, positions: Int[Tensor, "*batch len"], end: int) -> Float[Tensor, "*batch len d_model"]:
        """Return the vector of each position.

        Args:
            positions: Positions, counted from 0.
            end: A number above all positions.

        Raises:
            ValueError: The number `end` exceeds the number of learned positions.
        """
        if end > self.weight.shape[0]:
            raise ValueError(
                f"the text has {end} tokens, but the learned positions end at max_len={self.weight.shape[0]}. "
                "Split the text, or train with a larger model.max_len"
            )
        return self.weight[positions]


def rotate(
    x: Float[Tensor, "*batch len head_dim"], positions: Int[Tensor, "*#batch len"], omega: Tensor
) -> Float[Tensor, "*batch len head_dim"]:
    """Rotate each pair of neighboring entries (x_2i, x_2i+1) by the angle p·ω_i (Su et al. 2021, eq. 34).

    The dot product of two rotated vectors depends only on the distance of their positions.

    Args:
        x: Vectors of an even width.
        positions: The position p of each vector.
        omega: The frequencies ω_i `[head_dim / 2]`, for example from `frequencies`.

    >>> rotate(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), frequencies(1, 2))
    tensor([[0.5403, 0.8415]])
    """
    angles = positions[..., None] * omega.to(x.device)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., 0::2], x[..., 1::2]
    return torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1).flatten(-2)


class Rotary(nn.Module):
    """Rotary position embeddings (RoPE) of queries and keys (Su et al. 2021, section 3.4.2).

    Args:
        base: Base of the frequencies ω_i = base^(-2i/d).
        omega: The frequencies ω_i, if they do not follow from the base.

    >>> heads = torch.tensor([1.0, 0.0]).expand(1, 1, 3, 2)  # [batch, heads, len, head_dim], each token alike
    >>> turned = Rotary()(heads, torch.tensor([[0, 1, 2]]))[0, 0]
    >>> turned @ turned.T  # cos of the distance
    tensor([[ 1.0000,  0.5403, -0.4161],
            [ 0.5403,  1.0000,  0.5403],
            [-0.4161,  0.5403,  1.0000]])
    """

    def __init__(self, base: float = 10000.0, omega: Sequence[float] | None = None):
        super().__init__()
        self.base = base
        self.omega = omega

    def forward(
        self, heads: Float[Tensor, "batch heads len head_dim"], positions: Int[Tensor, "batch_or_1 len"]
    ) -> Float[Tensor, "batch heads len head_dim"]:
        """Return the heads, with each token's vectors rotated by the position of the token.

        Args:
            heads: Query heads or key heads.
            positions: Positions of the tokens, in one row for all texts or one row per text.
        """
        n = heads.shape[-1]
        own = None if self.omega is None else torch.tensor(self.omega, dtype=torch.float64)
        omega = frequencies(n // 2, n, self.base) if own is None else own
        return rotate(heads, positions[:, None], omega)


def alibi_slopes(n_heads: int) -> Float[Tensor, " heads"]:
    """Return the slope 2^(-8h/n) of each attention head h = 1..n (Press et al. 2022, section 3).

    If n is not a power of 2, the slopes of the power below n are followed by every second slope of the power above n.

    >>> alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    lower = 2 ** (n_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * h / lower) for h in range(1, lower + 1)]
    slopes += [2.0 ** (-4.0 * h / lower) for h in range(1, 2 * (n_heads - lower), 2)]
    return torch.tensor(slopes)


class DistanceBias(nn.Module):
    """The base class of attention biases, which depend on the distance between key and query.

    A subclass defines `forward`, which maps the positions of queries `[batch_or_1, q_len]` and of keys `[k_len]` to a
    bias `[batch_or_1, heads, q_len, k_len]`. The bias must depend only on differences of positions.

    >>> class Nearer(DistanceBias):
    ...     def forward(self, queries, keys):
    ...         return -(queries[:, None, :, None] - keys).abs().sqrt()
    >>> Nearer()(torch.tensor([[4]]), torch.arange(5))[0, 0]
    tensor([[-2.0000, -1.7321, -1.4142, -1.0000, -0.0000]])
    """


class Alibi(DistanceBias):
    """The ALiBi attention bias -slope · |query position - key position| (Press et al. 2022).

    Args:
        n_heads: Number of attention heads, each with its own slope.

    >>> Alibi(8)(torch.tensor([[2]]), torch.arange(3))[0, 0]  # the first of 8 heads: slope 1/2
    tensor([[-1.0000, -0.5000, -0.0000]])
    """

    slopes: Tensor

    def __init__(self, n_heads: int):
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(n_heads), persistent=False)

    def forward(
        self, queries: Int[Tensor, "batch_or_1 q_len"], keys: Int[Tensor, " k_len"]
    ) -> Float[Tensor, "batch_or_1 heads q_len k_len"]:
        """Return the bias of each pair of a query and a key.

        Args:
            queries: Positions of the queries, in one row for all texts or one row per text.
            keys: Positions of the keys.
        """
        return -self.slopes[:, None, None] * (queries[:, None, :, None] - keys).abs()


def relative_buckets(
    distances: Int[Tensor, "*batch"], n_buckets: int = 32, reach: int = 128, *, causal: bool = False
) -> Int[Tensor, "*batch"]:
    """Return the bucket number of each distance, key position - query position (Raffel et al. 2020, section 2.1).

    Each small distance has its own bucket. Larger distances up to `reach` share buckets on a logarithmic scale. With
    `causal`, all keys after the query share bucket 0. Without `causal`, half of the buckets are for keys
    before the query, and half for keys after the query.

    >>> relative_buckets(torch.tensor([-200, -20, -3, 0, 3, 20]), 8, 64)
    tensor([3, 3, 2, 0, 6, 7])
    >>> relative_buckets(torch.tensor([-200, -20, -3, 0, 3, 20]), 8, 64, causal=True)
    tensor([7, 6, 3, 0, 0, 0])
    """
    n, far = (n_buckets, (-distances).clamp_min(0)) if causal else (n_buckets // 2, distances.abs())
    exact = n // 2
    logarithms = (far.float() / exact).clamp_min(1.0).log() / math.log(reach / exact) * (n - exact)
    buckets = torch.where(far < exact, far, (exact + logarithms.long()).clamp_max(n - 1))
    return buckets if causal else buckets + n * (distances > 0)


class RelativeBias(DistanceBias):
    """The trainable bias of T5 for each head and each bucket of distances (Raffel et al. 2020, section 2.1).

    Args:
        n_heads: Number of attention heads.
        n_buckets: Number of distance buckets, as in `relative_buckets`.
        reach: Distance at and beyond which all keys share the last bucket.
        causal: Whether all buckets are used for keys before the query.

    >>> bias = RelativeBias(n_heads=2, n_buckets=4, reach=8)
    >>> bias.weight.data = torch.arange(8.0).view(4, 2)
    >>> bias(torch.tensor([[1]]), torch.arange(3))[0, :, 0]  # keys before, at and behind the query
    tensor([[2., 0., 6.],
            [3., 1., 7.]], grad_fn=<SelectBackward0>)
    """

    def __init__(self, n_heads: int, n_buckets: int = 32, reach: int = 128, *, causal: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_buckets, n_heads))
        self.reach = reach
        self.causal = causal

    def forward(
        self, queries: Int[Tensor, "batch_or_1 q_len"], keys: Int[Tensor, " k_len"]
    ) -> Float[Tensor, "batch_or_1 heads q_len k_len"]:
        """Return the bias of each pair of a query and a key.

        Args:
            queries: Positions of the queries, in one row for all texts or one row per text.
            keys: Positions of the keys.
        """
        distances = keys - queries[..., None]
        buckets = relative_buckets(distances, self.weight.shape[0], self.reach, causal=self.causal)
        return self.weight[buckets].permute(0, 3, 1, 2)
