"""Fused operator TopLogits: the best logits of each beam, as log-probabilities.

Two launches read the logits once. The first reduces blocks of a row: each to its maximum and the
sum of exponentials, and each group of adjacent logits to its maximum. The second, one program for
each row, selects the best C groups by (maximum, index) and reads only these again: they have the
best C logits, because every better group has a logit that precedes all of a worse one
(`translate_trt.runtime.backends.pytorch.onnx_operators.top_k`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from translate_trt.runtime.gpu.dependence import wait_for_predecessor
from translate_trt.runtime.gpu.launch import Launch, power_of_two
from translate_trt.runtime.gpu.total_order import (
    EMPTY,
    best_keys,
    key_index,
    key_value,
    make_keys,
    order_of,
    value_of,
)

# Logits of a program of the first launch, and of a group.
_BLOCK = 2048
_GROUP = 64

# Sums over fewer blocks than this are added in the same order, so that columns of minus infinity
# behind the vocabulary do not change a bit (rule 9).
_LEAST_BLOCKS = 64


@triton.jit
def reduce_logits(
    logits, bias, group_maxima, block_maxima, block_sums,
    HAS_BIAS: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Reduce a block of one row. Grid: [N * K * blocks of a row]."""
    wait_for_predecessor(DEPENDENT)
    BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
    GROUPS: tl.constexpr = (V + GROUP - 1) // GROUP
    program = tl.program_id(0).to(tl.int64)
    row = program // BLOCKS
    first_group = (program % BLOCKS).to(tl.int32) * (BLOCK // GROUP)
    groups = first_group + tl.arange(0, BLOCK // GROUP)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(logits + row * V + columns, columns < V, float("-inf")).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias + columns, columns < V, 0.0)
    maxima = tl.max(order_of(x), 1)
    tl.store(group_maxima + row * GROUPS + groups, maxima, groups < GROUPS)
    largest = value_of(tl.max(maxima))
    # A block of minus infinity adds nothing; minus infinity less itself would be NaN.
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    tl.store(block_maxima + program, largest)
    tl.store(block_sums + program, tl.sum(tl.exp(x - shift)))


@triton.jit
def select_logits(
    logits, bias, forced_tokens, group_maxima, block_maxima, block_sums,
    values, indices, at_columns,
    HAS_BIAS: tl.constexpr, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr,
    BLOCK: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_SLOTS: tl.constexpr, GROUP_SLOTS: tl.constexpr, BEST_SLOTS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Select the best C of one row. Grid: [N * K]. Slots are counts, rounded to powers of two."""
    wait_for_predecessor(DEPENDENT)
    BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
    GROUPS: tl.constexpr = (V + GROUP - 1) // GROUP
    row = tl.program_id(0).to(tl.int64)
    logits += row * V

    blocks = tl.arange(0, BLOCK_SLOTS)
    at = row * BLOCKS + blocks
    maxima = tl.load(block_maxima + at, blocks < BLOCKS, float("-inf"))
    sums = tl.load(block_sums + at, blocks < BLOCKS, 0.0)
    largest = tl.max(maxima)
    log_total = largest + tl.log(tl.sum(sums * tl.exp(maxima - largest)))

    groups = tl.arange(0, GROUP_SLOTS)
    ordered = tl.load(group_maxima + row * GROUPS + groups, groups < GROUPS, 0)
    keys = tl.where(groups < GROUPS, make_keys(ordered, groups), EMPTY)
    chosen = key_index(best_keys(keys, min(C, GROUPS), BEST_SLOTS))
    of_groups = chosen[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    exists = of_groups < V  # false for all of an empty key
    x = tl.load(logits + of_groups, exists, float("-inf")).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias + of_groups, exists, 0.0)
    keys = tl.where(exists, make_keys(order_of(x), of_groups), EMPTY)
    best = best_keys(keys, C, BEST_SLOTS)

    ranks = tl.arange(0, BEST_SLOTS)
    tl.store(values + row * C + ranks, key_value(best) - log_total, ranks < C)
    tl.store(indices + row * C + ranks, key_index(best), ranks < C)
    forced = tl.load(forced_tokens + row // K)
    column = tl.maximum(tl.maximum(forced, -2 - forced), 0)
    found = tl.load(logits + column, (column >= 0) & (column < V), float("nan")).to(tl.float32)
    if HAS_BIAS:
        found += tl.load(bias + column, (column >= 0) & (column < V), 0.0)
    tl.store(at_columns + row, found - log_total)


def top_logits(
    logits: Tensor,
    forced_tokens: Tensor,
    values: Tensor,
    indices: Tensor,
    at_columns: Tensor,
    bias: Tensor | None = None,
) -> tuple[Launch, ...]:
    """Find the best logits of each beam, and look one up, as log-probabilities.

    The body of the operator, export/fused_ops/bodies/gpu_top_logits.onnxtxt, defines the results;
    the logarithm of the sum of exponentials may be rounded in another way.

    Args:
        logits: [N, K, V], contiguous, float16, bfloat16 or float32.
        forced_tokens: [N] int64, as `unscored` of runtime/bundle/contract.py encodes them.
        values: [N, K, C] float32, output; C is at most V.
        indices: [N, K, C] int64, output.
        at_columns: [N, K, 1] float32, output: of the forced token, or of token 0.
        bias: Bias of the logits [V], float32, if any.
    """
    vocabulary, count = logits.shape[2], values.shape[2]
    rows = logits.shape[0] * logits.shape[1]
    blocks, groups = (-(-vocabulary // size) for size in (_BLOCK, _GROUP))
    slots = {
        "BLOCK_SLOTS": power_of_two(blocks, _LEAST_BLOCKS),
        "GROUP_SLOTS": power_of_two(groups),
        "BEST_SLOTS": power_of_two(count),
    }
    scratch = {
        "group_maxima": torch.empty(rows, groups, dtype=torch.int32, device=logits.device),
        "block_maxima": torch.empty(rows, blocks, dtype=torch.float32, device=logits.device),
        "block_sums": torch.empty(rows, blocks, dtype=torch.float32, device=logits.device),
    }
    tensors = {"logits": logits, "bias": scratch["block_maxima"] if bias is None else bias}
    sizes = {"HAS_BIAS": bias is not None, "V": vocabulary, "BLOCK": _BLOCK, "GROUP": _GROUP}
    results = {"values": values, "indices": indices, "at_columns": at_columns}
    largest = max(slots["GROUP_SLOTS"], slots["BEST_SLOTS"] * _GROUP)
    return (
        Launch(reduce_logits, (rows * blocks,), {**tensors, **scratch}, sizes),
        Launch(
            select_logits,
            (rows,),
            {**tensors, "forced_tokens": forced_tokens, **scratch, **results},
            {"K": logits.shape[1], **sizes, "C": count, **slots},
            warps=8 if largest > 2048 else 4,
        ),
    )
