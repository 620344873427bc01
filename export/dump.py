"""Dump the graph after every pass as an ONNX file, to inspect or to run."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx_ir as ir

from translate_trt.runtime.errors import OutputError
from translate_trt.runtime.io.atomic_files import output_error

_WEIGHTS = "weights"
_INLINE = 1024  # bytes; larger constants are written to files of their own


class Dump:
    """Writer of `DIR/<graph>-<number>-<pass>.onnx`, one file per stage.

    Constants of more than a kilobyte are files in `DIR/weights`, named by a hash of their content:
    stages share them.

    Args:
        directory: Directory to write to, created if missing.

    Raises:
        OutputError: The directory is not empty or cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stages: dict[str, int] = {}
        self._written: dict[int, tuple[ir.TensorProtocol, str]] = {}  # keeps the tensors alive
        try:
            if directory.exists() and any(directory.iterdir()):
                raise OutputError(f"{directory} is not empty; choose another --dump-passes.")
            (directory / _WEIGHTS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise output_error(directory, error) from error

    def stage(self, name: str, model: ir.Model) -> None:
        """Write the graph after the pass of that name."""
        graph = str(model.graph.name)
        number = self._stages.setdefault(graph, 0)
        self._stages[graph] += 1
        copy = model.clone()
        try:
            for value in copy.graph.initializers.values():
                if value.const_value is not None and value.const_value.nbytes > _INLINE:
                    value.const_value = self._external(value.const_value)
            ir.save(copy, self._directory / f"{graph}-{number:02}-{name}.onnx")
        except OSError as error:
            raise output_error(self._directory, error) from error

    def _external(self, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
        if id(tensor) not in self._written:
            content = tensor.tobytes()
            location = f"{_WEIGHTS}/{hashlib.sha256(content).hexdigest()[:16]}"
            path = self._directory / location
            if not path.exists():
                path.write_bytes(content)
            self._written[id(tensor)] = (tensor, location)
        return ir.ExternalTensor(
            self._written[id(tensor)][1], 0, tensor.nbytes, tensor.dtype,
            name=str(tensor.name), shape=ir.Shape(tensor.numpy().shape), base_dir=self._directory,
        )  # fmt: skip
