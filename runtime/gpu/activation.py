"""Activations after a matmul (`GpuBiasGelu`, `GpuBiasSwish`, `GpuGatedGelu`), and casts.

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
_TANH_FACTOR = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)


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


@triton.jit(do_not_specialize=["size"])
def gated_gelu_kernel(
    x, y, size, WIDTH: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    """Compute BLOCK elements of rows of WIDTH columns, `size` in all; those of x are twice as wide.

    (1 + tanh(z)) / 2 is sigmoid(2 z).
    """
    wait_for_predecessor(DEPENDENT)
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    inner = x + index + index // WIDTH * WIDTH
    value = tl.load(inner, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(inner + WIDTH, mask=inside, other=0.0).to(tl.float32)
    gate = tl.sigmoid((value + 0.044715 * value * value * value) * _TANH_FACTOR)
    tl.store(y + index, (value * gate * factor).to(y.dtype.element_ty), mask=inside)


def gated_gelu(x: Tensor, y: Tensor) -> tuple[Launch, ...]:
    """Describe GELU, by tanh, of the first half of the columns times the second half.

    Args:
        x: [..., 2 * O] of any floating-point type.
        y: The result [..., O] of any floating-point type.
    """
    return (
        Launch(
            gated_gelu_kernel,
            (-(-y.numel() // _BLOCK),),
            {"x": x, "y": y, "size": y.numel()},
            {"WIDTH": y.shape[-1], "BLOCK": _BLOCK},
        ),
    )


@triton.jit(do_not_specialize=["size"])
def cast_kernel(x, y, size, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """Cast BLOCK elements, of `size` in all."""
    wait_for_predecessor(DEPENDENT)
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + index, mask=index < size)
    tl.store(y + index, value.to(y.dtype.element_ty), mask=index < size)


def cast(x: Tensor, y: Tensor) -> Launch:
    """Describe a cast of x to y, both contiguous, between floating-point types."""
    size = x.numel()
    return Launch(
        cast_kernel, (-(-size // _BLOCK),), {"x": x, "y": y, "size": size}, {"BLOCK": _BLOCK}
    )
