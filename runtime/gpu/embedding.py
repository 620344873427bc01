"""Embeddings of the beams' tokens plus positions (`GpuEmbed`)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from translate_trt.runtime.gpu.launch import Launch, power_of_two


@triton.jit
def embed_kernel(
    table, position_table, tokens, positions, y, cast,
    BEAMS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    WRITES_Y: tl.constexpr, WRITES_CAST: tl.constexpr,
):  # fmt: skip
    """Embed the token of one beam: a row of WIDTH columns."""
    beam = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    token = tl.load(tokens + beam)
    position = tl.load(positions + beam // BEAMS)
    embedded = tl.load(table + token * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    found = embedded + tl.load(position_table + position * WIDTH + columns, mask=inside, other=0.0)
    if WRITES_Y:
        tl.store(y + beam * WIDTH + columns, found, mask=inside)
    if WRITES_CAST:
        tl.store(cast + beam * WIDTH + columns, found.to(cast.dtype.element_ty), mask=inside)


def embed(
    table: Tensor,
    position_table: Tensor,
    tokens: Tensor,
    positions: Tensor,
    y: Tensor | None,
    cast: Tensor | None,
) -> tuple[Launch, ...]:
    """Describe the sum of embeddings and positions.

    Args:
        table: Scaled embeddings [V, O] of any floating-point type.
        position_table: [T, O] in float32.
        tokens: [N, K].
        positions: [N].
        y: The result [N, K, O] in float32; None if nothing reads it.
        cast: The result in another type; None if nothing reads it.
    """
    width = table.shape[1]
    block = power_of_two(width)
    return (
        Launch(
            embed_kernel,
            (tokens.numel(),),
            {
                "table": table, "position_table": position_table, "tokens": tokens,
                "positions": positions, "y": position_table if y is None else y,
                "cast": position_table if cast is None else cast,
            },
            {
                "BEAMS": tokens.shape[1], "WIDTH": width, "BLOCK": block,
                "WRITES_Y": y is not None, "WRITES_CAST": cast is not None,
            },
            warps=min(8, max(1, block // 256)),
        ),
    )  # fmt: skip
