"""Matmuls with constant matrices: store weights as read, fold scales, merge projections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from translate_trt.export.fused_ops.matching import other, reader
from translate_trt.export.passes.base import (
    Outcome,
    Pass,
    RewritePass,
    Rule,
    add_constant,
    constant,
    constant_of,
    matrix,
    operand,
    scalar,
    substitute,
)
from translate_trt.export.passes.expectations import Expected, ModelShape
from translate_trt.export.roles import copy_input_magnitude, copy_role


class _TransposeOnce(Rule):
    """Transpose(W) -> the stored W^T."""

    def pattern(self, op: Any, weights: Any, perm: Any) -> Any:
        return op.Transpose(weights, perm=perm)

    def refusal(self, weights: ir.Value, perm: ir.Attr, **_: Any) -> str | None:
        return None if matrix(weights) is not None else ""

    def rewrite(self, op: Any, weights: ir.Value, perm: ir.Attr) -> Any:
        transposed = np.ascontiguousarray(constant_of(weights).transpose(perm.as_ints()))
        stored = self.store(op, transposed, f"{weights.name}_transposed")
        copy_input_magnitude([weights], stored)
        return stored


class _GemmToMatMul(Rule):
    """Gemm(x, W, b) -> x W + b, which later passes and prepacking expect."""

    def pattern(self, op: Any, x: Any, weights: Any, bias: Any) -> Any:
        return op.Gemm(x, weights, bias, _allow_other_attributes=True, _outputs=["result"])

    def refusal(self, weights: ir.Value, result: ir.Value, **_: Any) -> str | None:
        node = result.producer()
        assert node is not None
        if matrix(weights) is None:
            return "its second operand is not a constant matrix"
        plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
        if any(attribute.value != plain.get(name, attribute.value)
               for name, attribute in node.attributes.items()):  # fmt: skip
            return "alpha, beta or transA is set"
        return None

    def rewrite(
        self, op: Any, x: ir.Value, weights: ir.Value, bias: ir.Value, result: ir.Value
    ) -> Any:
        node = result.producer()
        assert node is not None
        transposed = node.attributes.get_int("transB", 0)
        return op.Add(
            op.MatMul(x, op.Transpose(weights, perm=[1, 0]) if transposed else weights), bias
        )


class StoreWeights(RewritePass):
    """Store weights as matmuls read them.

    A tied vocabulary matrix is stored twice: [V, d_model] for lookups, [d_model, V] for the matmul.
    """

    name = "store-weights"
    summary = "store matrices as matmuls read them; Gemm becomes MatMul and Add"
    expected = Expected(
        encoder=lambda model: (6 + model.gated) * model.encoder_layers + 2 * model.cross_layers,
        # A shortlist reads the rows of the vocabulary matrix as they are.
        step=lambda model: (
            8 * model.self_attentions
            + 6 * model.ssrus
            + model.gated * model.cross_layers
            + (not model.shortlist)
        ),
    )
    rules = (_TransposeOnce, _GemmToMatMul)
    commute = False


class _Factor(Rule):
    """Base of the rules that move a constant number closer to the matmul that made x."""

    def refusal(self, *_: Any, **matched: Any) -> str | None:
        number = scalar(matched["factor"])
        return None if number is not None else "the factor is not a constant number"


class _BeforeTranspose(_Factor):
    """c * Transpose(x) -> Transpose(c * x)."""

    def pattern(self, op: Any, x: Any, factor: Any, perm: Any) -> Any:
        return op.Mul(op.Transpose(x, perm=perm), factor)

    def rewrite(self, op: Any, x: ir.Value, factor: ir.Value, perm: ir.Attr) -> Any:
        return op.Transpose(_times(op, x, factor), perm=perm)


class _BeforeReshape(_Factor):
    """c * Reshape(x) -> Reshape(c * x)."""

    def pattern(self, op: Any, x: Any, factor: Any, shape: Any) -> Any:
        return op.Mul(op.Reshape(x, shape, _outputs=["reshaped"]), factor)

    def rewrite(
        self, op: Any, x: ir.Value, factor: ir.Value, shape: ir.Value, reshaped: ir.Value
    ) -> Any:
        node = reshaped.producer()
        assert node is not None
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        result = op.Reshape(_times(op, x, factor), shape, **attributes)
        result.shape, result.dtype = reshaped.shape, reshaped.dtype
        return result


def _times(op: Any, x: ir.Value, factor: ir.Value) -> Any:
    scaled = op.Mul(x, factor)
    scaled.shape, scaled.dtype = x.shape, x.dtype
    return scaled


class _IntoWeights(_Factor):
    def scaled(self, op: Any, value: ir.Value, factor: ir.Value) -> ir.Value:
        """Store a constant times a number."""
        array, number = constant_of(value), float(constant_of(factor).reshape(()))
        scaled = (array * np.asarray(number, array.dtype)).astype(array.dtype)
        return self.store(op, scaled, f"{value.name}_times_{number:.6g}")


class _IntoBiasedProduct(_IntoWeights):
    """c * (x W + b) -> x (c W) + c b."""

    def pattern(self, op: Any, x: Any, weights: Any, bias: Any, factor: Any) -> Any:
        return op.Mul(op.Add(op.MatMul(x, weights), bias), factor)

    def refusal(self, *_: Any, **matched: Any) -> str | None:
        if matrix(matched["weights"]) is None or constant(matched["bias"]) is None:
            return "the matrix or bias of the matmul is not constant"
        return super().refusal(**matched)

    def rewrite(
        self, op: Any, x: ir.Value, weights: ir.Value, bias: ir.Value, factor: ir.Value
    ) -> Any:
        scaled = self.scaled(op, weights, factor)
        copy_input_magnitude([weights], scaled)
        return op.Add(op.MatMul(x, scaled), self.scaled(op, bias, factor))


class _IntoTable(_IntoWeights):
    """c * T[ids] -> (c T)[ids]."""

    def pattern(self, op: Any, table: Any, ids: Any, factor: Any) -> Any:
        return op.Mul(op.Gather(table, ids, axis=0), factor)

    def refusal(self, *_: Any, **matched: Any) -> str | None:
        if matrix(matched["table"]) is None:
            return "the table of the lookup is not constant"
        return super().refusal(**matched)

    def rewrite(self, op: Any, table: ir.Value, ids: ir.Value, factor: ir.Value) -> Any:
        scaled = self.scaled(op, table, factor)
        copy_role(table, scaled)
        return op.Gather(scaled, ids, axis=0)


def _query_scales(attentions: int, model: ModelShape) -> int:
    """Number of rewrites that move the scale of queries past a transposition and a reshape."""
    return 3 * attentions * model.scaled_queries


def _step_query_scales(model: ModelShape) -> int:
    return _query_scales(model.self_attentions + model.decoder_layers, model)


class FoldScales(RewritePass):
    """Fold 1 / sqrt(d_k) into query projections and sqrt(d_model) into embedding tables."""

    name = "fold-scales"
    summary = "fold constant factors into weights"
    expected = Expected(
        encoder=lambda model: _query_scales(model.encoder_layers, model) + model.scaled_embeddings,
        step=lambda model: _step_query_scales(model) + model.scaled_embeddings,
    )
    rules: tuple[type[Rule], ...] = (
        _BeforeTranspose,
        _BeforeReshape,
        _IntoBiasedProduct,
        _IntoTable,
    )


class FoldMatmulScales(FoldScales):
    """Fold scales into matmuls only; the fused op Embed scales its rows itself."""

    expected = Expected(
        encoder=lambda model: _query_scales(model.encoder_layers, model),
        step=_step_query_scales,
    )
    rules = (_BeforeTranspose, _BeforeReshape, _IntoBiasedProduct)


@dataclass(frozen=True)
class _Projection:
    """The nodes and constants of x W + b, or of x W."""

    matmul: ir.Node
    weights: ir.Value
    bias: ir.Value | None
    addition: ir.Node | None

    @property
    def output(self) -> ir.Value:
        return (self.addition or self.matmul).outputs[0]

    @property
    def bias_values(self) -> NDArray[np.generic]:
        array = constant_of(self.weights if self.bias is None else self.bias)
        return array if self.bias is not None else np.zeros(array.shape[1], array.dtype)

    @property
    def columns(self) -> int:
        return int(constant_of(self.weights).shape[1])


class MergeMatmuls(Pass):
    """x W_1 + b_1, x W_2 + b_2, ... -> Split(x [W_1 W_2 ...] + [b_1 b_2 ...]).

    Merges queries, keys and values of a self-attention, both projections of an SSRU, of which one
    has no bias, those of a gated feed-forward layer, and, in the encoder, the cross-attention keys
    and values of all decoder layers, which read the encoder's output. Any number of
    projections may share an input, which no pattern of the rewriter expresses.
    """

    name = "merge-matmuls"
    summary = "one matmul for all projections of the same input"
    expected = Expected(
        encoder=lambda model: (1 + model.gated) * model.encoder_layers + 1,
        step=lambda model: (1 + model.gated) * model.decoder_layers,
    )
    roots = ("MatMul",)

    def run(self, model: ir.Model) -> Outcome:
        """Rewrite the model in place; a match is a set of merged matmuls."""
        groups: dict[ir.Value, list[_Projection]] = {}
        refused = []
        for node in model.graph:
            found = _projection(node)
            if isinstance(found, _Projection):
                groups.setdefault(found.matmul.inputs[0], []).append(found)  # type: ignore[arg-type]
            elif found:
                refused.append(f"{node.outputs[0].name}: {found}")
        merged = [(x, group) for x, group in groups.items() if len(group) > 1]
        for x, group in merged:
            _merge(model.graph, x, group)
        return Outcome(len(merged), tuple(refused))


def _projection(node: ir.Node) -> _Projection | str | None:
    """Return the projection of a MatMul or the reason to leave it; None for other nodes."""
    if node.op_type != "MatMul" or matrix(node.inputs[1]) is None:
        return None
    weights = operand(node, 1)
    if node.outputs[0].is_graph_output():
        return "the matmul without its bias is an output of the graph"
    addition = reader(node.outputs[0], "Add")
    if addition is None:
        return _Projection(node, weights, None, None)
    bias = other(addition, node.outputs[0])
    array = constant(bias)
    if array is None or array.shape != matrix(weights).shape[1:]:  # type: ignore[union-attr]
        return "the bias of the matmul is not a constant vector"
    return _Projection(node, weights, bias, addition)


def _merge(graph: ir.Graph, x: ir.Value, group: list[_Projection]) -> None:
    weights = np.concatenate([constant(p.weights) for p in group], axis=1)
    biases = np.concatenate([p.bias_values for p in group])
    name = f"{group[0].weights.name}_and_{len(group) - 1}_more"
    sizes = np.array([p.columns for p in group], dtype=np.int64)
    stored = add_constant(graph, name, weights)
    copy_input_magnitude([projection.weights for projection in group], stored)
    matmul = ir.node("MatMul", [x, stored])
    addition = ir.node("Add", [matmul.outputs[0], add_constant(graph, f"{name}_bias", biases)])
    split = ir.node(
        "Split",
        [addition.outputs[0], add_constant(graph, f"{name}_sizes", sizes)],
        {"axis": -1},
        num_outputs=len(group),
    )
    for node in (matmul, addition):
        node.outputs[0].name = f"{group[0].output.name}_merged_{node.op_type.lower()}"
        node.outputs[0].type = x.type
        if x.shape is not None:
            node.outputs[0].shape = ir.Shape([*x.shape[:-1], int(sizes.sum())])
    graph.insert_before(group[0].matmul, [matmul, addition, split])
    for projection, value in zip(group, split.outputs, strict=True):
        substitute(value, projection.output)
        nodes = [node for node in (projection.addition, projection.matmul) if node is not None]
        graph.remove(nodes, safe=True)
