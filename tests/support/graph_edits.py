"""Wrong exports: changes of a bundle's graphs, with the hashes of the changed files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from translate_trt.runtime.bundle.manifest import hash_file, read_manifest, write_manifest


def change_file(bundle: Path, target: str, role: str, change: Callable[[Path], object]) -> None:
    """Change the file of a graph of a bundle and update its hash."""
    manifest = read_manifest(bundle)
    entry = manifest.target(target)
    change(entry.files[role].locate(bundle))
    files = {**entry.files, role: hash_file(bundle, entry.files[role].path)}
    targets = {**manifest.targets, target: dataclasses.replace(entry, files=files)}
    write_manifest(bundle, dataclasses.replace(manifest, targets=targets))


def edit_graph(
    bundle: Path, target: str, role: str, edit: Callable[[onnx.ModelProto], None]
) -> None:
    """Edit a graph of a bundle and update its hash."""

    def change(path: Path) -> None:
        model = onnx.load(path)
        edit(model)
        onnx.save(model, path)

    change_file(bundle, target, role, change)


def roll_columns(tensor: onnx.TensorProto) -> None:
    """Rotate the columns of a matrix."""
    rolled = np.roll(numpy_helper.to_array(tensor), 1, axis=-1)
    tensor.CopyFrom(numpy_helper.from_array(rolled, tensor.name))
