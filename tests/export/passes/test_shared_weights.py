"""Readers of shared 8-bit weights: each one has a matrix of its own, of one stored copy."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from onnx import NodeProto
from support.graphs import (
    assert_left_alone,
    assert_rewrites,
    build,
    feeds,
    node,
    operators,
    written,
)

from translate_trt.export.fused_ops.declarations import DOMAIN
from translate_trt.export.passes.shared_weights import SeparateReaders
from translate_trt.runtime.backends.onnxruntime import EXACT_INT8

SIZE = 16
WEIGHTS = np.random.default_rng(0).integers(-127, 128, (SIZE, SIZE)).astype(np.int8)
CONSTANTS = {"w": WEIGHTS, "one": np.array(1, np.float32)}
QUANTIZE = node("DynamicQuantizeLinear", "x", "q scale zero")


def model(nodes: list[NodeProto], outputs: list[str]) -> ir.Model:
    return build(
        [QUANTIZE, *nodes], {"x": ["N", SIZE]}, {name: ["N", SIZE] for name in outputs}, CONSTANTS
    )


def readers() -> ir.Model:
    """Three matmuls of each operator with the same weights."""
    nodes, outputs = [], []
    for index in range(3):
        outputs += [f"integers_{index}", f"floats_{index}"]
        nodes += [
            node("MatMulInteger", "q w zero", f"sums_{index}"),
            node("Cast", f"sums_{index}", f"integers_{index}", to=1),
            node("MatMulIntegerToFloat", "q w one one zero", f"floats_{index}"),
        ]
    return model(nodes, outputs)


def test_each_further_reader_has_a_matrix_of_its_own() -> None:
    given = readers()
    left = assert_rewrites(SeparateReaders(), given, 5)
    assert left["Reshape"] == left["Squeeze"] == 5
    constants = given.graph.initializers.values()
    assert [value.name for value in constants if value.dtype == ir.DataType.INT8] == ["w"]


def test_onnx_runtime_loads_the_graph_and_computes_exactly() -> None:
    given = readers()
    SeparateReaders().run(given)
    options = ort.SessionOptions()
    options.add_session_config_entry(*EXACT_INT8)
    session = ort.InferenceSession(
        ir.to_proto(given).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    inputs = feeds(given)
    x = inputs["x"]
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32((high - low) / 255)
    zero = np.rint(-low / scale)
    quantized = np.clip(np.rint(x / scale) + zero, 0, 255)
    expected = (quantized - zero) @ WEIGHTS.astype(np.float64)
    for found in session.run(None, inputs):
        np.testing.assert_array_equal(found, expected)


def test_bodies_of_fused_operators_reshape_to_different_shapes() -> None:
    given = model([node("Neg", "x", "y")], ["y"])
    weights, x = given.graph.initializers["w"], given.graph.inputs[0]
    for epilogue in ("Relu", "", "Relu"):
        inputs = [x, weights, *given.graph.inputs[:1] * 2]
        attributes = {"shape": [SIZE, -1], "width": SIZE}
        given.graph.append(ir.node(f"Linear8{epilogue}", inputs, attributes, domain=DOMAIN))
    assert SeparateReaders().run(given).matches == 2
    shapes = [n.attributes.get_ints("shape") for n in given.graph if n.domain == DOMAIN]
    assert [list(shape) for shape in shapes] == [[SIZE, -1], [SIZE, -1, 1], [SIZE, -1, 1, 1]]
    once = written(given)
    assert SeparateReaders().run(given).matches == 0
    assert written(given) == once


def test_other_readers_are_left_alone() -> None:
    nodes = [
        node("MatMulInteger", "q w zero", "sums"),
        node("Cast", "sums", "alone", to=1),
        # A lookup of rows, and weights that are computed.
        node("Cast", "w", "rows", to=1),
        node("MatMul", "x rows", "plain"),
        node("Neg", "w", "negative"),
        node("MatMulInteger", "q negative zero", "sums_1"),
        node("MatMulInteger", "q negative zero", "sums_2"),
        node("Add", "sums_1 sums_2", "sums_3"),
        node("Cast", "sums_3", "computed", to=1),
    ]
    given = model(nodes, ["alone", "plain", "computed"])
    assert_left_alone(SeparateReaders(), given)
    assert operators(given) == Counter(
        ["DynamicQuantizeLinear", *["MatMulInteger"] * 3, *["Cast"] * 3, "MatMul", "Neg", "Add"]
    )
