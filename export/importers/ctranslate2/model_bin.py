"""Parser of CTranslate2's `model.bin`, layout versions 2 to 6.

The file is little-endian (CTranslate2's model_spec.py and model.cc):

- u32 layout version, string specification, u32 revision of the specification
- u32 count, then per array: string name, u8 rank, u32 per axis, u8 element type, u32 bytes, data
- u32 count, then per alias: string alias, string name (from version 3 on)

A string is a u16 length and the bytes, including the final zero. Before version 4, element size and
element count replace element type and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translate_trt.export.importers.input_files import Cursor, read_bytes, shown
from translate_trt.runtime.errors import InputError

Array = NDArray[Any]

_VERSIONS = range(2, 7)
# Element types by number; numpy has no bfloat16.
_TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
_TYPES_BY_SIZE = {1: "int8", 2: "int16", 4: "float32"}  # before version 4
_MAX_RANK = 4
# Aliases let a file describe more elements than it stores, but not arbitrarily many more.
_MAX_ELEMENTS_PER_BYTE = 64


@dataclass(frozen=True)
class ModelFile:
    """Content of a model file.

    Attributes:
        specification: Name of the model specification.
        revision: Revision of the specification.
        arrays: Stored arrays by name, including aliases; bfloat16 is widened to float32.
    """

    specification: str
    revision: int
    arrays: dict[str, Array]


def read_model_file(path: Path) -> ModelFile:
    """Read a model file.

    Raises:
        InputError: The file is missing, truncated, or has another layout.
    """
    content = read_bytes(path, "pass the directory that CTranslate2's converter wrote")
    reader = Cursor(path, content)
    version = reader.number("I")
    if version not in _VERSIONS:
        raise InputError(
            f"{path} has version {version} of CTranslate2's layout; supported: "
            f"{_VERSIONS[0]} to {_VERSIONS[-1]}. Convert the model again with a current "
            "CTranslate2."
        )
    specification, revision = reader.text(reader.number("H")), reader.number("I")
    arrays = dict(_arrays(reader, version))
    for _ in range(reader.number("I") if version >= 3 else 0):
        alias, name = reader.text(reader.number("H")), reader.text(reader.number("H"))
        if name not in arrays:
            raise reader.damaged(f"{shown(alias)} is an alias of {shown(name)}, which is missing")
        arrays[alias] = arrays[name]
        # Files do not alias the scale of a quantized array; model.cc adds it likewise.
        if f"{name}_scale" in arrays:
            arrays.setdefault(f"{alias}_scale", arrays[f"{name}_scale"])
    count = sum(array.size for array in arrays.values())
    if count > _MAX_ELEMENTS_PER_BYTE * len(content):
        raise reader.damaged(f"its {len(content)} bytes describe {count} elements")
    return ModelFile(specification, revision, arrays)


def _arrays(reader: Cursor, version: int) -> Iterator[tuple[str, Array]]:
    for _ in range(reader.number("I")):
        name, rank = reader.text(reader.number("H")), reader.number("B")
        if rank > _MAX_RANK:
            raise reader.damaged(f"{shown(name)} has {rank} axes")
        axes = [reader.number("I") for _ in range(rank)]
        kind = reader.number("B")
        types = dict(enumerate(_TYPES)) if version >= 4 else _TYPES_BY_SIZE
        if kind not in types:
            raise reader.damaged(f"{shown(name)} has element type {kind}")
        dtype = np.dtype("uint16" if types[kind] == "bfloat16" else types[kind])
        size = reader.number("I") * (1 if version >= 4 else dtype.itemsize)
        if size != math.prod(axes) * dtype.itemsize:
            raise reader.damaged(f"{shown(name)} has {size} bytes and axes {axes}")
        content = reader.take(size, shown(name))
        array: Array = np.frombuffer(content, dtype.newbyteorder("<")).reshape(axes)
        if types[kind] == "bfloat16":  # the upper 16 bits of a float32
            array = (array.astype(np.uint32) << 16).view(np.float32)
        yield name, array
