"""Bias, residual sum and a norm, as one kernel (`GpuNorm` to `GpuBiasAddRmsNorm`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from translate_trt.runtime.gpu.dependence import wait_for_predecessor
from translate_trt.runtime.gpu.launch import Launch, power_of_two, warps_of_row


@triton.jit
def normalize_row(
    values, row, columns, inside, gamma, beta, total, y, cast,
    WIDTH: tl.constexpr, EPSILON: tl.constexpr,
    WRITES_TOTAL: tl.constexpr, WRITES_Y: tl.constexpr, WRITES_CAST: tl.constexpr,
):  # fmt: skip
    """Normalize `values`, the row of WIDTH columns at offset `row`, and write what is read.

    The variance is that of the differences from the mean, as in PyTorch: the difference of two
    means of squares would lose what a large mean has in common with the row. Without beta, it is
    RMSNorm, for which `values` must be 0 outside.
    """
    if WRITES_TOTAL:
        tl.store(total + row + columns, values, mask=inside)
    differences = values
    if beta is not None:
        mean = tl.sum(values, 0) / WIDTH
        differences = tl.where(inside, values - mean, 0.0)
    variance = tl.sum(differences * differences, 0) / WIDTH
    scale = tl.load(gamma + columns, mask=inside, other=0.0)
    shift = 0.0 if beta is None else tl.load(beta + columns, mask=inside, other=0.0)
    found = differences * tl.rsqrt(variance + EPSILON) * scale + shift
    if WRITES_Y:
        tl.store(y + row + columns, found, mask=inside)
    if WRITES_CAST:
        tl.store(cast + row + columns, found.to(cast.dtype.element_ty), mask=inside)


@triton.jit
def norm_kernel(
    x, bias, residual, gamma, beta, total, y, cast,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, EPSILON: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    WRITES_TOTAL: tl.constexpr, WRITES_Y: tl.constexpr, WRITES_CAST: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Add and normalize one row of WIDTH columns, in float32."""
    wait_for_predecessor(DEPENDENT)
    row = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    values = tl.load(x + row + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        values += tl.load(bias + columns, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        values += tl.load(residual + row + columns, mask=inside, other=0.0)
    normalize_row(
        values, row, columns, inside, gamma, beta, total, y, cast,
        WIDTH, EPSILON, WRITES_TOTAL, WRITES_Y, WRITES_CAST,
    )  # fmt: skip


def row_launch(
    kernel: Any,
    rows: int,
    width: int,
    arguments: Mapping[str, Tensor | None],
    constants: Mapping[str, float | bool],
) -> Launch:
    """Describe a kernel that ends with `normalize_row`, one program for each row.

    Args:
        kernel: The kernel.
        rows: Number of rows.
        width: Number of columns.
        arguments: Tensors by parameter; of total, y and cast, None is not written.
        constants: Constants apart from those that follow from the other arguments.
    """
    block = power_of_two(width)
    unused = arguments["gamma"]
    assert unused is not None
    return Launch(
        kernel,
        (rows,),
        {n: unused if x is None and n != "beta" else x for n, x in arguments.items()},
        {
            "WIDTH": width, "BLOCK": block, **constants,
            **{f"WRITES_{n.upper()}": arguments[n] is not None for n in ("total", "y", "cast")},
        },
        warps=warps_of_row(block),
    )  # fmt: skip


def norm(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    beta: Tensor | None,
    total: Tensor | None,
    y: Tensor | None,
    cast: Tensor | None,
    *,
    epsilon: float,
) -> tuple[Launch, ...]:
    """Describe LayerNorm or RMSNorm of x + bias + residual over the last axis.

    Args:
        x: [..., O] of any floating-point type.
        bias: [O] in float32, if any.
        residual: [..., O] in float32, if any.
        gamma: [O] in float32.
        beta: [O] in float32; None for RMSNorm.
        total: The sum [..., O] in float32, to be written; None if nothing reads it.
        y: The result [..., O] in float32; None if nothing reads it.
        cast: The result in another type; None if nothing reads it.
        epsilon: Number added to the variance or the mean square.
    """
    width = x.shape[-1]
    arguments = {
        "x": x, "bias": bias, "residual": residual, "gamma": gamma, "beta": beta, "total": total,
        "y": y, "cast": cast,
    }  # fmt: skip
    constants = {
        "EPSILON": epsilon, "HAS_BIAS": bias is not None, "HAS_RESIDUAL": residual is not None
    }  # fmt: skip
    return (row_launch(norm_kernel, x.numel() // width, width, arguments, constants),)
