"""ONNX Runtime on the CPU, the embedded default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from translate_trt.runtime.contract import GraphShape, TensorSpec
from translate_trt.runtime.errors import BundleError
from translate_trt.runtime.version import version_numbers

_TYPES = {
    "int64": "tensor(int64)",
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
    "bool": "tensor(bool)",
}


# The attention operator of 1.20.1 gave wrong translations, without an error; 1.21.1 does not.
_OLDEST = (1, 21)


class OnnxRuntimeBackend:
    """`Backend` with one session per graph. Tensors are OrtValues and are never copied."""

    def __init__(self, files: Mapping[str, Path], shape: GraphShape, threads: int | None) -> None:
        """Load both graphs.

        Raises:
            BundleError: a graph does not load, or has not the inputs and outputs the contract
                declares.
        """
        if version_numbers(ort.__version__) < _OLDEST:
            raise BundleError(
                f"onnxruntime {ort.__version__} is installed, whose attention is wrong; this "
                f"needs {'.'.join(map(str, _OLDEST))} or newer: pip install -U onnxruntime"
            )
        options = ort.SessionOptions()
        options.log_severity_level = 3  # errors; warnings here are about ONNX Runtime's own passes
        if threads is not None:
            options.intra_op_num_threads = threads
        outputs, step_outputs = shape.encoder_outputs(), shape.step_outputs()
        self._encoder = _session(files["encoder"], options, shape.encoder_inputs(), outputs)
        self._step = _session(files["step"], options, shape.step_inputs(), step_outputs)
        self._encoder_outputs = [spec.name for spec in outputs]
        self._step_outputs = [spec.name for spec in step_outputs]

    def encode(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, ort.OrtValue]:
        """Encoder outputs by name."""
        feeds = {name: self.to_device(value) for name, value in inputs.items()}
        values = self._encoder.run_with_ort_values(self._encoder_outputs, feeds)
        return dict(zip(self._encoder_outputs, values, strict=True))

    def step(self, inputs: Mapping[str, ort.OrtValue]) -> dict[str, ort.OrtValue]:
        """Step outputs by name."""
        values = self._step.run_with_ort_values(self._step_outputs, dict(inputs))
        return dict(zip(self._step_outputs, values, strict=True))

    def to_device(self, value: NDArray[np.generic]) -> ort.OrtValue:
        """The array as an OrtValue."""
        return ort.OrtValue.ortvalue_from_numpy(value)

    def to_host(self, tensor: ort.OrtValue) -> NDArray[Any]:
        """The OrtValue as an array."""
        array: NDArray[Any] = tensor.numpy()
        return array


def _session(
    path: Path,
    options: ort.SessionOptions,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> ort.InferenceSession:
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's classes derive from Exception alone
        raise BundleError(
            f"ONNX Runtime {ort.__version__} cannot load {path}: {error}. "
            "Export the bundle again, or upgrade with: pip install -U onnxruntime"
        ) from error
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
