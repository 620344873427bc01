"""Dumps: the graph of every stage loads and computes the same result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from support.graphs import Array, build, node, weights

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.export.contract import ensemble_contract
from translate_trt.export.dump import Dump
from translate_trt.runtime.bundle.contract import request_values
from translate_trt.runtime.errors import OutputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.config import START

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint) -> Path:
    path = tmp_path_factory.mktemp("dump") / "stages"
    bundle = tmp_path_factory.mktemp("dumped") / "bundle"
    compile_bundle(checkpoint, bundle, BuildOptions(attention=True, dump=path))
    return path / "onnx-fp32"


STAGES = [
    "traced", "store-weights", "simplify", "fold-scales", "merge-matmuls", "top-k-first",
    "keep-sizes", "fuse-multi-head", "simplify", "fuse-ops",
]  # fmt: skip


def stages(folder: Path, graph: str) -> list[Path]:
    found = sorted(folder.glob(f"{graph}-*.onnx"))
    assert [path.stem for path in found] == [
        f"{graph}-{number:02}-{name}" for number, name in enumerate(STAGES)
    ]
    return found


def run(path: Path, feeds: dict[str, Array]) -> dict[str, Array]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def assert_equal(found: dict[str, Array], right: dict[str, Array], stage: Path) -> None:
    assert found.keys() == right.keys()
    for name, expected in right.items():
        # Activations are near 1, and two layers sum in another order.
        np.testing.assert_allclose(found[name], expected, atol=2e-5, err_msg=f"{stage}: {name}")


def test_every_stage_computes_the_same(dumped: Path, checkpoint: Checkpoint) -> None:
    feeds: dict[str, Array] = {
        "source_ids": np.array([[5, 9, 11, 3], [7, 3, 0, 0]]), "source_lengths": np.array([4, 2]),
    }  # fmt: skip
    first, *others = stages(dumped, "encoder")
    encoded = run(first, feeds)
    for stage in others:
        assert_equal(run(stage, feeds), encoded, stage)
    state = ensemble_contract([checkpoint.model], attention=True).initial_state(
        2, 3, START, slots=12
    )
    request = request_values([SearchOptions()] * 2, np.array([9, 9]), 3)
    first, *others = stages(dumped, "step")
    for _ in range(3):
        inputs = {**encoded, **request, **state}
        right = run(first, inputs)
        for stage in others:
            assert_equal(run(stage, inputs), right, stage)
        state = {name: right[f"next_{name}"] for name in state}


def test_weights_are_shared_by_stages_and_graphs(dumped: Path) -> None:
    files = {path.relative_to(dumped).as_posix(): path for path in dumped.glob("weights/*")}
    readers: dict[str, int] = dict.fromkeys(files, 0)
    total = 0
    for graph in ("encoder", "step"):
        for path in stages(dumped, graph):
            model = onnx.load(path, load_external_data=False)
            for tensor in model.graph.initializer:
                place = {entry.key: entry.value for entry in tensor.external_data}
                if place:
                    readers[place["location"]] += 1
                    total += int(place["length"])
                else:
                    assert len(tensor.raw_data) <= 1024
    assert all(readers.values())
    assert max(readers.values()) >= len(STAGES)  # no pass rewrites some weights
    assert sum(path.stat().st_size for path in files.values()) < total / 3


def test_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    Dump(tmp_path / "new" / "er")
    assert (tmp_path / "new/er/weights").is_dir()
    (tmp_path / "old").mkdir()
    Dump(tmp_path / "old")  # empty
    with pytest.raises(OutputError, match="--dump-passes"):
        Dump(tmp_path / "old")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        Dump(tmp_path / "file" / "inside")
    model = build([node("MatMul", "x w", "y")], {"x": ["N", 30]}, {"y": ["N", 30]},
                  {"w": weights(30, 30)})  # fmt: skip
    dump = Dump(tmp_path / "gone")
    (tmp_path / "gone/weights").rmdir()
    with pytest.raises(OutputError):
        dump.stage("traced", model)


def test_the_model_itself_keeps_its_weights(tmp_path: Path) -> None:
    model = build([node("MatMul", "x w", "y")], {"x": ["N", 30]}, {"y": ["N", 30]},
                  {"w": weights(30, 30)})  # fmt: skip
    dump = Dump(tmp_path)
    dump.stage("traced", model)
    dump.stage("again", model)
    assert not isinstance(model.graph.initializers["w"].const_value, ir.ExternalTensor)
    assert len(list(tmp_path.glob("weights/*"))) == 1
    assert sorted(p.name for p in tmp_path.glob("*.onnx")) == [
        "test-00-traced.onnx", "test-01-again.onnx"
    ]  # fmt: skip
