"""Rules that fuse the embedding of tokens and the attention bias of the source."""

from __future__ import annotations

import onnx_ir as ir

from translate_trt.export.fused_ops.matching import FusedNode, numbers, other, producer, reader
from translate_trt.export.passes.base import constant, operand, scalar
from translate_trt.runtime.bundle.contract import MASKED


def embed(node: ir.Node) -> FusedNode | str | None:
    """Match rows of the embedding table, scaled, plus positions."""
    for summand in (operand(node, 0), operand(node, 1)):
        embedded, factor = _unscaled(other(node, summand))
        tables = _rows(embedded)
        # Members of an ensemble with the same positions share their lookup.
        if tables is None or {use.node.op_type for use in summand.uses()} != {"Add"}:
            continue
        *tables, tokens = tables
        of_sentence, of_source = sentence_position(summand), source_positions(summand, tokens)
        if of_sentence is not None:
            name, (position_table, *positions) = "Embed", of_sentence
        elif of_source is not None:
            name, position_table, positions = "EmbedSource", of_source, []
        else:
            continue
        name += "8" if len(tables) == 2 else ""
        inputs = (*tables, position_table, tokens, *positions)
        return FusedNode(name, inputs, node.outputs, {"factor": factor})
    return None


def sentence_position(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Match a position of each sentence, for all its beams: the table and the positions."""
    row = producer(value, "Unsqueeze")
    if row is None or numbers(row.inputs[1]) != [1]:
        return None
    return lookup(row.inputs[0])


def source_positions(value: ir.Value, tokens: ir.Value) -> ir.Value | None:
    """Match the first rows of a table, one for each of the tokens [N, S]: the table."""
    rows = producer(value, "Slice")
    if rows is None or len(rows.inputs) != 5:
        return None
    table, begin, end, axis, step = rows.inputs
    array, wanted = constant(table), [numbers(x) for x in (begin, axis, step)] == [[0], [0], [1]]
    if array is None or array.ndim != 2 or not wanted or not _is_width(end, tokens):
        return None
    return table


def _is_width(size: ir.Value | None, tokens: ir.Value | None) -> bool:
    """Whether a value [1] is the number of columns of the tokens."""
    shape = producer(size, "Shape")
    ends = [shape.attributes.get_int(name, 0) for name in ("start", "end")] if shape else []
    return shape is not None and shape.inputs[0] is tokens and ends == [1, 2]


def source_bias(node: ir.Node) -> FusedNode | None:
    """Match the bias [N, 1, 1, S] that masks padding and, in some models, the end symbol."""
    row = reader(node.outputs[0], "Unsqueeze")
    padding = producer(node.inputs[0], "GreaterOrEqual")
    if row is None or padding is None:
        return None
    positions, ends = producer(padding.inputs[0], "Range"), producer(padding.inputs[1], "Unsqueeze")
    if positions is None or ends is None:
        return None
    begin, end, step = positions.inputs
    size = producer(end, "Squeeze")
    constants = (*node.inputs[1:], begin, step, row.inputs[1], ends.inputs[1])
    ids = _graph_input(node, "source_ids")
    if [numbers(x) for x in constants] != [MASKED, 0, 0, 1, [1, 2], [1]]:
        return None
    lengths, hidden = operand(ends, 0), 0
    visible = producer(lengths, "Sub")
    if visible is not None and numbers(visible.inputs[1]) == 1:
        lengths, hidden = operand(visible, 0), 1
    fits = size is not None and _is_width(size.inputs[0], ids)
    if ids is None or not fits or lengths is not _graph_input(node, "source_lengths"):
        return None
    return FusedNode("SourceBias", (ids, lengths), row.outputs, {"hidden": hidden})


def _graph_input(node: ir.Node, name: str) -> ir.Value | None:
    """Find an input of the node's graph by name."""
    assert isinstance(node.graph, ir.Graph)
    return next((value for value in node.graph.inputs if value.name == name), None)


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
    plain = lookup(value)
    if plain is not None:
        return list(plain)
    scaled = producer(value, "Mul")
    cast = producer(scaled.inputs[0], "Cast") if scaled is not None else None
    if scaled is None or cast is None:
        return None
    integers, scale = lookup(cast.inputs[0]), lookup(scaled.inputs[1])
    if integers is None or scale is None or integers[1] is not scale[1]:
        return None
    return [integers[0], scale[0], integers[1]]


def lookup(value: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """Match rows of a constant matrix at indices: the matrix and the indices."""
    gather = producer(value, "Gather")
    if gather is None or gather.attributes.get_int("axis", 0) != 0:
        return None
    table = constant(gather.inputs[0])
    if table is None or table.ndim != 2:
        return None
    return operand(gather, 0), operand(gather, 1)
