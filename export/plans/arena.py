"""Memory of a plan's intermediate tensors: offsets in one block by their lifetimes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Alignment of tensors in bytes: that of every allocation of CUDA.
ALIGNMENT = 256


@dataclass(frozen=True)
class Lifetime:
    """Bytes that are in use from one launch to another one.

    Attributes:
        size: Number of bytes.
        first: Index of the first launch that accesses them.
        last: Index of the last one.
    """

    size: int
    first: int
    last: int


def allocate(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Place tensors, the largest first, each at the lowest offset that is free while it is in use.

    Returns:
        The offset of each, and the size of the block.
    """
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    end = 0
    for index in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i].size):
        own, offset = lifetimes[index], 0
        for other in sorted(placed, key=offsets.__getitem__):
            one = lifetimes[other]
            if one.first > own.last or one.last < own.first:
                continue
            if offset + own.size <= offsets[other]:
                break
            offset = max(offset, aligned(offsets[other] + one.size))
        offsets[index] = offset
        placed.append(index)
        end = max(end, aligned(offset + own.size))
    return offsets, end


def aligned(size: int) -> int:
    """Round up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT
