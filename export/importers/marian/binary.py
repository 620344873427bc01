"""Parser of Marian's binary models (.bin), which marian-conv writes.

The file is little-endian (src/common/binary.cpp in Marian):

- u64 version, u64 number of items
- per item: u64 length of its name, u64 type, u64 rank, u64 bytes of its data
- the names with a final zero, then the shapes with an i32 per axis
- u64 length of a padding, and the padding
- the data of the items in order, each padded to a multiple of 256 bytes

An intgemm matrix W [K, N] is stored transposed as integers, and a float32 multiplier follows: W is
integers / multiplier. Bergamot's fork of Marian also stores embeddings in this way, without
transposing them. The intgemm types of one instruction set have their columns in groups of eight,
and of each group a register of rows per column.
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

from translate_trt.export.importers.input_files import Cursor, damaged, read_bytes, shown
from translate_trt.export.importers.marian.files import SETTINGS
from translate_trt.runtime.errors import InputError

_VERSION, _ENCRYPTED = 1, 2
# Bytes of the header of an item.
_HEADER = struct.Struct("<4Q")
_MAX_RANK = 4
# src/common/types.h: 0x100 signed, 0x200 unsigned, 0x400 floating point, plus the bytes.
_PLAIN = {0x101: "i1", 0x402: "<f2", 0x404: "<f4", 0x408: "<f8"}
# Registers of eight columns (intgemm's PrepareB).
_GROUP = 8


@dataclass(frozen=True)
class _Intgemm:
    """Layout of an intgemm type.

    Attributes:
        name: Name of the type in marian-conv's --gemm-type.
        dtype: Type of the integers.
        register: Bytes of a register; 0 for the layout of any processor.
    """

    name: str
    dtype: str
    register: int = 0


_INTGEMM = {
    # Bergamot's fork: signed + 0x4000.
    0x4101: _Intgemm("intgemm8", "i1"),
    0x4102: _Intgemm("intgemm16", "<i2"),
    # Marian 1.12: 0x10000, plus 0x8000 for SSSE3, 0x4000 for SSE2, 0x1000 for AVX2 and 0x2000 for
    # AVX-512.
    0x10001: _Intgemm("intgemm8", "i1"),
    0x18001: _Intgemm("intgemm8ssse3", "i1", 16),
    0x11001: _Intgemm("intgemm8avx2", "i1", 32),
    0x12001: _Intgemm("intgemm8avx512", "i1", 64),
    0x10002: _Intgemm("intgemm16", "<i2"),
    0x14002: _Intgemm("intgemm16sse2", "<i2", 16),
    0x11002: _Intgemm("intgemm16avx2", "<i2", 32),
    0x12002: _Intgemm("intgemm16avx512", "<i2", 64),
}
_FBGEMM = "FBGEMM's layout of one processor type, which is not supported"
_REFUSED = {
    0x802: ("packed16", _FBGEMM),
    0x1801: ("packed8avx2", _FBGEMM),
    0x2801: ("packed8avx512", _FBGEMM),
    # Not in the help of marian-conv; its result is nonsense in marian-decoder 1.12.42, too.
    0x13001: ("intgemm8avx512vnni", "which Marian 1.12 does not write correctly"),
}


@dataclass(frozen=True)
class _Item:
    """Header of an item, and where its data are.

    Attributes:
        name: Name of the array.
        kind: Number of the type.
        shape: Axes.
        data: Data with padding.
    """

    name: str
    kind: int
    shape: tuple[int, ...]
    data: memoryview

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def read_binary(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of a model: the settings as int8, all others as float32.

    Raises:
        InputError: The file is missing, damaged, encrypted, or of an unsupported type.
    """
    found: dict[str, NDArray[Any]] = {}
    for item in _items(path):
        if item.name in found:
            raise damaged(path, f"it contains {shown(item.name)} twice")
        found[item.name] = _array(path, item)
    return found


def matrix_types(path: Path) -> set[str]:
    """Return the names of the types in which a binary model stores its quantized matrices.

    Raises:
        InputError: See `read_binary`.
    """
    return {_INTGEMM[item.kind].name for item in _items(path) if item.kind in _INTGEMM}


def _items(path: Path) -> Iterator[_Item]:
    """Read the headers, and check all sizes that they declare against that of the file."""
    cursor = Cursor(path, read_bytes(path, "pass the model that marian or marian-conv wrote"))
    version = cursor.number("Q", "the version")
    if version == _ENCRYPTED:
        raise InputError(f"{path} is encrypted, which is not supported; decrypt it.")
    if version != _VERSION:
        raise InputError(
            f"{path} is not a binary model of Marian: it begins with the number {version}, "
            f"not with version {_VERSION}. Pass model.npz, or a file of marian-conv."
        )
    count = cursor.number("Q", "the number of arrays")
    content = cursor.take(count * _HEADER.size, f"the headers of {count:,} arrays")
    headers = list(_HEADER.iter_unpack(content))
    names = [cursor.text(length, "the names") for length, _, _, _ in headers]
    shapes = [
        _shape(cursor, name, rank) for name, (_, _, rank, _) in zip(names, headers, strict=True)
    ]
    cursor.take(cursor.number("Q", "the length of the padding"), "the padding")
    for name, shape, (_, kind, _, length) in zip(names, shapes, headers, strict=True):
        yield _Item(name, kind, shape, cursor.take(length, shown(name)))


def _shape(cursor: Cursor, name: str, rank: int) -> tuple[int, ...]:
    if not 1 <= rank <= _MAX_RANK:
        raise cursor.damaged(f"{shown(name)} has {rank:,} axes")
    shape = struct.unpack(f"<{rank}i", cursor.take(4 * rank, "the shapes"))
    if min(shape) < 1:
        raise cursor.damaged(f"{shown(name)} has shape {list(shape)}")
    return shape


def _array(path: Path, item: _Item) -> NDArray[Any]:
    if item.kind in _INTGEMM:
        return _intgemm(path, item, _INTGEMM[item.kind])
    if item.kind in _REFUSED:
        name, why = _REFUSED[item.kind]
        raise InputError(
            f"{path}: {shown(item.name)} is stored as {name}, {why}. Convert the model that it was "
            "made from again, with marian-conv --gemm-type intgemm8, or import that model itself."
        )
    if item.kind not in _PLAIN or (item.kind == 0x101) != (item.name == SETTINGS):
        raise InputError(
            f"{path}: {shown(item.name)} has the element type {item.kind:#x}, which is not "
            "supported. Pass the model as trained, or convert it again with marian-conv "
            "--gemm-type float32 or intgemm8."
        )
    dtype = np.dtype(_PLAIN[item.kind])
    values = _elements(path, item, dtype).reshape(item.shape)
    return values if item.name == SETTINGS else values.astype(np.float32)


def _elements(path: Path, item: _Item, dtype: np.dtype[Any], more: int = 0) -> NDArray[Any]:
    """Return the elements of an item, which `more` bytes have to follow."""
    needed = item.size * dtype.itemsize + more
    if needed > len(item.data):
        raise damaged(
            path,
            f"{shown(item.name)} has shape {list(item.shape)}, {needed:,} bytes, but stores "
            f"{len(item.data):,}",
        )
    return np.frombuffer(item.data, dtype, item.size)


def _intgemm(path: Path, item: _Item, layout: _Intgemm) -> NDArray[np.float32]:
    """Dequantize a matrix."""
    if len(item.shape) != 2:
        raise damaged(path, f"{shown(item.name)}, a matrix, has shape {list(item.shape)}")
    dtype = np.dtype(layout.dtype)
    integers = _elements(path, item, dtype, more=4)
    (multiplier,) = struct.unpack_from("<f", item.data, integers.nbytes)
    if not (math.isfinite(multiplier) and multiplier > 0):
        raise damaged(path, f"{shown(item.name)} has the multiplier {multiplier}")
    rows, columns = item.shape
    if "Wemb" in item.name and not layout.register:
        matrix = integers.reshape(rows, columns)
    elif not layout.register:
        matrix = integers.reshape(columns, rows).T
    else:
        depth = layout.register // dtype.itemsize
        if rows % depth or columns % _GROUP:
            raise InputError(
                f"{path}: {shown(item.name)}, {rows} x {columns}, does not fit the registers of "
                f"{layout.name}. Convert the model again with marian-conv --gemm-type intgemm8."
            )
        groups = integers.reshape(columns // _GROUP, rows // depth, _GROUP, depth)
        matrix = groups.transpose(1, 3, 0, 2).reshape(rows, columns)
    with np.errstate(over="ignore"):  # infinite weights are refused with all others
        weights: NDArray[np.float32] = np.divide(matrix, np.float32(multiplier), dtype=np.float32)
    return weights
