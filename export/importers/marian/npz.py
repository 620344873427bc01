"""Parser of model.npz, the archive of arrays that marian writes."""

from __future__ import annotations

import math
import zipfile
import zlib
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
            found = {
                entry.filename.removesuffix(".npy"): _read_array(path, archive, entry)
                for entry in archive.infolist()
            }
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
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


def _read_array(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    """Read an entry of the archive, after comparing its size with its declared shape."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            header = np.lib.format.read_array_header_2_0
        try:
            shape, fortran, dtype = header(file)
        except Exception as error:  # of the header's Python literal, and of the type in it
            raise InputError(
                f"{path}: the header of {entry.filename} is damaged; copy the file again."
            ) from error
        size, stored = math.prod(shape) * dtype.itemsize, entry.file_size - file.tell()
        if dtype.hasobject:
            raise InputError(
                f"{path}: {entry.filename} contains pickled objects, which are not supported."
            )
        if size != stored:
            raise InputError(
                f"{path}: {entry.filename} has shape {list(shape)} of {dtype}, {size:,} bytes, but "
                f"stores {stored:,}; the file is damaged, or marian did not write it."
            )
        content = file.read(stored)
        if len(content) != stored:
            raise InputError(
                f"{path}: {entry.filename} has {len(content):,} of the {stored:,} bytes that the "
                "archive declares; copy the file again."
            )
        array = np.frombuffer(content, dtype)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)
