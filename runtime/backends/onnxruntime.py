"""ONNX Runtime on the CPU, the embedded default; on a GPU where there is no TensorRT."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray

from translate_trt.runtime import kernels
from translate_trt.runtime.backends import Settings
from translate_trt.runtime.backends.host import Arrays, HostBatch
from translate_trt.runtime.contract import GraphShape, TensorSpec
from translate_trt.runtime.errors import BackendError, BundleError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.version import version_numbers

log = logging.getLogger("translate_trt")

_TYPES = {
    "int64": "tensor(int64)",
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
    "bool": "tensor(bool)",
}


# The attention operator of 1.20.1 gave wrong translations, without an error; 1.21.1 does not.
_OLDEST = (1, 21)


# ONNX Runtime would fuse residual sums into its SkipLayerNormalization, which takes several times
# as long on a CPU as a sum and a LayerNormalization (docs/results.md, "residual norm", made by
# benchmarks/operator_choices.py).
_DISABLED_OPTIMIZERS = "SkipLayerNormFusion"

#: Session option: on x86 without VNNI, compute 8-bit matmuls in ONNX Runtime's exact kernel, not in
#: the one that adds pairs of products in 16 bits and saturates. No effect on other processors.
EXACT_INT8 = ("session.x64quantprecision", "1")


# The compiled attention reads only slots that some beam sees, so caches may have more of them than
# are needed yet, and seldom have to grow. ONNX Runtime's own reads every slot at every step.
_SPARE_SLOTS = 64


class OnnxRuntimeBackend:
    """`Backend` with one session per graph, on arrays of the host."""

    def __init__(self, files: Mapping[str, Path], shape: GraphShape, settings: Settings) -> None:
        """Load both graphs.

        Raises:
            BundleError: a graph does not load, or has not the inputs and outputs the contract
                declares.
            BackendError: a GPU was asked for that ONNX Runtime cannot use, or the compiled kernels
                cannot be loaded.
            OptionError: the library of kernels that was asked for does not exist.
        """
        if version_numbers(ort.__version__) < _OLDEST:
            raise BundleError(
                f"onnxruntime {ort.__version__} is installed, whose attention is wrong; this "
                f"needs {'.'.join(map(str, _OLDEST))} or newer: pip install -U onnxruntime"
            )
        compiled = kernels.describe() if settings.gpu is None else ""
        if settings.gpu is None:
            log.info("compiled kernels: %s", kernels.status(compiled))
        self._shape = shape
        self._spare_slots = _SPARE_SLOTS if kernels.has_attention(compiled) else 0
        providers = _providers(settings)
        encoder, step = _options(settings), _options(settings)
        if compiled:
            _register_kernels(encoder, step)
        # Threads of a session go on spinning for a while when it has run, in case it runs again.
        # The encoder's would take the cores from the steps that follow.
        encoder.add_session_config_entry("session.force_spinning_stop", "1")
        self._encoder = _session(
            files["encoder"], encoder, providers, shape.encoder_inputs(), shape.encoder_outputs()
        )
        self._step = _session(
            files["step"], step, providers, shape.step_inputs(), shape.step_outputs()
        )
        _return_memory()

    def batch(self, options: SearchOptions, start_token: int) -> HostBatch:
        """See `Backend`."""
        graphs = _BatchGraphs(self._encoder, self._step)
        return HostBatch(
            graphs, self._shape, options, start_token, graphs.cancel, self._spare_slots
        )


class _BatchGraphs:
    """`Graphs` of one batch, whose runs can be ended together."""

    def __init__(self, encoder: ort.InferenceSession, step: ort.InferenceSession) -> None:
        self._encoder, self._step, self._run = encoder, step, ort.RunOptions()

    def encode(self, inputs: Mapping[str, NDArray[Any]], outputs: Arrays) -> None:
        """See `Graphs`."""
        _bound(self._encoder, inputs, outputs, self._run)()

    def bind(self, inputs: Arrays, outputs: Arrays) -> Callable[[], None]:
        """See `Graphs`."""
        return _bound(self._step, inputs, outputs, self._run)

    def cancel(self) -> None:
        """End what runs after its current operation, and whatever is run later before its first."""
        self._run.terminate = True


def _return_memory() -> None:
    """Give back what loading needed for a while, which glibc keeps.

    Without compiled kernels that is another copy of every matrix.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # other C libraries
        ctypes.CDLL(None).malloc_trim(0)


def _options(settings: Settings) -> ort.SessionOptions:
    """What both sessions have in common."""
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors; warnings here are about ONNX Runtime's own passes
    options.add_session_config_entry(
        "optimization.disable_specified_optimizers", _DISABLED_OPTIMIZERS
    )
    options.add_session_config_entry(*EXACT_INT8)
    # A thread that calls a session works along with the session's own, which all callers share.
    options.intra_op_num_threads = 1 + settings.workers * (settings.threads - 1)
    if settings.gpu is None:
        # Both save allocations by keeping what the largest batch needed, which the next one, of
        # another size, hardly uses.
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    return options


def _register_kernels(*sessions: ort.SessionOptions) -> None:
    """Let sessions of these options call the compiled kernels.

    Raises:
        BackendError: they do not load with this ONNX Runtime.
    """
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
    """What ONNX Runtime may run on, best first.

    Raises:
        BackendError: a GPU was asked for, and this ONNX Runtime is for CPUs.
    """
    cpu = "CPUExecutionProvider"
    if settings.gpu is None:
        return [cpu]
    cuda = "CUDAExecutionProvider"
    if cuda not in ort.get_available_providers():
        raise BackendError(
            f"onnxruntime {ort.__version__} is the package for CPUs, and device is "
            f"{settings.device}. Install the one for GPUs: pip uninstall -y onnxruntime "
            "onnxruntime-gpu && pip install 'translate-trt[gpu]' (without [cpu]: the two packages "
            "overwrite each other); or leave device out."
        )
    _preload_cuda()
    return [(cuda, {"device_id": settings.gpu}), cpu]


def _preload_cuda() -> None:
    """Load CUDA and cuDNN from the packages that the extra `gpu` installs.

    The system's loader does not look there. ONNX Runtime prints what it does not find; the session
    reports it if it matters.
    """
    with contextlib.redirect_stdout(sys.stderr):
        ort.preload_dlls()


def _bound(
    session: ort.InferenceSession,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Arrays,
    options: ort.RunOptions,
) -> Callable[[], None]:
    """A call that runs the session on these very arrays."""
    binding = session.io_binding()
    # The binding keeps addresses, not the arrays.
    values = {
        id(x): ort.OrtValue.ortvalue_from_numpy(x) for x in (*inputs.values(), *outputs.values())
    }
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, values[id(array)])
    for name, array in outputs.items():
        binding.bind_ortvalue_output(name, values[id(array)])

    def run() -> None:
        session.run_with_iobinding(binding, options)
        assert values  # kept alive as long as the call

    return run


def _session(
    path: Path,
    options: ort.SessionOptions,
    providers: list[Any],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> ort.InferenceSession:
    try:
        # Without a GPU there is nothing to fall back to, and it would tell of that on stdout.
        session = ort.InferenceSession(
            str(path), options, providers=providers, enable_fallback=int(len(providers) > 1)
        )
    except Exception as error:  # ONNX Runtime's classes derive from Exception alone
        raise BundleError(
            f"ONNX Runtime {ort.__version__} cannot load {path}: {error}. "
            "Export the bundle again, or upgrade with: pip install -U onnxruntime"
        ) from error
    if len(providers) > len(session.get_providers()):  # it goes on without, and only says so
        raise BackendError(
            f"ONNX Runtime {ort.__version__} cannot use the GPU: its CUDA libraries do not load. "
            "It needs those of its own CUDA version and cuDNN; or leave device out."
        )
    for kind, specs, values in (
        ("inputs", inputs, session.get_inputs()),
        ("outputs", outputs, session.get_outputs()),
    ):
        declared = {spec.name: _TYPES[spec.dtype] for spec in specs}
        found = {value.name: value.type for value in values}
        if kind == "outputs":  # more than asked for does no harm
            found = {name: found[name] for name in found.keys() & declared.keys()}
        if found != declared:
            differing = sorted(set(found.items()) ^ set(declared.items()))
            raise BundleError(
                f"{path} does not have the {kind} this version expects (they differ in "
                f"{differing}); it was exported by another version. Export the bundle again."
            )
    return session
