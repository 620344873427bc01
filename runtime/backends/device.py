"""What a batch needs of a device: memory, one queue of work, and the two engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.errors import BackendError

#: Addresses of tensors are multiples of it: TensorRT asks for that.
ALIGNMENT = 256

#: Bytes of an element.
ITEM_SIZES = {"int64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "bool": 1}

Bytes = NDArray[np.uint8]


class CaptureError(BackendError):
    """Work that cannot be captured; nothing of it was done."""


@dataclass(frozen=True)
class Launch:
    """One run of an engine.

    Attributes:
        role: "encoder" or "step".
        profile: index of the optimization profile.
        shapes: of each input.
        addresses: of each input and output.
    """

    role: str
    profile: int
    shapes: Mapping[str, tuple[int, ...]]
    addresses: Mapping[str, int]


class Event(Protocol):
    """A point in the queue."""

    def wait(self) -> None:
        """Return once everything before it is done."""
        ...


class Device(Protocol):
    """A queue of work in order, and memory; one thread at a time uses it.

    Everything but `allocate`, `pinned`, `capture` and `Event.wait` returns at once: what it asks
    for happens later, after what was asked for before. Addresses are of the device's memory.

    Raises:
        BackendError: the device is out of memory, or lost; the message says what to do.
    """

    def activate(self) -> None:
        """Use it from this thread from now on."""
        ...

    def allocate(self, size: int) -> int:
        """Address of that many bytes of any content, a multiple of ALIGNMENT."""
        ...

    def pinned(self, size: int) -> Bytes:
        """That many bytes of the host's memory that the device can read and write itself."""
        ...

    def copy_in(self, target: int, source: Bytes) -> None:
        """From pinned memory, which must stay as it is until then."""
        ...

    def copy_out(self, target: Bytes, source: int) -> None:
        """Into pinned memory, where it may be read after an event."""
        ...

    def copy(
        self,
        target: int,
        source: int,
        width: int,
        height: int = 1,
        target_pitch: int = 0,
        source_pitch: int = 0,
    ) -> None:
        """Within the device's memory, `height` rows of `width` bytes that begin a pitch apart."""
        ...

    def fill(self, target: int, value: int, size: int) -> None:
        """Set that many bytes to one value."""
        ...

    def launch(self, work: Launch) -> None:
        """Run an engine."""
        ...

    def record(self) -> Event:
        """This point of the queue."""
        ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Note what `work` asks for, doing none of it.

        Returns:
            A call that asks for all of it at once, with the same addresses and shapes.

        Raises:
            CaptureError: something in it cannot be captured.
        """
        ...


class Upload:
    """Arrays of the host on their way to one place of the device, one after another.

    Args:
        device: to copy to.
        target: address.
        size: bytes, at most.
    """

    def __init__(self, device: Device, target: int, size: int) -> None:
        self._device, self._target = device, target
        self._staging = device.pinned(size)
        self._taken: Event | None = None

    def send(self, array: NDArray[Any]) -> None:
        """Copy an array; it may be changed as soon as this returns."""
        if self._taken is not None:
            self._taken.wait()
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        staged = self._staging[: content.size]
        staged[:] = content
        self._device.copy_in(self._target, staged)
        self._taken = self._device.record()
