from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from translate_trt.export.verify.emulation_pass import Emulate
from translate_trt.runtime.errors import TranslateTrtError

HALF = {ir.DataType.FLOAT16: np.float16, ir.DataType.BFLOAT16: ml_dtypes.bfloat16}
WEIGHTS = np.random.default_rng(1).normal(0, 3, (64, 16)).astype(np.float32)
BIAS = np.random.default_rng(2).normal(0, 3, 16).astype(np.float32)
X = np.random.default_rng(3).normal(size=(5, 64)).astype(np.float32)


def value(name: str, dtype: ir.DataType, *shape: int | str) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))


def node(operator: str, inputs: list[ir.Value], dtype: ir.DataType, name: str, **attributes: Any):  # type: ignore[no-untyped-def]
    made = ir.node(operator, inputs, attributes)
    made.outputs[0].name, made.outputs[0].type = name, ir.TensorType(dtype)
    return made


def constant(name: str, array: NDArray[Any]) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    made = ir.Value(name=name, type=ir.TensorType(tensor.dtype), const_value=tensor)
    made.shape = ir.Shape(array.shape)
    return made


def model(
    inputs: list[ir.Value], nodes: list[ir.Node], outputs: list[ir.Value], *constants: ir.Value
) -> ir.Model:
    graph = ir.Graph(
        inputs, outputs, nodes=nodes, initializers=constants, opset_imports={"": 24}, name="g"
    )
    return ir.Model(graph, ir_version=10)


def layer(dtype: ir.DataType) -> ir.Model:
    """Build a graph of relu(x W + b), transposed, with 16-bit inputs and outputs."""
    x = value("x", dtype, "N", 64)
    weights, bias = (constant(n, a.astype(HALF[dtype])) for n, a in (("w", WEIGHTS), ("b", BIAS)))
    matmul = node("MatMul", [x, weights], dtype, "matmul")
    total = node("Add", [matmul.outputs[0], bias], dtype, "total")
    positive = node("Relu", [total.outputs[0]], dtype, "positive")
    turned = node("Transpose", [positive.outputs[0]], dtype, "turned", perm=[1, 0])
    nodes = [matmul, total, positive, turned]
    return model([x], nodes, [turned.outputs[0]], weights, bias)


def run(graph: ir.Model, **inputs: NDArray[Any]) -> NDArray[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        ir.to_proto(graph).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (output,) = session.run(None, inputs)
    return np.asarray(output)


@pytest.mark.parametrize("dtype", HALF)
def test_every_operator_rounds_its_result(dtype: ir.DataType) -> None:
    half = HALF[dtype]

    def rounded(x: NDArray[Any]) -> NDArray[np.float32]:
        return x.astype(half).astype(np.float32)

    graph = layer(dtype)
    assert Emulate().run(graph).matches == 3  # a transposition only moves values
    stored = np.float16 if dtype == ir.DataType.FLOAT16 else np.float32
    x = rounded(X).astype(stored)
    matmul = rounded(rounded(X) @ rounded(WEIGHTS))
    expected = np.maximum(rounded(matmul + rounded(BIAS)), 0).T
    found = run(graph, x=x)
    assert found.dtype == stored
    # Another order of summation may round to the next number, in one of some hundred results.
    close = np.abs(found - expected) <= np.abs(expected) * float(ml_dtypes.finfo(half).eps)
    assert close.all()
    assert (found == expected).mean() > 0.95
    unrounded = np.maximum(rounded(X) @ rounded(WEIGHTS) + rounded(BIAS), 0).T
    assert (found == unrounded).mean() < 0.6


def test_fp16_overflow_is_infinite() -> None:
    graph = layer(ir.DataType.FLOAT16)
    Emulate().run(graph)
    assert np.isinf(run(graph, x=np.full((1, 64), 60_000, np.float16))).any()


@pytest.mark.parametrize("dtype", HALF)
def test_a_second_run_changes_nothing(dtype: ir.DataType) -> None:
    graph = layer(dtype)
    Emulate().run(graph)
    before = [one.op_type for one in graph.graph]
    assert Emulate().run(graph).matches == 0
    assert [one.op_type for one in graph.graph] == before


def test_float32_is_left_alone() -> None:
    x = value("x", ir.DataType.FLOAT, 2, 3)
    relu = node("Relu", [x], ir.DataType.FLOAT, "y")
    graph = model([x], [relu], [relu.outputs[0]])
    assert Emulate().run(graph).matches == 0
    assert [one.op_type for one in graph.graph] == ["Relu"]


def test_a_value_read_twice_is_cast_once() -> None:
    x = value("x", ir.DataType.FLOAT16, 2, 3)
    first = node("Relu", [x], ir.DataType.FLOAT16, "a")
    second = node("Mul", [x, first.outputs[0]], ir.DataType.FLOAT16, "b")
    graph = model([x], [first, second], [second.outputs[0]])
    assert Emulate().run(graph).matches == 2
    assert sum(one.op_type == "Cast" for one in graph.graph) == 4
    found = run(graph, x=np.array([[-1, 2, 3], [0.5, -4, 6]], np.float16))
    np.testing.assert_array_equal(found, [[0, 4, 9], [0.25, 0, 36]])


@pytest.mark.parametrize(("rows", "expands"), [(1, 1), (4, 0)])
def test_attention_gets_a_row_of_the_mask_for_every_query(rows: int, expands: int) -> None:
    half = ir.DataType.FLOAT16
    query, key = value("q", half, "N", 2, 4, 8), value("k", half, "N", 2, 6, 8)
    mask = value("mask", half, "N", 1, rows, 6)
    attention = node("Attention", [query, key, key, mask], half, "y", scale=1.0)
    graph = model([query, key, mask], [attention], [attention.outputs[0]])
    Emulate().run(graph)
    assert sum(one.op_type == "Expand" for one in graph.graph) == expands
    random = np.random.default_rng(4)
    q, k = (random.normal(size=(3, 2, n, 8)).astype(np.float16) for n in (4, 6))
    hidden = np.where(random.random((3, 1, rows, 6)) < 0.3, -6e4, 0).astype(np.float16)
    scores = q.astype(np.float32) @ k.astype(np.float32).swapaxes(2, 3) + hidden
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ k.astype(np.float32)
    np.testing.assert_allclose(run(graph, q=q, k=k, mask=hidden), expected, atol=2e-3)


def test_a_graph_inside_a_graph_is_refused() -> None:
    inner = node("Identity", [value("x", ir.DataType.FLOAT16, 2)], ir.DataType.FLOAT16, "z")
    branch = ir.Graph([], [inner.outputs[0]], nodes=[inner], name="branch")
    condition = value("c", ir.DataType.BOOL)
    attributes = [ir.AttrGraph(name, branch) for name in ("then_branch", "else_branch")]
    choice = ir.Node("", "If", [condition], attributes, num_outputs=1, name="choice")
    choice.outputs[0].name = "y"
    choice.outputs[0].type = ir.TensorType(ir.DataType.FLOAT16)
    with pytest.raises(TranslateTrtError, match="emulate If"):
        Emulate().run(model([condition], [choice], [choice.outputs[0]]))
