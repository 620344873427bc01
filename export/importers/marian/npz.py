"""Parser of model.npz, the archive of arrays that marian writes."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translate_trt.export.importers.marian.files import SETTINGS
from translate_trt.export.importers.sizes import check_archive
from translate_trt.runtime.errors import InputError


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of a model: the settings as int8, all others as float32.

    Raises:
        InputError: The file is missing, damaged, or contains other types.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            check_archive(path, archive)
            found: dict[str, NDArray[Any]] = {}
            for entry in archive.infolist():
                with archive.open(entry) as file:
                    name = entry.filename.removesuffix(".npy")
                    found[name] = np.lib.format.read_array(file, allow_pickle=False)
                    if file.read(1):
                        raise ValueError(f"{entry.filename} has more bytes than its header says")
    except InputError:
        raise
    except Exception as error:  # of zipfile, zlib and numpy, which share no other base class
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(
            f"cannot read {path}: {reason}. Pass the model.npz that marian wrote."
        ) from error
    for name, array in found.items():
        if name != SETTINGS and array.dtype.kind != "f":
            raise InputError(
                f"{path}: {name} has elements of type {array.dtype}; pass the model as trained, "
                "with floating-point weights."
            )
    return {
        name: array if name == SETTINGS else np.array(array, np.float32, order="C")
        for name, array in found.items()
    }
