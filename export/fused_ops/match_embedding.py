"""Rule that fuses the embedding of a step's tokens."""

from __future__ import annotations

import onnx_ir as ir

from translate_trt.export.fused_ops.matching import FusedNode, other, producer
from translate_trt.export.passes.base import constant, operand, scalar


def embed(node: ir.Node) -> FusedNode | str | None:
    """Match rows of the embedding table, scaled, plus the position of their sentence."""
    for summand in (operand(node, 0), operand(node, 1)):
        row = producer(summand, "Unsqueeze")
        found = _lookup(row.inputs[0]) if row is not None else None
        if row is None or found is None or constant(row.inputs[1]) != [1]:
            continue
        position_table, positions = found
        embedded, factor = _unscaled(other(node, summand))
        tables = _rows(embedded)
        # Members of an ensemble with the same positions share their lookup.
        if tables is None or {use.node.op_type for use in summand.uses()} != {"Add"}:
            return None
        *tables, tokens = tables
        name = "Embed8" if len(tables) == 2 else "Embed"
        inputs = (*tables, position_table, tokens, positions)
        return FusedNode(name, inputs, node.outputs, {"factor": factor})
    return None


def _unscaled(value: ir.Value) -> tuple[ir.Value, float]:
    """Split a value into the value that a constant multiplies, and the constant."""
    scaled = producer(value, "Mul")
    for index in (0, 1) if scaled is not None else ():
        assert scaled is not None
        factor = scalar(scaled.inputs[index])
        if factor is not None:
            return operand(scaled, 1 - index), factor
    return value, 1.0


def _rows(value: ir.Value) -> list[ir.Value] | None:
    """Match rows of a table at tokens: the table, in 8 bits its scales, and the tokens."""
    plain = _lookup(value)
    if plain is not None:
        return list(plain)
    scaled = producer(value, "Mul")
    cast = producer(scaled.inputs[0], "Cast") if scaled is not None else None
    if scaled is None or cast is None:
        return None
    integers, scale = _lookup(cast.inputs[0]), _lookup(scaled.inputs[1])
    if integers is None or scale is None or integers[1] is not scale[1]:
        return None
    return [integers[0], scale[0], integers[1]]


def _lookup(value: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """Match rows of a constant matrix at indices: the matrix and the indices."""
    gather = producer(value, "Gather")
    if gather is None or gather.attributes.get_int("axis", 0) != 0:
        return None
    table = constant(gather.inputs[0])
    if table is None or table.ndim != 2:
        return None
    return operand(gather, 0), operand(gather, 1)
