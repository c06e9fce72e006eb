"""The structures of the C++ files, field by field; each keeps the tensors alive that it points to."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_int64, c_void_p

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.decoding.native.library import library
from attendo.decoding.prepare import quantized

_LINE, _PAGE, _ARENA = 64, 2**21, 2**23  # bytes: a cache line, a large page, what is taken at a time


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


class Keeper:
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
        taken, self._left = self._left[:n_bytes], self._left[size:]
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
