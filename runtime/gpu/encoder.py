"""Kernels of the encoder: self-attention, the source's bias, and the split into heads.

Self-attention is flash attention over the tokens of each sentence: keys that are padding are not
read, and queries that are padding get zeros, which nothing reads. Blocks of queries and of keys
begin at token 0, their sizes depend on the head size D and the element type alone, so the result of
a sentence depends neither on its neighbours nor on the sizes N and S.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from translate_trt.runtime.bundle import contract
from translate_trt.runtime.gpu.attention import MASKED, attend_block, biases_of, block_of_keys
from translate_trt.runtime.gpu.dependence import wait_for_predecessor
from translate_trt.runtime.gpu.launch import Launch, power_of_two

#: Bytes of the rows of one head that a program copies.
_COPIED_BYTES = 8192

#: Biases that are read at once to find the end of a sentence.
_SCANNED = 1024


@triton.jit(do_not_specialize=["S"])
def self_attention_kernel(
    qkv, source_bias, context, distances,
    S,
    H: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, SCANNED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute `self_attention` for ROWS queries of one head; grid (ceil(S / ROWS), H, N).

    COLUMNS is D, rounded up; BLOCK is the number of keys of a block.
    """
    wait_for_predecessor(DEPENDENT)
    n = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1)
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    token = tl.arange(0, BLOCK)
    is_column = (column < D)[None, :]

    biases = source_bias + n * S
    is_query = tl.load(biases + row, mask=row < S, other=MASKED) > MASKED
    bias = tl.load(biases + token, mask=token < S, other=MASKED)
    own = qkv + n * S * (3 * H * D) + h * D + column[None, :]
    query = tl.load(own + row[:, None] * (3 * H * D), mask=is_query[:, None] & is_column, other=0.0)
    end = 0  # of the sentence
    for begin in range(0, S, SCANNED):
        s = begin + tl.arange(0, SCANNED)
        is_token = tl.load(biases + s, mask=s < S, other=MASKED) > MASKED
        end = tl.maximum(end, tl.max(tl.where(is_token, s + 1, 0), 0))
    end = tl.where(first < end, end, 0)  # a block of padding has no keys

    if distances is not None:
        distances += h * (2 * M + 1)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, end, BLOCK):
        s = begin + token
        is_seen = bias > MASKED
        bias = tl.load(biases + s + BLOCK, mask=s + BLOCK < S, other=MASKED)
        distance = s[None, :] - row[:, None]
        relative = None if distances is None else biases_of(distances, distance, -M, M)
        top, total, result, _ = attend_block(
            query, own + H * D, own + 2 * H * D, s[:, None] * (3 * H * D),
            is_seen[:, None] & is_column, is_seen[None, :], relative, top, total, result,
        )  # fmt: skip
    result = tl.where(is_query[:, None], result / tl.where(is_query, total, 1.0)[:, None], 0.0)
    out = context + (n * S * H + h) * D + row[:, None] * (H * D) + column[None, :]
    tl.store(out, result.to(context.dtype.element_ty), mask=(row < S)[:, None] & is_column)


@triton.jit(do_not_specialize=["S"])
def split_heads_kernel(
    x, parts,
    S,
    H: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Copy ROWS tokens of one head of a part; grid (ceil(S / ROWS), parts * H, N)."""
    wait_for_predecessor(DEPENDENT)
    n = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1) // H
    h = tl.program_id(1) % H
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    is_element = (row < S)[:, None] & (column < D)[None, :]
    out = parts[0]
    for i in tl.static_range(1, len(parts)):
        out = tl.where(part == i, parts[i], out)
    width: tl.constexpr = len(parts) * H * D
    own = x + n * S * width + tl.program_id(1) * D + row[:, None] * width + column[None, :]
    copied = tl.load(own, mask=is_element)
    tl.store(
        out + (n * H + h) * S * D + row[:, None] * D + column[None, :], copied, mask=is_element
    )


@triton.jit(do_not_specialize=["S"])
def source_bias_kernel(
    source_lengths,
    bias,
    S,
    HIDDEN: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Write BLOCK biases of a sentence; grid (N, ceil(S / BLOCK))."""
    wait_for_predecessor(DEPENDENT)
    n = tl.program_id(0).to(tl.int64)
    s = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    end = tl.load(source_lengths + n) - HIDDEN
    tl.store(bias + n * S + s, tl.where(s < end, 0.0, PADDING), mask=s < S)


def self_attention(
    qkv: Tensor,
    source_bias: Tensor,
    context: Tensor,
    distances: Tensor | None = None,
    *,
    heads: int,
) -> tuple[Launch, ...]:
    """Describe self-attention of the encoder.

    T is FP32, FP16 or BF16. All tensors are contiguous.

    Args:
        qkv: Scaled queries, keys and values [N, S, 3 * H * D], T; padding is not read.
        source_bias: 0 for tokens, about -1e9 for padding [N, 1, 1, S], float32.
        context: Output [N, S, H * D], T; zeros for padding.
        distances: Biases of scores by the distance of a key from its query, from -M to M
            [H, 2 * M + 1], float32; larger distances have the biases of these.
        heads: Number of heads H.
    """
    n, s, width = context.shape
    columns, block = block_of_keys(width // heads, context.dtype)
    if distances is not None:  # a bias and its address for each score are in registers as well
        block = max(16, block // 2)
    # FP32 has no MMA: more threads share the operands, which are in registers.
    rows, warps = (64, 4) if context.element_size() == 2 else (32, 8)
    return (
        Launch(
            self_attention_kernel,
            (triton.cdiv(s, rows), heads, n),
            {
                "qkv": qkv, "source_bias": source_bias, "context": context, "S": s,
                "distances": distances,
            },
            {
                "H": heads, "D": width // heads,
                "M": 0 if distances is None else distances.shape[1] // 2,
                "ROWS": rows, "COLUMNS": columns, "BLOCK": block, "SCANNED": _SCANNED,
            },
            warps=warps,
        ),
    )  # fmt: skip


def split_heads(x: Tensor, parts: Sequence[Tensor]) -> tuple[Launch, ...]:
    """Describe the copy of the columns of a matmul to heads of equal sizes.

    Args:
        x: C parts beside each other [N, S, C * H * D].
        parts: The C outputs [N, H, S, D], of the same type.
    """
    n, heads, s, size = parts[0].shape
    columns = power_of_two(size)
    rows = max(1, _COPIED_BYTES // (columns * x.element_size()))
    return (
        Launch(
            split_heads_kernel,
            (triton.cdiv(s, rows), len(parts) * heads, n),
            {"x": x, "parts": tuple(parts), "S": s},
            {"H": heads, "D": size, "ROWS": rows, "COLUMNS": columns},
        ),
    )


def source_bias(source_lengths: Tensor, bias: Tensor, *, hidden: int) -> tuple[Launch, ...]:
    """Describe the bias that masks padding and the last `hidden` tokens of each sentence.

    Args:
        source_lengths: [N], int64.
        bias: Output [N, 1, 1, S], float32.
        hidden: 0 or 1.
    """
    n, s = bias.shape[0], bias.shape[3]
    block = 128
    return (
        Launch(
            source_bias_kernel,
            (n, triton.cdiv(s, block)),
            {"source_lengths": source_lengths, "bias": bias, "S": s},
            {"HIDDEN": hidden, "PADDING": contract.MASKED, "BLOCK": block},
            warps=1,
        ),
    )
