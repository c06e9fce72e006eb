"""What keeps the memory of a process that runs for months at one size."""

from __future__ import annotations

import ctypes
import gc
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3)."""

LARGE = 1 << 20
"""Bytes from which on memory comes from the system and goes back to it, one by one."""


def steady() -> None:
    """Makes memory that is free go back to the system, and what is imported no matter of any collection.

    glibc raises its threshold for large blocks with each one that is freed, up to 32 MB: tensors would come to lie
    between small objects, and the gaps that they leave be kept; each thread would get an arena with gaps of its own.
    Python counts what was imported as what may become garbage: collections would take longer, and come only once a
    quarter as much has gathered.
    """
    if (library := _glibc()) is not None:
        library.mallopt(MMAP_THRESHOLD, LARGE)
        library.mallopt(TRIM_THRESHOLD, LARGE)
        library.mallopt(ARENA_MAX, 1)
    gc.collect()
    gc.freeze()
    gc.collect()


def give_back() -> None:
    """Gives the pages within the heap that are free back to the system, in a few milliseconds."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library, if it is the one whose memory can be told what to do."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    try:
        library.mallopt.restype = library.malloc_trim.restype = ctypes.c_int
    except AttributeError:
        return None
    return library
