from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime import kernels, native
from translate_trt.runtime.backends.engines import EngineRecord, Profile
from translate_trt.runtime.backends.nvidia_driver import Gpu
from translate_trt.runtime.bundle.manifest import read_manifest, write_manifest
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.cli import info as info_module
from translate_trt.runtime.cli import main


def info(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["info", *map(str, arguments)])


@pytest.fixture
def bundle(make_bundle: Callable[..., Path]) -> Path:
    return make_bundle()


def test_table(bundle: Path) -> None:
    result = info(bundle)
    assert result.exit_code == 0
    assert result.stderr == ""
    table = " ".join(result.stdout.split())
    for text in (
        "languages en to ?",
        "created by translate-trt 0.1.0",
        "search defaults beam_size 4, length_penalty 0.6, length_penalty_form gnmt",
        "parameters 123,456",
        "layers 2 encoder, 2 decoder",
        "attention 4 heads of 8",
        "vocabulary 320 pieces",
        "longest source 16 tokens",
        "longest target 66 tokens",
        "target onnx-int8:",
        "backend onnxruntime, int8",
        "step targets/onnx-int8/step.onnx, 17 bytes",
        "built with onnx 1.2.3",
        "parity largest_difference 2.5e-05",
        "parity not verified",
        f"compiled kernels {kernels.status()}",
        f"runtime {native.status()}",
    ):
        assert text in table
    assert table.count("files ok") == 2
    assert f"source shared.spm, {(bundle / 'shared.spm').stat().st_size / 1e6:.1f} MB" in table


@pytest.mark.parametrize(
    ("gpu", "text"),
    [
        (None, "none found"),
        (Gpu("NVIDIA H200", "9.0", 132), "NVIDIA H200 (compute capability 9.0, 132 SMs); cuda "
         "targets"),
        (Gpu("Tesla V100", "7.0", 80), "Tesla V100 (compute capability 7.0, 80 SMs); no engines"),
    ],
)  # fmt: skip
def test_the_gpu_and_its_package(
    gpu: Gpu | None, text: str, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(info_module, "find_gpu", lambda: gpu)
    assert f"GPU {text}" in " ".join(info(bundle).stdout.split())
    assert json.loads(info(bundle, "--json").stdout)["gpu"] == (gpu and text)


def test_the_gpus_of_engines(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    record = EngineRecord("tensorrt_rtx", "1.7.1.116", "linux-x86_64", ("8.6", "8.9"), "none",
                          False, False, (Profile(1, 16),))  # fmt: skip
    records = {role: record.to_json() for role in ("encoder", "step")}
    entry = replace(manifest.targets["onnx-int8"], backend="tensorrt_rtx", engine=records)

    def table() -> str:
        write_manifest(bundle, replace(manifest, targets={"tensorrt-rtx-fp16": entry}))
        return " ".join(info(bundle).stdout.split())

    assert "engines for compute capability 8.6, 8.9 memory of a batch unknown" in table()
    del records["step"]["version"]
    assert "engine.step.version' is missing" in table()


def test_languages_of_a_model_of_several(bundle: Path) -> None:
    prompt = Prompt((), (), {f"l{n:03}": n for n in range(100)}, {"nl": 7, "de": 8})
    write_manifest(bundle, replace(read_manifest(bundle), prompt=prompt))
    table = " ".join(info(bundle).stdout.split())
    assert "languages any of 100 to any of 2 source languages l000, l001, l002," in table
    assert "l011 and 88 more target languages de, nl created by" in table
    value = json.loads(info(bundle, "--json").stdout)
    assert value["prompt"]["source_languages"]["l099"] == 99


def test_json_is_the_manifest_and_the_check(bundle: Path) -> None:
    value = json.loads(info(bundle, "--json").stdout)
    assert value.pop("files") == {"onnx-fp32": "ok", "onnx-int8": "ok"}
    assert value.pop("kernels") == kernels.status()
    assert value.pop("runtime") == native.status()
    value.pop("gpu")
    assert value.pop("engine_memory") == {}  # there are no engines
    assert value == json.loads((bundle / "manifest.json").read_text())


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_changed_byte_fails_after_the_table(bundle: Path, flags: list[str]) -> None:
    path = bundle / "targets/onnx-int8/step.onnx"
    path.write_text("Step of onnx-int8")
    result = info(bundle, *flags)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"translate-trt: error: {path} has SHA-256 ")
    if flags:
        files = json.loads(result.stdout)["files"]
        assert files["onnx-fp32"] == "ok"
        assert str(path) in files["onnx-int8"]
    else:
        table = " ".join(result.stdout.split())
        assert table.count("files ok") == 1
        assert table.count("files FAILED") == 1
