"""Sessions of single fused operators, and numpy equivalents (a plugin)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from translate_trt.runtime import kernels

Array = NDArray[Any]

Session = Callable[[Mapping[str, Array]], list[Array]]

HIDDEN = -1e30
#: Of tokens that never come (export/importers/vocabulary.py).
NEVER = -1e4


@pytest.fixture(params=(1, 3), ids=("one thread", "three threads"))
def make_session(request: pytest.FixtureRequest, compiled_kernels: str) -> Callable[..., Session]:
    """Factory of sessions of one translate_trt node, whose inputs are the non-constant operands."""

    def make(
        operator: str,
        values: Mapping[str, Array],
        outputs: int = 1,
        constant: tuple[str, ...] = (),
        **attributes: Any,
    ) -> Session:
        names = [f"y{i}" for i in range(outputs)]
        node = helper.make_node(operator, list(values), names, domain="translate_trt", **attributes)
        graph = helper.make_graph(
            [node],
            "one",
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(value.dtype), [None] * value.ndim
                )
                for name, value in values.items()
                if name not in constant
            ],
            [helper.make_empty_tensor_value_info(name) for name in names],
            [numpy_helper.from_array(values[name], name) for name in constant],
        )
        for output, kind in zip(graph.output, _output_types(operator), strict=True):
            output.type.tensor_type.elem_type = kind
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("translate_trt", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = ort.SessionOptions()
        options.intra_op_num_threads = request.param
        options.register_custom_ops_library(str(kernels.library()))
        session = ort.InferenceSession(model.SerializeToString(), options)

        def run(changed: Mapping[str, Array] = {}) -> list[Array]:  # only read
            fed = {**values, **changed}
            return list(session.run(None, {k: v for k, v in fed.items() if k not in constant}))

        return run

    return make


_CANDIDATES = ("Candidates", "TopLogits", "ListedCandidates", "VocabularyCandidates")


def _output_types(operator: str) -> list[int]:
    if operator.removeprefix("Biased").removesuffix("8") in _CANDIDATES:
        return [TensorProto.FLOAT, TensorProto.INT64, TensorProto.FLOAT]
    if operator.startswith("CachedAttention"):
        cache = TensorProto.FLOAT16 if operator.endswith("16") else TensorProto.FLOAT
        return [TensorProto.FLOAT, cache, cache]
    if "AddAnd" in operator or "Mean" in operator or operator == "RecurrentUnit":
        return [TensorProto.FLOAT, TensorProto.FLOAT]
    return [TensorProto.FLOAT16 if operator == "SplitHeads16" else TensorProto.FLOAT]


def quantize(x: Array, positive: bool) -> tuple[Array, Array]:
    """Quantize rows; return signed integers (without zero point) and the scale of each row."""
    scale = np.abs(x).max(-1, keepdims=True) * np.float32(1 / (255 if positive else 127))
    with np.errstate(invalid="ignore"):
        ratio = np.rint(np.nan_to_num(x / scale))
    return np.clip(ratio, 0 if positive else -128, 255 if positive else 127).astype(int), scale


def matmul(x: Array, weights: Array, scales: Array, positive: bool) -> Array:
    values, scale = quantize(x, positive)
    return ((values @ weights.astype(int)).astype(np.float32) * scale * scales).astype(np.float32)


def normalized(x: Array, gamma: Array, beta: Array | None, epsilon: float) -> Array:
    """LayerNorm, or without beta division by the root mean square."""
    wide = x.astype(np.float64)
    centred = wide if beta is None else wide - wide.mean(-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return (centred / spread * gamma + (0 if beta is None else beta)).astype(np.float32)


def blocked(weights: Array) -> Array:
    """Block a matrix [I, O] as [O' / 16, I / 4, 16, 4], padded with columns of zeros."""
    filled = np.pad(weights, ((0, 0), (0, -weights.shape[1] % 16)))
    inputs, outputs = filled.shape
    parts = filled.reshape(inputs // 4, 4, outputs // 16, 16)
    return np.ascontiguousarray(parts.transpose(2, 0, 3, 1))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_softmax(x: Array) -> Array:
    wide = x.astype(np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def matrix(rng: np.random.Generator, inputs: int, outputs: int) -> tuple[Array, Array, Array]:
    """Return random int8 weights [I, O], their scales [O], and the weights in blocks."""
    weights = rng.integers(-127, 128, (inputs, outputs)).astype(np.int8)
    return weights, rng.random(outputs, dtype=np.float32) / 100 + 1e-3, blocked(weights)


def in_panels(weights: Array) -> Array:
    """Arrange a matrix [I, O] in panels [O' / 64, I, 64], padded with columns of zeros."""
    filled = np.pad(weights, ((0, 0), (0, -weights.shape[1] % 64)))
    return np.ascontiguousarray(filled.reshape(len(filled), -1, 64).transpose(1, 0, 2))


def whole(rng: np.random.Generator, *shape: int) -> Array:
    """Return small integers, whose products and sums are exact in any order."""
    return rng.integers(-9, 10, shape).astype(np.float32)


def logit_bias(rng: np.random.Generator, columns: int) -> Array:
    """Return a bias [columns] like that of imported models, which bans a few tokens."""
    bias = rng.standard_normal(columns, dtype=np.float32) * 3
    bias[rng.choice(columns, columns // 20)] = bias[0] = NEVER
    return bias


def best(logits: Array, column: Array, count: int) -> list[Array]:
    log_probs = log_softmax(logits)
    order = np.argsort(-logits, axis=-1, kind="stable")[..., :count]
    return [
        np.take_along_axis(log_probs, order, -1),
        order,
        np.take_along_axis(log_probs, column, -1),
    ]


def assert_candidates(found: list[Array], expected: list[Array], near: float = 1e-5) -> None:
    np.testing.assert_array_equal(found[1], expected[1])
    for one, other in ((found[0], expected[0]), (found[2], expected[2])):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=near)
