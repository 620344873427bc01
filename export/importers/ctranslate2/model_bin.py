"""The file `model.bin` of CTranslate2: named arrays, in versions 2 to 6 of its layout.

All numbers are little-endian. u32 layout version, string name of the specification, u32 its
revision, u32 count, then per array: string name, u8 rank, u32 per axis, u8 element type, u32 bytes,
the elements; then u32 count of aliases, two strings each. Strings are u16 length with the zero at
their end, which is counted. Before version 4 an array says the size of an element and their number
instead; before version 3 there are no aliases. (CTranslate2's model_spec.py and model.cc.)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translate_trt.export.importers.json_file import shown
from translate_trt.runtime.errors import InputError

Array = NDArray[Any]

_VERSIONS = range(2, 7)
# By the number that stands for them; numpy has no bfloat16.
_TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
_TYPES_BY_SIZE = {1: "int8", 2: "int16", 4: "float32"}  # before version 4
_MOST_AXES = 4
# In 8 bits a number has one byte, and arrays that are shared (aliases) are several in the model.
_MOST_NUMBERS_PER_BYTE = 64


@dataclass(frozen=True)
class ModelFile:
    """What a file holds.

    Attributes:
        specification: name of the kind of model.
        revision: of the specification.
        arrays: by name, as they are stored, aliases included; bfloat16 as float32.
    """

    specification: str
    revision: int
    arrays: dict[str, Array]


def read_model_file(path: Path) -> ModelFile:
    """Read it.

    Raises:
        InputError: it is missing, cut off, or of another layout.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; give the directory that CTranslate2's "
            "converter made."
        ) from error
    reader = _Reader(path, content)
    version = reader.number("I")
    if version not in _VERSIONS:
        raise InputError(
            f"{path} has version {version} of CTranslate2's layout; versions "
            f"{_VERSIONS[0]} to {_VERSIONS[-1]} are read. Convert the model again with a "
            "CTranslate2 of today."
        )
    specification, revision = reader.text(), reader.number("I")
    arrays = dict(_arrays(reader, version))
    for _ in range(reader.number("I") if version >= 3 else 0):
        alias, name = reader.text(), reader.text()
        if name not in arrays:
            raise reader.damaged(f"{shown(alias)} stands for {shown(name)}, which it has not")
        arrays[alias] = arrays[name]
        # Quantized, it has the same scale; the file does not name that (model.cc does the same).
        if f"{name}_scale" in arrays:
            arrays.setdefault(f"{alias}_scale", arrays[f"{name}_scale"])
    count = sum(array.size for array in arrays.values())
    if count > _MOST_NUMBERS_PER_BYTE * len(content):
        raise reader.damaged(f"its {len(content)} bytes stand for {count} numbers")
    return ModelFile(specification, revision, arrays)


def _arrays(reader: _Reader, version: int) -> Iterator[tuple[str, Array]]:
    for _ in range(reader.number("I")):
        name, rank = reader.text(), reader.number("B")
        if rank > _MOST_AXES:
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
        array: Array = np.frombuffer(reader.bytes(size), dtype.newbyteorder("<")).reshape(axes)
        if types[kind] == "bfloat16":  # the upper half of a float32
            array = (array.astype(np.uint32) << 16).view(np.float32)
        yield name, array


class _Reader:
    """A place in the file."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path, self._content, self._place = path, memoryview(content), 0

    def damaged(self, what: str) -> InputError:
        return InputError(f"{self._path} is damaged: {what}. Copy or convert the model again.")

    def bytes(self, count: int) -> memoryview:
        end = self._place + count
        if end > len(self._content):
            raise self.damaged(f"it ends after {len(self._content)} bytes, within an array or name")
        found = self._content[self._place : end]
        self._place = end
        return found

    def number(self, kind: str) -> int:
        layout = struct.Struct(f"<{kind}")
        (found,) = layout.unpack(self.bytes(layout.size))
        return int(found)

    def text(self) -> str:
        content = bytes(self.bytes(self.number("H")))
        try:
            return content.rstrip(b"\0").decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged("a name is not UTF-8") from error
