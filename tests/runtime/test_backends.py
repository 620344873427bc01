"""ONNX Runtime backend in Python: outputs of both graphs, and errors on loading."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from translate_trt.export.contract import make_contract
from translate_trt.runtime import kernels
from translate_trt.runtime.backends import Settings, load_graphs
from translate_trt.runtime.backends.onnxruntime import EXACT_INT8, OnnxRuntimeGraphs
from translate_trt.runtime.bundle.contract import FREE, NEXT, Contract, TensorSpec, request_values
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.errors import BackendError, BundleError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.reference import Arrays
from translate_trt.runtime.translator import Translator

TARGETS = ["onnx-fp32", "onnx-int8"]
LONG = [*range(4, 40), 3]


def contract_of(bundle: Path, target: str = "onnx-fp32") -> Contract:
    return read_manifest(bundle).target(target).contract


def files_of(bundle: Path, target: str) -> dict[str, Path]:
    entry = read_manifest(bundle).target(target)
    return {role: file.locate(bundle) for role, file in entry.files.items()}


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def contract(request: pytest.FixtureRequest, compiled_bundle: Path) -> Contract:
    """Contract of the test's target, or of the first target."""
    of_each = "target" in request.fixturenames
    target = request.getfixturevalue("target") if of_each else TARGETS[0]
    return contract_of(compiled_bundle, target)


@pytest.fixture(scope="module")
def graphs(compiled_bundle: Path, target: str) -> OnnxRuntimeGraphs:
    contract = contract_of(compiled_bundle, target)
    return OnnxRuntimeGraphs(files_of(compiled_bundle, target), contract, Settings())


def encode(graphs: OnnxRuntimeGraphs, rows: list[list[int]], width: int | None = None) -> Arrays:
    """Encode rows padded to `width` with a token other than the padding symbol."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), width or lengths.max()), 7)
    for given, row in zip(ids, rows, strict=True):
        given[: len(row)] = row
    return graphs.encode({"source_ids": ids, "source_lengths": lengths})


def request_of(sentences: int, beams: int) -> Arrays:
    return request_values([SearchOptions()] * sentences, np.full(sentences, 50), beams)


def run_steps(
    graphs: OnnxRuntimeGraphs, contract: Contract, encoded: Arrays, beams: int, steps: int,
    slots: int = 40,
) -> list[Arrays]:  # fmt: skip
    """Run the first steps of a search; return copies of all outputs."""
    sentences = encoded["source_bias"].shape[0]
    state: Arrays = dict(contract.initial_state(sentences, beams, 2, slots))
    caches = {NEXT + spec.name for spec in contract.caches}
    found: list[Arrays] = []
    for _ in range(steps):
        outputs = graphs.step({**encoded, **request_of(sentences, beams), **state})
        state = {name: outputs[NEXT + name] for name in state}
        found.append({x: y.copy() if x in caches else y for x, y in outputs.items()})
    return found


def assert_declared(outputs: Arrays, specs: Sequence[TensorSpec], **sizes: int) -> None:
    assert outputs.keys() == {spec.name for spec in specs}
    for spec in specs:
        axes = tuple(sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes)
        assert outputs[spec.name].dtype == np.dtype(spec.dtype), spec.name
        assert outputs[spec.name].shape == axes, spec.name


def test_outputs_have_the_types_and_sizes_of_the_contract(
    graphs: OnnxRuntimeGraphs, contract: Contract
) -> None:
    encoded = encode(graphs, [LONG, [9, 3]])
    assert_declared(encoded, contract.encoder_outputs, N=2, S=len(LONG))
    for outputs in run_steps(graphs, contract, encoded, beams=3, steps=2):
        assert_declared(outputs, contract.step_outputs, N=2, K=3, S=len(LONG), P=40)


def test_caches_are_written_where_they_are(graphs: OnnxRuntimeGraphs, contract: Contract) -> None:
    encoded = encode(graphs, [[11, 30, 5, 3], [9, 3]])
    state: Arrays = dict(contract.initial_state(2, 3, 2, 9))
    state["slots"] = np.array([[4, 0, 7], [8, 1, 2]])
    caches = {spec.name: state[spec.name] for spec in contract.caches}
    for cache in caches.values():
        cache[:] = 0.25
    outputs = graphs.step({**encoded, **request_of(2, 3), **state})
    for name, cache in caches.items():
        assert outputs[NEXT + name] is cache
        for row, slots in enumerate(state["slots"]):
            others = np.setdiff1d(np.arange(9), slots)
            assert (cache[row][:, others] == 0.25).all()
            assert (cache[row][:, slots] != 0.25).all()


def test_inputs_stay_as_they_are_and_outputs_are_arrays_of_their_own(
    graphs: OnnxRuntimeGraphs, contract: Contract
) -> None:
    caches = {spec.name for spec in contract.caches}
    inputs = {**encode(graphs, [[11, 30, 5, 3]]), **request_of(1, 4)}
    inputs |= contract.initial_state(1, 4, 2, 16)
    before = {name: value.copy() for name, value in inputs.items() if name not in caches}
    free = graphs.step(inputs)
    kept = {name: value.copy() for name, value in free.items()}
    inputs["forced_tokens"] = np.array([21])
    forced = graphs.step(inputs)
    assert forced["next_tokens"][0, 0] == 21
    assert free["next_tokens"][0, 0] != 21
    inputs["forced_tokens"] = np.array([FREE])
    again = graphs.step(inputs)
    for name, value in kept.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)
        if name.removeprefix(NEXT) not in caches:
            np.testing.assert_array_equal(free[name], value, err_msg=name)
    for name, value in before.items():
        np.testing.assert_array_equal(inputs[name], value, err_msg=name)


def test_an_error_of_onnxruntime_says_what_to_do(graphs: OnnxRuntimeGraphs) -> None:
    with pytest.raises(BackendError, match="batch_tokens") as caught:
        graphs.encode({"source_ids": np.array([5, 3]), "source_lengths": np.array([2])})
    assert caught.value.__cause__ is not None


def test_threads_of_all_workers_are_shared(
    compiled_bundle: Path, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A caller's own thread works along: two workers of three threads need four more.
    seen: list[int] = []
    session = ort.InferenceSession

    def record(path: str, options: ort.SessionOptions, **more: Any) -> ort.InferenceSession:
        seen.append(options.intra_op_num_threads)
        return session(path, options, **more)

    monkeypatch.setattr(ort, "InferenceSession", record)
    files = files_of(compiled_bundle, "onnx-fp32")
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
    compiled_bundle: Path, contract: Contract, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    load_graphs("onnxruntime", files_of(compiled_bundle, "onnx-fp32"), contract)
    for path in made:
        operators = {node.op_type for node in onnx.load(path).graph.node}
        assert "LayerNormalization" in operators
        assert "SkipLayerNormalization" not in operators
    assert len(made) == 2


def test_systems_without_malloc_trim_load_as_well(
    compiled_bundle: Path, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, real = [], ctypes.CDLL

    def library(name: str | None) -> object:
        asked.append(name)
        return object() if name is None else real(name)

    monkeypatch.setattr(ctypes, "CDLL", library)
    load_graphs("onnxruntime", files_of(compiled_bundle, "onnx-fp32"), contract, Settings())
    assert None in asked


def test_loading_changes_no_setting_of_the_process(
    compiled_bundle: Path, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, real = [], ctypes.CDLL

    class Library:
        def malloc_trim(self, pad: int) -> None:
            calls.append(pad)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library() if name is None else real(name))
    load_graphs("onnxruntime", files_of(compiled_bundle, "onnx-fp32"), contract, Settings())
    assert calls == [0]


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
    compiled_bundle: Path, contract: Contract, layers: int, message: str
) -> None:
    wrong = make_contract(layers, 4, 8, 8, attention=True)
    with pytest.raises(BundleError, match=message):
        load_graphs("onnxruntime", files_of(compiled_bundle, "onnx-fp32"), wrong)


def test_a_graph_that_lacks_an_output(
    compiled_bundle: Path, contract: Contract, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    files = files_of(compiled_bundle, "onnx-fp32")
    model = onnx.load(files["step"])
    model.graph.output.remove(next(o for o in model.graph.output if o.name == "attention"))
    onnx.save(model, tmp_path / "step.onnx")
    files["step"] = tmp_path / "step.onnx"
    with pytest.raises(BundleError, match="differ in attention"):
        load_graphs("onnxruntime", files, contract)
    # Without the claim it is a good graph; one that gives more than is asked for is good as well.
    load_graphs("onnxruntime", files, dataclasses.replace(contract, results=contract.results[:-1]))
