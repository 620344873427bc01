"""Base classes of passes, and helpers for inspecting and editing graphs.

A pass rewrites one graph in place and reports what it did. Most passes are rules for onnxscript's
rewriter: a pattern, a check that may refuse a match with a reason, and a replacement. `Rule` and
`RewritePass` are a thin layer over the rewriter that keeps the reasons.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript.rewriter import pattern
from onnxscript.rewriter._basics import MatchResult
from onnxscript.rewriter._pattern_ir import StringConstantPattern

from translate_trt.export.passes.bound import Bound
from translate_trt.export.passes.expectations import Expected
from translate_trt.export.roles import EMBEDDING, copy_role, has_role

#: Bounds of a graph of which none are known.
NO_BOUNDS: Mapping[str, Bound] = MappingProxyType({})


@dataclass(frozen=True)
class Outcome:
    """Result of one pass on one graph.

    Attributes:
        matches: Number of subgraphs that were rewritten.
        refused: Reasons why subgraphs that matched were left alone, one reason each.
        unavoidable: Number of refusals whose reason is the model itself, its weights or sizes.
        output_bounds: Bounds of the graph's outputs by name, from a pass that computes bounds.
    """

    matches: int
    refused: tuple[str, ...] = ()
    unavoidable: int = 0
    output_bounds: Mapping[str, Bound] = field(default_factory=dict)


class Pass(ABC):
    """A rewrite of a graph that preserves the graph's inputs, outputs and results.

    Attributes:
        name: Name for --disable-pass and --explain.
        summary: One line for --explain.
        required: Whether the target cannot do without the pass; such a pass cannot be left out.
        expected: Number of matches in a model; None for general cleanup, whose count says nothing.
        roots: Types of the operators at which a match begins, for the report of a missing match.
    """

    name: str
    summary: str
    required = False
    expected: Expected | None
    roots: tuple[str, ...] = ()

    def with_input_bounds(self, bounds: Mapping[str, Bound]) -> Pass:
        """Return the pass for a graph whose inputs have these bounds; most passes need none."""
        return self

    @abstractmethod
    def run(self, model: ir.Model) -> Outcome:
        """Rewrite the model in place."""

    def near_misses(self, model: ir.Model) -> list[str]:
        """Describe, after `run`, what came close to being a match but was not one."""
        return [
            f"{node.op_type} {node.outputs[0].name} is left"
            for node in model.graph
            if node.op_type in self.roots
        ]


class Rule(pattern.RewriteRuleClassBase, ABC):
    """Rewrite rule: subclasses define `pattern(op, ...)`, `rewrite(op, ...)`, maybe `refusal`.

    Pattern variables are passed by name, as `ir.Value`s.

    Attributes:
        remove_nodes: Whether the rewriter removes the matched nodes, and so rejects a match whose
            inner values have other readers. If False, `refusal` decides about such a match.
    """

    remove_nodes = True

    def __init__(self) -> None:
        super().__init__(remove_nodes=type(self).remove_nodes)
        self.refused: dict[str, str] = {}  # reasons by the name of the match's output
        self._match = ""  # name of the output of the match in progress
        self._graph: ir.Graph | None = None

    def refusal(self, *_: Any, **matched: Any) -> str | None:
        """Return the reason to leave this match alone, or None to rewrite it.

        An empty reason marks an accidental match, which is not reported.
        """
        return None

    def check(self, context: Any, *_: Any, **matched: Any) -> MatchResult:  # type: ignore[override]
        """Accept or reject a match; the rewriter calls this method."""
        self._match = str(context.root.outputs[0].name)
        self._graph = context.graph_or_function
        result = MatchResult()
        reason = self.refusal(**matched)
        if reason is None:
            return result
        if reason:
            self.refused[self._match] = reason
        return result.fail(reason)

    def opset(self) -> int:
        """Return the ONNX opset version of the graph."""
        assert self._graph is not None
        return int(self._graph.opset_imports[""])

    def store(self, op: Any, array: NDArray[Any], name: str) -> ir.Value:
        """Add an initializer to the graph, reusing an identical one of that name."""
        assert self._graph is not None
        existing = self._graph.initializers.get(name)
        if existing is None:
            return op.initializer(ir.tensor(array, name=name), name=name)  # type: ignore[no-any-return]
        content = constant(existing)
        if content is not None and content.dtype == array.dtype and np.array_equal(content, array):
            return existing
        return self.store(op, array, f"{name}_for_{self._match}")

    def store_integers(self, op: Any, name: str, *numbers: int) -> ir.Value:
        """Add a vector of integers to the graph, such as a shape."""
        return self.store(op, np.array(numbers, dtype=np.int64), name)


class RewritePass(Pass):
    """Apply rules until none of them matches any more.

    Attributes:
        rules: Classes of the rules, tried in this order at every node.
        commute: Whether to try the operands of Add and Mul in both orders.
    """

    rules: tuple[type[Rule], ...]
    commute = True

    def run(self, model: ir.Model) -> Outcome:
        """Rewrite the model in place."""
        rules = [rule() for rule in self.rules]
        rewriter = rule_set([_as_rewrite_rule(r) for r in rules], commute=self.commute)
        matches = 0
        while found := rewriter.apply_to_model(model):
            matches += found
        names = {str(value.name) for node in model.graph for value in node.outputs}
        reasons = {name: reason for rule in rules for name, reason in rule.refused.items()}
        remaining = sorted(reasons.keys() & names)
        return Outcome(matches, tuple(f"{name}: {reasons[name]}" for name in remaining))

    def near_misses(self, model: ir.Model) -> list[str]:
        """Describe, after `run`, the partial matches that cover the most nodes of a pattern."""
        tracer = pattern.MatchingTracer()
        rules = [_as_rewrite_rule(rule()) for rule in self.rules]
        # With a tracer, the rewriter changes nothing.
        pattern.RewriteRuleSet(rules, commute=self.commute).apply_to_model(model, tracer=tracer)
        found = [miss for misses in tracer.best_matches_map.values() for miss in misses]
        found.sort(key=lambda miss: miss.score(), reverse=True)
        return list(
            dict.fromkeys(
                f"{miss.root_node.op_type} {miss.root_node.outputs[0].name}: "
                f"{miss.match_result.reason.rstrip('.')} "
                f"(nodes matched: {len(miss.match_result.nodes)})"
                for miss in found
            )
        )


def rule_set(rules: Sequence[pattern.RewriteRule], commute: bool = False) -> pattern.RewriteRuleSet:
    """Return a set of rules, each of which is tried only at nodes with its root's operator.

    The rewriter itself builds a result for every rule at every node, and most of these say only
    that the operator is another.
    """
    found = pattern.RewriteRuleSet(rules, commute=commute)
    rooted: Any = [RootedRule(rule) for rule in found.rules]
    found.rules = rooted
    return found


class RootedRule:
    """A rewrite rule that skips nodes whose operator differs from that of its pattern's root.

    Args:
        rule: The rule, which finds the same matches in the same order.
    """

    def __init__(self, rule: pattern.RewriteRule) -> None:
        operator = rule._target_pattern.output_nodes[0].op
        self._rule = rule
        # None: the pattern names no single operator.
        self._root = operator.value() if isinstance(operator, StringConstantPattern) else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def try_rewrite(
        self, model: ir.Model, graph: ir.Graph | ir.Function, node: ir.Node, **options: Any
    ) -> Any:
        """Rewrite the match that ends at a node, or return None; the rewriter calls this method."""
        if self._root is not None and node.op_type != self._root:
            return None
        return self._rule.try_rewrite(model, graph, node, **options)


def _as_rewrite_rule(rule: Rule) -> pattern.RewriteRule:
    return pattern.RewriteRule(
        rule.pattern, rule.rewrite, rule.check, name=type(rule).__name__,
        remove_nodes=rule.remove_nodes, graph_pre_visitor=rule.refused.clear,
    )  # fmt: skip


# ---- inspecting values ----


def operand(node: ir.Node, index: int) -> ir.Value:
    """Return a required input."""
    value = node.inputs[index]
    assert value is not None
    return value


def constant(value: ir.Value | None) -> NDArray[Any] | None:
    """Return the array of a constant value, or None if the value is not constant."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else tensor.numpy()


def scalar(value: ir.Value | None) -> float | None:
    """Return the number of a constant with a single element, or None.

    A constant of two or more axes does not count: it would add axes to what it multiplies.
    """
    array = constant(value)
    single = array is not None and array.size == 1 and array.ndim < 2
    return float(array.reshape(())) if single else None  # type: ignore[union-attr]


def constant_of(value: ir.Value | None) -> NDArray[Any]:
    """Return the array of a value that is known to be constant."""
    array = constant(value)
    assert array is not None
    return array


def matrix(value: ir.Value | None) -> NDArray[Any] | None:
    """Return the array of a constant floating-point matrix, or None."""
    array = constant(value)
    fits = array is not None and array.ndim == 2 and np.issubdtype(array.dtype, np.floating)
    return array if fits else None


def axes(value: ir.Value) -> Sequence[int | ir.SymbolicDim] | None:
    """Return the sizes of a value's axes, or None if its rank is unknown."""
    return None if value.shape is None else tuple(value.shape)


def is_embedding(node: ir.Node) -> bool:
    """Whether a Gather looks tokens up in a constant embedding table."""
    table = node.inputs[0]
    return matrix(table) is not None and has_role(table, EMBEDDING)


# ---- editing graphs ----


def add_constant(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """Add an initializer to a graph, reusing an identical one of that name."""
    existing = constant(graph.initializers.get(name))
    if existing is not None and not (
        existing.dtype == array.dtype and np.array_equal(existing, array)
    ):
        return add_constant(graph, f"{name}_else", array)
    if existing is None:
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype))
        value.shape = ir.Shape(array.shape)
        graph.register_initializer(value)
    return graph.initializers[name]


def substitute(new: ir.Value, old: ir.Value) -> None:
    """Substitute a new value for an old one in all readers and among the graph's outputs.

    The new value takes over the name, role, type and axes of the old value.
    """
    copy_role(old, new)
    new.shape, new.type, name = old.shape, old.type, old.name
    old.name = f"{name}_replaced"
    new.name = name
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def drop_unused_constants(graph: ir.Graph) -> None:
    """Remove initializers without readers."""
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
