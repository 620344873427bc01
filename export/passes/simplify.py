"""General cleanup: fold constants, merge equal nodes and initializers, remove unused ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript import optimizer, rewriter

from translate_trt.export.fused_ops.matching import add_functions
from translate_trt.export.passes.base import Outcome, Pass, RewritePass, Rule, rule_set
from translate_trt.export.passes.expectations import Expected

# In elements. Only shapes, masks and scalars are folded here; other passes rewrite weights.
_LARGEST_FOLDED = 1 << 14


class Simplify(Pass):
    """General-purpose optimizations of onnxscript and onnx-ir.

    Args:
        expand: Whether fused operators of the trace become their bodies, for targets whose runtime
            has no kernels of them.
    """

    name = "simplify"
    summary = "fold constants, merge equal nodes and constants, remove unused ones"
    expected = None

    def __init__(self, expand: bool = False) -> None:
        self._expand = expand

    def run(self, model: ir.Model) -> Outcome:
        """Rewrite the model in place; matches are the nodes removed."""
        before = len(model.graph)
        outputs = [(value.name, value.shape) for value in model.graph.outputs]
        if self._expand:
            add_functions(model)  # which are inlined next
        optimize(model)
        for step in (
            common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            common.CommonSubexpressionEliminationPass(),
            common.DeduplicateInitializersPass(),
            common.IdentityEliminationPass(),
            common.RemoveUnusedNodesPass(),
        ):
            step(model)
        _restore_outputs(model.graph, outputs)
        return Outcome(before - len(model.graph))


def _restore_outputs(
    graph: ir.Graph, outputs: Sequence[tuple[str | None, ir.Shape | None]]
) -> None:
    """Give outputs their names and shapes again.

    An eliminated Identity leaves an output without the axis names of the trace, and merged nodes
    leave outputs that are the same value, such as keys of members of an ensemble with the same
    encoder.
    """
    present: set[ir.Value] = set()
    for index, (value, (name, shape)) in enumerate(zip(list(graph.outputs), outputs, strict=True)):
        output = value
        if value in present:
            copy = ir.node("Identity", [value])
            graph.append(copy)
            graph.outputs[index] = output = copy.outputs[0]
            output.type = value.type
        output.name, output.shape = name, shape
        present.add(output)


def optimize(model: ir.Model) -> None:
    """Apply onnxscript's general optimizations in place.

    The result is that of `onnxscript.optimizer.optimize_ir`, whose steps these are, but each rule
    is tried only at nodes with the operator of its root (`rule_set`), which takes less time.
    """
    rules = rule_set(rewriter._DEFAULT_REWRITE_RULES)
    repeated: tuple[ir.passes.PassBase, ...] = (
        rewriter.RewritePass(rules),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
        common.RemoveUnusedOpsetsPass(),
    )
    last: tuple[ir.passes.PassBase, ...] = (
        common.RemoveUnusedNodesPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    )
    common.InlinePass()(model)
    for _ in range(2):
        changed = optimizer.fold_constants_ir(
            model,
            onnx_shape_inference=True,
            input_size_limit=_LARGEST_FOLDED,
            output_size_limit=_LARGEST_FOLDED,
        ).modified
        for step in repeated:
            changed |= step(model).modified
        if not changed:
            break
    for step in last:
        step(model)


class _KeepSizes(Rule):
    """Reshape(x, computed shape) -> Reshape(x, [0, 0, 8, 64]): 0 keeps the size of x.

    A computed shape costs a Shape and a Concat, and hides the sizes from a compiler.
    """

    def pattern(self, op: Any, x: Any, shape: Any) -> Any:
        return op.Reshape(x, shape, _outputs=["reshaped"])

    def refusal(self, x: ir.Value, shape: ir.Value, reshaped: ir.Value, **_: Any) -> str | None:
        if shape.const_value is not None:
            return ""
        return None if _sizes(x, reshaped) else "two or more sizes are neither constant nor of x"

    def rewrite(self, op: Any, x: ir.Value, reshaped: ir.Value, **_: Any) -> Any:
        sizes = _sizes(x, reshaped)
        assert sizes is not None
        name = "sizes_" + "_".join("rest" if size < 0 else str(size) for size in sizes)
        return op.Reshape(x, self.store(op, np.array(sizes, np.int64), name))


def _sizes(x: ir.Value, reshaped: ir.Value) -> list[int] | None:
    """Return a constant shape: sizes, 0 for the size of x on that axis, -1 at most once."""
    if x.shape is None or reshaped.shape is None:
        return None
    sizes: list[int] = []
    for index, size in enumerate(reshaped.shape):
        same = index < len(x.shape) and x.shape[index] == size
        if isinstance(size, int):
            sizes.append(size)
        else:
            sizes.append(0 if same and size.value is not None else -1)
    return sizes if sizes.count(-1) <= 1 else None


class KeepSizes(RewritePass):
    """Use constant shapes in reshapes, such as those that split and join heads."""

    name = "keep-sizes"
    summary = "reshape by constant shapes if only the batch and the beams are unknown"
    expected = Expected(
        # Queries, keys, values and the joined heads of a layer; keys and values for the decoder.
        encoder=lambda model: 4 * model.encoder_layers + 2 * model.cross_layers,
        # The heads of a layer; log-probabilities, tokens, beams and progress of all candidates.
        # Sizes of static caches are constant.
        step=lambda model: (
            (not model.static_caches) * (6 * model.self_attentions + 2 * model.ssrus)
        ),
        search=lambda model: (not model.static_caches) * 4,
    )
    rules = (_KeepSizes,)
    commute = False
