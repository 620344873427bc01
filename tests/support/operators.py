"""Sessions of single fused operators: of their kernels, and of the bodies of their functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from translate_trt.export.fused_ops.declarations import DOMAIN, OPERATORS, function
from translate_trt.export.targets import DYNAMIC_OPSET
from translate_trt.runtime import kernels
from translate_trt.runtime.backends.onnxruntime import EXACT_INT8

Array = NDArray[Any]

Session = Callable[..., list[Array]]

HIDDEN = -1e30
#: Of tokens that never come (export/importers/vocabulary.py).
NEVER = -1e4


def operator_session(
    name: str,
    values: Mapping[str, Array],
    constant: Collection[str] = (),
    functions: Collection[onnx.FunctionProto] = (),
    threads: int = 1,
    **attributes: Any,
) -> Session:
    """Return a session of one fused operator, which runs with changed inputs.

    Args:
        name: Name of the operator.
        values: Its inputs, in order.
        constant: Names of those that are initializers.
        functions: Its function and those that it calls, to run its body in place of its kernel.
        threads: Threads of the session.
        attributes: Attributes of the node.
    """
    outputs = {f"y{i}": kind for i, kind in enumerate(OPERATORS[name].outputs.values())}
    node = helper.make_node(name, list(values), list(outputs), domain=DOMAIN, **attributes)
    kinds = {one: value.dtype for one, value in values.items() if one not in constant} | outputs
    declared = {
        one: helper.make_tensor_value_info(
            one, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), None
        )
        for one, kind in kinds.items()
    }
    graph = helper.make_graph(
        [node], "one", [one for key, one in declared.items() if key not in outputs],
        [declared[one] for one in outputs],
        [numpy_helper.from_array(values[one], one) for one in constant],
    )  # fmt: skip
    opsets = {one.domain: one.version for each in functions for one in each.opset_import}
    opsets |= {"": DYNAMIC_OPSET, DOMAIN: 1}
    model = helper.make_model(
        graph, functions=functions, ir_version=10,
        opset_imports=[helper.make_opsetid(*one) for one in opsets.items()],
    )  # fmt: skip
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry(*EXACT_INT8)
    if not functions:
        options.register_custom_ops_library(str(kernels.library()))
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    def run(changed: Mapping[str, Array] = {}) -> list[Array]:  # only read
        fed = {**values, **changed}
        return list(session.run(None, {k: v for k, v in fed.items() if k not in constant}))

    return run


@pytest.fixture(params=(1, 3), ids=("one thread", "three threads"))
def make_session(request: pytest.FixtureRequest, compiled_kernels: str) -> Callable[..., Session]:
    """Factory of sessions of kernels."""
    return functools.partial(operator_session, threads=request.param)


def assert_as_body(
    make_session: Callable[..., Session],
    name: str,
    values: Mapping[str, Array],
    constant: Collection[str] = (),
    rtol: float = 1e-5,
    atol: float = 1e-5,
    **attributes: Any,
) -> list[Array]:
    """Compare a kernel with the body of its operator, and return the kernel's outputs."""
    functions = [
        ir.to_proto(function(one, DYNAMIC_OPSET)) for one in dict.fromkeys((name, "TopLogits"))
    ]
    body = operator_session(name, values, functions=functions, **attributes)
    expected = body()
    found = make_session(name, values, constant, **attributes)()
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)
    return found


def blocked(weights: Array) -> Array:
    """Block a matrix [I, O] as [O' / 16, I / 4, 16, 4], padded with columns of zeros."""
    filled = np.pad(weights, ((0, 0), (0, -weights.shape[1] % 16)))
    inputs, outputs = filled.shape
    parts = filled.reshape(inputs // 4, 4, outputs // 16, 16)
    return np.ascontiguousarray(parts.transpose(2, 0, 3, 1))


def matrix(rng: np.random.Generator, inputs: int, outputs: int) -> tuple[Array, Array]:
    """Return random int8 weights [I, O] in blocks, and their scales, 1 in padding columns."""
    weights = rng.integers(-127, 128, (inputs, outputs)).astype(np.int8)
    scales = rng.random(outputs, dtype=np.float32) / 100 + 1e-3
    return blocked(weights), np.pad(scales, (0, -outputs % 16), constant_values=1)


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
