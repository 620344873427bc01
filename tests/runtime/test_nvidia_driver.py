"""Queries of the driver library, on a fake of it."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from translate_trt.runtime.backends.nvidia_driver import (
    Gpu,
    compute_capability,
    driver_version,
    find_gpu,
)

MODELS = (Gpu("NVIDIA A10", "8.6", 72), Gpu("NVIDIA RTX PRO 6000", "12.0", 188))


class Driver:
    """Fake of the libcuda functions that are called."""

    def __init__(
        self, init: int = 0, devices: int = 1, attribute: int = 0, name: int = 0, version: int = 0
    ) -> None:
        self.init, self.devices, self.attribute = init, devices, attribute
        self.name, self.version = name, version

    def cuInit(self, flags: int) -> int:  # noqa: N802
        assert flags == 0
        return self.init

    def cuDeviceGet(self, handle: Any, ordinal: int) -> int:  # noqa: N802
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_int))[0] = 40 + ordinal
        return 0 if ordinal < self.devices else 101

    def cuDeviceGetName(self, name: Any, size: int, handle: Any) -> int:  # noqa: N802
        text = MODELS[handle.value - 40].name.encode()
        assert len(text) < size == len(name)
        name.value = text
        return self.name

    def cuDeviceGetAttribute(self, value: Any, attribute: int, handle: Any) -> int:  # noqa: N802
        gpu = MODELS[handle.value - 40]
        major, minor = gpu.compute_capability.split(".")
        numbers = {16: gpu.multiprocessors, 75: int(major), 76: int(minor)}
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int))[0] = numbers[attribute]
        return self.attribute

    def cuDriverGetVersion(self, value: Any) -> int:  # noqa: N802
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int))[0] = 12090
        return self.version


def test_the_driver_is_asked_for_the_gpu() -> None:
    assert find_gpu(library=Driver()) == MODELS[0]
    assert find_gpu(1, Driver(devices=2)) == MODELS[1]
    assert str(MODELS[0]) == "NVIDIA A10 (compute capability 8.6, 72 SMs)"
    assert driver_version(Driver()) == "12.9"


@pytest.mark.parametrize("failure", [{"init": 100}, {"devices": 0}, {"attribute": 1}, {"name": 1}])
def test_no_gpu(failure: dict[str, int]) -> None:
    assert find_gpu(library=Driver(**failure)) is None


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert find_gpu() is None
    assert compute_capability() is None
    assert driver_version() is None
    assert driver_version(Driver(version=1)) is None
