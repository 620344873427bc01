"""Command line of `translate-trt verify`; tests/export covers the comparisons."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import numpy_helper

from translate_trt.runtime.bundle.manifest import hash_file, read_manifest, write_manifest
from translate_trt.runtime.cli import main
from translate_trt.train.checkpoint import Checkpoint

LINES = ["the cat runs.", "a big dog sleeps", "", "Haus Hund läuft.", "the house"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.en"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def verify(bundle: Path, checkpoint: Checkpoint, source: Path, *more: str) -> Result:
    arguments = [bundle, "--checkpoint", checkpoint.path, "--source", source]
    return CliRunner().invoke(main, ["verify", "--threads", "1", *map(str, arguments), *more])


def test_layers_of_a_sound_bundle(
    compiled_bundle: Path, checkpoint: Checkpoint, source: Path
) -> None:
    before = (compiled_bundle / "manifest.json").read_bytes()
    done = verify(compiled_bundle, checkpoint, source, "--layers")
    assert done.exit_code == 0, done.output
    tables = [table.splitlines() for table in done.stdout.split("\n\n")]
    assert [table[0].split()[0] for table in tables] == ["onnx-fp32", "onnx-int8"]
    for table in tables:
        assert table[1].startswith("encoder.embedding ")
        assert table[-2].startswith("logits ")
        assert table[-1].endswith(": none")
    assert (compiled_bundle / "manifest.json").read_bytes() == before


def test_layers_of_a_wrong_graph(
    compiled_bundle: Path, checkpoint: Checkpoint, source: Path, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(compiled_bundle, tmp_path / "bundle"))
    manifest = read_manifest(bundle)
    entry = manifest.target("onnx-fp32")
    path = entry.files["step"].locate(bundle)
    model = onnx.load(path)
    (table,) = (t for t in model.graph.initializer if "position_table" in t.name)
    table.CopyFrom(numpy_helper.from_array(np.flip(numpy_helper.to_array(table), 0), table.name))
    onnx.save(model, path)
    files = {**entry.files, "step": hash_file(bundle, entry.files["step"].path)}
    targets = {**manifest.targets, entry.name: dataclasses.replace(entry, files=files)}
    write_manifest(bundle, dataclasses.replace(manifest, targets=targets))
    done = verify(bundle, checkpoint, source, "--layers", "--layers-lines", "2")
    assert done.exit_code == 1
    assert "decoder.embedding)" in done.stderr
    assert "onnx-int8 (" not in done.stderr
    only = verify(bundle, checkpoint, source, "--layers", "--target", "onnx-int8")
    assert only.exit_code == 0, only.output


def test_layers_lines_limits_the_lines(
    compiled_bundle: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = tmp_path / "blank.en"
    path.write_text("\n\nthe cat runs.\n", encoding="utf-8")
    few = verify(compiled_bundle, checkpoint, path, "--layers", "--layers-lines", "2")
    assert few.exit_code == 1
    assert "are all empty" in few.stderr
    more = verify(
        compiled_bundle,
        checkpoint,
        path,
        "--layers",
        "--layers-lines",
        "3",
        "--target",
        "onnx-fp32",
    )
    assert more.exit_code == 0, more.output


def test_translations_need_a_reference(
    compiled_bundle: Path, checkpoint: Checkpoint, source: Path
) -> None:
    done = verify(compiled_bundle, checkpoint, source)
    assert done.exit_code == 2
    assert "--reference is missing" in done.stderr
    assert "--layers" in done.stderr
