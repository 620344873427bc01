"""CPU emulation of engines: run the graph of an engine in ONNX Runtime."""

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
from translate_trt.runtime.backends.engines import Machine, check_engines, engine_records
from translate_trt.runtime.backends.nvidia_driver import find_gpu
from translate_trt.runtime.backends.packages import CUDA, PACKAGES, TORCH, cubin_for, target_for
from translate_trt.runtime.backends.pytorch.torch_engines import finds_gpu
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

NO_GPU = "no NVIDIA GPU or driver was found"

# ONNX Runtime 1.24 lacks TensorScatter.
_MIN_ONNXRUNTIME = (1, 25)


def has_engines(entry: TargetEntry) -> bool:
    """Return whether a target's graphs are built into engines."""
    return GRAPH_ROLES["step"] in entry.files


def why_engine_cannot_run(entry: TargetEntry, bundle: Path) -> str | None:
    """Return why a target's engines cannot run on this machine, or None.

    A torch target always runs, without a GPU on the CPU; the reason says so.
    """
    if entry.backend == TORCH:
        return None if finds_gpu() else "PyTorch finds no GPU"
    if entry.backend == CUDA:
        return _why_plans_cannot_run(entry, bundle)
    if not has_engines(entry):
        return None
    if entry.backend not in PACKAGES:
        return f"this version of translate-trt does not run {entry.backend} engines"
    machine = Machine.present(entry.backend)
    if machine.version is None:
        return f"the Python package {entry.backend} is not installed"
    if machine.gpu is None:
        return NO_GPU
    if native.library() is None:
        return native.status()
    try:
        check_engines(entry, bundle)
    except BundleError as error:  # for another version or GPU
        return str(error).splitlines()[0]
    return None


def _why_plans_cannot_run(entry: TargetEntry, bundle: Path) -> str | None:
    gpu = find_gpu()
    if gpu is None:
        return NO_GPU
    if native.library() is None:
        return native.status()
    compiled = engine_records(entry, bundle)["step"].compute_capabilities
    if cubin_for(gpu.compute_capability, compiled) is None:
        return f"it has kernels for compute capability {', '.join(compiled)}; this GPU is {gpu}"
    return None


def graphs_of(entry: TargetEntry) -> dict[str, FileEntry]:
    """Return the files of a target's graphs, by "encoder" and "step".

    Raises:
        BundleError: A graph is missing, or the target has plans, which have none.
    """
    if entry.backend == CUDA:
        raise BundleError(
            f"{entry.name} has launches for NVIDIA GPUs and no graph that runs elsewhere. Choose "
            f"{target_for(entry.name, CUDA, TORCH)}, which is exported from the same graph: "
            "--target."
        )
    roles = GRAPH_ROLES if has_engines(entry) else {role: role for role in GRAPH_ROLES}
    for role in roles.values():
        if role not in entry.files:
            raise BundleError(
                f"target {entry.name} has no file {role}; export the bundle again with "
                "translate-trt export."
            )
    return {name: entry.files[role] for name, role in roles.items()}


def load_graph(path: Path) -> ir.Model:
    """Load a graph for ONNX Runtime on a CPU, with the rounding of its 16-bit types.

    Fused ops are replaced by their function bodies, which gives every tensor a name.

    Raises:
        BundleError: The file is not an ONNX graph.
    """
    try:
        model = ir.load(path)
    except Exception as error:  # errors of protobuf and onnx_ir share no other base class
        raise BundleError(
            f"cannot read {path}: {error}. Export the bundle again with translate-trt export."
        ) from error
    InlinePass()(model)
    ShapeInferencePass()(model)  # values within function bodies have no types
    Emulate().run(model)
    return model


def emulated_contract(contract: Contract) -> Contract:
    """Return the contract of graphs that `load_graph` returns."""
    return contract.with_types({"bfloat16": "float32"})


@contextmanager
def emulated_bundle(bundle: Path, manifest: Manifest, entry: TargetEntry) -> Iterator[Path]:
    """Write a temporary bundle of one target whose graphs run in ONNX Runtime.

    Args:
        bundle: Directory of the bundle.
        manifest: Manifest of the bundle.
        entry: The target to emulate.

    Yields:
        Directory of the temporary bundle, which is deleted at the end of the block.

    Raises:
        TranslateTrtError: The installed ONNX Runtime is too old for these graphs.
    """
    if version_numbers(onnxruntime.__version__) < _MIN_ONNXRUNTIME:
        minimum = ".".join(map(str, _MIN_ONNXRUNTIME))
        raise TranslateTrtError(
            f"onnxruntime {onnxruntime.__version__} cannot run the graphs of {entry.name}, which "
            f"need {minimum} or later: pip install -U onnxruntime, or verify only other targets "
            "(--target)."
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
        emulated = replace(
            entry, backend="onnxruntime", files=files, contract=contract, engine=None
        )
        write_manifest(directory, replace(manifest, targets={entry.name: emulated}))
        yield directory
