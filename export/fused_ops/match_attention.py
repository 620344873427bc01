"""The three attentions as calls, and the heads that the encoder splits for one of them."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from translate_trt.export.fused_ops.matching import FusedNode, operand, producer
from translate_trt.export.passes.base import axes, constant

_BIAS = 5  # the place among the inputs of MultiHeadAttention


class _Cached(NamedTuple):
    """Keys and values that an attention reads: as they are kept, and whether that is in 16 bits."""

    key: ir.Value
    value: ir.Value
    half: bool

    def function(self, name: str) -> str:
        """The name of a function for such keys and values."""
        return f"{name}16" if self.half else name


def _cached(attention: ir.Node) -> _Cached | None:
    """What the operator reads; None where keys and values are not kept alike."""
    read = [operand(attention, index) for index in (1, 2)]
    kept = [_widened(x) or x for x in read]
    half = [x is not y for x, y in zip(read, kept, strict=True)]
    return _Cached(kept[0], kept[1], half[0]) if half[0] == half[1] else None


def _widened(value: ir.Value) -> ir.Value | None:
    """What half-caches casts to floats where it is read."""
    cast = producer(value, "Cast")
    half = cast is not None and operand(cast, 0).dtype == ir.DataType.FLOAT16
    return operand(cast, 0) if cast is not None and half else None


def cached_attention(node: ir.Node) -> FusedNode | str | None:
    """Attention over caches that are written just before, as fuse-multi-head makes it."""
    cached = _cached(node)
    if cached is None:
        return "keys are kept in another type than values"
    key_write, value_write = (producer(x, "ScatterND") for x in (cached.key, cached.value))
    if key_write is None or value_write is None:
        return None
    query = operand(node, 0)
    split = producer(query, "Split")
    written = [query, *(_before_heads(write, cached.half) for write in (key_write, value_write))]
    if split is None or written != list(split.outputs):
        return "queries, keys and values are not what one product writes, in this order"
    places = operand(key_write, 1)
    slots = _slots(places)
    if slots is None or value_write.inputs[1] is not places:
        return "it is not known which slots are written"
    sizes = constant(split.inputs[1])
    assert sizes is not None  # of merge-products
    heads = node.attributes["num_heads"].as_int()
    return FusedNode(
        cached.function("CachedAttention"),
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


def _before_heads(write: ir.Node, half: bool) -> ir.Value | None:
    """What ScatterND writes, before it was split into heads and, by half-caches, cast."""
    split = producer(write.inputs[2], "Reshape")
    value = split.inputs[0] if split is not None else None
    for operator in ("Cast", "Clip") if half else ():
        node = producer(value, operator)
        value = node.inputs[0] if node is not None else None
    return value


def _slots(places: ir.Value) -> ir.Value | None:
    """The slots [N, K] that places [N, K, H, 3] in a cache are made of."""
    concat = producer(places, "Concat")
    value = concat.inputs[-1] if concat is not None else None
    for operator in ("Unsqueeze", "Expand", "Unsqueeze"):
        node = producer(value, operator)
        value = node.inputs[0] if node is not None else None
    return value


def beam_attention(node: ir.Node) -> FusedNode | str | None:
    """Attention of all beams over the source, as fuse-multi-head makes it."""
    cached = _cached(node)
    if cached is None:
        return None  # which has been said
    if len(axes(cached.key) or ()) != 4 or producer(cached.key, "ScatterND") is not None:
        return None  # the encoder's, whose keys have no heads yet, or one over caches
    repeated = producer(operand(node, _BIAS), "Expand")
    if repeated is None:
        return "each beam has a bias of its own"
    inputs = (operand(node, 0), cached.key, cached.value, operand(repeated, 0))
    heads = node.attributes["num_heads"].as_int()
    return FusedNode(cached.function("BeamAttention"), inputs, node.outputs, {"heads": heads})


def self_attention(node: ir.Node) -> FusedNode | str | None:
    """Attention of all source tokens over each other, as fuse-multi-head makes it."""
    read = [operand(node, index) for index in range(3)]
    if len(axes(read[1]) or ()) != 3:
        return None  # the decoder's, whose keys have heads
    split = producer(read[0], "Split")
    if split is None or read != list(split.outputs):
        return "queries, keys and values are not what one product writes, in this order"
    repeated = producer(operand(node, _BIAS), "Expand")
    if repeated is None:
        return "each token has a bias of its own"
    sizes = constant(split.inputs[1])
    assert sizes is not None  # of merge-products
    if len(set(sizes.tolist())) > 1:
        return "keys and values have different sizes"
    attributes = {"heads": node.attributes["num_heads"].as_int(), "splits": sizes.tolist()}
    return FusedNode(
        "SelfAttention", (operand(split, 0), operand(repeated, 0)), node.outputs, attributes
    )


def split_heads(node: ir.Node) -> FusedNode | None:
    """Keys or values that the encoder hands on, each a part of one product."""
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
    whole = _unlimited(operand(split, 0))
    index = list(split.outputs).index(part)
    begin, end = int(columns[:index].sum()), int(columns[: index + 1].sum())
    return FusedNode(
        "SplitHeads16" if whole is not split.inputs[0] else "SplitHeads",
        (whole,),
        node.outputs,
        {"begin": [begin], "end": [end], "head_shape": [0, 0, *head_sizes]},
    )


def _unlimited(value: ir.Value) -> ir.Value:
    """What half-caches limits and casts to 16 bits, if it does."""
    cast = producer(value, "Cast")
    clip = producer(cast.inputs[0], "Clip") if cast is not None else None
    return value if clip is None else operand(clip, 0)
