"""Past of the next beams: ancestries of static caches, and states of recurrent layers."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from translate_trt.runtime.gpu.launch import Launch, power_of_two

# Slots or columns of a program, the same for all sizes: P changes from call to call.
_BLOCK = 512


@triton.jit(do_not_specialize=["P"])
def follow_ancestry_kernel(
    ancestry, positions, parents, next_ancestry, P, K: tl.constexpr, BLOCK: tl.constexpr
):
    """Write a block of slots of one beam's next ancestry. Grid: [N * K, blocks of P]."""
    row = tl.program_id(0).to(tl.int64)
    sentence = row // K
    parent = tl.load(parents + row)
    own = tl.load(positions + sentence) * K + parent
    slots = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    past = tl.load(ancestry + (sentence * K + parent) * P + slots, slots < P)
    tl.store(next_ancestry + row * P + slots, tl.where(slots == own, 0.0, past), slots < P)


@triton.jit
def follow_parents_kernel(state, parents, next_state, K: tl.constexpr, D: tl.constexpr,
                          BLOCK: tl.constexpr):  # fmt: skip
    """Copy a block of columns of one beam's state. Grid: [N * K, blocks of D]."""
    row = tl.program_id(0).to(tl.int64)
    parent = tl.load(parents + row)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    past = tl.load(state + (row // K * K + parent) * D + columns, columns < D)
    tl.store(next_state + row * D + columns, past, columns < D)


def follow_ancestry(
    ancestry: Tensor, positions: Tensor, parents: Tensor, next_ancestry: Tensor
) -> tuple[Launch, ...]:
    """Add to each beam's ancestry its own slot of this step, and follow the parents.

    The slot of beam k is positions[n] * K + k, as `StaticCaches.extend` of export/graphs.py has it.

    Args:
        ancestry: [N, K, P] float32.
        positions: [N] int64.
        parents: [N, K] int64.
        next_ancestry: [N, K, P] float32, output, in other memory than `ancestry`.
    """
    sentences, beams, slots = ancestry.shape
    tensors = {
        "ancestry": ancestry,
        "positions": positions,
        "parents": parents,
        "next_ancestry": next_ancestry,
    }
    return (
        Launch(
            follow_ancestry_kernel,
            (sentences * beams, -(-slots // _BLOCK)),
            {**tensors, "P": slots},
            {"K": beams, "BLOCK": _BLOCK},
        ),
    )


def follow_parents(state: Tensor, parents: Tensor, next_state: Tensor) -> tuple[Launch, ...]:
    """Copy the state of each beam's parent: the fused operator FollowParents.

    Args:
        state: [N, K, D] float32.
        parents: [N, K] int64.
        next_state: [N, K, D] float32, output, in other memory than `state`.
    """
    sentences, beams, size = state.shape
    block = min(_BLOCK, power_of_two(size))
    return (
        Launch(
            follow_parents_kernel,
            (sentences * beams, -(-size // block)),
            {"state": state, "parents": parents, "next_state": next_state},
            {"K": beams, "D": size, "BLOCK": block},
        ),
    )
