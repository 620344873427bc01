"""ONNX Runtime behind the protocol: what it takes, what it gives, what it refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from translate_trt.runtime.backends import BACKENDS, Backend, load_backend
from translate_trt.runtime.bundle import Manifest, read_manifest
from translate_trt.runtime.contract import NEXT, GraphShape
from translate_trt.runtime.errors import BundleError
from translate_trt.runtime.translator import Translator

TARGETS = ["onnx-fp32", "onnx-int8"]
LONG = [*range(4, 40), 3]


def shape_of(manifest: Manifest, attention: bool = True) -> GraphShape:
    model = manifest.model
    return GraphShape(
        model.decoder_layers, model.heads, model.key_size, model.value_size, attention
    )


def files_of(bundle: Path, target: str) -> dict[str, Path]:
    entry = read_manifest(bundle).target(target)
    return {role: file.locate(bundle) for role, file in entry.files.items()}


@pytest.fixture(scope="module")
def shape(compiled_bundle: Path) -> GraphShape:
    return shape_of(read_manifest(compiled_bundle))


@pytest.fixture(scope="module", params=TARGETS)
def backend(request: pytest.FixtureRequest, compiled_bundle: Path, shape: GraphShape) -> Backend:
    return load_backend("onnxruntime", files_of(compiled_bundle, request.param), shape, 1)


def encode(backend: Backend, rows: list[list[int]], width: int | None = None) -> dict[str, Any]:
    """Encoder outputs for these rows, padded to `width` with a token that is no padding symbol."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), width or lengths.max()), 7)
    for target, row in zip(ids, rows, strict=True):
        target[: len(row)] = row
    return backend.encode({"source_ids": ids, "source_lengths": lengths})


def run_steps(
    backend: Backend, shape: GraphShape, encoded: Mapping[str, Any], beams: int, steps: int
) -> list[dict[str, NDArray[Any]]]:
    """All outputs of the first steps of a free search."""
    sentences = len(backend.to_host(encoded["source_bias"]))
    one = np.ones(sentences, np.int64)
    fixed = {
        "forced_tokens": -one,
        "min_lengths": 0 * one,
        "max_lengths": 50 * one,
        "length_penalty_alpha": np.array(0.6, np.float32),
        "length_penalty_beta": np.array(5, np.float32),
    }
    state: dict[str, Any] = {
        name: backend.to_device(value)
        for name, value in shape.initial_state(sentences, beams, 2).items()
    }
    request = {name: backend.to_device(value) for name, value in fixed.items()}
    found = []
    for _ in range(steps):
        outputs = backend.step({**encoded, **request, **state})
        state = {name: outputs[NEXT + name] for name in state}
        found.append({name: backend.to_host(value) for name, value in outputs.items()})
    return found


def test_outputs_have_the_names_types_and_sizes_of_the_contract(
    backend: Backend, shape: GraphShape
) -> None:
    encoded = encode(backend, [LONG, [9, 3]])
    sizes: dict[str | int, int] = {"N": 2, "K": 3, "S": len(LONG)}
    for spec in shape.encoder_outputs():
        value = backend.to_host(encoded[spec.name])
        assert value.shape == tuple(sizes.get(axis, axis) for axis in spec.axes)
    for number, outputs in enumerate(run_steps(backend, shape, encoded, beams=3, steps=2)):
        assert list(outputs) == [spec.name for spec in shape.step_outputs()]
        sizes["P+K"] = 3 * (number + 1)
        for spec in shape.step_outputs():
            assert outputs[spec.name].dtype == np.dtype(spec.dtype), spec.name
            expected = tuple(sizes.get(axis, axis) for axis in spec.axes)
            assert outputs[spec.name].shape == expected, spec.name


def test_no_nan_however_short_a_source_and_however_dead_a_beam(
    backend: Backend, shape: GraphShape
) -> None:
    encoded = encode(backend, [LONG, [3], [9, 3]])  # the second is nothing but its end symbol
    for name, value in encoded.items():
        assert np.isfinite(backend.to_host(value)).all(), name
    outputs = run_steps(backend, shape, encoded, beams=8, steps=6)
    assert (outputs[0]["next_log_probs"] > -np.inf).all()  # one alive gives birth to all
    for step in outputs:
        for name, value in step.items():
            assert not np.isnan(value).any(), name


def test_padding_changes_nothing(backend: Backend, shape: GraphShape) -> None:
    row = [11, 30, 5, 3]
    plain, padded = encode(backend, [row]), encode(backend, [row], width=40)
    for spec in shape.encoder_outputs():
        one, two = (backend.to_host(x[spec.name]) for x in (plain, padded))
        two = two.take(range(len(row)), axis=spec.axes.index("S"))
        np.testing.assert_allclose(one, two, atol=1e-5, err_msg=spec.name)
    for one, two in zip(
        run_steps(backend, shape, plain, beams=4, steps=5),
        run_steps(backend, shape, padded, beams=4, steps=5),
        strict=True,
    ):
        np.testing.assert_array_equal(one["next_tokens"], two["next_tokens"])
        np.testing.assert_array_equal(one["parents"], two["parents"])
        np.testing.assert_allclose(one["next_log_probs"], two["next_log_probs"], atol=1e-4)
        assert (two["attention"][..., len(row) :] == 0).all()  # to the bit


def test_each_beam_sees_its_own_past_and_no_other(backend: Backend, shape: GraphShape) -> None:
    ancestors = np.zeros((1, 4, 0), bool)
    for outputs in run_steps(backend, shape, encode(backend, [LONG]), beams=4, steps=6):
        born = np.eye(4, dtype=bool)[None]
        ancestors = np.concatenate((ancestors, born), axis=2)[:, outputs["parents"][0]]
        np.testing.assert_array_equal(outputs["next_ancestry"] == 0, ancestors)
        assert (outputs["next_ancestry"][~ancestors] < -1e8).all()


@pytest.mark.parametrize(
    "value",
    [
        np.array([[1, 2], [3, 4]], np.int64),
        np.array([True, False]),
        np.array(0.5, np.float32),
        np.array([-np.inf, 1.5], np.float32),
        np.zeros((2, 4, 0, 8), np.float32),
    ],
    ids=["int64", "bool", "scalar", "infinite", "empty"],
)
def test_there_and_back(backend: Backend, value: NDArray[Any]) -> None:
    back = backend.to_host(backend.to_device(value))
    np.testing.assert_array_equal(back, value)
    assert back.dtype == value.dtype


def test_tensors_stay_where_the_backend_has_them(backend: Backend) -> None:
    for value in encode(backend, [[9, 3]]).values():
        assert isinstance(value, ort.OrtValue)


def test_an_onnxruntime_that_computes_wrongly_is_refused(
    compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort, "__version__", "1.20.1")
    with pytest.raises(BundleError, match=r"1\.20\.1 is installed.*1\.21 or newer"):
        Translator(compiled_bundle)


def test_a_backend_this_version_does_not_have(shape: GraphShape) -> None:
    assert list(BACKENDS) == ["onnxruntime"]
    with pytest.raises(BundleError, match=r"'openvino'.*it has onnxruntime.*pip install -U"):
        load_backend("openvino", {}, shape, None)
    with pytest.raises(BundleError, match="does not run them yet; choose an onnx target"):
        load_backend("tensorrt", {}, shape, None)


@pytest.mark.parametrize(
    ("layers", "message"),
    [(1, r"step\.onnx does not have the inputs"), (3, r"encoder\.onnx does not have the outputs")],
)
def test_a_graph_of_another_shape(
    compiled_bundle: Path, shape: GraphShape, layers: int, message: str
) -> None:
    wrong = dataclasses.replace(shape, decoder_layers=layers)
    with pytest.raises(BundleError, match=message):
        load_backend("onnxruntime", files_of(compiled_bundle, "onnx-fp32"), wrong, 1)


def test_a_graph_that_lacks_an_output(
    compiled_bundle: Path, shape: GraphShape, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    files = files_of(compiled_bundle, "onnx-fp32")
    model = onnx.load(files["step"])
    model.graph.output.remove(next(o for o in model.graph.output if o.name == "attention"))
    onnx.save(model, tmp_path / "step.onnx")
    files["step"] = tmp_path / "step.onnx"
    with pytest.raises(BundleError, match=r"does not have the outputs .*'attention'"):
        load_backend("onnxruntime", files, shape, 1)
    # Without the claim it is a good graph; one that gives more than is asked for is good as well.
    load_backend("onnxruntime", files, dataclasses.replace(shape, attention=False), 1)
