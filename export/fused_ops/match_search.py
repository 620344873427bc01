"""The beam search of a step as calls, which are a hundred small operators else.

Their bodies are the regions of the graph that were traced of `BeamSearchStep` and `SharedSlots`
(export/graphs.py); docs/beam-search.md says what a kernel of the same name must compute.
"""

from __future__ import annotations

import onnx_ir as ir

from translate_trt.export.fused_ops.matching import FusedNode, operand
from translate_trt.export.fused_ops.subgraph import Subgraph
from translate_trt.export.passes.base import constant
from translate_trt.runtime.bundle.contract import NEXT

# In the order of the function's inputs and outputs.
_REQUEST = (
    "forced_tokens",
    "min_lengths",
    "max_lengths",
    "length_penalty_alpha",
    "length_penalty_beta",
    "early_stopping",
)
_POOL = (
    "done",
    "finished_scores",
    "finished_lengths",
    "finished_parents",
    "finished_truncated",
)
_SELECTED = ("parents", *(NEXT + name for name in ("tokens", "log_probs", "positions", *_POOL)))


def forced_columns(node: ir.Node) -> FusedNode | str | None:
    """What candidates are asked for: which column besides the best, and how many of these."""
    inputs = _values(node, "inputs", "forced_tokens", "tokens")
    column, count = node.inputs[-2:]
    if inputs is None or column is None or count is None or _is_call(column):
        return None
    return Subgraph("ForcedColumns", inputs, (column, count)).fuse()


def select_beams(node: ir.Node) -> FusedNode | str | None:
    """From the candidates of all beams to the next beams and the pool of finished hypotheses."""
    request = _values(node, "inputs", *_REQUEST, "log_probs", "positions", *_POOL)
    outputs = _values(node, "outputs", *_SELECTED)
    if request is None or outputs is None or _is_call(outputs["parents"]):
        return None
    values, indices, at_column = node.outputs
    end = _end_token(indices)
    if end is None:
        return "it is not known which token ends a sentence"
    choices, end_token = end
    candidates = {"log_probabilities": values, "choices": choices, "forced": at_column}
    inputs = {**candidates, "end_token": end_token, **request}
    return Subgraph("SelectBeams", inputs, tuple(outputs.values())).fuse()


def _end_token(indices: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """The candidates' tokens, and the constant that they are compared with before all else."""
    waiting = [indices]
    while waiting:
        value = waiting.pop(0)
        readers = [use.node for use in value.uses()]
        for reader in readers:
            if reader.op_type == "Equal" and constant(reader.inputs[1]) is not None:
                return value, operand(reader, 1)
        waiting += [output for reader in readers for output in reader.outputs]
    return None


def extend_ancestry(node: ir.Node) -> FusedNode | str | None:
    """The ancestry in which each beam sees the slot of its own token, too."""
    inputs = _values(node, "inputs", "ancestry", "slots")
    extended = _extended(node)
    if inputs is None or extended is None or _is_call(extended):
        return None
    return Subgraph("ExtendAncestry", inputs, (extended,)).fuse()


def follow_ancestry(node: ir.Node) -> FusedNode | str | None:
    """The ancestry of the next beams, and slots that are in none of their pasts."""
    outputs = _values(node, "outputs", NEXT + "ancestry", NEXT + "slots", "full")
    given = _values(node, "inputs", "ancestry")
    parents, extended = _values(node, "outputs", "parents"), _extended(node)
    if outputs is None or given is None or parents is None or extended is None:
        return None
    extended.shape = given["ancestry"].shape  # with the letters that the graph's inputs have
    inputs = {"ancestry": extended, **parents}
    return Subgraph("FollowAncestry", inputs, tuple(outputs.values())).fuse()


def _extended(gather: ir.Node) -> ir.Value | None:
    """What the next beams' ancestry is gathered from, if this node does it."""
    following = _values(gather, "outputs", NEXT + "ancestry")
    if following is None or gather.outputs[0] is not following[NEXT + "ancestry"]:
        return None
    return operand(gather, 0)


def _values(node: ir.Node, kind: str, *names: str) -> dict[str, ir.Value] | None:
    """Inputs or outputs of the node's graph by their names; None: it has not all of them."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    values = {str(value.name): value for value in getattr(graph, kind)}
    if not set(names) <= values.keys():
        return None  # an encoder's
    return {name: values[name] for name in names}


def _is_call(value: ir.Value) -> bool:
    """Whether a call computes it already."""
    node = value.producer()
    return node is not None and bool(node.domain)
