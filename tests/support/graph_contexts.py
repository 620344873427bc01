"""Engines that are graphs in ONNX Runtime, on streams and memory of the fake CUDA driver.

They run on exactly the bytes at the addresses that they are given, each of which is looked up: one
that is freed, misaligned or out of its allocation is a violation.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from support.fake_driver import FakeDriver
from translate_trt.runtime.backends.device import ALIGNMENT, Launch
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.bundle.contract import NEXT, Contract, TensorSpec

ITEM_SIZES = {"int64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "bool": 1}

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class StandInEngines:
    """Graphs of a target with their declared tensors and profiles.

    Attributes:
        sessions: by role.
        contract: of the engines; graphs that emulate bfloat16 take float32.
        profiles: by role.
        launches: all that were enqueued or captured.
    """

    sessions: Mapping[str, ort.InferenceSession]
    contract: Contract
    profiles: Mapping[str, Sequence[Profile]]
    launches: list[Launch] = field(default_factory=list)

    @classmethod
    def load(
        cls,
        files: Mapping[str, Path],
        contract: Contract,
        profiles: Mapping[str, Sequence[Profile]],
    ) -> StandInEngines:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        sessions = {
            role: ort.InferenceSession(
                str(files[role]), options, providers=["CPUExecutionProvider"]
            )
            for role in ("encoder", "step")
        }
        return cls(sessions, contract, profiles)

    def specs(self, role: str) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        return self.contract.graphs[role]


def with_slots(
    profiles: Sequence[Profile], *target_lengths: int, beams: int
) -> tuple[Profile, ...]:
    """Profiles of a step that has each of these buckets with the slots of each length."""
    return tuple(
        replace(profile, slots=beams * length) for profile in profiles for length in target_lengths
    )


class GraphContexts:
    """Implementation of `Contexts`."""

    def __init__(self, engines: StandInEngines, driver: FakeDriver, stream: int) -> None:
        self._engines, self._driver, self._stream = engines, driver, stream
        self._ran: set[tuple[str, int, tuple[Any, ...]]] = set()

    def launch(self, work: Launch) -> None:
        key = (work.role, work.profile, tuple(sorted(work.shapes.items())))
        if work.capturing != self._driver.c.is_capturing(self._stream):
            raise self._driver.violation("launched in a capture or not, other than it says")
        if work.capturing and key not in self._ran:
            raise self._driver.violation("captured before it ran with these shapes")
        self._ran.add(key)
        self._check_shapes(work)
        tensors = self._tensors(work)
        self._engines.launches.append(work)
        self._driver.enqueue(self._stream, lambda: self._run(work.role, tensors), id(self))

    def _at(self, address: int, size: int) -> Bytes:
        """Return the bytes at an address."""
        if not self._driver.c.has_memory(address, size):
            raise self._driver.violation(f"no {size} bytes at {address:#x}")
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def _check_shapes(self, work: Launch) -> None:
        ranges = self._engines.profiles[work.role][work.profile].ranges()
        for spec in self._engines.specs(work.role)[0]:
            if len(spec.axes) != len(work.shapes[spec.name]):
                raise self._driver.violation(f"{spec.name} of shape {work.shapes[spec.name]}")
            for axis, size in zip(spec.axes, work.shapes[spec.name], strict=True):
                low, _, high = ranges[axis] if isinstance(axis, str) else (axis, axis, axis)
                if not low <= size <= high:
                    raise self._driver.violation(f"{spec.name} of shape {work.shapes[spec.name]}")

    def _tensors(self, work: Launch) -> dict[str, tuple[TensorSpec, tuple[int, ...], Bytes]]:
        inputs, outputs = self._engines.specs(work.role)
        if set(work.addresses) != {spec.name for spec in (*inputs, *outputs)}:
            raise self._driver.violation(f"addresses of {sorted(work.addresses)}")
        sizes = {
            axis: size
            for spec in inputs
            for axis, size in zip(spec.axes, work.shapes[spec.name], strict=True)
        }
        found = {}
        for spec in (*inputs, *outputs):
            shape = tuple(sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes)
            if work.addresses[spec.name] % ALIGNMENT:
                raise self._driver.violation(f"{spec.name} is not aligned")
            size = math.prod(shape) * ITEM_SIZES[spec.dtype]
            found[spec.name] = (spec, shape, self._at(work.addresses[spec.name], size))
        self._check_overlaps(inputs, outputs, found)
        return found

    def _check_overlaps(self, inputs: Any, outputs: Any, found: Mapping[str, Any]) -> None:
        caches = {spec.name for spec in self._engines.contract.caches}
        for output in outputs:
            place = found[output.name][2]
            for other in (*inputs, *outputs):
                if other.name == output.name:
                    continue
                shared = np.shares_memory(place, found[other.name][2])
                in_place = other.name in caches and output.name == NEXT + other.name
                if shared != in_place:
                    raise self._driver.violation(f"{output.name}, {other.name} share: {shared}")

    def _run(self, role: str, tensors: Mapping[str, Any]) -> None:
        inputs, outputs = self._engines.specs(role)
        feeds = {spec.name: _read(*tensors[spec.name]) for spec in inputs}
        names = [spec.name for spec in outputs]
        results = self._engines.sessions[role].run(names, feeds)
        for name, result in zip(names, results, strict=True):
            spec, shape, place = tensors[name]
            assert result.shape == shape, name
            _write(spec, result, place)


def _read(spec: TensorSpec, shape: tuple[int, ...], place: Bytes) -> NDArray[Any]:
    if spec.dtype == "bfloat16":
        wide = place.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    if spec.dtype == "bool" and (place > 1).any():
        raise AssertionError(f"{spec.name} is neither true nor false")
    return place.view(np.dtype(spec.dtype)).reshape(shape).copy()


def _write(spec: TensorSpec, result: NDArray[Any], place: Bytes) -> None:
    content = np.ascontiguousarray(result)
    if spec.dtype == "bfloat16":
        content = (content.view(np.uint32) >> 16).astype(np.uint16)
    assert spec.dtype == "bfloat16" or content.dtype == np.dtype(spec.dtype), spec.name
    place[:] = content.reshape(-1).view(np.uint8)
