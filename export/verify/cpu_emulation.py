"""What stands in for an engine that cannot run here: its graph, in ONNX Runtime on the CPU."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime
from onnx_ir.passes.common import InlinePass, ShapeInferencePass

from translate_trt.export.compile import GRAPH_ROLES
from translate_trt.export.verify.emulation_pass import Emulate
from translate_trt.runtime import native
from translate_trt.runtime.backends.engines import PACKAGES, Machine, check_engines
from translate_trt.runtime.bundle.contract import Contract
from translate_trt.runtime.bundle.manifest import (
    FileEntry,
    Manifest,
    TargetEntry,
    hash_file,
    write_manifest,
)
from translate_trt.runtime.errors import BundleError, TranslateTrtError
from translate_trt.runtime.version import version_numbers

log = logging.getLogger("translate_trt")

# 1.24 has no TensorScatter.
_OLDEST_ONNXRUNTIME = (1, 25)


def has_engines(entry: TargetEntry) -> bool:
    """Whether a target's graphs are built into engines."""
    return GRAPH_ROLES["step"] in entry.files


def why_engine_cannot_run(entry: TargetEntry, bundle: Path) -> str | None:
    """The reason, or None: the target can run here, or has no engines at all."""
    if not has_engines(entry):
        return None
    if entry.backend not in PACKAGES:
        return f"this version of translate-trt does not run {entry.backend} engines"
    machine = Machine.present(entry.backend)
    if machine.version is None:
        return f"the Python package {entry.backend} is not installed"
    if machine.gpu is None:
        return "there is no NVIDIA GPU, or no driver"
    if native.library() is None:
        return native.status()
    try:
        check_engines(entry, bundle)
    except BundleError as error:  # of another version, or for another GPU
        return str(error).splitlines()[0]
    return None


def graphs_of(entry: TargetEntry) -> dict[str, FileEntry]:
    """The files of a target's two graphs, by "encoder" and "step".

    Raises:
        BundleError: a graph is missing.
    """
    roles = GRAPH_ROLES if has_engines(entry) else {role: role for role in GRAPH_ROLES}
    for role in roles.values():
        if role not in entry.files:
            raise BundleError(
                f"target {entry.name} has no file {role}; make the bundle again with "
                "translate-trt export."
            )
    return {name: entry.files[role] for name, role in roles.items()}


def load_graph(path: Path) -> ir.Model:
    """A graph that ONNX Runtime can run on a CPU and that rounds as its types say.

    Bodies stand in the places of calls, so that there is a name for everything in them.

    Raises:
        BundleError: the file is no ONNX graph.
    """
    try:
        model = ir.load(path)
    except Exception as error:  # protobuf's and onnx_ir's classes have no other base
        raise BundleError(
            f"cannot read {path}: {error}. Make the bundle again with translate-trt export."
        ) from error
    InlinePass()(model)
    ShapeInferencePass()(model)  # bodies do not say which of their values are in 16 bits
    Emulate().run(model)
    return model


def emulated_contract(contract: Contract) -> Contract:
    """The contract of graphs as `load_graph` gives them."""
    return contract.with_types({"bfloat16": "float32"})


@contextmanager
def stand_in(bundle: Path, manifest: Manifest, entry: TargetEntry) -> Iterator[Path]:
    """A bundle of that one target whose graphs run in ONNX Runtime; gone when the block ends.

    Args:
        bundle: where the target is.
        manifest: of the bundle.
        entry: the target.

    Raises:
        TranslateTrtError: the installed ONNX Runtime is too old for these graphs.
    """
    if version_numbers(onnxruntime.__version__) < _OLDEST_ONNXRUNTIME:
        oldest = ".".join(map(str, _OLDEST_ONNXRUNTIME))
        raise TranslateTrtError(
            f"onnxruntime {onnxruntime.__version__} cannot run the graphs of {entry.name}, which "
            f"needs {oldest} or newer: pip install -U onnxruntime, or verify other targets alone."
        )
    with tempfile.TemporaryDirectory(prefix="translate-trt-") as name:
        directory = Path(name)
        tokenizers = {file.path for file in manifest.tokenizer.values()}
        for path in tokenizers:
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle / path, directory / path)
        files = {}
        for role, file in graphs_of(entry).items():
            graph = load_graph(file.locate(bundle))
            onnx.save(ir.to_proto(graph), directory / f"{role}.onnx")
            files[role] = hash_file(directory, f"{role}.onnx")
        contract = emulated_contract(entry.contract)
        standing = replace(
            entry, backend="onnxruntime", files=files, contract=contract, engine=None
        )
        write_manifest(directory, replace(manifest, targets={entry.name: standing}))
        yield directory
