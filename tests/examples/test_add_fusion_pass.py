"""examples/add_fusion_pass: its own test, which the README tells newcomers to write first."""

from __future__ import annotations

import runpy
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.paths import ROOT

from translate_trt.export.passes.base import Pass

PATH = ROOT / "examples/add_fusion_pass/fuse_quick_gelu.py"


@pytest.fixture(scope="module")
def fusion() -> Pass:
    found: Any = runpy.run_path(str(PATH))["FuseQuickGelu"]()
    return found  # type: ignore[no-any-return]


def graph(alpha: np.ndarray, swapped: bool = False) -> onnx.ModelProto:
    """y = x * sigmoid(alpha * x), with the operands of both Muls in either order."""
    inner, outer = ["alpha", "x"], ["x", "gate"]
    nodes = [
        helper.make_node("Mul", inner[::-1] if swapped else inner, ["scaled"]),
        helper.make_node("Sigmoid", ["scaled"], ["gate"]),
        helper.make_node("Mul", outer[::-1] if swapped else outer, ["y"]),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 8]) for n in ("x", "y")]
    constants = [numpy_helper.from_array(alpha.astype(np.float32), "alpha")]
    made = helper.make_graph(nodes, "swish", values[:1], values[1:], constants)
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=domains, ir_version=10)


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {"x": x})[0])


def fused(fusion: Pass, model: onnx.ModelProto) -> tuple[ir.Model, Any]:
    found = ir.from_proto(model)
    return found, fusion.run(found)


@pytest.mark.parametrize("swapped", [False, True])
def test_it_matches_every_order_and_computes_the_same(fusion: Pass, swapped: bool) -> None:
    model = graph(np.array(1.702), swapped)
    found, outcome = fused(fusion, model)
    assert (outcome.matches, outcome.refused) == (1, ())
    assert [node.op_type for node in found.graph] == ["QuickGelu"]
    x = np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32)
    np.testing.assert_allclose(run(ir.to_proto(found), x), run(model, x), rtol=1e-5, atol=1e-6)


def test_a_second_run_changes_nothing(fusion: Pass) -> None:
    found, _ = fused(fusion, graph(np.array(1.0)))
    assert fusion.run(found).matches == 0


def test_a_near_miss_stays_with_a_reason(fusion: Pass) -> None:
    found, outcome = fused(fusion, graph(np.ones(8)))
    assert (outcome.matches, outcome.refused) == (0, ("y: alpha is not one constant number",))
    assert [node.op_type for node in found.graph] == ["Mul", "Sigmoid", "Mul"]
