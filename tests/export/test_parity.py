from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper
from support.models import lively_model, save_model

from translate_trt.export.parity import GATES, Gate, verify
from translate_trt.runtime.bundle import hash_file, read_manifest, write_manifest
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import BundleError, InputError
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint

SOURCE = [
    "the cat runs.",
    "a big dog sleeps",
    "",
    "Haus Hund läuft.",
    "the house under the tree",
] * 4
REFERENCE = ["a b c d e f", "g h i j", "", "k l m n o p q", "r s t u"] * 4


@pytest.fixture
def bundle(compiled_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compiled_bundle, tmp_path / "bundle"))


def spoil(bundle: Path, target: str) -> None:
    """Change the output projection, and the hashes with it, as a wrong export would."""
    manifest = read_manifest(bundle)
    entry = manifest.target(target)
    path = entry.files["step"].locate(bundle)
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name == "vocabulary":
            weights = np.roll(numpy_helper.to_array(tensor), 1, axis=1)
            tensor.CopyFrom(numpy_helper.from_array(weights, tensor.name))
    onnx.save(model, path)
    files = {**entry.files, "step": hash_file(bundle, entry.files["step"].path)}
    targets = {**manifest.targets, target: dataclasses.replace(entry, files=files)}
    write_manifest(bundle, dataclasses.replace(manifest, targets=targets))


def test_a_good_bundle_passes_and_says_so(bundle: Path, checkpoint: Checkpoint) -> None:
    found = verify(bundle, checkpoint, SOURCE, REFERENCE, threads=1)
    assert list(found) == ["onnx-fp32", "onnx-int8"]
    fp32 = found["onnx-fp32"]
    assert fp32.passed
    assert fp32.identical_percent == 100
    assert fp32.largest_score_difference < 1e-4
    assert fp32.bleu == fp32.reference_bleu
    assert fp32.bleu_difference_interval == (0.0, 0.0)
    assert fp32.sentences == len(SOURCE)
    assert fp32.sentences_per_second > 0
    assert "tok:13a" in fp32.signature
    recorded = read_manifest(bundle).target("onnx-fp32").parity
    assert recorded is not None
    assert recorded["passed"] is True
    assert recorded["gate"] == "at least 99.9 % identical"
    shown = CliRunner().invoke(main, ["info", "--bundle", str(bundle)]).output
    assert "passed: at least 99.9 % identical" in shown


def test_a_wrong_graph_misses_the_gate(
    bundle: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    spoil(bundle, "onnx-fp32")
    for name, lines in (("s.en", SOURCE), ("r.de", REFERENCE)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    done = CliRunner().invoke(
        main,
        ["verify", "--bundle", str(bundle), "--checkpoint", str(checkpoint.path), "--target",
         "onnx-fp32", "--source", str(tmp_path / "s.en"), "--reference", str(tmp_path / "r.de")],
    )  # fmt: skip
    assert done.exit_code == 1
    assert "FAILED" in done.stdout
    assert "onnx-fp32 missed the gate" in done.stderr
    recorded = read_manifest(bundle).target("onnx-fp32").parity
    assert recorded is not None
    assert recorded["passed"] is False
    assert read_manifest(bundle).target("onnx-int8").parity is None


def test_another_models_bundle_is_refused(
    bundle: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    other = lively_model(checkpoint.model.vocabulary_size + 1, steps=0)
    path = save_model(other, tmp_path / "other", checkpoint.tokenizer)
    with pytest.raises(BundleError, match="the models differ in shape"):
        verify(bundle, open_checkpoint(path), SOURCE, REFERENCE)


def test_an_empty_test_set(bundle: Path, checkpoint: Checkpoint) -> None:
    with pytest.raises(InputError, match="is empty"):
        verify(bundle, checkpoint, [], [])


def test_gates() -> None:
    assert GATES["fp32"].passes(99.9, 0.0)
    assert not GATES["fp32"].passes(99.8, 5.0)
    assert GATES["int8"].passes(10.0, -0.3)
    assert not GATES["int8"].passes(100.0, -0.31)
    assert Gate(50.0, 1.0).passes(60.0, -0.5)
