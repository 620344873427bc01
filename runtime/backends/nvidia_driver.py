"""Queries of NVIDIA's driver library, which need neither PyTorch nor the CUDA toolkit."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

# CUdevice_attribute in cuda.h.
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76
# Longest name of a GPU. NVML documents 96 bytes for its names, the driver library no maximum.
_NAME_BYTES = 256


@dataclass(frozen=True)
class Gpu:
    """Model of a GPU.

    Attributes:
        name: Name from the driver, such as "NVIDIA H100 PCIe".
        compute_capability: Compute capability, such as "9.0".
        multiprocessors: Number of streaming multiprocessors (SMs).
    """

    name: str
    compute_capability: str
    multiprocessors: int

    def __str__(self) -> str:
        return f"{self.name} (compute capability {self.compute_capability}, {self.sms})"

    @property
    def sms(self) -> str:
        """Number of SMs with its unit, such as "114 SMs"."""
        return f"{self.multiprocessors} SMs"


def find_gpu(device: int = 0, library: Any = None) -> Gpu | None:
    """Return the model of a GPU; None without a GPU or driver.

    Args:
        device: Index among the visible GPUs.
        library: Replacement for the driver library, for tests.
    """
    cuda = library or _driver()
    handle, value = ctypes.c_int(), ctypes.c_int()
    if cuda is None or cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(handle), device):
        return None
    name = ctypes.create_string_buffer(_NAME_BYTES)
    if cuda.cuDeviceGetName(name, _NAME_BYTES, handle):
        return None
    numbers = []
    for attribute in (_MAJOR, _MINOR, _MULTIPROCESSORS):
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle):
            return None
        numbers.append(value.value)
    major, minor, multiprocessors = numbers
    return Gpu(name.value.decode(errors="replace"), f"{major}.{minor}", multiprocessors)


def compute_capability() -> str | None:
    """Return the compute capability of the first GPU, such as "8.6"; None without one."""
    gpu = find_gpu()
    return None if gpu is None else gpu.compute_capability


def driver_version(library: Any = None) -> str | None:
    """Return the CUDA version that the driver supports, such as "13.0"; None without a driver."""
    cuda, value = library or _driver(), ctypes.c_int()
    if cuda is None or cuda.cuDriverGetVersion(ctypes.byref(value)):
        return None
    return f"{value.value // 1000}.{value.value % 1000 // 10}"


def _driver() -> Any:
    """Load the driver library; None if it is missing."""
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
