"""Device interface of engines: memory, one work queue, and execution contexts.

The loop that uses it is libtranslate_trt's (`runtime/cpp/src/engines/device_batch.h`), which is
handed these functions by `translate_trt.runtime.native.device_functions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from translate_trt.runtime.backends.engines import Profile

#: Addresses of tensors are multiples of it: TensorRT asks for that.
ALIGNMENT = 256


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
    """A queue of work in order, and memory; one thread at a time uses it, not always the same.

    Everything but `allocate`, `pin`, `end_capture` and `Event.wait` returns at once: what it asks
    for happens later, after what was asked for before. Addresses are of the device's memory, unless
    they are said to be pinned. All memory belongs to the device.

    Raises:
        BackendError: the device is out of memory, or lost; the message says what to do.
    """

    def activate(self) -> None:
        """Use it from this thread from now on."""
        ...

    def allocate(self, size: int) -> int:
        """Address of that many bytes of any content, a multiple of ALIGNMENT."""
        ...

    def pin(self, size: int) -> int:
        """Address of that many bytes of the host's memory that the device can access itself."""
        ...

    def copy_in(self, target: int, source: int, size: int) -> None:
        """From pinned memory, which must stay as it is until then."""
        ...

    def copy_out(self, target: int, source: int, size: int) -> None:
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

    def begin_capture(self) -> None:
        """From here to `end_capture`, note what is asked for instead of doing it."""
        ...

    def end_capture(self) -> Callable[[], None]:
        """A call that asks for all that was noted, with the same addresses and shapes.

        Raises:
            BackendError: something in it cannot be captured; nothing of it was done, and the device
                goes on as if it had not been asked.
        """
        ...


@dataclass(frozen=True)
class Engines:
    """Both engines of a target, loaded.

    Attributes:
        make_device: makes a device with contexts of its own; any thread.
        profiles: of both engines.
        poll_every: steps between two looks at which sentences are done.
        cuda_graphs: capture rounds of steps and replay them.
    """

    make_device: Callable[[], Device]
    profiles: tuple[Profile, ...]
    poll_every: int = 4
    cuda_graphs: bool = True
