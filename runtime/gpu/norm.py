"""Bias, residual sum and LayerNorm, as one kernel (`GpuNorm`, `GpuAddNorm`, `GpuBiasAddNorm`)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from translate_trt.runtime.gpu.launch import Launch, power_of_two


@triton.jit
def normalize(values, columns, inside, gamma, beta, WIDTH: tl.constexpr, EPSILON: tl.constexpr):
    """Normalize the row `values` of WIDTH columns, those that are `inside`, in float32.

    The variance is that of the differences from the mean, as in PyTorch: the difference of two
    means of squares would lose what a large mean has in common with the row.
    """
    mean = tl.sum(values, 0) / WIDTH
    differences = tl.where(inside, values - mean, 0.0)
    variance = tl.sum(differences * differences, 0) / WIDTH
    scale = tl.load(gamma + columns, mask=inside, other=0.0)
    shift = tl.load(beta + columns, mask=inside, other=0.0)
    return differences * tl.rsqrt(variance + EPSILON) * scale + shift


@triton.jit
def norm_kernel(
    x, bias, residual, gamma, beta, total, y, cast,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, EPSILON: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    WRITES_TOTAL: tl.constexpr, WRITES_Y: tl.constexpr, WRITES_CAST: tl.constexpr,
):  # fmt: skip
    """Add and normalize one row of WIDTH columns."""
    row = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    values = tl.load(x + row + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        values += tl.load(bias + columns, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        values += tl.load(residual + row + columns, mask=inside, other=0.0)
    if WRITES_TOTAL:
        tl.store(total + row + columns, values, mask=inside)
    found = normalize(values, columns, inside, gamma, beta, WIDTH, EPSILON)
    if WRITES_Y:
        tl.store(y + row + columns, found, mask=inside)
    if WRITES_CAST:
        tl.store(cast + row + columns, found.to(cast.dtype.element_ty), mask=inside)


def norm(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    total: Tensor | None,
    y: Tensor | None,
    cast: Tensor | None,
    *,
    epsilon: float,
) -> tuple[Launch, ...]:
    """Describe LayerNorm of x + bias + residual over the last axis.

    Args:
        x: [..., O] of any floating-point type.
        bias: [O] in float32, if any.
        residual: [..., O] in float32, if any.
        gamma: [O] in float32.
        beta: [O] in float32.
        total: The sum [..., O] in float32, to be written; None if nothing reads it.
        y: The result [..., O] in float32; None if nothing reads it.
        cast: The result in another type; None if nothing reads it.
        epsilon: Number added to the variance.
    """
    width = x.shape[-1]
    block = power_of_two(width)
    outputs = {"total": total, "y": y, "cast": cast}
    return (
        Launch(
            norm_kernel,
            (x.numel() // width,),
            {
                "x": x, "bias": gamma if bias is None else bias,
                "residual": gamma if residual is None else residual, "gamma": gamma, "beta": beta,
                **{name: gamma if place is None else place for name, place in outputs.items()},
            },
            {
                "WIDTH": width, "BLOCK": block, "EPSILON": epsilon,
                "HAS_BIAS": bias is not None, "HAS_RESIDUAL": residual is not None,
                "WRITES_TOTAL": total is not None, "WRITES_Y": y is not None,
                "WRITES_CAST": cast is not None,
            },
            warps=min(8, max(1, block // 256)),
        ),
    )  # fmt: skip
