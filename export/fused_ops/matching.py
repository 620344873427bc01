"""Fused operators as nodes of a graph, and queries that rules match with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from translate_trt.export.fused_ops.declarations import (
    DOMAIN,
    OPERATORS,
    RMS_NORM,
    VERSION,
    function,
)
from translate_trt.export.passes.base import add_constant, axes, constant, operand, substitute


class Unavoidable(str):
    """A reason not to fuse that lies in the model (sizes, scales), not in how it was traced."""

    __slots__ = ()


@dataclass(frozen=True)
class Constant:
    """A constant that a rule adds to the graph."""

    name: str
    array: NDArray[np.generic]


@dataclass(frozen=True)
class FusedNode:
    """A fused operator that replaces a part of a graph.

    Attributes:
        name: Name of the operator.
        inputs: Inputs of the node, in order.
        outputs: Values of the graph that the node's outputs replace, in order.
        attributes: Attributes of the node.
        body: Traced body; None if declarations.py has the body.
    """

    name: str
    inputs: Sequence[ir.Value | Constant]
    outputs: Sequence[ir.Value]
    attributes: Mapping[str, int | float | Sequence[int]] = field(default_factory=dict)
    body: ir.Function | None = None

    def insert(self, model: ir.Model) -> None:
        """Insert the node; the nodes that computed `outputs` may then be dead."""
        graph = model.graph
        if self.body is not None:
            model.functions[self.body.identifier()] = self.body
        inputs = [
            add_constant(graph, value.name, value.array) if isinstance(value, Constant) else value
            for value in self.inputs
        ]
        count = len(self.outputs)
        is_variadic = self.body is None and OPERATORS[self.name].variadic
        overload = str(count) if is_variadic else ""
        node = ir.node(
            self.name,
            inputs,
            self.attributes,
            domain=DOMAIN,
            overload=overload,
            num_outputs=count,
        )
        for new, old in zip(node.outputs, self.outputs, strict=True):
            substitute(new, old)
        graph.append(node)
        graph.sort()


def check_declared(node: FusedNode, rule: str) -> None:
    """Compare what a rule emits with the declaration of the operator.

    Args:
        node: The node to insert.
        rule: Name of the rule.

    Raises:
        ValueError: Node and declaration differ; the message names the difference.
    """
    op = OPERATORS.get(node.name)
    if op is None:
        raise ValueError(f"{node.name}: no such operator is declared in declarations.py.")
    if op.rule != rule:
        raise ValueError(f"{op.name}: declared for the rule {op.rule}, emitted by {rule}.")
    for what, expected, found in (
        ("inputs", len(op.inputs), len(node.inputs)),
        ("outputs", len(node.outputs) if op.variadic else len(op.outputs), len(node.outputs)),
    ):
        if expected != found:
            raise ValueError(f"{op.name}: declared with {expected} {what}, emitted with {found}.")
    if set(op.attributes) != set(node.attributes):
        declared = ", ".join(sorted(op.attributes)) or "none"
        emitted = ", ".join(sorted(node.attributes)) or "none"
        raise ValueError(f"{op.name}: declared with attributes {declared}, emitted with {emitted}.")
    if node.body is not None and [x.name for x in node.body.inputs] != list(op.inputs):
        raise ValueError(f"{op.name}: the traced body's inputs are not those of the declaration.")


def add_functions(model: ir.Model) -> None:
    """Add the functions that the graph uses, and the functions that these use."""
    wanted = _fused_operators(model.graph)
    if wanted:
        model.opset_imports.setdefault(DOMAIN, VERSION)
    wanted -= {(name, overload) for _, name, overload in model.functions}
    while wanted:
        name, overload = min(wanted)  # sets have another order in every process
        wanted.remove((name, overload))
        added = function(name, model.opset_imports[""], overload)
        model.functions[added.identifier()] = added
        for domain, version in added.opset_imports.items():
            model.opset_imports.setdefault(domain, version)
        wanted |= _fused_operators(added)


def _fused_operators(nodes: Iterable[ir.Node]) -> set[tuple[str, str]]:
    """Names and overloads of the fused operators among nodes."""
    return {(node.op_type, node.overload) for node in nodes if node.domain == DOMAIN}


# ---- queries ----

#: By operator, the end of the name of fused operators with a norm.
NORMS = {"LayerNormalization": "Norm", RMS_NORM: RMS_NORM}


def other(node: ir.Node, value: ir.Value) -> ir.Value:
    """Return the other operand of an Add or a Mul."""
    return operand(node, 1 if node.inputs[0] is value else 0)


def producer(value: ir.Value | None, operator: str) -> ir.Node | None:
    """Return the node that computes a value, if its operator is this one."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == operator else None


def numbers(value: ir.Value | None) -> object:
    """Return a constant value as a number or nested lists; None if it is not constant."""
    array = constant(value)
    return None if array is None else array.tolist()


def reader(value: ir.Value, operator: str) -> ir.Node | None:
    """Return the only node that reads a value, if its operator is this one."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or uses[0].node.op_type != operator:
        return None
    return uses[0].node


def same_axes(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values are known to have the same axes."""
    return axes(a) is not None and axes(a) == axes(b)


def norm_of_rows(norm: ir.Node) -> dict[str, float] | None:
    """Return the attributes of a norm over the last axis with scale and, of LayerNorm, bias."""
    if norm.op_type == RMS_NORM:
        return {"epsilon": norm.attributes["epsilon"].as_float()}
    rank = len(axes(operand(norm, 0)) or ())
    if len(norm.inputs) != 3 or norm.attributes.get_int("axis", -1) not in (-1, rank - 1):
        return None
    return {"epsilon": norm.attributes.get_float("epsilon", 1e-5)}
