"""Loading of a target's graphs or engines, by the backend that the manifest names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from translate_trt.runtime.backends.device import Engines
from translate_trt.runtime.backends.engines import PACKAGES, EngineRecord
from translate_trt.runtime.bundle.contract import Contract
from translate_trt.runtime.errors import BackendError, BundleError, OptionError
from translate_trt.runtime.reference import Graphs


@dataclass(frozen=True)
class Settings:
    """How to run.

    Attributes:
        threads: within one operation of a batch.
        workers: batches that run at once.
        device: "cpu", "cuda" or "cuda:1", for a backend that has the choice; None: the CPU, or
            the first GPU where it needs one.
        poll_every: steps between two looks at `done`, where they run on a GPU.
        cuda_graphs: capture steps and replay them; False: ask for each operation, to compare.
        trust_code: run the machine code that a version-compatible engine brings.
    """

    threads: int = 1
    workers: int = 1
    device: str | None = None
    poll_every: int = 4
    cuda_graphs: bool = True
    trust_code: bool = False

    def __post_init__(self) -> None:
        device: object = "cpu" if self.device is None else self.device
        if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\d{1,3})?", device):
            raise OptionError(f"device is {self.device!r}; write cpu, cuda or cuda:1.")
        if not 1 <= self.poll_every <= 64:
            raise OptionError(f"poll_every is {self.poll_every}; it must be from 1 to 64.")

    @property
    def gpu(self) -> int | None:
        """Index of the GPU that was asked for; None: none was."""
        if self.device is None or self.device == "cpu":
            return None
        return int(self.device.partition(":")[2] or 0)


#: By role, what the manifest says of each engine of a target; empty: it has none.
Records = Mapping[str, EngineRecord]

NO_ONNXRUNTIME = (
    "ONNX Runtime is not installed. For CPUs: pip install 'translate-trt[cpu]'; "
    "for NVIDIA GPUs: pip install 'translate-trt[gpu]'."
)


def load_graphs(
    name: str, files: Mapping[str, Path], contract: Contract, settings: Settings = Settings()
) -> Graphs:
    """Load a target's graphs for `Reference`.

    Args:
        name: of the backend, from the manifest.
        files: graph files by role, such as "encoder" and "step".
        contract: the graphs' inputs and outputs.
        settings: how to run.

    Raises:
        BundleError: this version has no such backend, or a graph does not load.
        BackendError: there is no GPU, or what it takes to use one is not installed.
    """
    if name != "onnxruntime":
        raise BundleError(
            f"the target runs on the backend {name!r}, which this version does not have "
            f"(it has onnxruntime, {', '.join(PACKAGES)}). Upgrade with: pip install -U "
            "translate-trt"
        )
    # Imported when it is needed, so that no installation needs the packages of others.
    try:
        module = import_module("translate_trt.runtime.backends.onnxruntime")
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise BackendError(NO_ONNXRUNTIME) from error
    loaded: Graphs = module.OnnxRuntimeGraphs(files, contract, settings)
    return loaded


def load_engines(
    files: Mapping[str, Path], contract: Contract, settings: Settings, records: Records
) -> Engines:
    """Load a target's engines, which libtranslate_trt runs.

    Args:
        files: by role "encoder" and "step"; with the graphs, if the engines have no weights.
        contract: the graphs' inputs and outputs.
        settings: how to run.
        records: what the manifest says of each engine.

    Raises:
        BundleError: an engine is missing, does not load, or is not what the contract declares.
        BackendError: there is no GPU, or what it takes to use one is not installed.
    """
    module = import_module("translate_trt.runtime.backends.tensorrt")
    loaded: Engines = module.load(files, contract, settings, records)
    return loaded
