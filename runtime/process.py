"""Process-wide settings for our own processes: commands, Triton instances, corpus workers.

Programs that embed the runtime as a library keep their own settings.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextvars import ContextVar

# Parameter of glibc's mallopt, and the size in bytes from which freed blocks return to the system.
# By default glibc keeps blocks of up to 32 MiB, which rarely fit the next batch: a test set took
# 331 MiB, and 279 MiB with this setting, at the same speed. No step allocates blocks of this size.
_MMAP_THRESHOLD, _LARGE_BLOCK = -3, 4 * 2**20

#: Context manager in which a translator loads its libraries. They may call Python in this thread,
#: where ctypes drops the exception of a signal handler; the command line defers signals here.
LOADING_CONTEXT: ContextVar[Callable[[], contextlib.AbstractContextManager[None]]] = ContextVar(
    "LOADING_CONTEXT", default=contextlib.nullcontext
)


def return_large_blocks() -> None:
    """Make glibc return large freed blocks to the system, unless the environment configures it."""
    if {"MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys():
        return
    with contextlib.suppress(OSError, AttributeError, TypeError):  # other C libraries
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)


@contextlib.contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """Block SIGINT in the processes that the block starts; this process ends them itself."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
