"""Processor cores: how many there are, and how threads and workers share them."""

from __future__ import annotations

import logging
import os

log = logging.getLogger("translate_trt")


def available_cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


#: Batches at once for each core: more of them take memory and time, and translate nothing sooner.
_WORKERS_EACH = 4


def share_cores(threads: int | None, workers: int) -> tuple[int, int]:
    """Threads of each worker, and workers; a warning says which of both was lowered.

    Args:
        threads: that were asked for; None shares out the cores.
        workers: that were asked for.
    """
    workers = within_cores("workers", workers, _WORKERS_EACH)
    if threads is None:
        return max(1, available_cores() // workers), workers
    return within_cores("threads", threads), workers


def within_cores(name: str, wanted: int, each: int = 1) -> int:
    """As many as wanted, but with a warning no more than `each` for every available core.

    ONNX Runtime hangs where it starts some thousands of threads, and more than there are cores
    wait for each other.
    """
    cores = available_cores()
    if wanted <= (most := each * cores):
        return wanted
    log.warning(
        "%s is %d; %d are used, since this process may use %d processor core%s",
        name, wanted, most, cores, "" if cores == 1 else "s",
    )  # fmt: skip
    return most
