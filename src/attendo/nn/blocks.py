"""The encoder and decoder of Vaswani et al. 2017, figure 1, built from attention and feed-forward modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn

from attendo.nn.attention import Attention
from attendo.nn.cache import BlockCache, DecoderCache
from attendo.nn.layers import Dropout, FeedForward
from attendo.nn.masks import Mask


class Residual(nn.Module):
    """A residual connection with normalization (Vaswani et al. 2017, section 3.1).

    The output for a sublayer f is norm(x + f(x)) or, with `norm_first`, x + f(norm(x)) (Xiong et al. 2020). With
    `output_norm`, the output of f is normalized before the sum (Ding et al. 2021, section 2.2).

    Args:
        norm: Normalization layer.
        norm_first: Whether the normalization is applied before the sublayer f.
        dropout: Dropout probability of the sublayer's output.
        output_norm: Normalization layer of the sublayer's output (default: none).

    >>> import torch
    >>> x = torch.tensor([[1.0, 2.0]])
    >>> Residual(nn.Identity(), norm_first=True)(x, lambda h: 10 * h)  # x + f(x)
    tensor([[11., 22.]])
    >>> Residual(nn.LayerNorm(2, eps=0.0), norm_first=False)(x, lambda h: 10 * h).detach()  # LN([11, 22])
    tensor([[-1.,  1.]])
    """

    def __init__(
        self, norm: nn.Module, *, norm_first: bool, dropout: float = 0.0, output_norm: nn.Module | None = None
    ):
        super().__init__()
        self.norm = norm
        self.output_norm = output_norm
        self.norm_first = norm_first
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "*batch d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*batch d_model"]:
        """Return the sum of `x` and the output of the sublayer, normalized before the sublayer or after the sum.

        Args:
            x: Hidden states.
            sublayer: Function f from hidden states to hidden states.
        """
        norm = self.output_norm
        f = sublayer if norm is None else lambda states: norm(sublayer(states))
        if self.norm_first:
            return x + self.dropout(f(self.norm(x)))
        return self.norm(x + self.dropout(f(x)))


class EncoderBlock(nn.Module):
    """An encoder block: self-attention and a feed-forward network, each with a residual connection.

    With post-norm, the output is LN(y + FFN(y)), where y = LN(x + Attention(x, x)) (Vaswani et al. 2017, section 3.1).

    Args:
        self_attention: Self-attention module.
        feed_forward: Feed-forward network.
        residual: Function that returns a new residual connection for each sublayer.

    >>> import torch
    >>> pre_norm = lambda: Residual(nn.LayerNorm(4), norm_first=True)
    >>> block = EncoderBlock(Attention(4, 2), FeedForward(4, 8), pre_norm)
    >>> for last in (block.self_attention.out_proj, block.feed_forward.out_proj):
    ...     _ = nn.init.zeros_(last.weight), nn.init.zeros_(last.bias)
    >>> x = torch.ones(2, 3, 4)
    >>> torch.equal(block(x), x)  # sub-layers that give 0 leave the residual stream as it is
    True
    """

    def __init__(self, self_attention: Attention, feed_forward: FeedForward, residual: Callable[[], Residual]):
        super().__init__()
        self.self_attention = self_attention
        self.self_attention_residual = residual()
        self.feed_forward = feed_forward
        self.feed_forward_residual = residual()

    def forward(
        self, x: Float[Tensor, "batch len d_model"], mask: Mask | None = None
    ) -> Float[Tensor, "batch len d_model"]:
        """Return the new hidden states. Each position attends to all positions that the mask allows.

        Args:
            x: Hidden states of all positions.
            mask: Allowed keys (default: all keys).
        """
        x = self.self_attention_residual(x, lambda h: self.self_attention(h, h, mask))
        return self.feed_forward_residual(x, self.feed_forward)


class Encoder(nn.Module):
    """A stack of encoder blocks (Vaswani et al. 2017, section 3.1).

    Args:
        blocks: The blocks, in order.
        norm: Normalization layer after the last block, for blocks with `norm_first` (default: none).

    >>> import torch
    >>> stack = Encoder([], nn.LayerNorm(2, eps=0.0))
    >>> stack(torch.tensor([[[1.0, 3.0]]])).detach()  # no blocks: the last norm alone
    tensor([[[-1.,  1.]]])
    >>> last = lambda: Residual(nn.LayerNorm(4), norm_first=False)
    >>> Encoder(EncoderBlock(Attention(4, 2), FeedForward(4, 8), last) for _ in range(2))(torch.ones(1, 3, 4)).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, blocks: Iterable[EncoderBlock], norm: nn.Module | None = None):
        super().__init__()
        self.blocks = cast(Sequence[EncoderBlock], nn.ModuleList(blocks))
        self.norm = nn.Identity() if norm is None else norm

    def forward(
        self, x: Float[Tensor, "batch len d_model"], mask: Mask | None = None
    ) -> Float[Tensor, "batch len d_model"]:
        """Return the hidden states of all positions after the last block.

        Args:
            x: Embedded tokens.
            mask: Allowed keys (default: all keys).
        """
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)


class DecoderBlock(nn.Module):
    """A decoder block: self-attention, cross-attention to the encoder output, and a feed-forward network.

    With post-norm, the output is LN(z + FFN(z)), where z = LN(y + Attention(y, memory)) and y = LN(x +
    Attention(x, x)) (Vaswani et al. 2017, section 3.1). The memory is the encoder output.

    Args:
        self_attention: Self-attention module of the target.
        cross_attention: Cross-attention module to the memory (None: a decoder-only model).
        feed_forward: Feed-forward network.
        residual: Function that returns a new residual connection for each sublayer.

    >>> import torch
    >>> last = lambda: Residual(nn.LayerNorm(4), norm_first=False)
    >>> block = DecoderBlock(Attention(4, 2), Attention(4, 2, d_memory=6), FeedForward(4, 8), last)
    >>> x, memory = torch.arange(12.0).sin().view(1, 3, 4), torch.ones(1, 5, 6)
    >>> whole = block(x, memory, Mask(causal=True))
    >>> torch.allclose(whole[:, :2], block(x[:, :2], memory, Mask(causal=True)), atol=1e-6)  # none sees what follows
    True
    """

    def __init__(
        self,
        self_attention: Attention,
        cross_attention: Attention | None,
        feed_forward: FeedForward,
        residual: Callable[[], Residual],
    ):
        super().__init__()
        self.self_attention = self_attention
        self.self_attention_residual = residual()
        self.cross_attention = cross_attention
        self.cross_attention_residual = residual() if cross_attention is not None else None
        self.feed_forward = feed_forward
        self.feed_forward_residual = residual()

    def forward(
        self,
        x: Float[Tensor, "batch len d_model"],
        memory: Float[Tensor, "batch src_len d_memory"] | None,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
    ) -> Float[Tensor, "batch len d_model"]:
        """Return the new hidden states of all target positions. The mask must hide all later positions.

        Args:
            x: Hidden states of the target.
            memory: Encoder output (None: no cross-attention).
            mask: Mask of self-attention (default: all keys are allowed).
            memory_mask: Mask of cross-attention (default: all keys are allowed).
        """
        x = self.self_attention_residual(x, lambda h: self.self_attention(h, h, mask))
        if (cross := self.cross_attention) is not None and self.cross_attention_residual is not None:
            x = self.cross_attention_residual(x, lambda h: cross(h, memory, memory_mask))
        return self.feed_forward_residual(x, self.feed_forward)

    def memory_keys_values(self, memory: Float[Tensor, "sources src_len d_memory"]) -> tuple[Tensor, Tensor]:
        """Return the projected keys and values of the memory, which have length 0 without cross-attention.

        Args:
            memory: Encoder output of each source.
        """
        if self.cross_attention is None:
            own = self.self_attention
            n_sources = memory.shape[0]
            nothing = memory.new_zeros(n_sources, own.n_kv_heads, 0, own.head_dim)
            return nothing, memory.new_zeros(n_sources, own.n_kv_heads, 0, own.value_dim)
        return self.cross_attention.keys_values(memory)

    def step(
        self, x: Float[Tensor, "rows n d_model"], block: BlockCache, cache: DecoderCache
    ) -> Float[Tensor, "rows n d_model"]:
        """Return the hidden states of the next `n` positions of each row.

        Args:
            x: Hidden states of the new positions.
            block: The part of the cache that belongs to this block.
            cache: The cache with the keys and values of earlier positions.
        """

        def attend_to_past(h: Tensor) -> Tensor:
            new = self.self_attention.keys_values(h, start=cache.lengths)
            key, value = cache.append(block, *new)
            return self.self_attention.attend_to(h, key, value, cache.self_mask(h.shape[1]), cache.lengths)

        x = self.self_attention_residual(x, attend_to_past)
        if (cross := self.cross_attention) is not None and self.cross_attention_residual is not None:
            key, value, memory_mask = cache.memory(block)
            x = self.cross_attention_residual(
                x, lambda h: cache.unfold(cross.attend_to(cache.fold(h), key, value, memory_mask))
            )
        return self.feed_forward_residual(x, self.feed_forward)


class Decoder(nn.Module):
    """A stack of decoder blocks (Vaswani et al. 2017, section 3.1).

    Args:
        blocks: The blocks, in order.
        norm: Normalization layer after the last block, for blocks with `norm_first` (default: none).

    >>> import torch
    >>> last = lambda: Residual(nn.LayerNorm(4), norm_first=False)
    >>> decoder = Decoder([DecoderBlock(Attention(4, 2), Attention(4, 2), FeedForward(4, 8), last)])
    >>> x, memory = torch.arange(12.0).sin().view(1, 3, 4), torch.ones(1, 5, 4)
    >>> cache = decoder.start(memory, None, rows_per_source=1, capacity=3)
    >>> steps = [decoder.step(x[:, i : i + 1], cache) for i in range(3)]
    >>> torch.allclose(torch.cat(steps, 1), decoder(x, memory, Mask(causal=True)), atol=1e-6)
    True
    """

    def __init__(self, blocks: Iterable[DecoderBlock], norm: nn.Module | None = None):
        super().__init__()
        self.blocks = cast(Sequence[DecoderBlock], nn.ModuleList(blocks))
        self.norm = nn.Identity() if norm is None else norm

    def forward(
        self,
        x: Float[Tensor, "batch len d_model"],
        memory: Float[Tensor, "batch src_len d_memory"] | None,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
    ) -> Float[Tensor, "batch len d_model"]:
        """Return the hidden states, from which the output layer predicts the token after each position.

        Args:
            x: Embedded target tokens.
            memory: Encoder output (None: no cross-attention).
            mask: Mask of self-attention (default: all keys are allowed).
            memory_mask: Mask of cross-attention (default: all keys are allowed).
        """
        for block in self.blocks:
            x = block(x, memory, mask, memory_mask)
        return self.norm(x)

    def start(
        self,
        memory: Float[Tensor, "sources src_len d_memory"],
        memory_mask: Mask | None,
        rows_per_source: int,
        capacity: int,
    ) -> DecoderCache:
        """Return a cache without target positions, which contains the projected keys and values of the memory.

        Args:
            memory: Encoder output of each source.
            memory_mask: Mask of cross-attention (None: all keys are allowed).
            rows_per_source: Number of rows per source, for example the beam size.
            capacity: Largest number of positions per row.
        """
        blocks = [block.memory_keys_values(memory) for block in self.blocks]
        attention = self.blocks[0].self_attention
        return DecoderCache(
            blocks,
            memory_mask,
            rows_per_source,
            capacity,
            n_kv_heads=attention.n_kv_heads,
            head_dim=attention.head_dim,
            value_dim=attention.value_dim,
        )

    def step(self, x: Float[Tensor, "rows n d_model"], cache: DecoderCache) -> Float[Tensor, "rows n d_model"]:
        """Return the hidden states of `n` new positions after the cached positions, and advance the cache by `n`.

        Args:
            x: Embedded tokens of the new positions.
            cache: The cache with the keys and values of earlier positions.
        """
        for block, block_cache in zip(self.blocks, cache.blocks, strict=True):
            x = block.step(x, block_cache, cache)
        cache.advance(x.shape[1])
        return self.norm(x)
