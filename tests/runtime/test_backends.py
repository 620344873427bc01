"""ONNX Runtime backend in Python: settings of its sessions, and errors on loading."""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from translate_trt.export.contract import make_contract
from translate_trt.runtime import kernels
from translate_trt.runtime.backends import Settings, load_graphs
from translate_trt.runtime.backends.onnxruntime import EXACT_INT8
from translate_trt.runtime.bundle.contract import Contract
from translate_trt.runtime.bundle.manifest import TargetEntry, read_manifest
from translate_trt.runtime.errors import BundleError
from translate_trt.runtime.translator import Translator


@pytest.fixture
def entry(compiled_bundle: Path) -> TargetEntry:
    return read_manifest(compiled_bundle).target("onnx-fp32")


@pytest.fixture
def contract(entry: TargetEntry) -> Contract:
    return entry.contract


@pytest.fixture
def files(entry: TargetEntry, compiled_bundle: Path) -> dict[str, Path]:
    return {role: file.locate(compiled_bundle) for role, file in entry.files.items()}


def test_threads_of_all_workers_are_shared(
    files: dict[str, Path], contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A caller's own thread works along: two workers of three threads need four more.
    seen: list[int] = []
    session = ort.InferenceSession

    def record(path: str, options: ort.SessionOptions, **more: Any) -> ort.InferenceSession:
        seen.append(options.intra_op_num_threads)
        return session(path, options, **more)

    monkeypatch.setattr(ort, "InferenceSession", record)
    for settings, threads in ((Settings(), 1), (Settings(3, 2), 5), (Settings(1, 8), 1)):
        load_graphs("onnxruntime", files, contract, settings)
        assert seen == [threads, threads]
        seen.clear()


def test_8_bit_matmuls_do_not_saturate() -> None:
    # As the int8 pass makes them: unsigned activations, signed weights. Processors with AVX2 and
    # without VNNI would accumulate in 16 bits.
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (5, 64), dtype=np.uint8)
    weights = rng.integers(-127, 128, (64, 32), dtype=np.int8)
    constants = {"w": weights, "x_zero": np.uint8(128), "w_zero": np.int8(0)}
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w", "x_zero", "w_zero"], ["y"])],
        "matmul",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["M", 64])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, ["M", 32])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = ort.SessionOptions()
    options.add_session_config_entry(*EXACT_INT8)
    session = ort.InferenceSession(model.SerializeToString(), options)
    exact = (x.astype(np.int64) - 128) @ weights.astype(np.int64)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], exact)


def test_onnxruntime_s_own_fusion_of_residuals_is_off(
    files: dict[str, Path], contract: Contract, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    monkeypatch.setenv(kernels.VARIABLE, "none")  # one of them would take both
    session = ort.InferenceSession
    made: list[Path] = []

    def record(path: str, options: ort.SessionOptions, **more: Any) -> ort.InferenceSession:
        made.append(tmp_path / f"{len(made)}.onnx")
        options.optimized_model_filepath = str(made[-1])
        return session(path, options, **more)

    monkeypatch.setattr(ort, "InferenceSession", record)
    load_graphs("onnxruntime", files, contract)
    for path in made:
        operators = {node.op_type for node in onnx.load(path).graph.node}
        assert "LayerNormalization" in operators
        assert "SkipLayerNormalization" not in operators
    assert len(made) == 2


@pytest.mark.parametrize("trims", [True, False])
def test_loading_changes_no_setting_of_the_process(
    files: dict[str, Path], contract: Contract, monkeypatch: pytest.MonkeyPatch, trims: bool
) -> None:
    """With and without `malloc_trim` in the C library."""
    calls, real = [], ctypes.CDLL
    library = SimpleNamespace(malloc_trim=calls.append) if trims else object()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library if name is None else real(name))
    load_graphs("onnxruntime", files, contract, Settings())
    assert calls == [0] * trims


@pytest.mark.usefixtures("without_library")
def test_an_onnxruntime_that_computes_wrongly_is_refused(
    compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort, "__version__", "1.20.1")
    with pytest.raises(BundleError, match=r"1\.20\.1.*installed"):
        Translator(compiled_bundle)


def test_a_backend_this_version_does_not_have(contract: Contract) -> None:
    with pytest.raises(BundleError, match=r"'openvino'.*tensorrt_rtx"):
        load_graphs("openvino", {}, contract)


@pytest.mark.parametrize(("layers", "message"), [(1, r"step\.onnx"), (3, r"encoder\.onnx")])
def test_a_graph_of_another_shape(
    files: dict[str, Path], contract: Contract, layers: int, message: str
) -> None:
    wrong = make_contract(layers, 4, 8, 8, attention=True)
    with pytest.raises(BundleError, match=message):
        load_graphs("onnxruntime", files, wrong)


def test_a_graph_that_lacks_an_output(
    files: dict[str, Path], contract: Contract, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(files["step"])
    model.graph.output.remove(next(o for o in model.graph.output if o.name == "attention"))
    onnx.save(model, tmp_path / "step.onnx")
    files["step"] = tmp_path / "step.onnx"
    with pytest.raises(BundleError, match="differ in attention"):
        load_graphs("onnxruntime", files, contract)
    # Without the claim it is a good graph; one that gives more than is asked for is good as well.
    load_graphs("onnxruntime", files, dataclasses.replace(contract, results=contract.results[:-1]))
