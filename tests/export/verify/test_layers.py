from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from support.compiled import compile_once
from support.graph_edits import edit_graph, roll_columns
from support.models import SHAPES, lively_model, save_model
from support.shared import SharedFiles

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.cli.verify_tables import layer_tables
from translate_trt.export.fused_ops.declarations import PANEL_COLUMNS
from translate_trt.export.taps import recording, stream
from translate_trt.export.verify.layers import STEPS, TOLERANCES, compare_layers
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.errors import BundleError, InputError
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.config import BANNED_BIAS, ModelConfig
from translate_trt.train.model import pad

pytestmark = pytest.mark.slow

LINES = ["the cat runs.", "", "a big dog sleeps under the tree", "Haus Hund läuft."]
CROSS = tuple(f"cross_{kind}_{layer}" for layer in (0, 1) for kind in ("key", "value"))
SIZES = ModelConfig(encoder_layers=2, decoder_layers=2)
ALL = (*stream(SIZES, "encoder"), *CROSS, *stream(SIZES, "decoder"), "logits")


def roll_weights(weights: torch.Tensor) -> Callable[[onnx.ModelProto], None]:
    """Return an edit that rotates the columns of a matrix."""
    wanted = weights.detach().numpy().T

    def holds(tensor: onnx.TensorProto) -> bool:
        found = numpy_helper.to_array(tensor)
        if found.ndim == 3 and found.shape[2] == PANEL_COLUMNS:
            found = np.concatenate(found, axis=1)[:, : wanted.shape[1]]
        return found.shape == wanted.shape and np.allclose(
            found.astype(np.float32), wanted, rtol=2**-8
        )

    def edit(model: onnx.ModelProto) -> None:
        (tensor,) = filter(holds, model.graph.initializer)
        roll_columns(tensor)

    return edit


def rename(old: str, new: str) -> Callable[[onnx.ModelProto], None]:
    """Return an edit that renames values in the graph and in its functions."""

    def edit(model: onnx.ModelProto) -> None:
        nodes = itertools.chain(model.graph.node, *(f.node for f in model.functions))
        for node in itertools.chain(nodes, model.functions):
            for names in (node.input, node.output):
                for index, name in enumerate(names):
                    if name.startswith(old):
                        names[index] = new + name

    return edit


@pytest.mark.parametrize("fixture", ["compiled_bundle", "engine_bundle"])
def test_sound_targets_stay_within_their_tolerance(
    fixture: str, checkpoint: Checkpoint, request: pytest.FixtureRequest
) -> None:
    bundle = request.getfixturevalue(fixture)
    reports = compare_layers(bundle, checkpoint, LINES, threads=1)
    assert [report.target for report in reports] == list(read_manifest(bundle).targets)
    for report in reports:
        assert report.first is None, layer_tables([report])
        assert report.emulated == (fixture == "engine_bundle")
        assert tuple(drift.tensor for drift in report.drifts) == ALL
        # Every tensor outlives the passes of every target.
        relative = [drift.relative for drift in report.drifts if drift.relative is not None]
        assert len(relative) == len(ALL)
        # It is computed another way: in FP32 nearly the same, in fewer bits not at all.
        assert max(relative) > 0
        if report.precision != "fp32":
            assert max(relative) > TOLERANCES[report.precision].largest / 20


@pytest.mark.parametrize(
    ("target", "graph", "weights", "tensor"),
    [
        ("onnx-fp32", "step", "decoder.1.feed_forward.outer", "decoder.1.feed_forward"),
        ("onnx-fp32", "encoder", "encoder.1.self_attention.output", "encoder.1.self_attention"),
        ("tensorrt-rtx-bf16", "step_graph", "decoder.0.cross_attention.output",
         "decoder.0.cross_attention"),
        ("tensorrt-rtx-fp16", "step_graph", "decoder.1.self_attention.output",
         "decoder.1.self_attention"),
    ],
)  # fmt: skip
def test_the_first_wrong_layer_is_named(
    target: str, graph: str, weights: str, tensor: str, checkpoint: Checkpoint, tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    name = "compiled_bundle" if target.startswith("onnx") else "engine_bundle"
    bundle = Path(shutil.copytree(request.getfixturevalue(name), tmp_path / "bundle"))
    spoiled = checkpoint.load_model().get_submodule(weights).weight
    edit_graph(bundle, target, graph, roll_weights(spoiled))
    (report,) = compare_layers(bundle, checkpoint, LINES, [target], threads=1)
    assert report.first == tensor
    text = layer_tables([report])
    assert text.splitlines()[-1].endswith(f": {tensor}")
    marked = [line.split()[0] for line in text.splitlines() if line.endswith("beyond")]
    assert marked[0] == tensor
    others = compare_layers(bundle, checkpoint, LINES, threads=1)
    assert [report.target for report in others if report.first] == [target]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        SHAPES["pre"],
        SHAPES["ssru"],
        *(
            pytest.param(changes, marks=pytest.mark.nightly)
            for changes in (SHAPES["pre-norm, tied layers"], {"heads": 1}, SHAPES["marian"])
        ),
    ],
    ids=["pre-norm", "ssru", "ties", "one head", "banned"],
)
def test_other_models(
    changes: dict[str, Any], checkpoint: Checkpoint, tokenizer_model: Path, shared: SharedFiles,
    tmp_path: Path,
) -> None:  # fmt: skip
    model = lively_model(checkpoint.model.vocabulary_size, steps=20, **changes)
    if model.output_bias is not None:
        with torch.no_grad():
            model.output_bias[[0, 7]] = BANNED_BIAS
    path = save_model(model, tmp_path / "model", tokenizer_model)
    targets = ("onnx-fp32", "onnx-int8")
    bundle = compile_once(shared, open_checkpoint(path), BuildOptions(targets))
    for report in compare_layers(bundle, open_checkpoint(path), LINES, threads=1):
        assert report.first is None, layer_tables([report])
        assert report.drifts[-1].tensor == "logits"
        assert all(drift.relative is not None for drift in report.drifts)
        # Relative to logits of tokens that are not banned, whose logits are much larger.
        if report.precision == "int8":
            assert (report.drifts[-1].relative or 0) > TOLERANCES["int8"].largest / 100


def test_what_is_recorded_is_the_residual_stream(checkpoint: Checkpoint) -> None:
    model = checkpoint.load_model()
    ids, _ = pad([[5, 6, 7], [8, 9, 10]])
    with torch.inference_mode(), recording(model, "encoder") as found:
        x = model.embed(ids)
        expected = [x]
        for layer in model.encoder_layers:
            x = layer.self_attention_norm.norm(
                x + layer.self_attention.attend(x, *layer.self_attention.keys_values(x), None)
            )
            expected.append(x)
            x = layer.feed_forward_norm.norm(x + layer.feed_forward(x))
            expected.append(x)
        model.encode(ids, None)
    assert sorted(found) == sorted(stream(SIZES, "encoder"))
    for name, tensor in zip(stream(SIZES, "encoder"), expected, strict=True):
        torch.testing.assert_close(found[name], tensor)
    before = dict(found)
    model.encode(ids + 1, None)  # nothing is recorded any more
    assert all(found[name] is tensor for name, tensor in before.items())


def test_a_tensor_that_was_fused_away_is_said_to_be(
    compiled_bundle: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(compiled_bundle, tmp_path / "bundle"))
    edit_graph(bundle, "onnx-fp32", "step", rename("decoder.1.self_attention", "other."))
    (report,) = compare_layers(bundle, checkpoint, LINES, ["onnx-fp32"], threads=1)
    assert report.first is None
    missing = [drift.tensor for drift in report.drifts if drift.absolute is None]
    assert missing == ["decoder.1.self_attention"]
    (line,) = (x for x in layer_tables([report]).splitlines() if "fused away" in x)
    assert line.startswith("decoder.1.self_attention ")


def test_graphs_without_names_are_refused(
    compiled_bundle: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(compiled_bundle, tmp_path / "bundle"))
    for prefix in ("decoder.", "logits"):
        edit_graph(bundle, "onnx-fp32", "step", rename(prefix, "other."))
    with pytest.raises(BundleError, match="named layers"):
        compare_layers(bundle, checkpoint, LINES, ["onnx-fp32"], threads=1)


def test_no_text(compiled_bundle: Path, checkpoint: Checkpoint) -> None:
    with pytest.raises(InputError, match="are all empty"):
        compare_layers(compiled_bundle, checkpoint, ["", " "])


def test_all_steps_are_compared(
    compiled_bundle: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """A position table that is wrong only at the last step is detected."""
    bundle = Path(shutil.copytree(compiled_bundle, tmp_path / "bundle"))

    def edit(model: onnx.ModelProto) -> None:
        (tensor,) = (t for t in model.graph.initializer if "position_table" in t.name)
        table = numpy_helper.to_array(tensor).copy()
        table[STEPS - 1] += 1
        tensor.CopyFrom(numpy_helper.from_array(table, tensor.name))

    edit_graph(bundle, "onnx-fp32", "step", edit)
    (report,) = compare_layers(bundle, checkpoint, LINES, ["onnx-fp32"], threads=1)
    assert report.first == "decoder.embedding"
