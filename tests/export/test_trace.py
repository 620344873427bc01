"""Graph files have the contract's names, types and axes, and pass the checker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
import onnxruntime as ort
import pytest
from torch import Tensor, nn

from translate_trt.export import trace as trace_module
from translate_trt.export.targets import DYNAMIC_OPSET
from translate_trt.export.trace import check, trace
from translate_trt.runtime.bundle.contract import TensorSpec
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.errors import TranslateTrtError

TYPES = {"int64": onnx.TensorProto.INT64, "float32": onnx.TensorProto.FLOAT,
         "float16": onnx.TensorProto.FLOAT16, "bool": onnx.TensorProto.BOOL}  # fmt: skip


@pytest.mark.parametrize("target", ["onnx-fp32", "onnx-int8"])
@pytest.mark.parametrize("role", ["encoder", "step"])
def test_the_files_keep_the_contract(compiled_bundle: Path, target: str, role: str) -> None:
    manifest = read_manifest(compiled_bundle)
    path = manifest.target(target).files[role].locate(compiled_bundle)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    imports = {"": DYNAMIC_OPSET, "com.microsoft": 1, "translate_trt": 1}
    assert {o.domain: o.version for o in model.opset_import} == imports
    called = {node.op_type for node in model.graph.node if node.domain == "translate_trt"}
    assert called
    # A body also contains TopLogits.
    assert {function.name for function in model.functions} - {"TopLogits"} == called - {"TopLogits"}
    contract = manifest.target(target).contract
    for values, specs in zip(
        (model.graph.input, model.graph.output), contract.graphs[role], strict=True
    ):
        assert [value.name for value in values] == [spec.name for spec in specs]
        for value, spec in zip(values, specs, strict=True):
            kind = value.type.tensor_type
            assert kind.elem_type == TYPES[spec.dtype]
            axes = [d.dim_param or d.dim_value for d in kind.shape.dim]
            assert axes == list(spec.axes), spec.name


class Doubles(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor]:
        return (x.double() + y,)


def test_a_module_that_departs_from_the_contract_is_refused() -> None:
    inputs = [TensorSpec("x", "float32", ("N", 4)), TensorSpec("y", "float32", ("N", 4))]
    with pytest.raises(TranslateTrtError, match="DOUBLE"):
        trace(Doubles(), inputs, [TensorSpec("z", "float32", ("N", 4))], "wrong")


def test_caches_are_never_gathered(compiled_bundle: Path) -> None:
    # Caches are written in place and masked; a Gather would copy them in every step.
    model = onnx.inliner.inline_local_functions(
        onnx.load(compiled_bundle / "targets/onnx-fp32/step.onnx")
    )
    gathered = {node.input[0] for node in model.graph.node if node.op_type.startswith("Gather")}
    # The write takes the input itself, so both can share memory. No other node reads the input but
    # for its sizes, or its old content would have to be kept.
    written = {
        node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "ScatterND"
    }
    caches = {o.name for o in model.graph.output if o.name.startswith("next_self_")}
    assert len(caches) == 4
    assert written == {name: name.removeprefix("next_") for name in caches}
    readers = [node for node in model.graph.node if node.op_type != "Shape"]
    reads = Counter(name for node in readers for name in node.input)
    assert [reads[name] for name in written.values()] == [1] * 4
    assert not (caches | set(written.values())) & gathered


@pytest.mark.parametrize(
    ("target", "operator", "count"),
    [("onnx-int8", "MatMulInteger", 2 * 6), ("onnx-fp32", "MatMul", 2 * 6 + 1)],
)
def test_bodies_leave_nothing_to_do_at_each_step(
    compiled_bundle: Path, tmp_path: Path, target: str, operator: str, count: int
) -> None:
    # Blocked weights are restored at load, and all layers share the indices of cache slots.
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3  # ONNX Runtime warns that the file is specific to this machine
    ort.InferenceSession(
        compiled_bundle / "targets" / target / "step.onnx", options,
        providers=["CPUExecutionProvider"],
    )  # fmt: skip
    graph = onnx.load(tmp_path / "optimized.onnx").graph
    nodes, constants = graph.node, {tensor.name for tensor in graph.initializer}
    assert not {node.op_type for node in nodes if node.domain == "translate_trt"}
    inside = [node for node in nodes if node.op_type == operator and node.input[1] in constants]
    assert len(inside) == count
    assert len({node.input[1] for node in nodes if node.op_type == "ScatterND"}) == 1


def test_weights_that_no_file_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ir.Value(name="table", const_value=ir.tensor(np.zeros((256, 1024), np.float32)))
    graph = ir.Graph(
        [], [], nodes=[], initializers=[table], name="step", opset_imports={"": DYNAMIC_OPSET}
    )
    monkeypatch.setattr(trace_module, "_MOST_BYTES", 2**20)
    check(ir.Model(graph, ir_version=10))
    monkeypatch.setattr(trace_module, "_MOST_BYTES", 2**20 - 1)
    with pytest.raises(TranslateTrtError, match=r"0\.00 GiB"):
        check(ir.Model(graph, ir_version=10))
