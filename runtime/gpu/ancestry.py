"""Past of the next beams: ancestries of static caches, and states of recurrent layers."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from translate_trt.runtime.gpu.dependence import wait_for_predecessor
from translate_trt.runtime.gpu.launch import Launch, power_of_two

# Elements of a program: a block of slots or columns, of all beams. The block does not depend on P,
# which changes from call to call.
_TILE = 1024


@triton.jit(do_not_specialize=["P"])
def follow_ancestry_kernel(
    ancestry, positions, parents, next_ancestry, P,
    K: tl.constexpr, BEAM_SLOTS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write a block of slots of one sentence. Grid: [N, blocks of P]."""
    wait_for_predecessor(DEPENDENT)
    n = tl.program_id(0).to(tl.int64)
    beams = tl.arange(0, BEAM_SLOTS)[:, None]
    slots = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    exists = (beams < K) & (slots < P)
    parent = tl.load(parents + n * K + beams, beams < K, 0)
    own = tl.load(positions + n) * K + parent
    past = tl.load(ancestry + (n * K + parent) * P + slots, exists, 0.0)
    tl.debug_barrier()  # no thread may still read what another one overwrites
    tl.store(next_ancestry + (n * K + beams) * P + slots, tl.where(slots == own, 0.0, past), exists)


@triton.jit
def follow_parents_kernel(
    state, parents, next_state,
    K: tl.constexpr, D: tl.constexpr, BEAM_SLOTS: tl.constexpr, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write a block of columns of one sentence. Grid: [N, blocks of D]."""
    wait_for_predecessor(DEPENDENT)
    n = tl.program_id(0).to(tl.int64)
    beams = tl.arange(0, BEAM_SLOTS)[:, None]
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    exists = (beams < K) & (columns < D)
    parent = tl.load(parents + n * K + beams, beams < K, 0)
    past = tl.load(state + (n * K + parent) * D + columns, exists, 0.0)
    tl.debug_barrier()  # as above
    tl.store(next_state + (n * K + beams) * D + columns, past, exists)


def follow_ancestry(
    ancestry: Tensor, positions: Tensor, parents: Tensor, next_ancestry: Tensor
) -> tuple[Launch, ...]:
    """Add to each beam's ancestry its own slot of this step, and follow the parents.

    The slot of beam k is positions[n] * K + k, as `StaticCaches.extend` of export/graphs.py has it.

    Args:
        ancestry: [N, K, P] float32.
        positions: [N] int64, those before the step.
        parents: [N, K] int64.
        next_ancestry: [N, K, P] float32, output; may be `ancestry` itself.
    """
    sentences, beams, slots = ancestry.shape
    tensors = {
        "ancestry": ancestry,
        "positions": positions,
        "parents": parents,
        "next_ancestry": next_ancestry,
    }
    tile = _tile(beams)
    grid = (sentences, triton.cdiv(slots, tile["BLOCK"]))
    constants = {"K": beams, **tile}
    return (Launch(follow_ancestry_kernel, grid, {**tensors, "P": slots}, constants),)


def follow_parents(state: Tensor, parents: Tensor, next_state: Tensor) -> tuple[Launch, ...]:
    """Copy the state of each beam's parent: the fused operator FollowParents.

    Args:
        state: [N, K, D] float32.
        parents: [N, K] int64.
        next_state: [N, K, D] float32, output; may be `state` itself.
    """
    sentences, beams, size = state.shape
    tensors = {"state": state, "parents": parents, "next_state": next_state}
    tile = _tile(beams)
    grid = (sentences, triton.cdiv(size, tile["BLOCK"]))
    return (Launch(follow_parents_kernel, grid, tensors, {"K": beams, "D": size, **tile}),)


def _tile(beams: int) -> dict[str, int]:
    """Beams and columns of a program."""
    rows = power_of_two(beams)
    return {"BEAM_SLOTS": rows, "BLOCK": max(_TILE // rows, 1)}
