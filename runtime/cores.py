"""CPU cores available to this process, and their division among workers and threads."""

from __future__ import annotations

import logging
import os

log = logging.getLogger("translate_trt")


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


#: Maximum number of workers per core; more would cost memory and time without being faster.
_WORKERS_EACH = 4


def share_cores(threads: int | None, workers: int) -> tuple[int, int]:
    """Return threads per worker and the number of workers, reduced to the cores with a warning.

    Args:
        threads: Requested threads per worker; None divides the cores evenly.
        workers: Requested number of workers.
    """
    workers = within_cores("workers", workers, _WORKERS_EACH)
    if threads is None:
        return max(1, available_cores() // workers), workers
    return within_cores("threads", threads), workers


def within_cores(name: str, requested: int, each: int = 1) -> int:
    """Limit a number to `each` per available core, with a warning if it is reduced.

    ONNX Runtime hangs when it starts thousands of threads, and threads beyond the number of cores
    wait for each other.
    """
    cores = available_cores()
    if requested <= (limit := each * cores):
        return requested
    log.warning(
        "%s is %d; %d are used, since this process may use %d processor core%s",
        name, requested, limit, cores, "" if cores == 1 else "s",
    )  # fmt: skip
    return limit
