"""Encoder and decoder: figure 1 of Vaswani et al. 2017. Blocks get built parts, stacks get built blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn

from attendo.nn.attention import Attention
from attendo.nn.cache import BlockCache, DecoderCache
from attendo.nn.dropout import Dropout
from attendo.nn.feedforward import FeedForward
from attendo.nn.masks import Mask


class Residual(nn.Module):
    """Add & norm around a sub-layer: norm(x + f(x)), or x + f(norm(x)) where the norm comes first.

    Vaswani et al. 2017, section 3.1 (norm last); Xiong et al. 2020 (norm first).
    """

    def __init__(self, norm: nn.Module, *, norm_first: bool, dropout: float = 0.0):
        super().__init__()
        self.norm = norm
        self.norm_first = norm_first
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "*batch d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*batch d_model"]:
        """Same shape as `x`."""
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class EncoderBlock(nn.Module):
    """One storey of the encoder: self-attention, then the feed-forward net, each in its residual."""

    def __init__(
        self, self_attention: Attention, feed_forward: FeedForward, residual: Callable[[], Residual]
    ):
        super().__init__()
        self.self_attention = self_attention
        self.self_attention_residual = residual()
        self.feed_forward = feed_forward
        self.feed_forward_residual = residual()

    def forward(
        self, x: Float[Tensor, "batch len d_model"], mask: Mask | None = None
    ) -> Float[Tensor, "batch len d_model"]:
        """Every position attends to every position that the mask allows."""
        x = self.self_attention_residual(x, lambda h: self.self_attention(h, h, mask))
        return self.feed_forward_residual(x, self.feed_forward)


class Encoder(nn.Module):
    """The stack of encoder blocks, on vectors; `norm` closes a stack whose blocks take the norm first."""

    def __init__(self, blocks: Iterable[EncoderBlock], norm: nn.Module | None = None):
        super().__init__()
        self.blocks = cast(Sequence[EncoderBlock], nn.ModuleList(blocks))
        self.norm = nn.Identity() if norm is None else norm

    def forward(
        self, x: Float[Tensor, "batch len d_model"], mask: Mask | None = None
    ) -> Float[Tensor, "batch len d_model"]:
        """The representation of each position in the light of the others."""
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)


class DecoderBlock(nn.Module):
    """One storey of the decoder: causal self-attention, cross-attention to the memory, feed-forward net.

    cross_attention: None in a decoder that stands alone, with no memory to attend to.
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
        """All target positions at once; the mask keeps each from seeing those behind it."""
        x = self.self_attention_residual(x, lambda h: self.self_attention(h, h, mask))
        if (cross := self.cross_attention) is not None and self.cross_attention_residual is not None:
            x = self.cross_attention_residual(x, lambda h: cross(h, memory, memory_mask))
        return self.feed_forward_residual(x, self.feed_forward)

    def memory_keys_values(self, memory: Float[Tensor, "sources src_len d_memory"]) -> tuple[Tensor, Tensor]:
        """The projected memory; of no width where nothing attends to it."""
        if self.cross_attention is None:
            own, n_sources = self.self_attention, memory.shape[0]
            nothing = memory.new_zeros(n_sources, own.n_kv_heads, 0, own.head_dim)
            return nothing, memory.new_zeros(n_sources, own.n_kv_heads, 0, own.value_dim)
        return self.cross_attention.keys_values(memory)

    def step(
        self, x: Float[Tensor, "rows n d_model"], block: BlockCache, cache: DecoderCache
    ) -> Float[Tensor, "rows n d_model"]:
        """The next `n` positions of each row, whose earlier keys and values the cache holds."""

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
    """The stack of decoder blocks, on vectors; `norm` closes a stack whose blocks take the norm first."""

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
        """The hidden state from which the token after each position is predicted."""
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
        """An empty cache for `rows_per_source` rows a source; the memory is projected here, once."""
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

    def step(
        self, x: Float[Tensor, "rows n d_model"], cache: DecoderCache
    ) -> Float[Tensor, "rows n d_model"]:
        """As `forward`, for the `n` positions after those in the cache; the cache is advanced by `n`."""
        for block, block_cache in zip(self.blocks, cache.blocks, strict=True):
            x = block.step(x, block_cache, cache)
        cache.advance(x.shape[1])
        return self.norm(x)
