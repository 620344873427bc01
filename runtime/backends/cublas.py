"""Loading of cuBLASLt from its packages, for libtranslate_trt."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from translate_trt.runtime.backends.nvidia_driver import driver_version
from translate_trt.runtime.version import version_numbers

# Folders within the namespace package `nvidia`, by the CUDA version of the package: nvidia-cublas
# of CUDA 13, and nvidia-cublas-cu12.
_FOLDERS = {
    13: ("cu13/lib", "cu13/bin/x86_64"),
    12: ("cublas/lib", "cublas/bin"),
}  # fmt: skip


def load_cublas() -> Path | None:
    """Load the newest installed cuBLASLt that the driver supports, which the core then finds.

    Returns:
        Path of the library; None if no package has it, and the dynamic loader must find it.
    """
    driver = version_numbers(driver_version() or "")
    for cuda, path in _installed():
        if driver and cuda > driver[0]:
            continue
        try:
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        except OSError:  # a package for another system
            continue
        return path
    return None


def _installed() -> Iterator[tuple[int, Path]]:
    """Yield the libraries of installed packages with their CUDA versions, newest first."""
    found = importlib.util.find_spec("nvidia")
    roots = [] if found is None else [*(found.submodule_search_locations or [])]
    for cuda, folders in _FOLDERS.items():
        name = f"cublasLt64_{cuda}.dll" if sys.platform == "win32" else f"libcublasLt.so.{cuda}"
        for root in roots:
            for folder in folders:
                path = Path(root, folder, name)
                if path.is_file():
                    yield cuda, path
