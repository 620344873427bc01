"""Rules that fuse the recurrent units (SSRU) of a decoder and the reordering of their state."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from translate_trt.export.fused_ops.matching import (
    FusedNode,
    other,
    producer,
    reader,
)
from translate_trt.export.passes.base import axes, constant, operand, scalar


def recurrent_unit(
    node: ir.Node, uncast: Callable[[ir.Value], ir.Value] = lambda value: value
) -> FusedNode | str | None:
    """Match c = f * state + (1 - f) * x and ReLU(c), with the logits of f beside x in one value.

    Args:
        node: The Sigmoid.
        uncast: Finds the value before a cast that the operator includes.
    """
    forget = node.outputs[0]
    readers = {use.node.op_type: use.node for use in forget.uses()}
    if len(forget.uses()) != 2 or set(readers) != {"Mul", "Sub"} or forget.is_graph_output():
        return None
    kept, rest = readers["Mul"], readers["Sub"]
    new = reader(rest.outputs[0], "Mul")
    if new is None or scalar(rest.inputs[0]) != 1.0:
        return None
    total = reader(kept.outputs[0], "Add")
    if total is None or reader(new.outputs[0], "Add") is not total:
        return None
    outputs = [use.node for use in total.outputs[0].uses() if use.node.op_type == "Relu"]
    if len(outputs) != 1:
        return None
    state, logits, x = other(kept, forget), operand(node, 0), other(new, rest.outputs[0])
    gates = _halves(uncast(logits), uncast(x))
    if gates is None:
        return "the logits of the forget gate and the input are not the halves of one value"
    # Symbolic axes inside the graph have names of their own, but a graph's state has its shape.
    sizes, expected = axes(state) or (), axes(logits) or ()
    if not state.is_graph_input() or len(sizes) != len(expected) or sizes[-1:] != expected[-1:]:
        return "the state is not an input of the graph with the axes of the forget gate"
    return FusedNode("RecurrentUnit", (gates, state), (total.outputs[0], outputs[0].outputs[0]))


def _halves(first: ir.Value, second: ir.Value) -> ir.Value | None:
    """Find the value whose last axis is split in the middle into these two."""
    split = producer(first, "Split")
    if split is None or list(split.outputs) != [first, second]:
        return None
    sizes, rank = constant(split.inputs[1]), len(axes(operand(split, 0)) or ())
    if sizes is None or sizes[0] != sizes[1]:
        return None
    return operand(split, 0) if split.attributes.get_int("axis", 0) in (-1, rank - 1) else None


def follow_parents(node: ir.Node) -> FusedNode | str | None:
    """Match the rows [N, K, I] of the beams' parents."""
    state, result = operand(node, 0), axes(node.outputs[0]) or ()
    expanded = producer(node.inputs[1], "Expand")
    row = producer(expanded.inputs[0], "Unsqueeze") if expanded is not None else None
    if row is None or len(result) != 3 or node.attributes.get_int("axis", 0) != 1:
        return None
    parents, last = operand(row, 0), constant(row.inputs[1])
    if axes(parents) != result[:2] or last is None or last.tolist() not in ([-1], [2]):
        return "the parents are not known to be [N, K]"
    given = axes(state) or ()
    if len(given) != 3 or given[2] != result[2]:
        return "the result is not known to have the columns of the state"
    return FusedNode("FollowParents", (state, parents), node.outputs)
