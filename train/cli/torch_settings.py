"""Environment variables of the libraries below torch, which are read when torch is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

#: Spins of a waiting GNU OpenMP thread before it sleeps. The default, 300,000, takes tens of
#: milliseconds and keeps other threads from the cores; 1,000 suffice for the short waits between
#: the parallel loops of a step.
SPIN_COUNT = "1000"
#: Capacity of the primitive caches of oneDNN and torch, 1,024 by default. Cached primitives
#: fragment the heap, and the shapes of batches hardly recur except in the layers of a step: of the
#: matmuls of `small` (2,048 tokens), 16 entries hit 86.2 %, 1,024 hit 87.5 %
#: (docs/adr/0008-training-on-a-cpu.md).
PRIMITIVES_KEPT = "16"


def set_training_defaults(environment: MutableMapping[str, str] | None = None) -> None:
    """Set defaults for training on a CPU, unless the user has set them or torch is imported.

    For the command line only: a library must not change the environment of its process.

    Args:
        environment: Environment to change; None for that of this process.
    """
    if environment is None:
        if "torch" in sys.modules:  # too late, and possibly the process of another program
            return
        environment = os.environ
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    environment.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", PRIMITIVES_KEPT)
    environment.setdefault("LRU_CACHE_CAPACITY", PRIMITIVES_KEPT)
