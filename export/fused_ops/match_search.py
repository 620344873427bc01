"""Rules that fuse the beam search of a step, about a hundred small operators.

The bodies are the subgraphs that were traced from `BeamSearchStep` (export/search_step.py) and
`SharedSlots` (export/graphs.py). docs/beam-search.md specifies the kernels.
"""

from __future__ import annotations

import onnx_ir as ir

from translate_trt.export.fused_ops.declarations import OPERATORS, FusedOp
from translate_trt.export.fused_ops.matching import FusedNode
from translate_trt.export.fused_ops.subgraph import Subgraph
from translate_trt.export.passes.base import constant, operand
from translate_trt.runtime.bundle.contract import NEXT

# The last input is a constant, the others are inputs of the graph.
_COLUMNS = OPERATORS["ForcedColumns"]
# The first four inputs are candidates and a constant, the others inputs of the graph.
_FROM_CANDIDATES = 4


def forced_columns(node: ir.Node) -> FusedNode | str | None:
    """Match what candidates are requested for: columns to look up, and a count."""
    inputs = graph_values(node, "inputs", *[*_COLUMNS.inputs][:-1])
    columns, count = node.inputs[-2:]
    if inputs is None or columns is None or count is None or _is_fused(columns):
        return None
    choices = _choices(count)
    if choices is None:
        return "the number of candidates has no limit"
    return Subgraph("ForcedColumns", {**inputs, "choices": choices}, (columns, count)).fuse()


def _choices(count: ir.Value) -> ir.Value | None:
    """Find the number of tokens that limits the number of candidates."""
    value: ir.Value | None = count
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == "Min":
            return next((x for x in node.inputs if x is not None and not _is_sum(x)), None)
        value = node.inputs[0]
    return None


def select_beams(node: ir.Node) -> FusedNode | str | None:
    """Match the selection: from candidates to the next beams and the pool."""
    return select(node, OPERATORS["SelectBeams"])


def select(node: ir.Node, op: FusedOp) -> FusedNode | str | None:
    """Match the selection that an operator declares, from the candidates that a node returns."""
    request = graph_values(node, "inputs", *[*op.inputs][_FROM_CANDIDATES:])
    outputs = graph_values(node, "outputs", *op.outputs)
    if request is None or outputs is None or _is_fused(outputs["parents"]):
        return None
    values, indices, at_columns = node.outputs
    end = _end_token(indices)
    if end is None:
        return "the token that ends a sentence is not known"
    choices, end_token = end
    candidates = {"log_probabilities": values, "choices": choices, "looked_up": at_columns}
    inputs = {**candidates, "end_token": end_token, **request}
    return Subgraph(op.name, inputs, tuple(outputs.values())).fuse()


def _end_token(indices: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Find the candidates' tokens and the constant that they are compared with first."""
    queue = [indices]
    while queue:
        value = queue.pop(0)
        readers = [use.node for use in value.uses()]
        for reader in readers:
            if reader.op_type == "Equal" and constant(reader.inputs[1]) is not None:
                return value, operand(reader, 1)
        queue += [output for reader in readers for output in reader.outputs]
    return None


def extend_ancestry(node: ir.Node) -> FusedNode | str | None:
    """Match the ancestry with the slot of each beam's own token added."""
    inputs = graph_values(node, "inputs", "ancestry", "slots")
    extended = _extended(node)
    if inputs is None or extended is None or _is_fused(extended):
        return None
    return Subgraph("ExtendAncestry", inputs, (extended,)).fuse()


def follow_ancestry(node: ir.Node) -> FusedNode | str | None:
    """Match the ancestry of the next beams, and free slots for their tokens."""
    outputs = graph_values(node, "outputs", NEXT + "ancestry", NEXT + "slots", "full")
    before = graph_values(node, "inputs", "ancestry")
    parents, extended = graph_values(node, "outputs", "parents"), _extended(node)
    if outputs is None or before is None or parents is None or extended is None:
        return None
    extended.shape = before["ancestry"].shape  # with the axis names of the graph's inputs
    inputs = {"ancestry": extended, **parents}
    return Subgraph("FollowAncestry", inputs, tuple(outputs.values())).fuse()


def _extended(gather: ir.Node) -> ir.Value | None:
    """Find the value that the next ancestry is gathered from, if this node gathers it."""
    following = graph_values(gather, "outputs", NEXT + "ancestry")
    if following is None or gather.outputs[0] is not following[NEXT + "ancestry"]:
        return None
    return operand(gather, 0)


def graph_values(node: ir.Node, kind: str, *names: str) -> dict[str, ir.Value] | None:
    """Find "inputs" or "outputs" of the node's graph by name; None if one of them is missing."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    values = {str(value.name): value for value in getattr(graph, kind)}
    if not set(names) <= values.keys():
        return None  # the graph is an encoder
    return {name: values[name] for name in names}


def _is_sum(value: ir.Value) -> bool:
    """Whether the value is 2K + 1 + B + R + U."""
    node = value.producer()
    return node is not None and node.op_type == "Add"


def _is_fused(value: ir.Value) -> bool:
    """Whether a fused operator computes the value."""
    node = value.producer()
    return node is not None and bool(node.domain)
