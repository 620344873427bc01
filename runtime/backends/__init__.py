"""Backends: loading of graphs and engines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from translate_trt.runtime.backends.cublas import load_cublas
from translate_trt.runtime.backends.device import Engines
from translate_trt.runtime.backends.engines import EngineRecord
from translate_trt.runtime.backends.packages import CUDA, PACKAGES, TORCH
from translate_trt.runtime.bundle.contract import Contract
from translate_trt.runtime.bundle.manifest import TargetEntry
from translate_trt.runtime.errors import BackendError, BundleError, OptionError
from translate_trt.runtime.reference import Graphs

# A GPU has a number without leading zeros, which PyTorch refuses.
_DEVICE = re.compile(r"cpu|(cuda|xpu)(:(0|[1-9]\d{0,2}))?")


@dataclass(frozen=True)
class Settings:
    """Execution settings of a backend.

    Attributes:
        threads: Threads per operation.
        workers: Number of batches that run at once.
        device: "cpu", "cuda", "cuda:1", or for torch targets "xpu" or "xpu:1"; None is the CPU, or
            the first GPU for engines and torch targets.
        poll_every: Number of steps on a GPU between two reads of `done`.
        cuda_graphs: Capture steps as CUDA graphs and replay them; False launches every operation.
        trust_code: Allow a version-compatible engine to run the machine code it contains.
    """

    threads: int = 1
    workers: int = 1
    device: str | None = None
    poll_every: int = 4
    cuda_graphs: bool = True
    trust_code: bool = False

    def __post_init__(self) -> None:
        device: object = "cpu" if self.device is None else self.device
        if not isinstance(device, str) or not _DEVICE.fullmatch(device):
            raise OptionError(
                f"device is {self.device!r}; write cpu, cuda or cuda:1, or xpu for an Intel GPU."
            )
        if not 1 <= self.poll_every <= 64:
            raise OptionError(f"poll_every is {self.poll_every}; it must be from 1 to 64.")

    @property
    def gpu(self) -> int | None:
        """Index of the requested GPU; None if no GPU was requested."""
        if self.device is None or self.device == "cpu":
            return None
        return int(self.device.partition(":")[2] or 0)


#: Manifest records of a target's engines by role; empty for ONNX targets.
Records = Mapping[str, EngineRecord]

NO_TORCH = (
    "PyTorch or onnx is not installed ({error}). Install PyTorch for your GPU "
    "(https://pytorch.org/get-started/locally/), then: pip install 'translate-trt[torch]'"
)

NO_ONNXRUNTIME = (
    "ONNX Runtime is not installed. For CPUs: pip install 'translate-trt[cpu]'; "
    "for NVIDIA GPUs: pip install 'translate-trt[gpu]'."
)


def _onnxruntime() -> Any:
    """Import the ONNX Runtime backend on use, because ONNX Runtime is an optional dependency."""
    try:
        return import_module("translate_trt.runtime.backends.onnxruntime")
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise BackendError(NO_ONNXRUNTIME) from error


def load_cuda(entry: TargetEntry, settings: Settings) -> None:
    """Load CUDA's libraries for libtranslate_trt, which runs ONNX targets and plans on a GPU.

    Args:
        entry: Manifest entry of the target.
        settings: Execution settings with the requested GPU.

    Raises:
        BackendError: No such GPU is available, or a required package is not installed.
    """
    _refuse_xpu(settings)
    if entry.backend == CUDA:
        load_cublas()
    else:
        _onnxruntime().load_cuda(settings)


def load_graphs(
    name: str, files: Mapping[str, Path], contract: Contract, settings: Settings = Settings()
) -> Graphs:
    """Load a target's graphs for `Reference`.

    Args:
        name: Name of the backend in the manifest.
        files: Graph files by role, "encoder" and "step".
        contract: Inputs and outputs of the graphs.
        settings: Execution settings.

    Raises:
        BundleError: The backend is unknown to this version, or a graph does not load.
        BackendError: No GPU is available, or a required package is not installed.
    """
    if name != "onnxruntime":
        raise BundleError(
            f"the target runs on the backend {name!r}, which this version does not have "
            f"(it has onnxruntime, {', '.join(PACKAGES)}, {TORCH}, {CUDA}). Upgrade translate-trt."
        )
    _refuse_xpu(settings)
    loaded: Graphs = _onnxruntime().OnnxRuntimeGraphs(files, contract, settings)
    return loaded


def load_engines(
    files: Mapping[str, Path], contract: Contract, settings: Settings, records: Records
) -> Engines:
    """Load a target's engines, or its graphs for PyTorch, for libtranslate_trt.

    Args:
        files: Engine files by role, "encoder" and "step"; also the ONNX graphs if the engines are
            stripped of their weights. For PyTorch, the ONNX graphs.
        contract: Inputs and outputs of the engines.
        settings: Execution settings.
        records: Manifest records of the engines.

    Raises:
        BundleError: An engine is missing, does not load, or does not match the contract.
        BackendError: No GPU is available, its driver is too old, it is out of memory, or a required
            package is not installed.
    """
    if any(record.package == TORCH for record in records.values()):
        # Imported on use, because PyTorch is an optional dependency.
        try:
            module = import_module("translate_trt.runtime.backends.pytorch.torch_engines")
        except ModuleNotFoundError as error:
            if error.name not in ("torch", "onnx"):
                raise
            raise BackendError(NO_TORCH.format(error=error)) from error
    else:
        _refuse_xpu(settings)
        module = import_module("translate_trt.runtime.backends.tensorrt")
    for role in contract.graphs:
        if role not in records or role not in files:
            raise BundleError(f"the target has no {role} engine; export the bundle again.")
    if contract.beams is None or contract.slots is None:
        raise BundleError("engines need a number of beams and of slots; export the bundle again.")
    loaded: Engines = module.load(files, contract, settings, records)
    return loaded


def needs_gpu(entry: TargetEntry, device: str | None) -> bool:
    """Whether a target runs on a GPU.

    Args:
        entry: Manifest entry of the target.
        device: Requested device (see `Settings`).
    """
    if entry.backend == TORCH:
        return device != "cpu"
    return entry.engine is not None or (device or "cpu") != "cpu"


def has_worker_per_core(entry: TargetEntry, device: str | None) -> bool:
    """Whether each core translates a batch by default, as with ONNX Runtime on a CPU.

    Args:
        entry: Manifest entry of the target.
        device: Requested device (see `Settings`).
    """
    return entry.engine is None and not needs_gpu(entry, device)


def _refuse_xpu(settings: Settings) -> None:
    if (settings.device or "").startswith("xpu"):
        raise BackendError(
            f"device is {settings.device}, which only torch targets run on; choose one, such as "
            "torch-fp16."
        )
