"""Weights: stored as matmuls read them, scaled ahead of time, merged."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import NodeProto
from support.graphs import (
    Array,
    Axes,
    assert_left_alone,
    assert_rewrites,
    build,
    node,
    operators,
    weights,
)

from translate_trt.export.passes.weights import FoldScales, MergeMatmuls, StoreWeights

X: dict[str, Axes] = {"x": ["N", "T", 8]}
FLAT: dict[str, Axes] = {"x": ["N", 8]}
OUT: Axes = ["N", "T", None]
HALF = np.array(0.5, np.float32)


# ---- store-weights ----


def gemm(**attributes: Any) -> ir.Model:
    transposed = attributes.get("transB", 0)
    constants = {"w": weights(6, 8) if transposed else weights(8, 6), "b": weights(6)}
    inputs: dict[str, Axes] = {"x": [8, "N"] if attributes.get("transA") else ["N", 8]}
    return build([node("Gemm", "x w b", "y", **attributes)], inputs, {"y": ["N", 6]}, constants)


@pytest.mark.parametrize(
    "attributes", [{}, {"transB": 1}, {"transB": 0, "alpha": 1.0, "beta": 1.0, "transA": 0}]
)
def test_gemm_becomes_matmul_and_sum(attributes: dict[str, Any]) -> None:
    model = gemm(**attributes)
    assert_rewrites(StoreWeights(), model, 1 + attributes.get("transB", 0))
    assert operators(model) == {"MatMul": 1, "Add": 1}
    stored = model.graph.initializers[str(next(iter(model.graph)).inputs[1].name)]
    assert stored.shape == ir.Shape([8, 6])


@pytest.mark.parametrize("attributes", [{"alpha": 0.5}, {"beta": 2.0}, {"transA": 1}])
def test_gemm_that_does_more_is_left(attributes: dict[str, Any]) -> None:
    model = gemm(transB=1, **attributes)
    assert_left_alone(StoreWeights(), model, "alpha, beta or transA is set")


def test_gemm_of_two_inputs_is_left() -> None:
    inputs: dict[str, Axes] = {"x": ["N", 8], "z": [8, 6]}
    model = build([node("Gemm", "x z b", "y")], inputs, {"y": ["N", 6]}, {"b": weights(6)})
    assert_left_alone(StoreWeights(), model, "its second operand is not a constant matrix")


def test_gemm_without_bias_is_left() -> None:
    model = build([node("Gemm", "x w", "y")], FLAT, {"y": ["N", 6]}, {"w": weights(8, 6)})
    assert_left_alone(StoreWeights(), model)


def test_only_constant_matrices_are_transposed() -> None:
    nodes = [
        node("Transpose", "x", "a", perm=[0, 2, 1]),
        node("Transpose", "stack", "b", perm=[0, 2, 1]),
        node("Transpose", "numbers", "c", perm=[1, 0]),
    ]
    constants = {"stack": weights(2, 3, 4), "numbers": np.arange(6).reshape(2, 3)}
    outputs: dict[str, Axes] = {"a": ["N", 8, "T"], "b": [2, 4, 3], "c": [3, 2]}
    assert_left_alone(StoreWeights(), build(nodes, X, outputs, constants, types={"c": "int"}))


def test_a_tied_matrix_is_stored_for_lookups_and_for_matmuls() -> None:
    nodes = [
        node("Gather", "table ids", "embedded"),
        node("Transpose", "table", "columns", perm=[1, 0]),
        node("MatMul", "embedded columns", "logits"),
        node("MatMul", "x columns", "more"),
    ]
    model = build(
        nodes, {"ids": ["N", "T"], **X}, {"logits": OUT, "more": OUT}, {"table": weights(12, 8)},
        types={"ids": "int"},
    )  # fmt: skip
    left = assert_rewrites(StoreWeights(), model, 1)
    assert left == {"Gather": 1, "MatMul": 2}
    shapes = sorted(str(v.shape) for v in model.graph.initializers.values())
    assert shapes == ["[12,8]", "[8,12]"]


# ---- fold-scales ----


def biased(*more: NodeProto, factor: Array = HALF, **constants: Array) -> ir.Model:
    """Build x W + b, followed by the given nodes up to y."""
    nodes = [node("MatMul", "x w", "matmul"), node("Add", "matmul b", "sum"), *more]
    stored = {"w": weights(8, 6), "b": weights(6), "c": factor, **constants}
    return build(nodes, X, {"y": [None] * len_of(more)}, stored)


def len_of(nodes: tuple[NodeProto, ...]) -> int:
    return 4 if any(n.op_type == "Reshape" for n in nodes) else 3


HEADS = {"heads": np.array([0, 0, 3, 2])}


@pytest.mark.parametrize("factor", [HALF, HALF[None]])
@pytest.mark.parametrize("operands", ["sum c", "c sum"])
def test_a_factor_goes_into_matrix_and_bias(factor: Array, operands: str) -> None:
    model = biased(node("Mul", operands, "y"), factor=factor)
    assert assert_rewrites(FoldScales(), model, 1) == {"MatMul": 1, "Add": 1}


def test_a_factor_after_heads_are_split_goes_into_the_matrix() -> None:
    model = biased(
        node("Reshape", "sum heads", "split"),
        node("Transpose", "split", "turned", perm=[0, 2, 1, 3]),
        node("Mul", "turned c", "y"),
        **HEADS,
    )
    left = assert_rewrites(FoldScales(), model, 3)
    assert left == {"MatMul": 1, "Add": 1, "Reshape": 1, "Transpose": 1}


def test_a_factor_goes_into_a_table() -> None:
    nodes = [node("Gather", "table ids", "rows", axis=0), node("Mul", "rows c", "y")]
    model = build(
        nodes, {"ids": ["N", "T"]}, {"y": OUT}, {"table": weights(11, 8), "c": HALF},
        types={"ids": "int"},
    )  # fmt: skip
    assert assert_rewrites(FoldScales(), model, 1) == {"Gather": 1}


# The last two have the same six digits, which names of constants contain.
@pytest.mark.parametrize("factors", [(0.5, 0.5), (0.5, 3.0), (0.5, 0.5 + 6e-8)])
def test_shared_weights_with_their_own_factors(factors: tuple[float, float]) -> None:
    nodes, constants = [], {"w": weights(8, 6), "b": weights(6)}
    for index, factor in enumerate(factors):
        nodes += [
            node("MatMul", "x w", f"p{index}"),
            node("Add", f"p{index} b", f"s{index}"),
            node("Mul", f"s{index} c{index}", f"y{index}"),
        ]
        constants[f"c{index}"] = np.array(factor, np.float32)
    model = build(nodes, X, {"y0": OUT, "y1": OUT}, constants)
    assert assert_rewrites(FoldScales(), model, 2) == {"MatMul": 2, "Add": 2}
    different = len({np.float32(factor) for factor in factors})
    used = {n.inputs[1] for n in model.graph if n.op_type == "MatMul"}
    assert len(used) == different


def test_factors_that_cannot_be_folded() -> None:
    number = "the factor is not a constant number"
    vector = {"v": weights(6)}
    assert_left_alone(FoldScales(), biased(node("Mul", "sum v", "y"), **vector), number)
    # A single number with three axes adds axes to what it multiplies.
    deep = {"v": np.full((1, 1, 1, 1), 0.5, np.float32)}
    model = build([node("Gather", "t ids", "rows", axis=0), node("Mul", "rows v", "y")],
                  {"ids": ["N", "T"]}, {"y": [1, "N", "T", 8]}, {"t": weights(11, 8), **deep},
                  types={"ids": "int"})  # fmt: skip
    assert_left_alone(FoldScales(), model, number)
    turned = biased(
        node("Transpose", "sum", "turned", perm=[1, 0, 2]), node("Mul", "turned v", "y"), **vector
    )
    assert_left_alone(FoldScales(), turned, number)
    split = biased(
        node("Reshape", "sum heads", "split"), node("Mul", "split v", "y"), v=weights(2), **HEADS
    )
    assert_left_alone(FoldScales(), split, number)


def test_matmuls_that_no_factor_can_go_into() -> None:
    reason = "the matrix or bias of the matmul is not constant"
    inputs: dict[str, Axes] = {**X, "z": ["N", 8, 6]}
    nodes = [
        node("MatMul", "x z", "matmul"), node("Add", "matmul b", "sum"), node("Mul", "sum c", "y")
    ]  # fmt: skip
    model = build(nodes, inputs, {"y": OUT}, {"b": weights(6), "c": HALF})
    assert_left_alone(FoldScales(), model, reason)
    inputs = {**X, "r": ["N", "T", 6]}
    nodes = [
        node("MatMul", "x w", "matmul"), node("Add", "matmul r", "sum"), node("Mul", "sum c", "y")
    ]  # fmt: skip
    model = build(nodes, inputs, {"y": OUT}, {"w": weights(8, 6), "c": HALF})
    assert_left_alone(FoldScales(), model, reason)
    nodes = [node("Gather", "x ids", "rows", axis=0), node("Mul", "rows c", "y")]
    model = build(nodes, {**X, "ids": [1]}, {"y": OUT}, {"c": HALF}, types={"ids": "int"})
    reason = "the table of the lookup is not constant"
    assert_left_alone(FoldScales(), model, reason, given={"ids": np.array([1])})


def test_a_sum_that_is_read_elsewhere_is_not_scaled() -> None:
    model = biased(node("Mul", "sum c", "scaled"), node("Add", "scaled sum", "y"))
    assert_left_alone(FoldScales(), model)


# ---- merge-matmuls ----


def projections(sizes: list[int], without_bias: tuple[int, ...] = ()) -> ir.Model:
    nodes: list[NodeProto] = []
    constants: dict[str, Array] = {}
    for index, size in enumerate(sizes):
        constants[f"w{index}"] = weights(8, size, seed=index)
        if index in without_bias:
            nodes.append(node("MatMul", f"x w{index}", f"y{index}"))
            continue
        constants[f"b{index}"] = weights(size, seed=index)
        operands = f"p{index} b{index}" if index % 2 else f"b{index} p{index}"
        nodes += [node("MatMul", f"x w{index}", f"p{index}"), node("Add", operands, f"y{index}")]
    outputs: dict[str, Axes] = {f"y{index}": OUT for index in range(len(sizes))}
    return build(nodes, X, outputs, constants)


@pytest.mark.parametrize("sizes", [[6, 4], [6, 6, 6], [1, 2, 3] * 4])
def test_projections_of_one_input_become_one(sizes: list[int]) -> None:
    model = projections(sizes)  # every sum is an output of the graph
    assert assert_rewrites(MergeMatmuls(), model, 1) == {"MatMul": 1, "Add": 1, "Split": 1}


def test_one_without_bias_stays_alone() -> None:
    model = projections([6, 4, 5], without_bias=(1,))
    reason = "the matmul without its bias is an output of the graph"
    left = assert_rewrites(MergeMatmuls(), model, 1, [reason])
    assert left == {"MatMul": 2, "Add": 1, "Split": 1}


def test_nothing_to_merge_with() -> None:
    assert_left_alone(MergeMatmuls(), projections([6]))


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Relu", "p1", "y1")],
        [node("Add", "p1 b0", "q"), node("Add", "p1 q", "y1")],
        [node("Add", "p1 p1", "y1")],
    ],
)
def test_a_matmul_without_a_bias_has_zeros(nodes: list[NodeProto]) -> None:
    model = beside_a_projection(nodes)
    left = assert_rewrites(MergeMatmuls(), model, 1)
    assert left["MatMul"] == 1
    assert left["Split"] == 1


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([node("Add", "p1 r", "y1")], "the bias of the matmul is not a constant vector"),
        ([node("Add", "p1 matrix", "y1")], "the bias of the matmul is not a constant"),
        ([node("Add", "p1 one", "y1")], "the bias of the matmul is not a constant vector"),
    ],
)
def test_matmuls_that_are_no_projections(nodes: list[NodeProto], reason: str) -> None:
    assert_left_alone(MergeMatmuls(), beside_a_projection(nodes), reason)


def beside_a_projection(nodes: list[NodeProto]) -> ir.Model:
    """Graph of a projection and a matmul p1 of the same input, which nodes read."""
    first = [node("MatMul", "x w0", "p0"), node("Add", "p0 b0", "y0"), node("MatMul", "x w1", "p1")]
    constants = {
        "w0": weights(8, 6), "w1": weights(8, 6, seed=1), "b0": weights(6),
        "matrix": weights(5, 6), "one": weights(1),
    }  # fmt: skip
    inputs: dict[str, Axes] = {**X, "r": ["N", "T", 6]}
    return build([*first, *nodes], inputs, {"y0": OUT, "y1": OUT}, constants)


def test_a_matmul_that_is_itself_an_output_is_left() -> None:
    nodes = [
        node("MatMul", "x w", "p"), node("Add", "p b", "y"),
        node("MatMul", "x v", "q"), node("Add", "q b", "z"),
    ]  # fmt: skip
    constants = {"w": weights(8, 6), "v": weights(8, 6, seed=1), "b": weights(6)}
    model = build(nodes, X, {"p": OUT, "y": OUT, "z": OUT}, constants)
    reason = "the matmul without its bias is an output of the graph"
    assert_left_alone(MergeMatmuls(), model, reason)


def test_two_inputs_make_two_matmuls_even_if_their_first_matrix_is_the_same() -> None:
    nodes = []
    for index, x in enumerate("xz"):
        for name in ("w", f"v{index}"):
            nodes.append(node("MatMul", f"{x} {name}", f"p{x}{name}"))
            nodes.append(node("Add", f"p{x}{name} b", f"y{x}{name}"))
    constants = {
        "w": weights(8, 6), "v0": weights(8, 6, seed=1), "v1": weights(8, 6, seed=2),
        "b": weights(6),
    }  # fmt: skip
    outputs: dict[str, Axes] = {n.output[0]: OUT for n in nodes if n.op_type == "Add"}
    model = build(nodes, {**X, "z": ["N", "T", 8]}, outputs, constants)
    assert assert_rewrites(MergeMatmuls(), model, 2) == {"MatMul": 2, "Add": 2, "Split": 2}
