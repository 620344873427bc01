"""Bundles with the static graphs that engines are built from, runnable in ONNX Runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import Compiler
from translate_trt.export.verify.emulation_pass import Emulate
from translate_trt.runtime.bundle.manifest import hash_file, read_manifest, write_manifest
from translate_trt.train.checkpoint import Checkpoint

BEAMS = 4


def static_bundle(
    checkpoint: Checkpoint, source: Path, path: Path, target: str, backend: str = "tensorrt_rtx",
    disabled_passes: tuple[str, ...] = (),
) -> Path:  # fmt: skip
    """Compile the static graphs of engines into a target that ONNX Runtime can run."""
    manifest = read_manifest(source)
    options = BuildOptions(
        (target,), attention=True, beam_size=BEAMS, disabled_passes=disabled_passes
    )
    compiler = Compiler(checkpoint.load_model(), manifest.limits, options)
    (path / "targets").mkdir(parents=True)
    files = {}
    for role, model in compiler.graphs(target).items():
        Emulate().run(model)
        onnx.save(ir.to_proto(model), path / f"targets/{role}.onnx")
        files[role] = hash_file(path, f"targets/{role}.onnx")
    tokenizer = manifest.tokenizer["source"].path
    (path / tokenizer).write_bytes((source / tokenizer).read_bytes())
    entry = dataclasses.replace(
        manifest.target("onnx-fp32"),
        name=target,
        backend=backend,
        files=files,
        contract=compiler.contract(target),
    )
    write_manifest(path, dataclasses.replace(manifest, targets={target: entry}))
    return path


@pytest.fixture(scope="session")
def static(
    checkpoint: Checkpoint, compiled_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Factory of such bundles of the session's checkpoint, by target name."""
    made: dict[str, Path] = {}

    def get(target: str) -> Path:
        if target not in made:
            path = tmp_path_factory.mktemp("static") / "bundle"
            made[target] = static_bundle(checkpoint, compiled_bundle, path, target)
        return made[target]

    return get
