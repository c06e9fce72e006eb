"""What keeps the memory of a process that runs for months at one size."""

from __future__ import annotations

import ctypes
import gc
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""

LARGE = 1 << 20
"""Bytes from which on memory comes from the system and goes back to it, one by one."""


def steady() -> None:
    """Makes memory that is free go back to the system, and what is imported no matter of any collection.

    glibc raises its threshold for large blocks with each one that is freed, up to 32 MB: tensors would come to lie
    between small objects, and the gaps that they leave be kept. Python counts what was imported as what may become
    garbage: collections would take longer, and come only once a quarter as much has gathered.
    """
    if sys.platform == "linux":
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except AttributeError:  # another C library
            pass
        else:
            mallopt(MMAP_THRESHOLD, LARGE)
            mallopt(TRIM_THRESHOLD, LARGE)
    gc.collect()
    gc.freeze()
    gc.collect()
