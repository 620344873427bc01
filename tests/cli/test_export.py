"""`translate-trt export`: what it prints, keeps and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.distillation import student_training
from translate_trt.export.engines.options import EngineOptions
from translate_trt.runtime.backends import engines
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import BundleError
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint

pytestmark = pytest.mark.slow


def export(checkpoint: Checkpoint, out: Path, *flags: object) -> Result:
    arguments = ["export", str(checkpoint.path), "--output", str(out), *map(str, flags)]
    return CliRunner().invoke(main, arguments)


def test_explain_has_a_line_for_every_pass_and_graph(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    done = export(checkpoint, tmp_path / "b", "--target", "onnx-int8", "--attention", "--explain",
                  "--disable-pass", "keep-sizes")  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()]
    found = {(row[0], row[1]): row[2:6] for row in rows if row and row[0] in ("encoder", "step")}
    for graph in ("encoder", "step"):
        assert found[graph, "keep-sizes"][0] == "off"
        for name in ("store-weights", "merge-matmuls", "fuse-multi-head", "int8"):
            assert int(found[graph, name][0]) > 0, (graph, name)
    assert found["step", "simplify"][1] == "-"
    matches, expected, before, after = map(int, found["step", "merge-matmuls"])
    assert matches == expected
    assert matches > 0
    assert after < before


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[BuildOptions]:
    """Options of the bundles that are asked for, none of which is compiled."""
    built: list[BuildOptions] = []

    def compile_bundle(_: object, __: object, options: BuildOptions, *___: object) -> None:
        built.append(options)
        raise BundleError("enough")

    monkeypatch.setattr("translate_trt.export.compile.compile_bundle", compile_bundle)
    return built


def test_flags_reach_the_build(
    checkpoint: Checkpoint, tmp_path: Path, built: list[BuildOptions]
) -> None:
    flags = "--attention-heads 0,2 --profiles 1x64 --target-lengths 32 --beam-size 2"
    paths = ("--engine-cache", tmp_path / "cache", "--dump-passes", tmp_path / "stages")
    export(checkpoint, tmp_path / "b", *flags.split(), *paths)
    export(checkpoint, tmp_path / "b", "--no-engine-cache")
    engines = EngineOptions(
        profiles=(Profile(1, 64),), target_lengths=(32,), cache=tmp_path / "cache"
    )
    assert built == [
        BuildOptions(
            attention_heads=(0, 2), beam_size=2, engines=engines, dump=tmp_path / "stages"
        ),
        BuildOptions(engines=EngineOptions(cache=None)),
    ]


def test_a_better_checkpoint_of_the_run_is_named(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    built: list[BuildOptions],
) -> None:  # fmt: skip
    monkeypatch.setattr(student_training, "best_checkpoint", lambda run: tmp_path / "better")
    done = export(checkpoint, tmp_path / "b")
    assert str(tmp_path / "better") in done.stderr
    assert len(built) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--beam-size", 257], "at least 1 and at most 256"),
        (["--target", "tensorrt-rtx-fp16", "--beam-size", 250], "too large for a vocabulary"),
        (
            ["--target", "tensorrt-rtx-fp16", "--profiles", "1x8"],
            "none of the profiles 1x8 supports",
        ),
        (["--target", "onnx-fp32-shortlist", "--shortlist", "t.safetensors"], "there is no file"),
    ],
)
def test_what_is_refused_is_refused_before_any_work(
    checkpoint: Checkpoint, tmp_path: Path, flags: list[object], message: str
) -> None:
    if "tensorrt-rtx-fp16" in flags:
        pytest.importorskip("tensorrt_rtx")
    done = export(checkpoint, tmp_path / "bundle", *flags)
    assert done.exit_code == (1 if message == "there is no file" else 2)
    assert message in done.stderr
    assert "tracing" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_engine_target_has_engines_graphs_logs_and_records(engine_bundle: Path) -> None:
    entry = read_manifest(engine_bundle).target("tensorrt-rtx-fp16")
    assert set(entry.files) == {
        "encoder", "encoder_graph", "encoder_log", "step", "step_graph", "step_log",
    }  # fmt: skip
    for file in entry.files.values():
        assert file.locate(engine_bundle).stat().st_size == file.bytes > 0
    assert (entry.contract.beams, entry.contract.slots) == (3, 3 * 98)
    assert {spec.dtype for spec in entry.contract.caches} == {"float16"}
    assert entry.engine is not None
    assert set(entry.engine) == {"encoder", "step"}
    assert entry.engine["step"]["tensors"]["self_key_0"].startswith("float16")
    assert entry.builder["tensorrt_rtx"] == entry.engine["step"]["version"]


def test_engines_are_not_loaded_without_a_gpu(
    engine_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "find_gpu", lambda *_: None)
    with pytest.raises(BundleError, match="NVIDIA GPU"):
        Translator(engine_bundle, "tensorrt-rtx-fp16")
