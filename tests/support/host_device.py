"""Emulated GPU on the host: memory, stream and both engines, stricter than a real GPU.

Nothing that is asked for happens before a caller waits for it, so that what is read or overwritten
too early shows; or, if it is eager, everything at once, so that what is overwritten too late shows.
Memory that was never written holds what makes any number wrong.
Every address is looked up: one that is freed, misaligned or out of its allocation raises. The
engines are the graphs they are built from, in ONNX Runtime, on exactly the bytes at the addresses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from translate_trt.runtime.backends.device import ALIGNMENT, Launch
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.bundle.contract import NEXT, Contract, TensorSpec
from translate_trt.runtime.errors import BackendError

ITEM_SIZES = {"int64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "bool": 1}
UNWRITTEN = 0xFF  # not a number, minus one, and neither true nor false
GAP = 1 << 40  # between allocations, so that no address is in two

Bytes = NDArray[np.uint8]


class ViolationError(AssertionError):
    """Misuse of a GPU, whether or not it would show on a real one."""


#: Messages of all violations: the library that meets one may retry what it was doing.
violations: list[str] = []


def violation(message: str) -> ViolationError:
    violations.append(message)
    return ViolationError(message)


@dataclass(frozen=True)
class StandInEngines:
    """Graphs of a target with their declared tensors and profiles.

    Attributes:
        sessions: by role.
        contract: of the engines; graphs that emulate bfloat16 take float32.
        profiles: by role.
    """

    sessions: Mapping[str, ort.InferenceSession]
    contract: Contract
    profiles: Mapping[str, Sequence[Profile]]

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


@dataclass
class HostEvent:
    device: HostDevice
    position: int

    def wait(self) -> None:
        if self.device.capturing is not None:
            raise violation("waited while capturing")
        self.device.run_until(self.position)


@dataclass
class HostDevice:
    """`Device`.

    Attributes:
        counts: of what was asked for, by name; what a replay asks for is not counted again.
        copied_out: bytes of every copy to the host.
        launches: of engines, those inside a capture too.
        eager: do what is asked for at once.
        capacity: bytes it has.
    """

    engines: StandInEngines
    eager: bool = False
    capacity: int = 1 << 40
    counts: Counter[str] = field(default_factory=Counter)
    copied_out: list[int] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    capturing: list[Callable[[], None]] | None = None
    fail_after: int | None = None

    def __post_init__(self) -> None:
        self._memory: dict[int, Bytes] = {}
        self._queue: list[Callable[[], None]] = []
        self._done = 0
        self._pinned: list[Bytes] = []
        self._ran: set[tuple[str, int, tuple[Any, ...]]] = set()

    # ---- the queue ----

    def activate(self) -> None:
        self.counts["activate"] += 1

    def _ask(self, what: str, work: Callable[[], None]) -> None:
        self.counts[what] += 1
        (self._queue if self.capturing is None else self.capturing).append(work)
        if self.eager and self.capturing is None:
            self.run_until(len(self._queue))

    def run_until(self, position: int) -> None:
        while self._done < position:
            self._queue[self._done]()
            self._queue[self._done] = lambda: None
            self._done += 1

    def record(self) -> HostEvent:
        if self.capturing is not None:
            raise violation("an event was recorded while capturing")
        self.counts["record"] += 1
        return HostEvent(self, len(self._queue))

    def begin_capture(self) -> None:
        self.counts["capture"] += 1
        self.capturing = []

    def end_capture(self) -> Callable[[], None]:
        assert self.capturing is not None
        captured, self.capturing = self.capturing, None
        return lambda: self.replay(captured)

    def replay(self, captured: Sequence[Callable[[], None]]) -> None:
        def run() -> None:
            for part in captured:
                part()

        self._ask("replay", run)

    # ---- memory ----

    def allocate(self, size: int) -> int:
        if self.capturing is not None:
            raise violation("memory was allocated while capturing")
        self.capacity -= size
        if self.capacity < 0:
            raise BackendError("the GPU is out of memory. Lower workers.")
        address = GAP * (len(self._memory) + 1)
        self._memory[address] = np.full(size, UNWRITTEN, dtype=np.uint8)
        self.counts["allocate"] += 1
        return address

    def pin(self, size: int) -> int:
        self._pinned.append(np.full(size, UNWRITTEN, dtype=np.uint8))
        address: int = self._pinned[-1].ctypes.data
        return address

    def at(self, address: int, size: int) -> Bytes:
        """Return the bytes at an address."""
        start = address // GAP * GAP
        if start not in self._memory:
            raise violation(f"no memory at {address:#x}")
        begin = address - start
        if begin + size > self._memory[start].size:
            raise violation(f"{size} bytes at {begin} of {self._memory[start].size}")
        return self._memory[start][begin : begin + size]

    def pinned(self, address: int, size: int) -> Bytes:
        """Return the bytes at an address of pinned memory."""
        for own in self._pinned:
            begin = address - own.ctypes.data
            if 0 <= begin <= own.size - size:
                return own[begin : begin + size]
        raise violation("an asynchronous copy from or to memory that is not pinned")

    def copy_in(self, target: int, source: int, size: int) -> None:
        place, given = self.at(target, size), self.pinned(source, size)
        self._ask("copy_in", lambda: np.copyto(place, given))

    def copy_out(self, target: int, source: int, size: int) -> None:
        place, given = self.at(source, size), self.pinned(target, size)
        self.copied_out.append(size)
        given[:] = UNWRITTEN  # whoever reads it before the event reads this
        self._ask("copy_out", lambda: np.copyto(given, place))

    def copy(
        self,
        target: int,
        source: int,
        width: int,
        height: int = 1,
        target_pitch: int = 0,
        source_pitch: int = 0,
    ) -> None:
        if height > 1 and min(target_pitch, source_pitch) < width:
            raise violation("rows of a copy overlap")
        pairs = [
            (
                self.at(target + row * target_pitch, width),
                self.at(source + row * source_pitch, width),
            )
            for row in range(height)
        ]
        if any(np.shares_memory(to, of) for to, of in pairs):
            raise violation("a copy onto itself")

        def work() -> None:
            for to, of in pairs:
                to[:] = of

        self._ask("copy", work)

    def fill(self, target: int, value: int, size: int) -> None:
        place = self.at(target, size)
        self._ask("fill", lambda: place.fill(value))

    # ---- engines ----

    def launch(self, work: Launch) -> None:
        key = (work.role, work.profile, tuple(sorted(work.shapes.items())))
        if self.capturing is not None and key not in self._ran:
            raise violation("captured before it ran with these shapes")
        self._ran.add(key)
        self._check_shapes(work)
        tensors = self._tensors(work)
        self.launches.append(work)

        def run() -> None:
            if self.fail_after is not None:
                self.fail_after -= 1
                if self.fail_after < 0:
                    raise RuntimeError("an illegal memory access was encountered")
            self.counts[f"ran {work.role}"] += 1
            self._run(work.role, tensors)

        self._ask(work.role, run)

    def _check_shapes(self, work: Launch) -> None:
        ranges = self.engines.profiles[work.role][work.profile].ranges()
        for spec in self.engines.specs(work.role)[0]:
            if len(spec.axes) != len(work.shapes[spec.name]):
                raise violation(f"{spec.name} of shape {work.shapes[spec.name]}")
            for axis, size in zip(spec.axes, work.shapes[spec.name], strict=True):
                low, _, high = ranges[axis] if isinstance(axis, str) else (axis, axis, axis)
                if not low <= size <= high:
                    raise violation(f"{spec.name} of shape {work.shapes[spec.name]}")

    def _tensors(self, work: Launch) -> dict[str, tuple[TensorSpec, tuple[int, ...], Bytes]]:
        inputs, outputs = self.engines.specs(work.role)
        if set(work.addresses) != {spec.name for spec in (*inputs, *outputs)}:
            raise violation(f"addresses of {sorted(work.addresses)}")
        sizes = {
            axis: size
            for spec in inputs
            for axis, size in zip(spec.axes, work.shapes[spec.name], strict=True)
        }
        found = {}
        for spec in (*inputs, *outputs):
            shape = tuple(sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes)
            if work.addresses[spec.name] % ALIGNMENT:
                raise violation(f"{spec.name} is not aligned")
            size = math.prod(shape) * ITEM_SIZES[spec.dtype]
            found[spec.name] = (spec, shape, self.at(work.addresses[spec.name], size))
        self._check_overlaps(inputs, outputs, found)
        return found

    def _check_overlaps(self, inputs: Any, outputs: Any, found: Mapping[str, Any]) -> None:
        caches = {spec.name for spec in self.engines.contract.caches}
        for output in outputs:
            place = found[output.name][2]
            for other in (*inputs, *outputs):
                if other.name == output.name:
                    continue
                shared = np.shares_memory(place, found[other.name][2])
                in_place = other.name in caches and output.name == NEXT + other.name
                if shared != in_place:
                    raise violation(f"{output.name} and {other.name} share memory: {shared}")

    def _run(self, role: str, tensors: Mapping[str, Any]) -> None:
        inputs, outputs = self.engines.specs(role)
        feeds = {spec.name: _read(*tensors[spec.name]) for spec in inputs}
        names = [spec.name for spec in outputs]
        results = self.engines.sessions[role].run(names, feeds)
        for name, result in zip(names, results, strict=True):
            spec, shape, place = tensors[name]
            assert result.shape == shape, name
            _write(spec, result, place)


def _read(spec: TensorSpec, shape: tuple[int, ...], place: Bytes) -> NDArray[Any]:
    if spec.dtype == "bfloat16":
        wide = place.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    if spec.dtype == "bool" and (place > 1).any():
        raise violation(f"{spec.name} is neither true nor false")
    return place.view(np.dtype(spec.dtype)).reshape(shape).copy()


def _write(spec: TensorSpec, result: NDArray[Any], place: Bytes) -> None:
    content = np.ascontiguousarray(result)
    if spec.dtype == "bfloat16":
        content = (content.view(np.uint32) >> 16).astype(np.uint16)
    assert spec.dtype == "bfloat16" or content.dtype == np.dtype(spec.dtype), spec.name
    place[:] = content.reshape(-1).view(np.uint8)
