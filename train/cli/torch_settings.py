"""Settings of the libraries below torch, which they read once, when torch is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

#: GNU OpenMP's threads spin that often before they sleep, where the default is 300,000: tens of
#: milliseconds, in which they keep other processes, and each other, from the cores that they wait
#: for. Short waits between the parallel loops of a step still end without a system call.
SPIN_COUNT = "1000"
#: Primitives that oneDNN and torch's layer above it keep, by shape, each 1,024 by default. Shapes
#: of batches hardly recur, and what is kept fragments the heap; but the layers of one step have
#: shapes in common. Of the products of `small` (2,048 tokens) 16 shapes find 86.2 %, 1,024 shapes
#: 87.5 % (docs/adr/0008-training-on-a-cpu.md).
PRIMITIVES_KEPT = "16"


def set_training_defaults(environment: MutableMapping[str, str] | None = None) -> None:
    """Set what training on a CPU wants and the user has not set; only before torch is imported.

    For the command line alone: a library leaves the environment of its process as it is.

    Args:
        environment: None is that of this process.
    """
    if environment is None:
        if "torch" in sys.modules:  # too late, and not our process perhaps
            return
        environment = os.environ
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    environment.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", PRIMITIVES_KEPT)
    environment.setdefault("LRU_CACHE_CAPACITY", PRIMITIVES_KEPT)
