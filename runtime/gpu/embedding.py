"""Embeddings of tokens plus positions (`GpuEmbed`, `GpuEmbedSource`)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from translate_trt.runtime.gpu.dependence import wait_for_predecessor
from translate_trt.runtime.gpu.launch import Launch, power_of_two, warps_of_row


@triton.jit(do_not_specialize=["K"])
def embed_kernel(
    table, position_table, tokens, positions, y, cast,
    K,
    OF_SOURCE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    WRITES_Y: tl.constexpr, WRITES_CAST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Embed one of K tokens of a sentence: a row of WIDTH columns."""
    wait_for_predecessor(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    token = tl.load(tokens + row)
    position = row % K if OF_SOURCE else tl.load(positions + row // K)
    embedded = tl.load(table + token * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    found = embedded + tl.load(position_table + position * WIDTH + columns, mask=inside, other=0.0)
    if WRITES_Y:
        tl.store(y + row * WIDTH + columns, found, mask=inside)
    if WRITES_CAST:
        tl.store(cast + row * WIDTH + columns, found.to(cast.dtype.element_ty), mask=inside)


def embed(
    table: Tensor,
    position_table: Tensor,
    tokens: Tensor,
    positions: Tensor | None,
    y: Tensor | None,
    cast: Tensor | None,
) -> tuple[Launch, ...]:
    """Describe the sum of embeddings and positions.

    Args:
        table: Scaled embeddings [V, O] of any floating-point type.
        position_table: [T, O] in float32.
        tokens: [N, K], of the beams or of the source.
        positions: [N]; None for tokens of the source, which have the positions 0 to K - 1.
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
                "positions": tokens if positions is None else positions,
                "y": position_table if y is None else y,
                "cast": position_table if cast is None else cast, "K": tokens.shape[1],
            },
            {
                "OF_SOURCE": positions is None, "WIDTH": width, "BLOCK": block,
                "WRITES_Y": y is not None, "WRITES_CAST": cast is not None,
            },
            warps=warps_of_row(block),
        ),
    )  # fmt: skip
