"""ONNX operators as PyTorch calls, compared with ONNX's reference implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from translate_trt.runtime.backends.pytorch.onnx_operators import OPERATORS, Attributes, top_k
from translate_trt.runtime.backends.pytorch.onnx_program import Plan, Program
from translate_trt.runtime.bundle.contract import TensorSpec
from translate_trt.runtime.errors import BundleError

ONNX = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
_RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> NDArray[Any]:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def integers(*shape: int, low: int = -20, high: int = 20) -> NDArray[Any]:
    return _RANDOM.integers(low, high, shape)


def booleans(*shape: int) -> NDArray[Any]:
    return _RANDOM.random(shape) < 0.5


def numbers(*values: int) -> NDArray[Any]:
    return np.array(values, dtype=np.int64)


X, Y = floats(3, 4), floats(3, 4)
#: By operator: inputs (constants after a None), and attributes.
CASES: list[tuple[str, list[Any], list[Any], dict[str, Any]]] = [
    ("Add", [X, floats(4)], [], {}),
    ("And", [booleans(3, 4), booleans(4)], [], {}),
    ("ArgMax", [X], [], {"axis": -1}),
    ("ArgMax", [integers(3, 40, low=0, high=3)], [], {"axis": 1, "keepdims": 0}),
    ("Attention", [floats(2, 3, 4, 8), floats(2, 3, 5, 8), floats(2, 3, 5, 8), floats(2, 1, 4, 5)],
     [], {"scale": 1.0}),
    ("Attention", [floats(2, 3, 4, 8), floats(2, 3, 5, 8), floats(2, 3, 5, 6)], [], {}),
    ("Cast", [floats(9) * 5], [], {"to": TensorProto.INT64}),
    ("Cast", [integers(9, low=-1, high=2)], [], {"to": TensorProto.BOOL}),
    ("Clip", [integers(9)], [np.array(0, np.int64)], {}),
    ("Concat", [X, Y], [], {"axis": 1}),
    ("CumSum", [integers(3, 4)], [np.array(-1, np.int64)], {}),
    ("Div", [integers(9), integers(9, low=1)], [], {}),
    ("Div", [X, Y], [], {}),
    ("Equal", [booleans(9)], [np.array(True)], {}),
    ("Exp", [X], [], {}),
    ("Expand", [floats(3, 1)], [numbers(2, 1, 4)], {}),
    ("Expand", [floats(2, 3, 1)], [numbers(3, 4)], {}),
    ("Gather", [floats(9, 4), integers(2, 3, low=-9, high=9)], [], {}),
    ("Gather", [floats(3, 4)], [np.array(-1, np.int64)], {"axis": 1}),
    ("GatherElements", [X, integers(3, 4, low=0, high=3)], [], {"axis": 0}),
    ("Gelu", [X], [], {"approximate": "tanh"}),
    ("Gelu", [X], [], {}),
    ("Greater", [X, Y], [], {}),
    ("GreaterOrEqual", [integers(9), integers(9)], [], {}),
    ("Identity", [X], [], {}),
    ("LayerNormalization", [X, floats(4), floats(4)], [], {"epsilon": 1e-3}),
    ("Less", [X, Y], [], {}),
    ("LessOrEqual", [X, X], [], {}),
    ("Log", [np.abs(X)], [], {}),
    ("LogSoftmax", [X], [], {"axis": 0}),
    ("MatMul", [floats(2, 3, 4), floats(4, 5)], [], {}),
    ("Max", [X, Y], [], {}),
    ("Min", [X, Y], [], {}),
    ("Mod", [integers(9)], [np.array(7, np.int64)], {}),
    ("Mod", [integers(9), integers(9, low=1)], [], {"fmod": 1}),
    ("Mul", [X, Y], [], {}),
    ("Neg", [X], [], {}),
    ("Not", [booleans(9)], [], {}),
    ("Or", [booleans(9), booleans(9)], [], {}),
    ("Pow", [np.abs(X), floats(3, 1)], [], {}),
    ("ReduceMax", [X], [numbers(-1)], {"keepdims": 0}),
    ("ReduceMean", [X], [numbers(0)], {"keepdims": 0}),
    ("ReduceSum", [integers(3, 4)], [numbers(1)], {}),
    ("ReduceSum", [X], [], {}),
    ("Relu", [X], [], {}),
    ("Reshape", [floats(2, 6)], [numbers(0, -1, 3)], {}),
    ("Reshape", [floats(2, 6)], [numbers(-1, 4)], {"allowzero": 1}),
    ("Sigmoid", [X], [], {}),
    ("Slice", [floats(3, 9)], [numbers(0), numbers(-1), numbers(1)], {}),
    ("Slice", [floats(3, 9)], [numbers(1, 0), numbers(9, 2**40), numbers(1, 0), numbers(2, 1)], {}),
    ("Slice", [floats(3, 9)], [numbers(1), numbers(2)], {}),
    ("Softmax", [X], [], {"axis": 0}),
    ("Split", [X], [numbers(1, 3)], {"axis": -1}),
    ("Split", [X], [], {"axis": 1, "num_outputs": 2}),
    ("Squeeze", [floats(3, 1, 4)], [numbers(1)], {}),
    ("Squeeze", [floats(1, 1)], [], {}),
    ("Sub", [X, Y], [], {}),
    ("TopK", [X], [numbers(2)], {}),
    ("Transpose", [floats(2, 3, 4)], [], {"perm": [2, 0, 1]}),
    ("Unsqueeze", [X], [numbers(-1, 0)], {}),
    ("Where", [booleans(3, 4), X], [np.array(-np.inf, np.float32)], {}),
]  # fmt: skip


def dtype_of(value: NDArray[Any]) -> str:
    return str(value.dtype)


def run(path: Path, model: onnx.ModelProto, given: dict[str, NDArray[Any]]) -> list[Any]:
    """Run a model twice, the second time by its plan, with equal results."""
    kinds = {number: name for name, number in ONNX.items()}
    inputs, outputs = (
        [
            TensorSpec(value.name, kinds[value.type.tensor_type.elem_type], ())
            for value in values
        ]
        for values in (model.graph.input, model.graph.output)
    )  # fmt: skip
    path.write_bytes(model.SerializeToString())
    program = Program(path, inputs, outputs, torch.device("cpu"))
    tensors = {name: torch.from_numpy(value.copy()) for name, value in given.items()}
    plan, first = Plan.record(program, tensors)
    second = plan.run(tensors)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    return [value.numpy() for value in first]


def model_of(
    operator: str, given: list[Any], constants: list[Any], attributes: dict[str, Any]
) -> tuple[onnx.ModelProto, dict[str, NDArray[Any]]]:
    """Return a model of one node, and its inputs by name."""
    names = [f"x{index}" for index in range(len(given) + len(constants))]
    inputs = dict(zip(names, given, strict=False))
    count = {"Split": 2, "TopK": 2}.get(operator, 1)
    outputs = [f"y{index}" for index in range(count)]
    node = helper.make_node(operator, names, outputs, **attributes)
    initializers = [
        numpy_helper.from_array(value, name)
        for name, value in zip(names[len(given) :], constants, strict=True)
    ]
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, ONNX[dtype_of(value)], value.shape)
         for name, value in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        initializers,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    return model, inputs


@pytest.mark.parametrize(
    ("operator", "given", "constants", "attributes"), CASES, ids=[case[0] for case in CASES]
)
def test_equal_to_the_reference(
    operator: str,
    given: list[Any],
    constants: list[Any],
    attributes: dict[str, Any],
    tmp_path: Path,
) -> None:
    model, inputs = model_of(operator, given, constants, attributes)
    expected = ReferenceEvaluator(model).run(None, inputs)
    for value, output in zip(expected, model.graph.output, strict=True):
        output.type.tensor_type.elem_type = ONNX[dtype_of(value)]
    found = run(tmp_path / "one.onnx", model, inputs)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_every_operator_is_compared() -> None:
    # Shape and Range have no work on a device, TensorScatter writes into its input, and fused
    # operators are none of ONNX.
    others = {"Shape", "Range", "TensorScatter", "GpuLinear", "GpuLinearRelu", "RmsNorm"}
    assert {case[0] for case in CASES} == OPERATORS.keys() - others


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_matmuls_with_an_epilogue(dtype: torch.dtype) -> None:
    x, weights, bias = (torch.from_numpy(floats(*shape)) for shape in ((2, 3, 8), (8, 5), (5,)))
    exact = x @ weights + bias
    given = [one.to(dtype) for one in (x, weights, bias)]
    error = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
    for name, expected in (("GpuLinear", exact), ("GpuLinearRelu", exact.relu())):
        found = OPERATORS[name].bind(Attributes(name, {}))(*given)
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), expected, rtol=error, atol=error)


def test_sizes_are_numbers_of_the_host(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["size"], start=1, end=2),
        helper.make_node("Squeeze", ["size"], ["columns"]),
        helper.make_node("Range", ["zero", "columns", "one"], ["range"]),
        helper.make_node("Add", ["x", "range"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "sizes", [value("x", TensorProto.INT64, ["N", "S"])],
        [value("y", TensorProto.INT64, ["N", "S"])],
        [numpy_helper.from_array(np.array(n, np.int64), name) for n, name in enumerate(
            ("zero", "one"))],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    for columns in (3, 5):
        given = integers(2, columns)
        (found,) = run(tmp_path / "sizes.onnx", model, {"x": given})
        np.testing.assert_array_equal(found, given + np.arange(columns))


def test_slots_are_written_in_place(tmp_path: Path) -> None:
    cache, update = floats(2, 3, 8, 4), floats(2, 3, 2, 4)
    positions = numbers(4, 1)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("TensorScatter", ["cache", "update", "positions"], ["next"], axis=2)],
        "scatter",
        [value("cache", TensorProto.FLOAT, cache.shape),
         value("update", TensorProto.FLOAT, update.shape),
         value("positions", TensorProto.INT64, positions.shape)],
        [value("next", TensorProto.FLOAT, cache.shape)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    given = {"cache": cache, "update": update, "positions": positions}
    (expected,) = ReferenceEvaluator(model).run(None, given)
    (found,) = run(tmp_path / "scatter.onnx", model, given)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("operator", "given", "attributes"),
    [
        ("Attention", [floats(1, 1, 2, 4)] * 3, {"is_causal": 1}),
        ("TopK", [X, numbers(2)], {"largest": 0}),
        ("LayerNormalization", [X, floats(3, 4)], {"axis": 0}),
        ("Cast", [X], {"to": TensorProto.STRING}),
        ("Softmax", [X], {"temperature": 2}),
    ],
)
def test_other_settings_are_refused(
    operator: str, given: list[Any], attributes: dict[str, Any], tmp_path: Path
) -> None:
    model, _ = model_of(operator, given, [], attributes)
    (tmp_path / "one.onnx").write_bytes(model.SerializeToString())
    inputs = [TensorSpec(f"x{i}", dtype_of(value), ()) for i, value in enumerate(given)]
    outputs = [TensorSpec(value.name, "float32", ()) for value in model.graph.output]
    with pytest.raises(BundleError, match=f"has no {operator} "):
        Program(tmp_path / "one.onnx", inputs, outputs, torch.device("cpu"))


# ---- top_k ----


def expected_top_k(x: NDArray[Any], k: int) -> NDArray[Any]:
    """Return indices in descending order of values, and in ascending order of equal ones."""
    return np.argsort(-x, axis=-1, kind="stable")[..., :k]


@pytest.mark.parametrize("width", [9, 64, 1024, 1025, 4096, 5000, 70_001])
@pytest.mark.parametrize("values", [2, 9, 1_000_000])
def test_of_equal_values_the_first_wins(width: int, values: int) -> None:
    x = _RANDOM.integers(0, values, (3, 2, width)).astype(np.float32)
    x[0, 0] = 1  # all are equal
    x[1, 1, width // 2 :] = -np.inf
    for k in (1, 3, 9):
        found, indices = top_k(torch.from_numpy(x), k)
        expected = expected_top_k(x, k)
        np.testing.assert_array_equal(indices.numpy(), expected)
        np.testing.assert_array_equal(found.numpy(), np.take_along_axis(x, expected, -1))


def test_equal_values_in_the_last_places() -> None:
    for k in (1, 5, 60):
        x = np.zeros((2, 3001), dtype=np.float32)
        x[0, -k:] = 1  # the last block is shorter than the others
        x[1, :] = -np.inf
        _, indices = top_k(torch.from_numpy(x), k)
        np.testing.assert_array_equal(indices.numpy(), expected_top_k(x, k))


def test_half_precision_ties() -> None:
    x = torch.randn(4, 3000).to(torch.bfloat16)
    _, indices = top_k(x, 17)
    np.testing.assert_array_equal(indices.numpy(), expected_top_k(x.float().numpy(), 17))


def test_not_a_number_gives_an_index_of_the_row() -> None:
    x = torch.randn(3, 2000)
    x[1, ::7] = torch.nan
    x[2] = torch.nan
    _, indices = top_k(x, 9)
    assert ((indices >= 0) & (indices < 2000)).all()
    np.testing.assert_array_equal(indices[0].numpy(), expected_top_k(x[0].numpy(), 9))
