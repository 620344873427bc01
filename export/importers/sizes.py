"""Checks of the sizes that a file declares, before memory is allocated for them."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from translate_trt.export.importers.input_files import shown
from translate_trt.runtime.errors import InputError

# Compression whose output is limited to an entry's declared size: zipfile and torch expand the
# others, bzip2 and LZMA, without a limit.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Weights hardly compress: a file that unpacks to more than this is damaged or malicious.
_MAX_RATIO = 8
_SLACK_BYTES = 64 << 20


def check_unpacked_size(path: Path, size: int, what: str) -> None:
    """Refuse a file that declares far more bytes than it has.

    Args:
        path: Path of the file.
        size: Bytes that the file declares.
        what: Subject of the error message, such as "its arrays".

    Raises:
        InputError: The size exceeds the limit.
    """
    actual = path.stat().st_size
    if size > actual * _MAX_RATIO + _SLACK_BYTES:
        raise InputError(
            f"{path}: {what} would take {size:,} bytes, but the file has {actual:,}; it is "
            "damaged, or made to exhaust memory. Copy it again from its origin."
        )


def check_archive(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse a zip archive whose entries unpack to far more bytes than the file has.

    Raises:
        InputError: The size exceeds the limit, or an entry is neither stored nor deflated.
    """
    for entry in archive.infolist():
        if entry.compress_type not in _METHODS:
            raise InputError(
                f"{path}: {shown(entry.filename)} is compressed with the zip method "
                f"{entry.compress_type}; only stored and deflated entries are supported. Pass the "
                "file as the toolkit wrote it."
            )
    size = sum(entry.file_size for entry in archive.infolist())
    check_unpacked_size(path, size, "its unpacked files")


def check_tensors(path: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse tensors that are larger than their storage, or not dense tensors on the CPU.

    Raises:
        InputError: A tensor is refused; the message names it.
    """
    total = 0
    for name, tensor in tensors:
        dense = tensor.device.type == "cpu" and not (tensor.is_sparse or tensor.is_quantized)
        if not dense or tensor.layout != torch.strided:
            raise InputError(
                f"{path}: {name} is a sparse, quantized or meta tensor, which is not supported; "
                "save the model with dense tensors."
            )
        size = math.prod(tensor.shape) * tensor.element_size()
        if size > tensor.untyped_storage().nbytes():
            raise InputError(
                f"{path}: {name} has shape {list(tensor.shape)}, but the file lacks its {size:,} "
                "bytes; it is damaged, or made to exhaust memory."
            )
        total += size
    check_unpacked_size(path, total, "its tensors")
