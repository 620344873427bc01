"""The recurrent unit (SSRU) of a decoder layer, alone or with the LayerNorm after it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from translate_trt.runtime.gpu.launch import Launch, power_of_two
from translate_trt.runtime.gpu.norm import normalize

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
    gates, state, next_state, y, size, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Compute BLOCK elements of the states of all beams, `size` in all."""
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
):  # fmt: skip
    """Compute the state of one beam, and normalize its row of WIDTH columns."""
    row = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    found = _advance(gates + 2 * row + columns, state + row + columns, inside, WIDTH)
    tl.store(next_state + row + columns, found, mask=inside)
    values = _relu(found) + tl.load(residual + row + columns, mask=inside, other=0.0)
    if WRITES_TOTAL:
        tl.store(total + row + columns, values, mask=inside)
    normalized = normalize(values, columns, inside, gamma, beta, WIDTH, EPSILON)
    if WRITES_Y:
        tl.store(y + row + columns, normalized, mask=inside)
    if WRITES_CAST:
        tl.store(cast + row + columns, normalized.to(cast.dtype.element_ty), mask=inside)


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
    block = power_of_two(width)
    outputs = {"total": total, "y": y, "cast": cast}
    return (
        Launch(
            recurrent_norm_kernel,
            (state.numel() // width,),
            {
                "gates": gates, "state": state, "residual": residual, "gamma": gamma, "beta": beta,
                "next_state": next_state,
                **{name: gamma if place is None else place for name, place in outputs.items()},
            },
            {
                "WIDTH": width, "BLOCK": block, "EPSILON": epsilon,
                "WRITES_TOTAL": total is not None, "WRITES_Y": y is not None,
                "WRITES_CAST": cast is not None,
            },
            warps=min(8, max(1, block // 256)),
        ),
    )  # fmt: skip
