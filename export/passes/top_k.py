"""Top-k before log-softmax: only candidates need their log-probability.

log_softmax(x) = x - logsumexp(x) shifts a whole row by one number, so the best of x are also the
best of log_softmax(x). The probability of the largest logit gives that number, logsumexp(x) =
max(x) - log(softmax(x)[argmax x]), through a softmax that reads the row once.
docs/adr/0006-operators-of-onnx-runtime.md compares this formulation with its alternatives.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from translate_trt.export.passes.base import Outcome, Pass, add_constant, substitute
from translate_trt.export.passes.expectations import Expected


class TopKFirst(Pass):
    """Rewrite TopK(log_softmax(x)) and lookups in log_softmax(x) to read the logits x.

    A top-k and any number of lookups share the row, which no pattern of the rewriter expresses.
    """

    name = "top-k-first"
    summary = "select the best logits first, and compute log-probabilities only of those"
    expected = Expected(
        encoder=lambda _: 0, step=lambda _: 0, search=lambda model: not model.shortlist
    )
    roots = ("LogSoftmax",)

    def run(self, model: ir.Model) -> Outcome:
        """Rewrite the model in place."""
        matches, refused = 0, []
        for node in list(model.graph):
            if node.op_type != "LogSoftmax":
                continue
            reason = _refusal(node)
            if reason is None:
                _rewrite(model.graph, node)
                matches += 1
            else:
                refused.append(f"{node.outputs[0].name}: {reason}")
        return Outcome(matches, tuple(refused))


def _readers(node: ir.Node) -> list[ir.Node]:
    return [use.node for use in node.outputs[0].uses()]


def _last_axis(node: ir.Node, rank: int) -> bool:
    return node.attributes.get_int("axis", -1) in (-1, rank - 1)


def _refusal(node: ir.Node) -> str | None:
    readers, shape = _readers(node), node.outputs[0].shape
    if shape is None or not _last_axis(node, len(shape)):
        return "its axis is not known to be the last one"
    if node.outputs[0].is_graph_output():
        return "the log-probabilities of the whole vocabulary are an output of the graph"
    others = {r.op_type for r in readers} - {"TopK", "GatherElements"}
    if others:
        return f"the whole row is also read by {', '.join(sorted(others))}"
    if [r.op_type for r in readers].count("TopK") != 1:
        return "the row does not have exactly one top-k"
    if not all(_last_axis(r, len(shape)) for r in readers):
        return "the axis of a reader is not the last one"
    top = next(r for r in readers if r.op_type == "TopK")
    plain = top.attributes.get_int("sorted", 1) and top.attributes.get_int("largest", 1)
    return None if plain else "the top-k is not sorted, or takes the smallest"


def _rewrite(graph: ir.Graph, node: ir.Node) -> None:
    logits = node.inputs[0]
    assert logits is not None
    readers = _readers(node)
    top = next(r for r in readers if r.op_type == "TopK")
    old_values, old_indices = top.outputs
    count = top.inputs[1]
    new_top = ir.node("TopK", [logits, count], {"axis": -1}, num_outputs=2)
    values, indices = new_top.outputs
    for new, old in ((values, old_values), (indices, old_indices)):
        new.name, new.shape, new.type = f"{old.name}_of_logits", old.shape, old.type
    nodes = [new_top]

    def add(operator: str, *inputs: ir.Value | None, **attributes: int) -> ir.Value:
        nodes.append(ir.node(operator, list(inputs), attributes))
        nodes[-1].outputs[0].name = f"{operator.lower()}_for_{old_values.name}_{len(nodes)}"
        return nodes[-1].outputs[0]

    bounds = [add_constant(graph, f"first_{name}", np.array([number], dtype=np.int64))
              for name, number in (("begin", 0), ("end", 1), ("axis", -1))]  # fmt: skip
    largest = add("Slice", values, *bounds)
    probability = add(
        "GatherElements", add("Softmax", logits, axis=-1), add("Slice", indices, *bounds), axis=-1
    )
    log_total = add("Sub", largest, add("Log", probability))
    replaced = {old_values: add("Sub", values, log_total), old_indices: indices}
    graph.insert_before(top, nodes)
    for old, new in replaced.items():
        substitute(new, old)
    for reader in readers:
        if reader.op_type == "GatherElements":
            _look_up(graph, reader, logits, log_total)
    # A lookup may precede the top-k, whose results it now needs: hence the sort.
    graph.remove(top, safe=True)
    graph.remove(node, safe=True)
    graph.sort()


def _look_up(graph: ir.Graph, reader: ir.Node, logits: ir.Value, log_total: ir.Value) -> None:
    found = ir.node("GatherElements", [logits, reader.inputs[1]], {"axis": -1})
    log_prob = ir.node("Sub", [found.outputs[0], log_total])
    old = reader.outputs[0]
    found.outputs[0].name = f"{old.name}_logit"
    graph.insert_after(reader, [found, log_prob])
    substitute(log_prob.outputs[0], old)
    graph.remove(reader, safe=True)
