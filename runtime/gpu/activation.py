"""Bias and activation after a matmul (`GpuBiasGelu`, `GpuBiasSwish`).

ReLU needs no kernel of its own: it is an epilogue of the library's matmul.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from translate_trt.runtime.gpu.dependence import wait_for_predecessor
from translate_trt.runtime.gpu.launch import Launch

_BLOCK = 1024
_HALF_ROOT = tl.constexpr(0.7071067811865476)  # 1 / sqrt(2)


@triton.jit(do_not_specialize=["size"])
def bias_activation_kernel(
    x,
    bias,
    y,
    size,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    GELU: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Compute BLOCK elements of rows of WIDTH columns, `size` in all."""
    wait_for_predecessor(DEPENDENT)
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    value = tl.load(x + index, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + index % WIDTH, mask=inside, other=0.0)
    gate = 0.5 * (1.0 + tl.erf(value * _HALF_ROOT)) if GELU else tl.sigmoid(value)
    tl.store(y + index, (value * gate).to(y.dtype.element_ty), mask=inside)


def bias_activation(x: Tensor, bias: Tensor, y: Tensor, *, gelu: bool) -> tuple[Launch, ...]:
    """Describe GELU(x + bias) or swish(x + bias), where swish(x) is x sigmoid(x).

    Args:
        x: [..., O] of any floating-point type.
        bias: [O] in float32.
        y: The result [..., O] of any floating-point type.
        gelu: Whether the activation is GELU, without approximation.
    """
    return (
        Launch(
            bias_activation_kernel,
            (-(-x.numel() // _BLOCK),),
            {"x": x, "bias": bias, "y": y, "size": x.numel()},
            {"WIDTH": x.shape[-1], "BLOCK": _BLOCK, "GELU": gelu},
        ),
    )
