"""The KV cache of a decoder that runs token by token. All state is in the cache, and modules are stateless."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.nn.masks import Mask


@dataclass
class BlockCache:
    """The cache of one decoder block: keys and values of each row, and the projected encoder output of each source.

    >>> key, memory_key = torch.zeros(2, 1, 8, 4), torch.zeros(1, 1, 5, 4)
    >>> BlockCache(key, key, memory_key, memory_key).memory_key.shape[2]  # the source has 5 tokens
    5
    """

    key: Float[Tensor, "rows kv_heads capacity head_dim"]
    value: Float[Tensor, "rows kv_heads capacity value_dim"]
    memory_key: Float[Tensor, "sources kv_heads src_len head_dim"]
    memory_value: Float[Tensor, "sources kv_heads src_len value_dim"]


class DecoderCache:
    """A KV cache: preallocated keys and values of rows with different lengths, and the memory of their sources.

    The memory of a source is its encoder output. `lengths` contains the number of positions in each row. The
    lengths determine the positional encodings, the masks, and where the next keys are written.

    Args:
        blocks: Projected keys and values of the memory, for each block.
        memory_mask: Padding mask of the memory (None: no padding).
        rows_per_source: Number of rows per source, for example the beam size. The rows of a source are adjacent.
        capacity: Largest number of positions per row.
        n_kv_heads: Number of key and value heads.
        head_dim: Width of a key head.
        value_dim: Width of a value head.

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
        # copies of `lengths` and of each row's source in host memory, to choose a fast path without reading a GPU
        self.row_lengths = [0] * rows
        self.row_sources = [source for source in range(n_sources) for _ in range(rows_per_source)]
        self.look_at_rows()

    def look_at_rows(self) -> None:
        """Choose the fast paths of the next steps. Call this method after each change of row lengths or row sources."""
        self.longest = max(self.row_lengths, default=0)
        self.same_length = min(self.row_lengths, default=0) == self.longest
        n_sources = self.blocks[0].memory_key.shape[0]
        per_source = len(self.row_sources) // max(n_sources, 1)
        regular = [source for source in range(n_sources) for _ in range(per_source)]
        self.folded = per_source if self.row_sources == regular else None
        self._source_index = (
            None if self.folded else torch.tensor(self.row_sources, dtype=torch.long, device=self.lengths.device)
        )

    @property
    def rows(self) -> int:
        """The number of rows in the cache."""
        return len(self.row_lengths)

    @property
    def capacity(self) -> int:
        """The largest number of positions per row."""
        return self.blocks[0].key.shape[2]

    # methods that a block calls in a step

    def append(self, block: BlockCache, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append `n` new positions to each row, and return the keys and values of all positions.

        Args:
            block: The part of the cache that belongs to the block.
            key: Keys of the new positions, `[rows, kv_heads, n, head_dim]`.
            value: Values of the new positions, `[rows, kv_heads, n, value_dim]`.

        Raises:
            ValueError: A row has no room for `n` more positions.
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
        """Return the self-attention mask of the next `n` positions of each row, or None if all keys are allowed.

        Args:
            n: Number of new positions per row.
        """
        if self.same_length:
            return None if n == 1 else Mask(causal=True)
        end = self.lengths[:, None] + torch.arange(n, device=self.lengths.device)
        keys = torch.arange(self.longest + n, device=self.lengths.device)
        return Mask(allowed=(keys <= end[..., None])[:, None])

    def memory(self, block: BlockCache) -> tuple[Tensor, Tensor, Mask | None]:
        """Return the keys, values and padding mask of the encoder output, in the layout of `fold`.

        Args:
            block: The part of the cache that belongs to the block.
        """
        key = block.memory_key
        value = block.memory_value
        lengths = self.memory_lengths
        if self._source_index is not None:
            key, value = key[self._source_index], value[self._source_index]
            lengths = None if lengths is None else lengths[self._source_index]
        return key, value, None if lengths is None else Mask(key_lengths=lengths)

    def fold(self, x: Float[Tensor, "rows n d"]) -> Float[Tensor, "sources queries d"]:
        """Return `x` with the rows of each source concatenated, which avoids a copy of the encoder output for each row.

        Args:
            x: Hidden states of the new positions of each row.
        """
        return x.reshape(x.shape[0] // self.folded, -1, x.shape[2]) if self.folded else x

    def unfold(self, x: Float[Tensor, "sources queries d"]) -> Float[Tensor, "rows n d"]:
        """Return `x` with the rows of each source separated again, as the inverse of `fold`.

        Args:
            x: Hidden states in the layout of `fold`.
        """
        return x.reshape(self.rows, -1, x.shape[2])

    def advance(self, n: int) -> None:
        """Add `n` positions to the length of every row.

        Args:
            n: Number of new positions per row.
        """
        self.lengths = self.lengths + n
        self.row_lengths = [length + n for length in self.row_lengths]
        self.longest += n

    # methods that a search calls between steps

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """Reorder the rows: new row i continues old row `rows[i]`. The memory of the sources does not change.

        Args:
            rows: Index of the old row for each new row. Both rows must belong to the same source.
        """
        for block in self.blocks:
            block.key, block.value = block.key[rows], block.value[rows]
        self._select(rows)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep the given rows, and drop all other rows and the memory of sources without rows.

        Args:
            rows: Indices of the rows to keep, in their new order.
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
