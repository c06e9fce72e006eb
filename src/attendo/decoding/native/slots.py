"""The cache of the compiled decoder: keys and values in slots, and for each row which slot holds which position."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_double, c_int64, c_void_p

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.decoding.cpu_linear import quantized
from attendo.decoding.native.library import library

_LINE = 64  # bytes: a cache line, a large page, what is taken at a time
_PAGE = 2**21
_ARENA = 2**23


class Matrix(ctypes.Structure):
    """Matrix of products.h; without arguments, one that is not there."""

    _fields_ = [
        ("n_in", c_int64), ("n_out", c_int64), ("bits", c_int64), ("weight", c_void_p), ("scale", c_void_p),
        ("sums", c_void_p), ("bias", c_void_p),
    ]  # fmt: skip


class Norm(ctypes.Structure):
    """Norm of attention.h."""

    _fields_ = [
        ("kind", c_int64),
        ("width", c_int64),
        ("gain", c_void_p),
        ("bias", c_void_p),
        ("eps", c_double),
    ]


class Heads(ctypes.Structure):
    """Heads of attention.h."""

    _fields_ = [
        ("n", c_int64), ("n_kv", c_int64), ("width", c_int64), ("value_width", c_int64), ("scale", c_double),
        ("slopes", c_void_p), ("turns", c_void_p), ("betas", c_void_p), ("gains", c_void_p), ("means", c_void_p),
    ]  # fmt: skip


class Attending(ctypes.Structure):
    """SelfAttention and CrossAttention of decoder.cpp."""

    _fields_ = [("project", Matrix), ("out", Matrix), ("norm", Norm), ("heads", Heads)]


class FeedForward(ctypes.Structure):
    """FeedForward of decoder.cpp."""

    _fields_ = [("first", Matrix), ("gate", Matrix), ("out", Matrix), ("norm", Norm), ("activation", c_int64)]


class Block(ctypes.Structure):
    """Block of decoder.cpp."""

    _fields_ = [("attention", Attending), ("cross", Attending), ("feed_forward", FeedForward)]


class Stack(ctypes.Structure):
    """Stack of decoder.cpp."""

    _fields_ = [
        ("n_blocks", c_int64), ("width", c_int64), ("norm_first", c_int64), ("blocks", POINTER(Block)), ("norm", Norm),
    ]  # fmt: skip


class Embedding(ctypes.Structure):
    """Embedding of decoder.cpp."""

    _fields_ = [
        ("n", c_int64), ("weight", c_void_p), ("scale", c_double), ("positions", c_void_p),
        ("position_width", c_int64), ("norm", Norm),
    ]  # fmt: skip


class Tokens(ctypes.Structure):
    """Tokens of decoder.cpp."""

    _fields_ = [
        ("n", c_int64), ("apart", c_int64), ("ids", c_void_p), ("positions", c_void_p), ("rows", c_void_p),
        ("text_start", c_void_p), ("text_length", c_void_p), ("cache", c_void_p), ("block_stride", c_int64),
        ("capacity", c_int64), ("slots", c_void_p), ("own_slot", c_void_p), ("memory", c_void_p),
        ("memory_stride", c_int64), ("memory_start", c_void_p), ("memory_length", c_void_p),
    ]  # fmt: skip


def address(array: np.ndarray) -> int:
    """Where an array begins."""
    return array.__array_interface__["data"][0]


class TensorArena:
    """Makes structures of modules, and keeps the memory that they point to."""

    def __init__(self, *, int8: bool):
        self.int8 = int8
        self._kept: list[Tensor] = []
        self._left = torch.empty(0, dtype=torch.uint8)

    def pointer(self, tensor: Tensor | None) -> int | None:
        """The address of these numbers, side by side in float32 (or as they are, if whole)."""
        if tensor is None:
            return None
        floats = tensor.detach().float() if tensor.is_floating_point() else tensor
        self._kept.append(floats.contiguous())
        return self._kept[-1].data_ptr()

    def matrix(self, *layers: nn.Linear) -> Matrix:
        """The layers as one product, one behind the other; they take the same input."""
        weight = torch.cat([layer.weight.detach() for layer in layers]).float().contiguous()
        n_out, n_in = weight.shape
        biases = [torch.zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers]
        bias = self.pointer(torch.cat(biases)) if any(layer.bias is not None for layer in layers) else None
        panel = library().attendo_panel()
        columns = -(-n_out // panel) * panel
        if not self.int8:
            packed = self._room(4 * columns * n_in).view(torch.float32)
            library().attendo_pack(weight.data_ptr(), n_out, n_in, packed.data_ptr())
            return Matrix(n_in, n_out, 32, self.pointer(packed), None, None, bias)
        numbers, scale = quantized(weight)
        packed = self._room(columns * -(-n_in // 4) * 4).view(torch.int8)
        sums = torch.empty(columns, dtype=torch.int32)
        library().attendo_pack_bytes(numbers.data_ptr(), n_out, n_in, packed.data_ptr(), sums.data_ptr())
        scales = torch.zeros(columns)
        scales[:n_out] = scale.flatten()
        return Matrix(n_in, n_out, 8, self.pointer(packed), self.pointer(scales), self.pointer(sums), bias)

    def given(self, output: Float[Tensor, " n_out"]) -> Matrix:
        """A product that is this vector whatever it is of."""
        return Matrix(0, len(output), 32, None, None, None, self.pointer(output))

    def _room(self, n_bytes: int) -> Int[Tensor, " bytes"]:
        """Memory for weights, out of large pages: thousands of small ones would cost more to find than to read."""
        size = -(-n_bytes // _LINE) * _LINE
        if self._left.numel() < size:
            arena = torch.empty(max(_ARENA, size) + _PAGE, dtype=torch.uint8)
            self._left = arena[-arena.data_ptr() % _PAGE :]
            library().attendo_large_pages(self._left.data_ptr(), self._left.numel())
        taken = self._left[:n_bytes]
        self._left = self._left[size:]
        return taken

    def norm(self, norm: nn.Module) -> Norm:
        """A LayerNorm, an RMSNorm, or none."""
        match norm:
            case nn.LayerNorm():
                return Norm(
                    1, norm.normalized_shape[0], self.pointer(norm.weight), self.pointer(norm.bias), norm.eps
                )
            case nn.RMSNorm():
                eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
                return Norm(2, norm.normalized_shape[0], self.pointer(norm.weight), None, eps)
            case _:
                return Norm(0, 0, None, None, 0.0)


AHEAD = 32
"""Slots, and positions of a slot, are made in such numbers: memory that grows by a share of itself is half empty."""


class SlotKVCache:
    """Rows that share what their common past has written: to reorder them copies numbers of slots, no keys.

    To take in rows copies what they have read, and nothing of the others: their slots are those that nobody needs any
    more, and there is room ahead for slots and memory.

    Row i writes its next position into the slot `own[i]`, and finds position p in `slots[i, p]`. Slots belong to a
    source, and its rows have one length, so that no row writes where another one reads. `memory` has the keys and
    values of the source tokens, those of all sources side by side, without padding and once for all rows.

    >>> cache = SlotKVCache(torch.zeros(1, 7, 8), [3, 4], rows_per_source=2, capacity=5, width=8)
    >>> cache.rows, cache.sources.tolist(), cache.memory_start.tolist(), cache.memory_length.tolist()
    (4, [0, 0, 1, 1], [0, 0, 3, 3], [3, 3, 4, 4])
    >>> cache.keep(torch.tensor([3, 3]))
    >>> cache.rows, cache.sources.tolist(), cache.own.tolist()
    (2, [1, 1], [2, 3])
    """

    def __init__(
        self,
        memory: Float[Tensor, "blocks tokens memory_width"],
        source_lengths: Sequence[int],
        *,
        rows_per_source: int,
        capacity: int,
        width: int,
    ):
        n_sources = len(source_lengths)
        self.capacity = capacity
        rows = n_sources * rows_per_source
        self.memory = memory
        self._n_memory = memory.shape[1]
        lengths = np.asarray(source_lengths, dtype=np.int64)
        self.sources = np.repeat(np.arange(n_sources), rows_per_source)
        self.memory_length = lengths[self.sources]
        self.memory_start = (np.cumsum(lengths) - lengths)[self.sources]
        self.lengths: Int[np.ndarray, " rows"] = np.zeros(rows, dtype=np.int64)
        self.own = np.arange(rows, dtype=np.int32)
        self.slots = np.zeros((rows, capacity), dtype=np.int32)
        self.cache = torch.empty(memory.shape[0], rows, capacity, width)
        self.logits = torch.empty(0, 0)  # of the last step
        self._longest = 0
        self._tokens: Tokens | None = None

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.lengths)

    @property
    def longest(self) -> int:
        """The positions of the longest row."""
        return self._longest

    @property
    def bytes(self) -> int:
        """What it holds: for each row its positions, for each source its tokens."""
        return 4 * (self.cache.numel() + self.memory.numel()) + self.slots.nbytes

    def tokens(self) -> Tokens:
        """One next token of each row, for the compiled functions; its ids are the caller's to fill in."""
        if self._tokens is None:
            self._numbers = np.arange(self.rows)
            self._tokens = Tokens(
                n=self.rows, apart=1, positions=address(self.lengths), rows=address(self._numbers),
                cache=self.cache.data_ptr(), block_stride=self.cache.stride(0), capacity=self.capacity,
                slots=address(self.slots), own_slot=address(self.own), memory=self.memory.data_ptr(),
                memory_stride=self.memory.stride(0), memory_start=address(self.memory_start),
                memory_length=address(self.memory_length),
            )  # fmt: skip
        return self._tokens

    def advance(self, n: int) -> None:
        """Every row has `n` positions more."""
        self.lengths += n
        self._longest += n

    def require_room(self, n: int) -> None:
        """Raises ValueError where no `n` positions more fit into a row."""
        if self._longest + n > self.capacity:
            raise ValueError(
                f"the cache holds {self.capacity} positions, {self._longest + n} are needed; start with a larger"
                " capacity"
            )

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """New row i continues old row `rows[i]`; the sources stay."""
        self._select(rows.numpy())

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Drops all rows but these."""
        self._select(rows.numpy())

    def join(self, other: SlotKVCache) -> None:
        """Takes in the rows and sources of another cache of the same model, behind its own."""
        own = self._free_slots(other.rows, other.capacity)
        slots = np.repeat(own[:, None], self.capacity, 1)
        for row, length in enumerate(other.lengths.tolist()):
            if length:
                past = torch.from_numpy(other.slots[row, :length].astype(np.int64))
                self.cache[:, own[row], :length] = other.cache[:, past, torch.arange(length)]
        starts = self._add_memory(*other._live_memory())
        self.memory_start = np.concatenate((self.memory_start, starts))
        self.memory_length = np.concatenate((self.memory_length, other.memory_length))
        self.sources = np.concatenate((self.sources, other.sources + self.sources.max(initial=-1) + 1))
        self.lengths = np.concatenate((self.lengths, other.lengths))
        self.own = np.concatenate((self.own, own))
        self.slots = np.concatenate((self.slots, slots))
        self._moved()

    def in_place_of(self, spent: SlotKVCache) -> SlotKVCache:
        """The spent one with these rows alone: the memory that it has serves again."""
        spent.keep(torch.zeros(0, dtype=torch.int64))
        spent._n_memory = 0
        spent.join(self)
        return spent

    def _free_slots(self, n: int, capacity: int) -> Int[np.ndarray, " n"]:
        """Slots where no row writes or reads, each with room for so many positions; more are made where there are few.

        All grow together, and a little ahead: a server takes in rows again and again.
        """
        n_slots, held = self.cache.shape[1:3]
        taken = np.zeros(n_slots, dtype=bool)
        taken[self.own] = True
        taken[self.slots[np.arange(self.capacity) < self.lengths[:, None]]] = True
        free = np.flatnonzero(~taken)[:n]
        more = max(0, n - len(free))
        if more or capacity > held:
            self._grow(_ahead(n_slots + more) if more else n_slots, max(held, _ahead(capacity)))
        return np.concatenate((free, np.arange(n_slots, n_slots + more))).astype(np.int32)

    def _grow(self, n_slots: int, capacity: int) -> None:
        """Makes room for more slots and positions; what nobody has written yet takes no memory until somebody does."""
        blocks, n_old, held, width = self.cache.shape
        cache = torch.empty(blocks, n_slots, capacity, width)
        used = self._longest
        cache[:, :n_old, :used] = self.cache[:, :, :used]
        if capacity > held:
            slots = np.zeros((self.rows, capacity), dtype=np.int32)
            slots[:, :used] = self.slots[:, :used]
            self.slots = slots
            self.capacity = capacity
        self.cache = cache

    def _add_memory(
        self, memory: Float[Tensor, "blocks tokens memory_width"], starts: Int[np.ndarray, " rows"]
    ) -> Int[np.ndarray, " rows"]:
        """Puts memory behind what there is; where rows that begin at `starts` in it begin now."""
        n = memory.shape[1]
        if self._n_memory + n > self.memory.shape[1]:
            live, self.memory_start = self._live_memory()
            self._n_memory = live.shape[1]
            self.memory = live.new_empty(live.shape[0], 2 * (self._n_memory + n), live.shape[2])
            self.memory[:, : self._n_memory] = live
        first = self._n_memory
        self._n_memory = self._n_memory + n
        self.memory[:, first : self._n_memory] = memory
        return starts + first

    def _live_memory(self) -> tuple[Tensor, Int[np.ndarray, " rows"]]:
        """The memory of the sources that have rows, and where each row's starts in it."""
        _, first, index = np.unique(self.sources, return_index=True, return_inverse=True)
        starts = self.memory_start[first]
        lengths = self.memory_length[first]
        tokens = np.concatenate(
            [np.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)]
            or [np.zeros(0, dtype=np.int64)]
        )
        return self.memory[:, torch.from_numpy(tokens)], (np.cumsum(lengths) - lengths)[index]

    def _select(self, rows: Int[np.ndarray, " new_rows"]) -> None:
        sources = self.sources[rows]
        used = self._longest
        if len(rows) == self.rows and (sources == self.sources).all():  # in place: all addresses stay
            self.slots[:, :used] = self.slots[rows, :used]
            self.lengths[:] = self.lengths[rows]
            return
        self.own = self._own_slots(sources)
        self.memory_start = self.memory_start[rows]
        self.memory_length = self.memory_length[rows]
        self.sources = sources
        self.lengths = self.lengths[rows]
        slots = np.zeros((len(rows), self.capacity), dtype=np.int32)
        slots[:, :used] = self.slots[rows, :used]
        self.slots = slots
        self._moved()

    def _moved(self) -> None:
        self._longest = int(self.lengths.max(initial=0))
        self._tokens = None

    def _own_slots(self, sources: Int[np.ndarray, " new_rows"]) -> Int[np.ndarray, " new_rows"]:
        """A slot for each row of these sources: those that the source's rows have, in order, then new ones."""
        order = np.argsort(sources, kind="stable")
        ranks = np.empty(len(sources), dtype=np.int64)
        ranks[order] = np.arange(len(sources)) - np.searchsorted(sources[order], sources[order])
        old_order = np.argsort(self.sources, kind="stable")
        ordered = self.sources[old_order]
        first = np.searchsorted(ordered, sources)
        n_old = np.searchsorted(ordered, sources, "right")
        has = ranks < n_old - first
        own = np.empty(len(sources), dtype=np.int32)
        own[has] = self.own[old_order[(first + ranks)[has]]]
        if more := int((~has).sum()):
            n_slots = self.cache.shape[1]
            own[~has] = np.arange(n_slots, n_slots + more)
            self._grow(n_slots + more, self.capacity)
        return own


def _ahead(n: int) -> int:
    return -(-n // AHEAD) * AHEAD
