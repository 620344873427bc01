"""Limits of unpacked sizes, checked by what a file declares before memory is allocated."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from translate_trt.runtime.errors import InputError

# Weights hardly compress: a file that unpacks to more than this is damaged, or made to do harm.
_MOST_TIMES = 8
_MOST_MORE = 64 << 20


def check_unpacked_size(path: Path, size: int, what: str) -> None:
    """Refuse a file that declares far more bytes than it has.

    Args:
        path: of the file.
        size: bytes that it declares.
        what: the subject of the message, such as "its arrays".

    Raises:
        InputError: the size is beyond the limit.
    """
    own = path.stat().st_size
    if size > own * _MOST_TIMES + _MOST_MORE:
        raise InputError(
            f"{path}: {what} would take {size:,} bytes, but the file has {own:,}; it is damaged, "
            "or made to exhaust memory. Copy it again from where it was made."
        )


def check_archive(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse a zip archive whose entries unpack to far more bytes than the file has.

    Raises:
        InputError: they do.
    """
    size = sum(entry.file_size for entry in archive.infolist())
    check_unpacked_size(path, size, "what it unpacks to")


def check_tensors(path: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse tensors that are larger than their storage, or not of numbers in memory.

    Raises:
        InputError: one is; the message has its name.
    """
    total = 0
    for name, tensor in tensors:
        dense = tensor.device.type == "cpu" and not (tensor.is_sparse or tensor.is_quantized)
        if not dense or tensor.layout != torch.strided:
            raise InputError(
                f"{path}: {name} is a sparse, quantized or empty (meta) tensor, which is not "
                "represented; save the model with plain tensors."
            )
        size = math.prod(tensor.shape) * tensor.element_size()
        if size > tensor.untyped_storage().nbytes():
            raise InputError(
                f"{path}: {name} has shape {list(tensor.shape)}, but {size:,} bytes of it are not "
                "in the file; it is damaged, or made to exhaust memory."
            )
        total += size
    check_unpacked_size(path, total, "its tensors")
