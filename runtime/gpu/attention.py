"""Attention of a decoding step: the beams of a sentence attend to its caches or to its source.

A program computes one head of one sentence, block by block of keys and values, as flash attention
does: scores, softmax and sums are FP32 and stay in registers. Keys and values that no beam attends
to are not read: their loads are predicated row by row.

Blocks begin at slot 0, their size depends on the head size D and the element type alone, and a
block that no beam attends to changes no bit. So the result of a sentence depends neither on its
neighbours nor on the sizes N, C, P and S (rule 9 of docs/beam-search.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from translate_trt.runtime.gpu.dependence import wait_for_predecessor
from translate_trt.runtime.gpu.launch import Launch, power_of_two

#: Factor of scores: GPUs have an instruction for powers of two, not of e.
_LOG2_E = tl.constexpr(1.4426950408889634)

#: Biases are 0 or about -1e9; keys with a bias below this limit are not attended to.
MASKED = tl.constexpr(-1e4)

#: Bytes of a block of keys, and of one of values.
_BLOCK_BYTES = 8192


@triton.jit
def biases_of(distances, distance, LEAST: tl.constexpr, M: tl.constexpr):
    """Load one head's biases of distances, of which there are those from LEAST to M."""
    return tl.load(distances + (tl.minimum(tl.maximum(distance, LEAST), M) - LEAST))


@triton.jit
def attend_block(query, keys, values, offsets, is_read, is_seen, biases, top, total, context):
    """Include a block of B keys and values in the running results of R beams.

    Args:
        query: Queries [R, D].
        keys: Address of the head's keys.
        values: Address of the head's values.
        offsets: Elements of the block from these addresses [B, D].
        is_read: Elements that are read; others count as 0 [B, D].
        is_seen: Keys that a beam attends to [R, B] or [1, B].
        biases: Terms of the scores [R, B] or [1, B], or None.
        top: Largest score so far, times log2(e) [R].
        total: Sum of softmax numerators relative to `top` [R].
        context: Sum of values, weighted by these numerators [R, D].

    Returns:
        top, total and context with the block, and its scores, times log2(e) [R, B].
    """
    k = tl.load(keys + offsets, mask=is_read, other=0.0)
    v = tl.load(values + offsets, mask=is_read, other=0.0)
    scores = tl.dot(query, tl.trans(k), input_precision="ieee")
    if biases is not None:
        scores += biases
    scores = tl.where(is_seen, scores * _LOG2_E, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)  # inf - inf is NaN
    rescale = tl.exp2(top - base)
    weights = tl.exp2(scores - base[:, None])
    total = total * rescale + tl.sum(weights, 1)
    context *= rescale[:, None]
    context = tl.dot(weights.to(v.dtype), v, context, input_precision="ieee")
    return higher, total, context, scores


@triton.jit(do_not_specialize=["C", "P"])
def cached_attention_kernel(
    qkv, past_key, past_value, ancestry, positions, done, context, distances,
    C, P,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, WRITES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute `cached_attention`; grid (N * H).

    ROWS and COLUMNS are K and D, rounded up; BLOCK is the number of slots of a block. Without
    WRITES, the caches stay as they are.
    """
    wait_for_predecessor(DEPENDENT)
    n = (tl.program_id(0) // H).to(tl.int64)
    h = tl.program_id(0) % H
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    slot = tl.arange(0, BLOCK)
    is_beam = (row < K)[:, None]
    is_element = is_beam & (column < D)[None, :]

    # The first block of the ancestry is read before the position is known, and each further one
    # before its predecessor is needed, so that no key waits for two loads.
    past = ancestry + n * K * P + row[:, None] * P
    bias = tl.load(past + slot[None, :], mask=is_beam & (slot < P)[None, :], other=MASKED)
    first = tl.load(positions + n) * K  # of the slots of this step
    end = tl.where(tl.load(done + n) != 0, 0, tl.minimum(first, P)).to(tl.int32)

    own = qkv + (n * K * 3 * H + h) * D + row[:, None] * (3 * H * D) + column[None, :]
    query = tl.load(own, mask=is_element, other=0.0)
    new_key = tl.load(own + H * D, mask=is_element, other=0.0)
    new_value = tl.load(own + 2 * H * D, mask=is_element, other=0.0)
    keys = past_key + (n * H + h) * C * D
    values = past_value + (n * H + h) * C * D
    if WRITES:
        written = first * D + row[:, None] * D + column[None, :]
        fits = is_element & (first + row < C)[:, None]
        tl.store(keys + written, new_key, mask=fits)
        tl.store(values + written, new_value, mask=fits)

    top = tl.sum(query.to(tl.float32) * new_key.to(tl.float32), 1)
    if distances is not None:
        position = (first // K).to(tl.int32)
        distances += h * (M + 1)
        top += tl.load(distances)
    top *= _LOG2_E
    total = tl.full([ROWS], 1.0, tl.float32)
    result = new_value.to(tl.float32)
    for begin in range(0, end, BLOCK):
        s = begin + slot
        is_seen = (bias > MASKED) & (s < end)[None, :]
        is_following = is_beam & (s + BLOCK < P)[None, :]
        bias = tl.load(past + (s + BLOCK)[None, :], mask=is_following, other=MASKED)
        is_live = tl.max(is_seen.to(tl.int32), 0) != 0  # in the past of any beam
        offsets = s[:, None] * D + column[None, :]
        is_read = is_live[:, None] & (column < D)[None, :]
        biases = None if distances is None else biases_of(distances, position - s // K, 0, M)[None]
        top, total, result, _ = attend_block(
            query, keys, values, offsets, is_read, is_seen, biases, top, total, result
        )
    out = context + (n * K * H + h) * D + row[:, None] * (H * D) + column[None, :]
    tl.store(out, (result / total[:, None]).to(context.dtype.element_ty), mask=is_element)


@triton.jit(do_not_specialize=["S"])
def beam_attention_kernel(
    query, key, value, source_bias, done, context, scores, log_totals,
    S,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, KEEP_SCORES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute `beam_attention`; grid (N * H). ROWS, COLUMNS, BLOCK: see `cached_attention_kernel`.

    With KEEP_SCORES, also store `scores` [N, H, K, S] and the logarithms of their softmax
    denominators, `log_totals` [N, H, K], both to base 2; none of rows that are done.
    """
    wait_for_predecessor(DEPENDENT)
    n = (tl.program_id(0) // H).to(tl.int64)
    h = tl.program_id(0) % H
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    token = tl.arange(0, BLOCK)
    is_element = (row < K)[:, None] & (column < D)[None, :]

    # As in `cached_attention_kernel`, biases are read a block ahead.
    biases = source_bias + n * S
    bias = tl.load(biases + token, mask=token < S, other=MASKED)
    end = tl.where(tl.load(done + n) != 0, 0, S)
    own = (n * K * H + h) * D + row[:, None] * (H * D) + column[None, :]
    q = tl.load(query + own, mask=is_element, other=0.0)
    keys = key + (n * H + h) * S * D
    values = value + (n * H + h) * S * D

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, end, BLOCK):
        s = begin + token
        is_seen = bias > MASKED
        bias = tl.load(biases + s + BLOCK, mask=s + BLOCK < S, other=MASKED)
        offsets = s[:, None] * D + column[None, :]
        is_read = is_seen[:, None] & (column < D)[None, :]
        top, total, result, block = attend_block(
            q, keys, values, offsets, is_read, is_seen[None, :], None, top, total, result
        )
        if KEEP_SCORES:
            kept = scores + (n * H + h) * K * S + row[:, None] * S + s[None, :]
            tl.store(kept, block, mask=(row < K)[:, None] & (s < S)[None, :])
    is_empty = total == 0  # the row is done, or has padding alone: zeros
    total = tl.where(is_empty, 1.0, total)
    result /= total[:, None]
    tl.store(context + own, result.to(context.dtype.element_ty), mask=is_element)
    if KEEP_SCORES:
        log_total = tl.where(is_empty, 0.0, top + tl.log2(total))
        tl.store(log_totals + (n * H + h) * K + row, log_total, mask=row < K)


@triton.jit(do_not_specialize=["S"])
def attention_mean_kernel(
    scores, log_totals, done, attention,
    S,
    H: tl.constexpr, K: tl.constexpr, AVERAGED: tl.constexpr, COUNT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Average softmax weights over heads; grid (N, ceil(S / BLOCK)).

    Bit h of AVERAGED chooses head h, and COUNT is the number of these bits. The arguments are
    those of `beam_attention_kernel` and `beam_attention_mean`.
    """
    wait_for_predecessor(DEPENDENT)
    n = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_weight = (row < K)[:, None] & (token < S)[None, :]
    is_read = is_weight & (token < tl.where(tl.load(done + n) != 0, 0, S))[None, :]
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for h in tl.static_range(H):
        if (AVERAGED >> h) & 1:
            first = (n * H + h) * K
            head = scores + first * S + row[:, None] * S + token[None, :]
            log_total = tl.load(log_totals + first + row, mask=row < K, other=0.0)
            score = tl.load(head, mask=is_read, other=float("-inf"))
            total += tl.exp2(score - log_total[:, None])
    out = attention + n * K * S + row[:, None] * S + token[None, :]
    tl.store(out, total / COUNT, mask=is_weight)


def cached_attention(
    qkv: Tensor,
    past_key: Tensor,
    past_value: Tensor,
    ancestry: Tensor,
    positions: Tensor,
    done: Tensor,
    context: Tensor,
    distances: Tensor | None = None,
    *,
    heads: int,
    writes: bool = True,
) -> tuple[Launch, ...]:
    """Write a step's keys and values into the caches, and attend over each beam's history.

    A beam attends to slots of its past below `positions[n] * K`, and to its own new slot, which is
    not read from the cache. T is FP32, FP16 or BF16. All tensors are contiguous.

    Args:
        qkv: Scaled queries, keys and values [N, K, 3 * H * D], T; K is at most 16.
        past_key: Cache [N, H, C, D], T; beam k writes slot `positions[n] * K + k` if it is below C.
        past_value: Cache, as `past_key`.
        ancestry: 0 for slots in a beam's past, else about -1e9 [N, K, P], float32; P is at most C.
        positions: Position of each sentence [N], int64.
        done: Rows that ignore their past, since their results are not needed [N], bool.
        context: Output [N, K, H * D], T.
        distances: Biases of scores by the distance of a query from its key [H, M + 1], float32;
            of larger distances, those of M.
        heads: Number of heads H.
        writes: Whether to write the caches, which may also have been written before.
    """
    tensors = {
        "qkv": qkv, "past_key": past_key, "past_value": past_value, "ancestry": ancestry,
        "positions": positions, "done": done, "context": context, "distances": distances,
    }  # fmt: skip
    sizes = {"C": past_key.shape[2], "P": ancestry.shape[2]}
    flags = {"WRITES": writes, "M": 0 if distances is None else distances.shape[1] - 1}
    return (_launch(cached_attention_kernel, tensors, sizes, context, heads, **flags),)


def beam_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    source_bias: Tensor,
    done: Tensor,
    context: Tensor,
    *,
    heads: int,
) -> tuple[Launch, ...]:
    """Attend over the source.

    T is FP32, FP16 or BF16. All tensors are contiguous.

    Args:
        query: Scaled queries [N, K, H * D], T; K is at most 16.
        key: [N, H, S, D], T; padding is not read.
        value: As `key`.
        source_bias: 0 for tokens, about -1e9 for padding [N, 1, 1, S], float32.
        done: Rows that get zeros, since their results are not needed [N], bool.
        context: Output [N, K, H * D], T.
        heads: Number of heads H.
    """
    tensors = {
        "query": query, "key": key, "value": value, "source_bias": source_bias, "done": done,
        "context": context, "scores": source_bias, "log_totals": source_bias,  # both unused
    }  # fmt: skip
    sizes = {"S": key.shape[2]}
    return (_launch(beam_attention_kernel, tensors, sizes, context, heads, KEEP_SCORES=False),)


def beam_attention_mean(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    source_bias: Tensor,
    done: Tensor,
    context: Tensor,
    attention: Tensor,
    *,
    heads: int,
    averaged: Collection[int],
) -> tuple[Launch, ...]:
    """Attend over the source as `beam_attention` does, and average the weights of heads `averaged`.

    `attention` [N, K, S], float32, is the output of the mean. Padding has 0, and so have rows that
    are done. The first launch stores the scores in a scratch buffer; the second one makes weights
    of them, which needs the softmax denominators.
    """
    n, k, s = attention.shape
    scores = attention.new_empty(n, heads, k, s)
    log_totals = attention.new_empty(n, heads, k)
    tensors = {
        "query": query, "key": key, "value": value, "source_bias": source_bias, "done": done,
        "context": context, "scores": scores, "log_totals": log_totals,
    }  # fmt: skip
    attend = _launch(beam_attention_kernel, tensors, {"S": s}, context, heads, KEEP_SCORES=True)
    block = 128
    mean = Launch(
        kernel=attention_mean_kernel,
        grid=(n, triton.cdiv(s, block)),
        arguments={
            "scores": scores, "log_totals": log_totals, "done": done, "attention": attention, "S": s
        },
        constants={
            "H": heads, "K": k, "AVERAGED": sum(1 << h for h in {*averaged}),
            "COUNT": len({*averaged}), "ROWS": power_of_two(k), "BLOCK": block,
        },
    )  # fmt: skip
    return attend, mean


def block_of_keys(size: int, dtype: torch.dtype) -> tuple[int, int]:
    """Size of a head, rounded up, and number of keys of a block, from a head size and the type."""
    columns = power_of_two(size, least=16)  # 16: as many as an MMA adds up
    return columns, max(16, min(128, _BLOCK_BYTES // (columns * dtype.itemsize)))


def _launch(
    kernel: Any,
    tensors: Mapping[str, Tensor | None],
    sizes: Mapping[str, int],
    context: Tensor,
    heads: int,
    **flags: int,
) -> Launch:
    """Describe the launch of one program for each head of context [N, K, H * D]."""
    n, k, width = context.shape
    columns, block = block_of_keys(width // heads, context.dtype)
    constants = {
        "H": heads, "K": k, "D": width // heads,
        "ROWS": power_of_two(k), "COLUMNS": columns, "BLOCK": block,
    }  # fmt: skip
    # The loads of one or two further blocks are in flight while a block is computed. With more than
    # four beams, three stages need more registers than there are for several programs; with one
    # beam, they spill for compute capability 8.0.
    stages = 3 if 1 < k <= 4 else 2
    return Launch(kernel, (n * heads,), {**tensors, **sizes}, {**constants, **flags}, stages=stages)
