"""What runs the two graphs. One protocol, one file per backend, chosen by the manifest's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.contract import GraphShape
from translate_trt.runtime.engines import PACKAGES
from translate_trt.runtime.errors import BundleError

#: A tensor where the backend keeps it (an OrtValue, say); nobody else looks inside.
Tensor = Any


class Backend(Protocol):
    """Runs the encoder and the step graph of one target, as runtime/contract.py declares them.

    Caches and whatever else passes from step to step stay where the backend has them; only what
    `to_host` is asked for reaches the host.
    """

    def encode(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, Tensor]:
        """Encoder outputs by name, for its inputs by name."""
        ...

    def step(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Step outputs by name, for all step inputs by name."""
        ...

    def to_device(self, value: NDArray[np.generic]) -> Tensor:
        """A host array as the backend's tensor."""
        ...

    def to_host(self, tensor: Tensor) -> NDArray[Any]:
        """A tensor as a host array."""
        ...


def _onnxruntime(files: Mapping[str, Path], shape: GraphShape, threads: int | None) -> Backend:
    module = import_module("translate_trt.runtime.backends.onnxruntime")
    backend: Backend = module.OnnxRuntimeBackend(files, shape, threads)
    return backend


#: By the name in the manifest: (files by role, shape, threads) -> backend. Imported when chosen, so
#: that no installation needs the packages of a backend it does not use.
BACKENDS: dict[str, Callable[[Mapping[str, Path], GraphShape, int | None], Backend]] = {
    "onnxruntime": _onnxruntime,
}


def load_backend(
    name: str, files: Mapping[str, Path], shape: GraphShape, threads: int | None
) -> Backend:
    """Load a target's graphs.

    Args:
        name: of the backend, from the manifest.
        files: graph files by role, such as "encoder" and "step".
        shape: of the graphs' inputs and outputs.
        threads: to use within one operation; None leaves the choice to the backend.

    Raises:
        BundleError: this version has no such backend, or a graph does not load.
    """
    if name in PACKAGES:
        raise BundleError(
            "this version builds engines and checks them, but does not run them yet; choose an "
            "onnx target of the bundle."
        )
    if name not in BACKENDS:
        known: Sequence[str] = tuple(BACKENDS)
        raise BundleError(
            f"the target runs on the backend {name!r}, which this version does not have "
            f"(it has {', '.join(known)}). Upgrade with: pip install -U translate-trt"
        )
    return BACKENDS[name](files, shape, threads)
