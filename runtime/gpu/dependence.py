"""Programmatic dependent launch: a kernel begins while its predecessor ends.

CUDA programming guide, "Programmatic dependent launch and synchronization".
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_predecessor(DEPENDENT: tl.constexpr):
    """Let the next kernel begin, and wait until the memory of the previous one is written.

    Every kernel calls it first. As each waits for its predecessor's end, it waits for all before.
    """
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
