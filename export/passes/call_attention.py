"""Both attentions of a step as calls."""

from __future__ import annotations

import onnx_ir as ir

from translate_trt.export.passes.base import axes, constant
from translate_trt.export.passes.calls import Call, operand, producer

_BIAS = 5  # the place among the inputs of MultiHeadAttention


def cached_attention(node: ir.Node) -> Call | str | None:
    """Attention over caches that are written just before, as fuse-multi-head makes it."""
    query, key, value = (operand(node, index) for index in range(3))
    key_write, value_write = (producer(x, "ScatterND") for x in (key, value))
    if key_write is None or value_write is None:
        return None
    split = producer(query, "Split")
    written = [query, *(_before_heads(write) for write in (key_write, value_write))]
    if split is None or written != list(split.outputs):
        return "queries, keys and values are not what one product writes, in this order"
    places = operand(key_write, 1)
    slots = _slots(places)
    if slots is None or value_write.inputs[1] is not places:
        return "it is not known which slots are written"
    sizes = constant(split.inputs[1])
    assert sizes is not None  # of merge-products
    heads = node.attributes["num_heads"].as_int()
    return Call(
        "CachedAttention",
        (
            operand(split, 0),
            operand(key_write, 0),
            operand(value_write, 0),
            slots,
            operand(node, _BIAS),
        ),
        (node.outputs[0], key, value),
        {
            "heads": heads,
            "head_shape": [0, 0, heads, int(sizes[0]) // heads],
            "splits": sizes.tolist(),
        },
    )


def _before_heads(write: ir.Node) -> ir.Value | None:
    """What ScatterND writes, before it was split into heads."""
    split = producer(write.inputs[2], "Reshape")
    return split.inputs[0] if split is not None else None


def _slots(places: ir.Value) -> ir.Value | None:
    """The slots [N, K] that places [N, K, H, 3] in a cache are made of."""
    concat = producer(places, "Concat")
    value = concat.inputs[-1] if concat is not None else None
    for operator in ("Unsqueeze", "Expand", "Unsqueeze"):
        node = producer(value, operator)
        value = node.inputs[0] if node is not None else None
    return value


def beam_attention(node: ir.Node) -> Call | str | None:
    """Attention of all beams over the source, as fuse-multi-head makes it."""
    query, key, value = (operand(node, index) for index in range(3))
    if len(axes(key) or ()) != 4 or producer(key, "ScatterND") is not None:
        return None  # the encoder's, whose keys have no heads yet, or one over caches
    repeated = producer(operand(node, _BIAS), "Expand")
    if repeated is None:
        return "each beam has a bias of its own"
    heads = node.attributes["num_heads"].as_int()
    inputs = (query, key, value, operand(repeated, 0))
    return Call("BeamAttention", inputs, node.outputs, {"heads": heads})
