"""Rules that fuse attention, and the split into heads in the encoder."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from translate_trt.export.fused_ops.declarations import RELATIVE_SOURCE_BIAS
from translate_trt.export.fused_ops.matching import FusedNode, numbers, producer
from translate_trt.export.passes.base import axes, constant, operand

_BIAS = 5  # index among the inputs of MultiHeadAttention


class _Cached(NamedTuple):
    """Keys and values that an attention reads, before casts to FP32."""

    key: ir.Value
    value: ir.Value
    fp16: bool

    def operator(self, name: str) -> str:
        """Return the variant of a fused operator for these keys and values."""
        return f"{name}16" if self.fp16 else name


def _cached(attention: ir.Node) -> _Cached | None:
    """Find the attention's keys and values; None where their element types differ."""
    read = [operand(attention, index) for index in (1, 2)]
    stored = [_cast_from_fp16(x) or x for x in read]
    fp16 = [x is not y for x, y in zip(read, stored, strict=True)]
    return _Cached(stored[0], stored[1], fp16[0]) if fp16[0] == fp16[1] else None


def _cast_from_fp16(value: ir.Value) -> ir.Value | None:
    """Find the FP16 value of which a value is a cast, as the pass fp16-kv-cache inserts it."""
    cast = producer(value, "Cast")
    fp16 = cast is not None and operand(cast, 0).dtype == ir.DataType.FLOAT16
    return operand(cast, 0) if cast is not None and fp16 else None


def cached_attention(node: ir.Node) -> FusedNode | str | None:
    """Match attention over caches that the step writes, as fuse-multi-head emits it."""
    cached = _cached(node)
    if cached is None:
        return "keys and values have different element types"
    key_write, value_write = (producer(x, "ScatterND") for x in (cached.key, cached.value))
    if key_write is None or value_write is None:
        return None
    query = operand(node, 0)
    split = producer(query, "Split")
    written = [query, *(_before_heads(write, cached.fp16) for write in (key_write, value_write))]
    if split is None or written != list(split.outputs):
        return "queries, keys and values are not the outputs of one matmul, in this order"
    indices = operand(key_write, 1)
    slots = _slots(indices)
    if slots is None or value_write.inputs[1] is not indices:
        return "the slots that are written are not known"
    sizes = constant(split.inputs[1])
    assert sizes is not None  # merge-matmuls emits constants
    heads = node.attributes["num_heads"].as_int()
    return FusedNode(
        cached.operator("CachedAttention"),
        (
            operand(split, 0),
            operand(key_write, 0),
            operand(value_write, 0),
            slots,
            operand(node, _BIAS),
        ),
        (node.outputs[0], cached.key, cached.value),
        {
            "heads": heads,
            "head_shape": [0, 0, heads, int(sizes[0]) // heads],
            "splits": sizes.tolist(),
        },
    )


def _before_heads(write: ir.Node, fp16: bool) -> ir.Value | None:
    """Find what ScatterND writes, before the split into heads and the cast to FP16."""
    split = producer(write.inputs[2], "Reshape")
    value = split.inputs[0] if split is not None else None
    for operator in ("Cast", "Clip") if fp16 else ():
        node = producer(value, operator)
        value = node.inputs[0] if node is not None else None
    return value


def _slots(indices: ir.Value) -> ir.Value | None:
    """Find the slots [N, K] in indices [N, K, H, 3] of a cache."""
    concat = producer(indices, "Concat")
    value = concat.inputs[-1] if concat is not None else None
    for operator in ("Unsqueeze", "Expand", "Unsqueeze"):
        node = producer(value, operator)
        if node is None and operator == "Expand":  # of a single head, which needs none
            continue
        value = node.inputs[0] if node is not None else None
    return value


def beam_attention(node: ir.Node) -> FusedNode | str | None:
    """Match attention of all beams over the source, as fuse-multi-head emits it."""
    cached = _cached(node)
    if cached is None:
        return None  # cached_attention has reported it
    if len(axes(cached.key) or ()) != 4 or producer(cached.key, "ScatterND") is not None:
        return None  # self-attention of the encoder, or attention over caches
    repeated = producer(operand(node, _BIAS), "Expand")
    if repeated is None:
        return "beams have different biases"
    inputs = (operand(node, 0), cached.key, cached.value, operand(repeated, 0))
    heads = node.attributes["num_heads"].as_int()
    return FusedNode(cached.operator("BeamAttention"), inputs, node.outputs, {"heads": heads})


def beam_attention_mean(node: ir.Node) -> FusedNode | str | None:
    """Match the mean over heads of weights that a fused attention over the source computes."""
    weights, averaged = node.inputs[0], None
    chosen = producer(weights, "Gather")
    if chosen is not None and chosen.attributes.get_int("axis", 0) == 1:
        weights, averaged = chosen.inputs[0], constant(chosen.inputs[1])
    softmax = producer(weights, "Softmax")
    total = producer(softmax.inputs[0], "Add") if softmax is not None else None
    scores = producer(total.inputs[0], "MatMul") if total is not None else None
    if softmax is None or total is None or scores is None:
        return None
    by_head = producer(_transposed(scores.inputs[0], (0, 2, 1, 3)), "Reshape")
    key, last = _transposed(scores.inputs[1], (0, 1, 3, 2)), softmax.attributes.get_int("axis", -1)
    axis = numbers(node.inputs[1]) if len(node.inputs) > 1 else None
    means = axis == [1] and not node.attributes.get_int("keepdims", 1)
    if by_head is None or key is None or last not in (-1, 3) or not means:
        return None
    read = [operand(by_head, 0), _cast_from_fp16(key) or key, operand(total, 1)]
    names = ("BeamAttention", "BeamAttention16")
    readers = [use.node for use in read[0].uses() if use.node.op_type in names]
    fused = [one for one in readers if [one.inputs[index] for index in (0, 1, 3)] == read]
    if not fused:
        return "no fused attention has these weights"
    heads = fused[0].attributes["heads"].as_int()
    return FusedNode(
        fused[0].op_type.replace("Attention", "AttentionMean"),
        [operand(fused[0], index) for index in range(4)],
        (fused[0].outputs[0], node.outputs[0]),
        {"heads": heads, "averaged": [*range(heads)] if averaged is None else averaged.tolist()},
    )


def _transposed(value: ir.Value | None, order: tuple[int, ...]) -> ir.Value | None:
    """Find the value whose axes a Transpose puts into this order."""
    transpose = producer(value, "Transpose")
    same = transpose is not None and transpose.attributes["perm"].as_ints() == order
    return transpose.inputs[0] if transpose is not None and same else None


def self_attention(node: ir.Node) -> FusedNode | str | None:
    """Match self-attention of the encoder, as fuse-multi-head emits it."""
    read = [operand(node, index) for index in range(3)]
    if len(axes(read[1]) or ()) != 3:
        return None  # attention of the decoder
    split = producer(read[0], "Split")
    if split is None or read != list(split.outputs):
        return "queries, keys and values are not the outputs of one matmul, in this order"
    bias = operand(node, _BIAS)
    repeated = producer(bias, "Expand")
    if repeated is not None:
        bias = operand(repeated, 0)
    elif producer(bias, RELATIVE_SOURCE_BIAS) is None:
        return "tokens have different biases"
    sizes = constant(split.inputs[1])
    assert sizes is not None  # merge-matmuls emits constants
    if len(set(sizes.tolist())) > 1:
        return "keys and values have different sizes"
    attributes = {"heads": node.attributes["num_heads"].as_int(), "splits": sizes.tolist()}
    return FusedNode("SelfAttention", (operand(split, 0), bias), node.outputs, attributes)


def split_heads(node: ir.Node) -> FusedNode | None:
    """Match keys or values that the encoder returns, a part of the columns of one matmul."""
    (heads,) = node.outputs
    reshape = producer(node.inputs[0], "Reshape")
    if reshape is None or not heads.is_graph_output():
        return None
    part, sizes = operand(reshape, 0), axes(operand(node, 0))
    split = producer(part, "Split")
    if split is None or sizes is None or node.attributes["perm"].as_ints() != (0, 2, 1, 3):
        return None
    columns = constant(split.inputs[1])
    head_sizes = [size for size in sizes[2:] if isinstance(size, int)]
    if columns is None or len(head_sizes) != 2:
        return None
    whole = _before_cast(operand(split, 0))
    index = list(split.outputs).index(part)
    begin, end = int(columns[:index].sum()), int(columns[: index + 1].sum())
    return FusedNode(
        "SplitHeads16" if whole is not split.inputs[0] else "SplitHeads",
        (whole,),
        node.outputs,
        {"begin": [begin], "end": [end], "head_shape": [0, 0, *head_sizes]},
    )


def _before_cast(value: ir.Value) -> ir.Value:
    """Find the value before the clamp and cast that the pass fp16-kv-cache inserts, if any."""
    cast = producer(value, "Cast")
    clip = producer(cast.inputs[0], "Clip") if cast is not None else None
    return value if clip is None else operand(clip, 0)
