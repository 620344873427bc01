"""Settings of a process that is ours: commands, Triton's instances, workers of a corpus.

A program that embeds the runtime as a library keeps its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

# Of glibc's mallopt, and from how many bytes on a block is the system's again once it is freed. By
# itself glibc keeps blocks of up to 32 MiB, and those of one batch hardly fit the next: a test set
# took 331 MiB, with this 279, at the same speed. Steps make no blocks so large, which would cost.
_MMAP_THRESHOLD, _LARGE_BLOCK = -3, 4 * 2**20


def return_large_blocks() -> None:
    """Let glibc give large blocks back once they are freed, unless the environment says how."""
    if {"MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys():
        return
    with contextlib.suppress(OSError, AttributeError, TypeError):  # other C libraries
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)
