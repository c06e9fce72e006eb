"""The C++ files of this folder as a library: compiled for this processor when first asked for, and kept."""

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
from pathlib import Path

from attendo.cache import cache_folder, opened_or_built, private
from attendo.errors import AttendoError
from attendo.files import verify_manifest, write_manifest

SOURCES = Path(__file__).parent
LIBRARY = "library.so"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-pthread",
    "-w",
)
SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "attendo_panel": (ctypes.c_int64, ()),
    "attendo_large_pages": (None, (ctypes.c_void_p, ctypes.c_int64)),
    "attendo_suits": (ctypes.c_int64, (ctypes.c_int64,)),
    "attendo_log_sums": (
        None,
        (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64),
    ),
    "attendo_pack": (None, (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)),
    "attendo_pack_bytes": (
        None,
        (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p),
    ),
    "attendo_product": (
        None,
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64),
    ),
    "attendo_states": (
        ctypes.c_int64,
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64),
    ),
    "attendo_best": (
        None,
        (
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
            ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64,
        ),
    ),
}  # fmt: skip


class NoLibrary(Exception):
    """Why there is none, in words for the user."""


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled functions. Raises NoLibrary where they cannot be had: search then runs on torch.

    $ATTENDO_NATIVE=0 does without. The first call on a machine takes some seconds to compile.
    """
    compiler = find_compiler()
    try:
        folder = cache_folder() / _name(compiler)
        return opened_or_built(folder, _loaded, lambda new: compile_to(new, compiler))
    except AttendoError as error:
        raise NoLibrary(str(error)) from None


def is_to_be_made() -> bool:
    """Whether the first use will compile."""
    try:
        with private(cache_folder()) as base:
            return not (base / _name(find_compiler())).exists()
    except (AttendoError, NoLibrary):
        return False


def require_suited(bits: int) -> None:
    """Raises NoLibrary where this processor is not one that the functions are fast on."""
    if not library().attendo_suits(bits):
        raise NoLibrary(
            f"products of {bits} bits are not faster than torch's on this processor ({platform.machine()})"
        )


def find_compiler() -> tuple[str, ...]:
    """The command of a C++ compiler: $CXX, one of the system's, or the one of the package ziglang.

    Raises NoLibrary where there is none, or $ATTENDO_NATIVE is 0.
    """
    if os.environ.get("ATTENDO_NATIVE") == "0":
        raise NoLibrary("ATTENDO_NATIVE is 0")
    if named := os.environ.get("CXX"):
        return tuple(shlex.split(named))
    if found := next(filter(None, map(shutil.which, COMPILERS)), None):
        return (found,)
    if importlib.util.find_spec("ziglang") is not None:
        return sys.executable, "-m", "ziglang", "c++"
    raise NoLibrary("there is no C++ compiler; install one, for instance g++, or pip install ziglang")


def compile_to(folder: Path, compiler: Sequence[str]) -> None:
    """Compiles the library into an empty folder, with its digest. Raises NoLibrary with the compiler's words."""
    command = [*compiler, *FLAGS, str(SOURCES / "decoder.cpp"), "-o", str(folder / LIBRARY)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        words = done.stderr.splitlines()
        reason = next((line for line in words if "error" in line), f"status {done.returncode}")
        raise NoLibrary(f"{' '.join(compiler)} failed: {reason}")
    write_manifest(folder, {})


def _loaded(folder: Path) -> ctypes.CDLL:
    """The library of a folder, its bytes compared with the digest. Raises FileNotFoundError, DamagedFile, NoLibrary."""
    if not folder.exists():
        raise FileNotFoundError
    verify_manifest(folder)
    try:
        return declared(ctypes.CDLL(str(folder / LIBRARY)))
    except OSError as error:
        path = folder.resolve()
        reason = str(error).replace(str(folder), str(folder.resolve()))
        raise NoLibrary(
            f"{path} cannot be loaded: {reason}. Delete this folder, or set ATTENDO_CACHE to a folder on another disk"
        ) from None


def declared(opened: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions. Raises OSError where one is missing."""
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
    """Another one for other sources, flags, compilers and processors. Raises NoLibrary if the compiler won't run."""
    digest = hashlib.sha256()
    for source in sorted((*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp"))):
        digest.update(source.read_bytes())
    try:
        version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
    except OSError as error:
        raise NoLibrary(
            f"the C++ compiler {compiler[0]} cannot be run ({error}); set CXX to one that can"
        ) from None
    digest.update(repr((FLAGS, platform.machine(), platform.processor(), _instructions())).encode() + version)
    return digest.hexdigest()[:32]


def _instructions() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
