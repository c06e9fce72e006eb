"""The KV cache of a decoder that runs token by token.

All state is in the cache; modules are stateless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.nn.masks import Mask


@dataclass
class BlockCache:
    """The cache of one decoder block: keys and values of each row, and the projected memory of each source.

    >>> key, memory_key = torch.zeros(2, 1, 8, 4), torch.zeros(1, 1, 5, 4)
    >>> BlockCache(key, key, memory_key, memory_key).memory_key.shape[2]  # the source has 5 tokens
    5
    """

    key: Float[Tensor, "rows kv_heads capacity head_dim"]
    value: Float[Tensor, "rows kv_heads capacity value_dim"]
    memory_key: Float[Tensor, "sources kv_heads src_len head_dim"]
    memory_value: Float[Tensor, "sources kv_heads src_len value_dim"]


class DecoderCache:
    """Preallocated keys and values (KV cache) of rows with different lengths, and the memory of their sources.

    `lengths` `[rows]` counts the positions of each row; it determines the next write, the positional encoding and the
    mask.

    Args:
        blocks: The projected memory of each block, as (keys, values).
        memory_mask: The padding of the memory.
        rows_per_source: The number of rows per source (the beam); the rows of a source are adjacent.
        capacity: The maximum number of positions per row.
        n_kv_heads: The number of key and value heads.
        head_dim: The width of a key head.
        value_dim: The width of a value head.

    >>> memory = torch.zeros(1, 2, 5, 4)  # [sources, kv_heads, src_len, head_dim]
    >>> cache = DecoderCache([(memory, memory)], None, 3, 8, n_kv_heads=2, head_dim=4, value_dim=4)
    >>> cache.rows, cache.capacity, cache.lengths.tolist()
    (3, 8, [0, 0, 0])
    >>> key = torch.ones(3, 2, 2, 4)  # two new positions for each row
    >>> cache.append(cache.blocks[0], key, key)[0].shape
    torch.Size([3, 2, 2, 4])
    >>> cache.advance(2)
    >>> cache.lengths.tolist()
    [2, 2, 2]
    """

    def __init__(
        self,
        blocks: Sequence[tuple[Tensor, Tensor]],
        memory_mask: Mask | None,
        rows_per_source: int,
        capacity: int,
        *,
        n_kv_heads: int,
        head_dim: int,
        value_dim: int,
    ):
        first = blocks[0][0]
        n_sources = first.shape[0]
        self.src_len = first.shape[2]
        rows = n_sources * rows_per_source
        self.blocks = [
            BlockCache(
                first.new_zeros(rows, n_kv_heads, capacity, head_dim),
                first.new_zeros(rows, n_kv_heads, capacity, value_dim),
                memory_key,
                memory_value,
            )
            for memory_key, memory_value in blocks
        ]
        self.memory_lengths = None if memory_mask is None else memory_mask.key_lengths
        self.lengths: Int[Tensor, " rows"] = torch.zeros(rows, dtype=torch.long, device=first.device)
        # the host's copy of `lengths` and of each row's source: to choose a fast path, no device is read
        self.row_lengths = [0] * rows
        self.row_sources = [source for source in range(n_sources) for _ in range(rows_per_source)]
        self.look_at_rows()

    def look_at_rows(self) -> None:
        """Choose the fast paths that the rows' lengths and sources allow; call it after changing either."""
        self.longest = max(self.row_lengths, default=0)
        self.same_length = min(self.row_lengths, default=0) == self.longest
        n_sources = self.blocks[0].memory_key.shape[0]
        per_source = len(self.row_sources) // max(n_sources, 1)
        regular = [source for source in range(n_sources) for _ in range(per_source)]
        self.folded = per_source if self.row_sources == regular else None
        self._source_index = (
            None
            if self.folded
            else torch.tensor(self.row_sources, dtype=torch.long, device=self.lengths.device)
        )

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.row_lengths)

    @property
    def capacity(self) -> int:
        """The maximum number of positions per row."""
        return self.blocks[0].key.shape[2]

    # what a block asks for in a step

    def append(self, block: BlockCache, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write `n` new positions to each row and return all keys and values so far.

        Args:
            block: One block's part of the cache.
            key: New keys `[rows, kv_heads, n, head_dim]`.
            value: New values `[rows, kv_heads, n, value_dim]`.

        Raises:
            ValueError: A row is full.
        """
        n = key.shape[2]
        end = self.longest + key.shape[2]
        if end > self.capacity:
            raise ValueError(
                f"the cache holds {self.capacity} positions, but {end} are needed. Start with a larger capacity"
            )
        if self.same_length:
            block.key[:, :, self.longest : end] = key
            block.value[:, :, self.longest : end] = value
        else:
            rows = torch.arange(self.rows, device=key.device)[:, None]
            positions = self.lengths[:, None] + torch.arange(n, device=key.device)
            block.key[rows, :, positions] = key.transpose(1, 2)
            block.value[rows, :, positions] = value.transpose(1, 2)
        return block.key[:, :, :end], block.value[:, :, :end]

    def self_mask(self, n: int) -> Mask | None:
        """Return the mask of each row's next `n` queries over its own positions; None if all keys are allowed.

        Args:
            n: The number of new positions.
        """
        if self.same_length:
            return None if n == 1 else Mask(causal=True)
        end = self.lengths[:, None] + torch.arange(n, device=self.lengths.device)
        keys = torch.arange(self.longest + n, device=self.lengths.device)
        return Mask(allowed=(keys <= end[..., None])[:, None])

    def memory(self, block: BlockCache) -> tuple[Tensor, Tensor, Mask | None]:
        """Return keys, values and mask of the memory, in the layout of `fold`.

        Args:
            block: One block's part of the cache.
        """
        key = block.memory_key
        value = block.memory_value
        lengths = self.memory_lengths
        if self._source_index is not None:
            key, value = key[self._source_index], value[self._source_index]
            lengths = None if lengths is None else lengths[self._source_index]
        return key, value, None if lengths is None else Mask(key_lengths=lengths)

    def fold(self, x: Float[Tensor, "rows n d"]) -> Float[Tensor, "sources queries d"]:
        """Return the rows of each source side by side as queries: its memory is read once and never copied.

        Args:
            x: One vector per new position of each row.
        """
        return x.reshape(x.shape[0] // self.folded, -1, x.shape[2]) if self.folded else x

    def unfold(self, x: Float[Tensor, "sources queries d"]) -> Float[Tensor, "rows n d"]:
        """Return the inverse of `fold`.

        Args:
            x: The folded vectors.
        """
        return x.reshape(self.rows, -1, x.shape[2])

    def advance(self, n: int) -> None:
        """Count `n` more positions in every row.

        Args:
            n: The number of new positions.
        """
        self.lengths = self.lengths + n
        self.row_lengths = [length + n for length in self.row_lengths]
        self.longest += n

    # what a search asks for between steps

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """Let new row i continue old row `rows[i]`; the sources do not move.

        Args:
            rows: The old row of each new row, of the same source.
        """
        for block in self.blocks:
            block.key, block.value = block.key[rows], block.value[rows]
        self._select(rows)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Drop all other rows, and the memory of sources without rows.

        Args:
            rows: The numbers of the rows to keep.
        """
        chosen = rows.tolist()
        sources = sorted({self.row_sources[row] for row in chosen})
        index = torch.tensor(sources, dtype=torch.long, device=rows.device)
        for block in self.blocks:
            block.memory_key, block.memory_value = block.memory_key[index], block.memory_value[index]
        self.memory_lengths = None if self.memory_lengths is None else self.memory_lengths[index]
        renumbered = {old: new for new, old in enumerate(sources)}
        self.row_sources = [renumbered.get(source, -1) for source in self.row_sources]
        self.reorder(rows)

    def _select(self, rows: Tensor) -> None:
        chosen = rows.tolist()
        self.lengths = self.lengths[rows]
        self.row_lengths = [self.row_lengths[row] for row in chosen]
        self.row_sources = [self.row_sources[row] for row in chosen]
        self.look_at_rows()
