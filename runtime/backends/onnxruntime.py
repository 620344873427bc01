"""ONNX Runtime backend in Python, for `Reference` and for GPUs without TensorRT."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

from translate_trt.runtime import kernels
from translate_trt.runtime.backends import Settings
from translate_trt.runtime.backends.nvidia_driver import find_gpu
from translate_trt.runtime.bundle.contract import NEXT, Contract, TensorSpec, check_tensors
from translate_trt.runtime.errors import BackendError, BundleError
from translate_trt.runtime.reference import Arrays
from translate_trt.runtime.version import version_numbers

log = logging.getLogger("translate_trt")

_CUDA = "CUDAExecutionProvider"

_TYPES = {
    "int64": "tensor(int64)",
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
    "bool": "tensor(bool)",
}


# The attention operator of 1.20.1 silently gave wrong translations; 1.21.1 is correct.
_OLDEST = (1, 21)


# ONNX Runtime would fuse residual sums into its SkipLayerNormalization, which takes several times
# as long on a CPU as a sum and a LayerNormalization ("residual norm" in
# docs/adr/0006-operators-of-onnx-runtime.md).
_DISABLED_OPTIMIZERS = "SkipLayerNormFusion"

#: Session option for x86 without VNNI: use ONNX Runtime's exact int8 matmul kernel instead of the
#: one that accumulates in 16 bits and saturates. It has no effect on other CPUs.
EXACT_INT8 = ("session.x64quantprecision", "1")


class OnnxRuntimeGraphs:
    """Implementation of `Graphs` with one ONNX Runtime session per graph."""

    def __init__(self, files: Mapping[str, Path], contract: Contract, settings: Settings) -> None:
        """Load both graphs.

        Raises:
            BundleError: A graph does not load or does not match the contract.
            BackendError: ONNX Runtime cannot use the requested GPU or the compiled kernels.
            OptionError: The requested kernel library does not exist.
        """
        if version_numbers(ort.__version__) < _OLDEST:
            raise BundleError(
                f"onnxruntime {ort.__version__} is installed, whose attention is wrong; this "
                f"needs {'.'.join(map(str, _OLDEST))} or newer: pip install -U onnxruntime"
            )
        compiled = kernels.describe() if settings.gpu is None else ""
        if settings.gpu is None:
            log.info("compiled kernels: %s", kernels.status(compiled))
        self._caches = {spec.name for spec in contract.caches}
        providers = _providers(settings)
        encoder, step = session_options(settings), session_options(settings)
        if compiled:
            _register_kernels(encoder, step)
        # Session threads keep spinning after a run; those of the encoder would take cores from the
        # steps that follow.
        encoder.add_session_config_entry("session.force_spinning_stop", "1")
        graphs = contract.graphs
        self._encoder = _session(files["encoder"], encoder, providers, *graphs["encoder"])
        self._step = _session(files["step"], step, providers, *graphs["step"])
        _return_memory()

    def encode(self, inputs: Arrays) -> Arrays:
        return _run(self._encoder, inputs, set())

    def step(self, inputs: Arrays) -> Arrays:
        """See `Graphs`; caches are written in place."""
        return _run(self._step, inputs, self._caches)


def _run(session: ort.InferenceSession, inputs: Arrays, in_place: Collection[str]) -> Arrays:
    """Run a session and return its outputs; outputs in place are the arrays of their inputs."""
    binding = session.io_binding()
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
    for value in session.get_inputs():
        binding.bind_ortvalue_input(value.name, values[value.name])
    names = [value.name for value in session.get_outputs()]
    for name in names:
        source = name.removeprefix(NEXT)
        if source in in_place:
            binding.bind_ortvalue_output(name, values[source])
        else:
            binding.bind_output(name)
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # ONNX Runtime's classes derive from Exception alone
        raise BackendError(
            f"translation failed: {error}. If memory ran out, lower batch_tokens or workers."
        ) from error
    found = dict(zip(names, binding.get_outputs(), strict=True))
    return {
        name: inputs[source] if (source := name.removeprefix(NEXT)) in in_place else value.numpy()
        for name, value in found.items()
    }


def _return_memory() -> None:
    """Return temporary memory of loading to the system, which glibc would keep.

    Without compiled kernels, loading temporarily needs another copy of every matrix.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # other C libraries
        ctypes.CDLL(None).malloc_trim(0)


def session_options(settings: Settings) -> ort.SessionOptions:
    """Return the options that the sessions of both graphs share."""
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors; warnings here are about ONNX Runtime's own passes
    options.add_session_config_entry(
        "optimization.disable_specified_optimizers", _DISABLED_OPTIMIZERS
    )
    options.add_session_config_entry(*EXACT_INT8)
    # A calling thread works alongside the session's threads, which all callers share.
    options.intra_op_num_threads = 1 + settings.workers * (settings.threads - 1)
    if settings.gpu is None:
        # Both save allocations by keeping the memory of the largest batch, which batches of other
        # sizes hardly reuse.
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    return options


def _register_kernels(*sessions: ort.SessionOptions) -> None:
    """Register the compiled kernels with session options."""
    path = kernels.library()
    try:
        for options in sessions:
            options.register_custom_ops_library(str(path))
    except Exception as error:  # ONNX Runtime's classes derive from Exception alone
        raise BackendError(
            f"ONNX Runtime {ort.__version__} cannot use the compiled kernels of {path}: {error}. "
            "Build them again with scripts/build_kernels.sh, or go without: "
            f"{kernels.VARIABLE}=none"
        ) from error


def _providers(settings: Settings) -> list[Any]:
    """Return the execution providers, best first."""
    cpu = "CPUExecutionProvider"
    if settings.gpu is None:
        return [cpu]
    load_cuda(settings)
    # FP32 targets compute in FP32, as in onnxruntime_providers.cc.
    return [(_CUDA, {"device_id": settings.gpu, "use_tf32": 0}), cpu]


def load_cuda(settings: Settings) -> None:
    """Load the libraries of CUDA and cuDNN that ONNX Runtime needs on the requested GPU.

    Raises:
        BackendError: There is no such GPU, or this ONNX Runtime is for CPUs.
    """
    if _CUDA not in ort.get_available_providers():
        raise BackendError(
            f"onnxruntime {ort.__version__} is the package for CPUs, and device is "
            f"{settings.device}. Install the one for GPUs: pip uninstall -y onnxruntime "
            "onnxruntime-gpu && pip install 'translate-trt[gpu]' (without [cpu]: the two packages "
            "overwrite each other); or leave device out."
        )
    if find_gpu(settings.gpu or 0) is None:
        raise BackendError(
            f"device is {settings.device}, but the driver shows no such NVIDIA GPU (nvidia-smi "
            "lists the GPUs); or leave device out."
        )
    # The dynamic loader ignores those of the extra `gpu`. ONNX Runtime prints the libraries it does
    # not find; the session reports an error if one matters.
    with contextlib.redirect_stdout(sys.stderr):
        ort.preload_dlls()


def _session(
    path: Path,
    options: ort.SessionOptions,
    providers: list[Any],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> ort.InferenceSession:
    try:
        # ONNX Runtime would print to stdout that the CPU has no fallback.
        session = ort.InferenceSession(
            str(path), options, providers=providers, enable_fallback=int(len(providers) > 1)
        )
    except Exception as error:  # ONNX Runtime's classes derive from Exception alone
        raise BundleError(
            f"ONNX Runtime {ort.__version__} cannot load {path}: {error}. "
            "Export the bundle again, or upgrade with: pip install -U onnxruntime"
        ) from error
    if len(providers) > len(session.get_providers()):  # ONNX Runtime only warns about this
        raise BackendError(
            f"ONNX Runtime {ort.__version__} cannot use the GPU: its CUDA libraries do not load. "
            "It needs those of its own CUDA version and cuDNN; or leave device out."
        )
    found = {value.name: value.type for value in (*session.get_inputs(), *session.get_outputs())}
    declared = {spec.name: _TYPES[spec.dtype] for spec in (*inputs, *outputs)}
    needed = {value.name for value in session.get_inputs()} | declared.keys()
    # Additional outputs are harmless.
    check_tensors(str(path), {name: found[name] for name in found.keys() & needed}, declared)
    return session
