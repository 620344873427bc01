"""General cleanup, and reshapes by constant shapes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript import optimizer
from support.graphs import (
    Axes,
    assert_left_alone,
    assert_rewrites,
    build,
    node,
    operators,
    weights,
    written,
)

from translate_trt.export.compile import trace_graphs
from translate_trt.export.contract import ensemble_contract
from translate_trt.export.passes.simplify import KeepSizes, Simplify, optimize
from translate_trt.export.targets import DYNAMIC_OPSET
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.train.checkpoint import Checkpoint

X: dict[str, Axes] = {"x": ["N", "T", 8]}


def test_constants_are_folded_equal_nodes_merged_and_dead_ones_dropped() -> None:
    nodes = [
        node("Add", "one one", "two"),
        node("Mul", "x two", "a"),
        node("Mul", "x two", "b"),
        node("Add", "a b", "sum"),
        node("Relu", "sum", "unread"),
        node("Identity", "sum", "y"),
    ]
    model = build(nodes, X, {"y": ["N", "T", 8]}, {"one": np.array(1, np.float32)})
    left = assert_rewrites(Simplify(), model, 4)
    assert left == {"Mul": 1, "Add": 1}


def test_large_constants_are_not_folded() -> None:
    nodes = [node("Neg", "big", "negative"), node("MatMul", "x negative", "y")]
    model = build(nodes, {"x": ["N", 130]}, {"y": ["N", 130]}, {"big": weights(130, 130)})
    assert_left_alone(Simplify(), model)
    nodes = [node("Neg", "small", "negative"), node("MatMul", "x negative", "y")]
    model = build(nodes, {"x": ["N", 100]}, {"y": ["N", 100]}, {"small": weights(100, 100)})
    assert assert_rewrites(Simplify(), model, 1) == {"MatMul": 1}


def test_an_output_keeps_the_axes_it_was_declared_with() -> None:
    nodes = [node("Relu", "x", "r"), node("Identity", "r", "y")]
    model = build(nodes, X, {"y": ["N", "T", 8]})
    inner = model.graph[0].outputs[0]
    inner.shape = ir.Shape(["s45", "s87", 8])  # as tracing names them
    assert assert_rewrites(Simplify(), model, 1) == {"Relu": 1}


def test_outputs_that_are_equal_keep_their_names() -> None:
    nodes = [node("Mul", "x two", name) for name in ("a", "b", "c")]
    axes: Axes = ["N", "T", 8]
    model = build(nodes, X, {"a": axes, "b": axes, "c": axes}, {"two": np.array(2, np.float32)})
    assert assert_rewrites(Simplify(), model, 0) == {"Mul": 1, "Identity": 2}
    assert [value.name for value in model.graph.outputs] == ["a", "b", "c"]


@pytest.mark.parametrize("role", ["encoder", "step"])
def test_rules_tried_at_their_operators_alone_find_the_same(
    role: str, checkpoint: Checkpoint
) -> None:
    contract = ensemble_contract([checkpoint.model], attention=True)
    traced = trace_graphs(checkpoint.load_model(), Limits(48, 98), contract, DYNAMIC_OPSET)[role]
    ours, theirs = traced.clone(), traced.clone()
    optimize(ours)
    optimizer.optimize_ir(theirs, input_size_limit=1 << 14, output_size_limit=1 << 14)
    assert written(ours) == written(theirs)
    assert len(ours.graph) < len(traced.graph)


def test_operands_of_commutative_operators_are_tried_in_both_orders() -> None:
    nodes = [node("Mul", "one x", "a"), node("Mul", "a one", "b"), node("Relu", "b", "y")]
    model = build(nodes, X, {"y": ["N", "T", 8]}, {"one": np.array(1, np.float32)})
    assert assert_rewrites(Simplify(), model, 2) == {"Relu": 1}


# ---- keep-sizes ----


def reshaped(x: Axes, sizes: list[str | int], y: Axes) -> ir.Model:
    """Build a reshape to these sizes; letters are sizes of x."""
    nodes = [node("Shape", "x", "all")]
    constants = {"axis": np.array(0)}
    parts = []
    for index, size in enumerate(sizes):
        if isinstance(size, int):
            constants[f"size{index}"] = np.array([size])
        else:
            constants[f"at{index}"] = np.array([x.index(size)])
            nodes.append(node("Gather", f"all at{index}", f"size{index}"))
        parts.append(f"size{index}")
    nodes += [node("Concat", " ".join(parts), "shape", axis=0), node("Reshape", "x shape", "y")]
    model = build(nodes, {"x": x}, {"y": y}, constants, infer=False)
    model.graph.outputs[0].shape = ir.Shape(y)
    return model


@pytest.mark.parametrize(
    ("x", "sizes", "y", "stored"),
    [
        (["N", "T", 8], ["N", "T", 2, 4], ["N", "T", 2, 4], [0, 0, 2, 4]),
        (["N", "T", 2, 4], ["N", "T", 8], ["N", "T", 8], [0, 0, 8]),
        (["N", "T", 8], [-1, 8], ["NT", 8], [-1, 8]),
        (["N", 6, 8], ["N", -1, 4], ["N", 12, 4], [0, 12, 4]),
    ],
)
def test_shapes_are_written_down(
    x: Axes, sizes: list[str | int], y: Axes, stored: list[int]
) -> None:
    model = reshaped(x, sizes, y)
    left = assert_rewrites(KeepSizes(), model, 1)
    assert left["Reshape"] == 1
    assert Simplify().run(model).matches >= 0
    assert operators(model) == {"Reshape": 1}
    shape = model.graph[0].inputs[1]
    assert shape is not None
    assert shape.const_value is not None
    assert shape.const_value.numpy().tolist() == stored


def test_two_sizes_that_are_nowhere_written() -> None:
    model = reshaped(["N", "T", 8], ["T", "N", 8], ["T", "N", 8])
    assert_left_alone(KeepSizes(), model, "two or more sizes are neither constant nor of x")


def test_an_unnamed_size_is_not_taken_for_the_inputs() -> None:
    # Both first axes are unnamed, so they are not known to be equal.
    model = reshaped(["N", "T", 8], ["T", "N", 8], [None, None, 8])
    model.graph.inputs[0].shape = ir.Shape([None, None, 8])
    outcome = KeepSizes().run(model)
    assert outcome.matches == 0
    assert outcome.refused == ("y: two or more sizes are neither constant nor of x",)


def test_a_shape_that_is_constant_already() -> None:
    model = build(
        [node("Reshape", "x shape", "y")], X, {"y": ["N", "T", 2, 4]},
        {"shape": np.array([0, 0, 2, 4])},
    )  # fmt: skip
    assert_left_alone(KeepSizes(), model)
