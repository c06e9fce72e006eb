"""The C++ functions of this folder, compiled for this CPU on first use, and ctypes structures of their arguments."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_double, c_int64, c_void_p
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.cache import cache_folder, opened_or_built, private
from attendo.decoding.options import Bits
from attendo.errors import AttendoError
from attendo.files import verify_manifest, write_manifest
from attendo.quantized import QuantizedLinear, shape_of, without_values

SOURCES = Path(__file__).parent
LIBRARY = "library.so"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math",
    "-pthread", "-w",
)  # fmt: skip
SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "attendo_panel": (c_int64, ()),
    "attendo_large_pages": (None, (c_void_p, c_int64)),
    "attendo_release": (None, (c_void_p, c_int64)),
    "attendo_suits": (c_int64, (c_int64,)),
    "attendo_log_sums": (None, (c_void_p, c_int64, c_int64, c_void_p, c_int64)),
    "attendo_packed_bytes": (c_int64, (c_int64, c_int64, c_int64)),
    "attendo_cache_length": (c_int64, (c_int64, c_int64)),
    "attendo_quantize": (None, (c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int64)),
    "attendo_pack": (None, (c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int64)),
    "attendo_product": (None, (c_void_p, c_void_p, c_int64, c_void_p, c_int64)),
    "attendo_states": (c_int64, (c_void_p, c_void_p, c_void_p, c_void_p, c_int64)),
    "attendo_best": (
        None,
        (c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_int64),
    ),
}


class NoLibrary(Exception):
    """Raised if the compiled functions cannot be used. The exception message contains the reason."""


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library, which is compiled within seconds on first use. Raises NoLibrary if compilation fails."""
    compiler = find_compiler()
    try:
        folder = cache_folder() / _name(compiler)
        return opened_or_built(folder, _loaded, lambda new: compile_to(new, compiler))
    except AttendoError as error:
        raise NoLibrary(str(error)) from None


def is_to_be_made() -> bool:
    """Return whether the first use of the library will compile it, because no compiled library is cached."""
    try:
        with private(cache_folder()) as base:
            return not (base / _name(find_compiler())).exists()
    except (AttendoError, NoLibrary):
        return False


def require_suited(bits: int) -> None:
    """Raise NoLibrary if matrix products with this number of bits are not faster than in PyTorch on this CPU."""
    if not library().attendo_suits(bits):
        raise NoLibrary(f"{bits}-bit matrix products are not faster than PyTorch's on this CPU ({platform.machine()})")


def find_compiler() -> tuple[str, ...]:
    """Return the command of the C++ compiler: $CXX, a system compiler, or the compiler of ziglang.

    Raises NoLibrary if no compiler is found.
    """
    if os.environ.get("ATTENDO_NATIVE") == "0":
        raise NoLibrary("ATTENDO_NATIVE is 0")
    if named := os.environ.get("CXX"):
        return tuple(shlex.split(named))
    if found := next(filter(None, map(shutil.which, COMPILERS)), None):
        return (found,)
    if importlib.util.find_spec("ziglang") is not None:
        return sys.executable, "-m", "ziglang", "c++"
    raise NoLibrary("no C++ compiler was found. Install one, for example: pip install ziglang")


def compile_to(folder: Path, compiler: Sequence[str]) -> None:
    """Compile the library into an empty folder and write a manifest with its hash.

    Raises NoLibrary with the error message of the compiler.
    """
    command = [*compiler, *FLAGS, str(SOURCES / "decoder.cpp"), "-o", str(folder / LIBRARY)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        words = done.stderr.splitlines()
        reason = next((line for line in words if "error" in line), f"status {done.returncode}")
        raise NoLibrary(f"{' '.join(compiler)} failed: {reason}")
    write_manifest(folder, {})


def _loaded(folder: Path) -> ctypes.CDLL:
    """Load the library of a folder after a check of its hash. Raises FileNotFoundError, DamagedFile or NoLibrary."""
    if not folder.exists():
        raise FileNotFoundError
    verify_manifest(folder)
    try:
        return declared(ctypes.CDLL(str(folder / LIBRARY)))
    except OSError as error:
        path = folder.resolve()
        reason = str(error).replace(str(folder), str(folder.resolve()))
        raise NoLibrary(
            f"{path} cannot be loaded: {reason}. Delete its folder, or set ATTENDO_CACHE to a folder on another disk"
        ) from None


def declared(opened: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the types of the library's functions and return the library. Raises OSError if a function is missing."""
    for name, (result, arguments) in SIGNATURES.items():
        try:
            function: Callable[..., object] = getattr(opened, name)
        except AttributeError as error:
            raise OSError(str(error)) from None
        function.restype = result  # pyright: ignore[reportFunctionMemberAccess]
        function.argtypes = arguments  # pyright: ignore[reportFunctionMemberAccess]
    return opened


def _name(compiler: Sequence[str]) -> str:
    return f"native-{_key(compiler)}"


def _key(compiler: Sequence[str]) -> str:
    """Return a hash of sources, flags, compiler and CPU. Raises NoLibrary if the compiler does not run."""
    digest = hashlib.sha256()
    for source in sorted((*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp"))):
        digest.update(source.read_bytes())
    try:
        version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
    except OSError as error:
        raise NoLibrary(
            f"the C++ compiler {compiler[0]} cannot be run ({error}). Set CXX to a working compiler"
        ) from None
    digest.update(repr((FLAGS, platform.machine(), platform.processor(), _instructions())).encode() + version)
    return digest.hexdigest()[:32]


def _instructions() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


_LINE = 64  # bytes: of a cache line, of a large page, and of one allocation
_PAGE = 2**21
_ARENA = 2**23


class Matrix(ctypes.Structure):
    """The C structure `Matrix` of products.h. `Matrix()` without arguments represents a missing matrix."""

    _fields_ = [
        ("n_in", c_int64), ("n_out", c_int64), ("bits", c_int64), ("weight", c_void_p), ("scale", c_void_p),
        ("bias", c_void_p),
    ]  # fmt: skip


class Norm(ctypes.Structure):
    """The C structure `Norm` of attention.h."""

    _fields_ = [
        ("kind", c_int64), ("width", c_int64), ("gain", c_void_p), ("bias", c_void_p), ("eps", c_double),
    ]  # fmt: skip


class Heads(ctypes.Structure):
    """The C structure `Heads` of attention.h."""

    _fields_ = [
        ("n", c_int64), ("n_kv", c_int64), ("width", c_int64), ("value_width", c_int64), ("scale", c_double),
        ("biases", c_void_p), ("span", c_int64), ("query_norm", Norm), ("key_norm", Norm), ("turns", c_void_p),
        ("betas", c_void_p), ("gains", c_void_p), ("means", c_void_p), ("window", c_int64), ("softcap", c_double),
    ]  # fmt: skip


class Attending(ctypes.Structure):
    """The C structures `SelfAttention` and `CrossAttention` of decoder.cpp."""

    _fields_ = [("project", Matrix), ("out", Matrix), ("norm", Norm), ("out_norm", Norm), ("heads", Heads)]


class FeedForward(ctypes.Structure):
    """The C structure `FeedForward` of decoder.cpp."""

    _fields_ = [
        ("first", Matrix), ("gate", Matrix), ("out", Matrix), ("norm", Norm), ("out_norm", Norm),
        ("activation", c_int64),
    ]  # fmt: skip


class Block(ctypes.Structure):
    """The C structure `Block` of decoder.cpp."""

    _fields_ = [("attention", Attending), ("cross", Attending), ("feed_forward", FeedForward)]


class Stack(ctypes.Structure):
    """The C structure `Stack` of decoder.cpp."""

    _fields_ = [
        ("n_blocks", c_int64), ("width", c_int64), ("norm_first", c_int64), ("blocks", POINTER(Block)), ("norm", Norm),
    ]  # fmt: skip


class Embedding(ctypes.Structure):
    """The C structure `Embedding` of decoder.cpp."""

    _fields_ = [
        ("n", c_int64), ("bits", c_int64), ("weight", c_void_p), ("scale", c_double), ("positions", c_void_p),
        ("position_width", c_int64), ("norm", Norm),
    ]  # fmt: skip


class Tokens(ctypes.Structure):
    """The C structure `Tokens` of decoder.cpp."""

    _fields_ = [
        ("n", c_int64), ("apart", c_int64), ("ids", c_void_p), ("positions", c_void_p), ("rows", c_void_p),
        ("text_start", c_void_p), ("text_length", c_void_p), ("cache", c_void_p), ("cache_bits", c_int64),
        ("block_stride", c_int64), ("capacity", c_int64), ("slots", c_void_p), ("own_slot", c_void_p),
        ("memory", c_void_p), ("memory_stride", c_int64), ("memory_start", c_void_p), ("memory_length", c_void_p),
    ]  # fmt: skip


def is_mapped(tensor: Tensor) -> bool:
    """Return whether a parameter is part of a mapped file (`attendo.bundle.load_model`)."""
    return getattr(tensor, "is_mapped", False)


def address(array: np.ndarray) -> int:
    """Return the memory address of the first element of a NumPy array."""
    return array.__array_interface__["data"][0]


def quantized(
    weight: Float[Tensor, "n_out n_in"], bits: int
) -> tuple[Int[Tensor, "n_out n"], Float[Tensor, "n_out *groups"]]:
    """Quantize a matrix to 8 or 4 bits. Return the numbers and scales of a `QuantizedLinear`.

    The numbers of a matrix whose width is no multiple of `GROUP` are padded.
    """
    n_out, n_in = weight.shape
    weight = weight.float().contiguous()
    numbers, scale = without_values(n_out, n_in, bits)
    library().attendo_quantize(
        weight.data_ptr(), n_out, n_in, bits, numbers.data_ptr(), scale.data_ptr(), torch.get_num_threads()
    )
    return numbers, scale


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


class TensorArena:
    """A builder of C structures from PyTorch modules, which owns the memory that the structures refer to.

    A weight has 32 bits, 16 bits (bfloat16), or 8 or 4 bits (integers).
    """

    def __init__(self, bits: Bits):
        self.bits: Bits = bits
        self._kept: list[Tensor] = []
        self._left = torch.empty(0, dtype=torch.uint8)

    def pointer(self, tensor: Tensor | None, dtype: torch.dtype = torch.float32) -> int | None:
        """Return the address of a tensor, or of a contiguous copy of another type."""
        if tensor is None:
            return None
        kept = tensor.detach().to(dtype).contiguous()
        # a file that is replaced in place must not change the model
        self._kept.append(kept.clone() if is_mapped(tensor) and kept.data_ptr() == tensor.data_ptr() else kept)
        return self._kept[-1].data_ptr()

    def matrix(self, *layers: nn.Linear, bits: Bits | None = None) -> Matrix:
        """Return the C structure of the stacked weights of several linear layers with the same input."""
        biases = [torch.zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers]
        bias = torch.cat(biases) if any(layer.bias is not None for layer in layers) else None
        integers = [layer for layer in layers if isinstance(layer, QuantizedLinear)]
        stored = [layer.numbers if isinstance(layer, QuantizedLinear) else layer.weight for layer in layers]
        if [layer.bits for layer in integers] == [bits or self.bits] * len(layers):
            packed = self.product(_joined(stored), bias, bits, _joined([layer.scale for layer in integers]))
        else:
            packed = self.product(_joined([layer.weight.detach() for layer in layers]), bias, bits)
        for tensor in filter(is_mapped, stored):
            library().attendo_release(tensor.data_ptr(), tensor.nbytes)
        return packed

    def product(
        self,
        weight: Float[Tensor, "n_out n_in"],
        bias: Float[Tensor, " n_out"] | None,
        bits: Bits | None = None,
        scale: Float[Tensor, "n_out *groups"] | None = None,
    ) -> Matrix:
        """Return the C structure of a linear layer W x + b, packed for this CPU (default: in the bits of the arena).

        With `scale`, the weight consists of quantized numbers (`QuantizedLinear`).
        """
        bits = bits or self.bits
        n_out, n_in = weight.shape if scale is None else shape_of(weight)
        panel = library().attendo_panel()
        packed = self._room(library().attendo_packed_bytes(n_out, n_in, bits))
        scales = torch.zeros(-(-n_out // panel) * panel if bits == 8 else 0)
        for first in range(0, n_out, 64 * panel):  # in parts, because each part needs a copy in float32
            part = weight[first : first + 64 * panel]
            own = scales
            if scale is not None:
                own = scale[first : first + 64 * panel].contiguous()
            elif bits <= 8:
                part, own = quantized(part, bits)
            else:
                part = part.float()
            part = part.contiguous()
            at = library().attendo_packed_bytes(first, n_in, bits)
            library().attendo_pack(
                part.data_ptr(), own.data_ptr(), len(part), n_in, bits, packed.data_ptr() + at,
                scales[first:].data_ptr(), torch.get_num_threads(),
            )  # fmt: skip
        self._kept += [packed, scales]
        return Matrix(n_in, n_out, bits, packed.data_ptr(), scales.data_ptr(), self.pointer(bias))

    def given(self, output: Float[Tensor, " n_out"]) -> Matrix:
        """Return the C structure of a linear layer whose output is always the given vector."""
        return Matrix(0, len(output), 32, None, None, self.pointer(output))

    def _room(self, n_bytes: int) -> Int[Tensor, " bytes"]:
        """Return memory for weights from large pages. Address lookups of thousands of small pages would be slower."""
        size = -(-n_bytes // _LINE) * _LINE
        if self._left.numel() < size:
            arena = torch.empty(max(_ARENA, size) + _PAGE, dtype=torch.uint8)
            self._left = arena[-arena.data_ptr() % _PAGE :]
            library().attendo_large_pages(self._left.data_ptr(), self._left.numel())
        taken = self._left[:n_bytes]
        self._left = self._left[size:]
        return taken

    def norm(self, norm: nn.Module) -> Norm:
        """Return the C structure of a normalization module: a LayerNorm, an RMSNorm or no normalization."""
        match norm:
            case nn.LayerNorm():
                return Norm(1, norm.normalized_shape[0], self.pointer(norm.weight), self.pointer(norm.bias), norm.eps)
            case nn.RMSNorm():
                eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
                return Norm(2, norm.normalized_shape[0], self.pointer(norm.weight), None, eps)
            case _:
                return Norm(0, 0, None, None, 0.0)
