"""The recurrent unit (SSRU) of a decoder layer (`GpuRecurrentUnit`)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from translate_trt.runtime.gpu.launch import Launch

_BLOCK = 512


@triton.jit(do_not_specialize=["size"])
def recurrent_unit_kernel(
    gates, state, next_state, y, size, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Compute BLOCK elements of the states of all beams, `size` in all."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    row, column = index // WIDTH, index % WIDTH
    forget = gates + row * 2 * WIDTH + column
    logit = tl.load(forget, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(forget + WIDTH, mask=inside, other=0.0).to(tl.float32)
    kept = tl.sigmoid(logit)
    found = kept * tl.load(state + index, mask=inside, other=0.0) + (1.0 - kept) * x
    tl.store(next_state + index, found, mask=inside)
    # Not tl.maximum, which would make zero of NaN.
    tl.store(y + index, tl.where(found < 0.0, 0.0, found), mask=inside)


def recurrent_unit(
    gates: Tensor, state: Tensor, next_state: Tensor, y: Tensor
) -> tuple[Launch, ...]:
    """Describe c = f * state + (1 - f) * x and ReLU(c).

    Args:
        gates: Logits of f and, beside them, x: [..., 2 I] of any floating-point type.
        state: [..., I] in float32.
        next_state: c, to be written, like the state.
        y: ReLU(c), like the state.
    """
    size = state.numel()
    return (
        Launch(
            recurrent_unit_kernel,
            (-(-size // _BLOCK),),
            {"gates": gates, "state": state, "next_state": next_state, "y": y, "size": size},
            {"WIDTH": state.shape[-1], "BLOCK": _BLOCK},
        ),
    )
