from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import onnx
import pytest

from translate_trt.export import compile as compile_module
from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.export.engines import builder
from translate_trt.runtime.backends.nvidia_driver import Gpu
from translate_trt.runtime.bundle.manifest import Limits, read_manifest, verify_files
from translate_trt.runtime.errors import OptionError, OutputError
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint

pytestmark = pytest.mark.slow


def test_what_a_bundle_says_of_itself(compiled_bundle: Path, checkpoint: Checkpoint) -> None:
    manifest = read_manifest(compiled_bundle)
    assert list(manifest.targets) == ["onnx-fp32", "onnx-int8"]
    assert (manifest.source_language, manifest.target_language) == ("en", "de")
    assert manifest.model.vocabulary_size == checkpoint.model.vocabulary_size
    assert manifest.limits.max_source_length == 48  # the longest sentence of its training
    assert manifest.limits.max_target_length == 98
    assert manifest.search_options().length_penalty == 0.6
    for name, target in manifest.targets.items():
        verify_files(compiled_bundle, manifest, name)
        assert target.contract.attention
        assert target.parity is None
        assert "torch" in target.builder
    listed = {entry.path for target in manifest.targets.values() for entry in target.files.values()}
    found = {
        path.relative_to(compiled_bundle).as_posix()
        for path in compiled_bundle.rglob("*")
        if path.is_file()
    }
    assert found == listed | {"manifest.json", "shared.spm"}
    sizes = [
        sum(file.bytes for file in target.files.values()) for target in manifest.targets.values()
    ]
    assert sizes[1] < 0.75 * sizes[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": ("onnx-fp64",)}, r"'onnx-fp64'.*onnx-fp32"),
        ({"targets": ("onnx-int8", "onnx-int8")}, "named twice"),
        ({"max_source_length": 4}, "max_source_length is 4"),
    ],
)
def test_options_out_of_range(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        BuildOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("installed", [True, False])
def test_a_gpu_that_the_package_lacks_is_refused_before_tracing(
    installed: bool, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trace(*_: object) -> None:
        raise AssertionError("a graph was traced")

    monkeypatch.setattr(compile_module, "trace_graphs", trace)
    monkeypatch.setattr(builder, "find_gpu", lambda: Gpu("NVIDIA H100 PCIe", "9.0", 114))
    if not installed:
        monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    options = BuildOptions(("onnx-fp32", "tensorrt-rtx-bf16"))
    with pytest.raises(OptionError, match=r"tensorrt-rtx-bf16.*cpu,export,cuda\]"):
        compile_bundle(checkpoint, tmp_path / "bundle", options)
    assert list(tmp_path.iterdir()) == []


def test_the_target_limit_must_leave_room() -> None:
    assert BuildOptions(max_source_length=20).limits(99, None).max_target_length == 70
    with pytest.raises(OptionError, match="max_source_length 20"):
        BuildOptions(max_source_length=20, max_target_length=69).limits(99, None)
    with pytest.raises(OptionError, match=r"max_target_length.*max_source_length"):
        BuildOptions(max_target_length=0).limits(256, None)


def test_learned_positions_bound_the_limits() -> None:
    assert BuildOptions().limits(256, 512) == Limits(256, 306)
    assert BuildOptions().limits(256, 512, extra=300) == Limits(212, 512)
    assert BuildOptions().limits(256, 100) == Limits(50, 100)
    with pytest.raises(OptionError, match=r"positions.*100 tokens"):
        BuildOptions(max_source_length=51).limits(256, 100)


# Smallest manifest of an older version's bundle: one file beside it.
OLD = json.dumps(
    {"format_version": 1, "tokenizer": {"path": "left over", "sha256": ""}, "targets": {}}
)


def test_an_existing_bundle_is_kept(checkpoint: Checkpoint, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    out.mkdir()
    (out / "manifest.json").write_text("old")
    with pytest.raises(OutputError, match="--force"):
        compile_bundle(checkpoint, out, BuildOptions())
    assert (out / "manifest.json").read_text() == "old"


def test_force_replaces_all_of_a_bundle(
    checkpoint: Checkpoint, compiled_bundle: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bundle"
    out.mkdir()
    (out / "manifest.json").write_text(OLD)
    (out / "left over").write_text("old")
    targets = ("onnx-int8", "onnx-fp32")  # the first is the default
    compile_bundle(checkpoint, out, BuildOptions(targets, attention=True), force=True)
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "shared.spm", "targets"]
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    manifest = read_manifest(out)
    assert tuple(manifest.targets) == targets
    assert Translator(out).target.name == "onnx-int8"
    for name in targets:  # equal graphs give equal files
        other = read_manifest(compiled_bundle).target(name)
        assert manifest.target(name).files["step"].sha256 == other.files["step"].sha256


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_failure_at_the_last_graph_leaves_the_old_bundle(
    failure: BaseException, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, saved = onnx.save, []

    def fail_at_the_fourth(model: onnx.ModelProto, path: Path) -> None:
        if len(saved) == 3:
            path.write_bytes(b"half")
            raise failure
        save(model, path)
        saved.append(path)

    monkeypatch.setattr(onnx, "save", fail_at_the_fourth)
    out = tmp_path / "bundle"
    out.mkdir()
    (out / "manifest.json").write_text(OLD)
    with pytest.raises((OutputError, KeyboardInterrupt)):
        compile_bundle(
            checkpoint, out, BuildOptions(("onnx-fp32", "onnx-int8"), attention=True), force=True
        )
    assert len(saved) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    assert [path.name for path in out.iterdir()] == ["manifest.json"]
