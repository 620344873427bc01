"""The recurrent unit (SSRU) of a decoder layer, alone or with the LayerNorm after it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from translate_trt.runtime.gpu.dependence import wait_for_predecessor
from translate_trt.runtime.gpu.launch import Launch
from translate_trt.runtime.gpu.norm import normalize_row, row_launch

_BLOCK = 512


@triton.jit
def _advance(forget, state, inside, WIDTH: tl.constexpr):
    """Return f * state + (1 - f) * x, for addresses of the logits of f, and x WIDTH behind."""
    kept = tl.sigmoid(tl.load(forget, mask=inside, other=0.0).to(tl.float32))
    x = tl.load(forget + WIDTH, mask=inside, other=0.0).to(tl.float32)
    return kept * tl.load(state, mask=inside, other=0.0) + (1.0 - kept) * x


@triton.jit
def _relu(x):
    """Return max(x, 0); tl.maximum would make zero of NaN."""
    return tl.where(x < 0.0, 0.0, x)


@triton.jit(do_not_specialize=["size"])
def recurrent_unit_kernel(
    gates, state, next_state, y, size, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK elements of the states of all beams, `size` in all."""
    wait_for_predecessor(DEPENDENT)
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    row, column = index // WIDTH, index % WIDTH
    found = _advance(gates + row * 2 * WIDTH + column, state + index, inside, WIDTH)
    tl.store(next_state + index, found, mask=inside)
    tl.store(y + index, _relu(found), mask=inside)


@triton.jit
def recurrent_norm_kernel(
    gates, state, residual, gamma, beta, next_state, total, y, cast,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, EPSILON: tl.constexpr,
    WRITES_TOTAL: tl.constexpr, WRITES_Y: tl.constexpr, WRITES_CAST: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute the state of one beam, and normalize its row of WIDTH columns."""
    wait_for_predecessor(DEPENDENT)
    row = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    found = _advance(gates + 2 * row + columns, state + row + columns, inside, WIDTH)
    tl.store(next_state + row + columns, found, mask=inside)
    values = _relu(found) + tl.load(residual + row + columns, mask=inside, other=0.0)
    normalize_row(
        values, row, columns, inside, gamma, beta, total, y, cast,
        WIDTH, EPSILON, WRITES_TOTAL, WRITES_Y, WRITES_CAST,
    )  # fmt: skip


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


def recurrent_norm(
    gates: Tensor,
    state: Tensor,
    residual: Tensor,
    gamma: Tensor,
    beta: Tensor,
    next_state: Tensor,
    total: Tensor | None,
    y: Tensor | None,
    cast: Tensor | None,
    *,
    epsilon: float,
) -> tuple[Launch, ...]:
    """Describe `recurrent_unit`, and LayerNorm of ReLU(c) + residual over the last axis.

    Args:
        gates: See `recurrent_unit`; so are state and next_state.
        state: [..., I] in float32.
        residual: [..., I] in float32.
        gamma: [I] in float32.
        beta: [I] in float32.
        next_state: c, to be written.
        total: The sum, like the state; None if nothing reads it.
        y: The norm, like the state; None if nothing reads it.
        cast: The norm in another type; None if nothing reads it.
        epsilon: Number added to the variance.
    """
    width = state.shape[-1]
    arguments = {
        "gates": gates, "state": state, "residual": residual, "gamma": gamma, "beta": beta,
        "next_state": next_state, "total": total, "y": y, "cast": cast,
    }  # fmt: skip
    constants = {"EPSILON": epsilon}
    rows = state.numel() // width
    return (row_launch(recurrent_norm_kernel, rows, width, arguments, constants),)
