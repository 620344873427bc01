"""Interfaces of engines: a device in Python, or execution contexts on a device of libtranslate_trt.

Its search loop (`runtime/cpp/src/engines/device_batch.h`) calls them through
`translate_trt.runtime.native.device_functions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from translate_trt.runtime.backends.engines import Profile

#: Alignment of tensor addresses, which TensorRT requires.
ALIGNMENT = 256


@dataclass(frozen=True)
class Launch:
    """Execution of an engine.

    Attributes:
        role: "encoder" or "step".
        profile: Index of the optimization profile.
        shapes: Shape of each input.
        addresses: Address of each input and output.
        capturing: The stream records the execution instead of running it.
    """

    role: str
    profile: int
    shapes: Mapping[str, tuple[int, ...]]
    addresses: Mapping[str, int]
    capturing: bool = False


class Event(Protocol):
    """Position in the work queue."""

    def wait(self) -> None:
        """Wait until all work before the event is done."""


class Device(Protocol):
    """In-order work queue with its memory, used by one thread at a time.

    All methods except `allocate`, `pin`, `end_capture` and `Event.wait` are asynchronous: they
    enqueue work. Addresses refer to device memory unless they are called pinned. The device frees
    all memory.

    Raises:
        BackendError: The device is out of memory or lost.
    """

    def activate(self) -> None:
        """Make the calling thread the one that uses the device."""

    def allocate(self, size: int) -> int:
        """Allocate uninitialized device memory at a multiple of ALIGNMENT."""

    def pin(self, size: int) -> int:
        """Allocate pinned host memory."""

    def copy_in(self, target: int, source: int, size: int) -> None:
        """Copy from pinned memory, which must not change until the copy is done."""

    def copy_out(self, target: int, source: int, size: int) -> None:
        """Copy to pinned memory, which may be read after a later event."""

    def copy(
        self,
        target: int,
        source: int,
        width: int,
        height: int = 1,
        target_pitch: int = 0,
        source_pitch: int = 0,
    ) -> None:
        """Copy `height` rows of `width` bytes within device memory; pitches are row distances."""

    def fill(self, target: int, value: int, size: int) -> None:
        """Set `size` bytes to a value."""

    def launch(self, work: Launch) -> None:
        """Enqueue an execution of an engine."""

    def record(self) -> Event:
        """Return an event for the current end of the queue."""

    def begin_capture(self) -> None:
        """Record all work until `end_capture` instead of running it."""

    def end_capture(self) -> Callable[[], None]:
        """Return a function that enqueues the recorded work with the same addresses and shapes.

        Raises:
            BackendError: Some of the work cannot be captured. None of it was run, and the device
                remains usable.
        """


class Contexts(Protocol):
    """Execution contexts of both engines on one CUDA stream, used by one thread at a time."""

    def launch(self, work: Launch) -> None:
        """Enqueue an execution of an engine."""


@dataclass(frozen=True)
class CudaContexts:
    """Execution contexts on devices of libtranslate_trt (`translate_trt/cuda.h`).

    Attributes:
        gpu: Index of the GPU, which is current in threads that create, use or free contexts.
        open: Creates the contexts of a device from the addresses of its stream and of its scratch
            memory. Thread-safe.
    """

    gpu: int
    open: Callable[[int, int], Contexts]


@dataclass(frozen=True)
class Engines:
    """The loaded engines of a target.

    Attributes:
        device: Creates a device with its own execution contexts, thread-safe; or the contexts for
            devices of the library.
        encoder_profiles: Optimization profiles of the encoder.
        step_profiles: Optimization profiles of the step: every combination of a batch and source
            length with a number of cache slots; then the same again with the inputs of rules 13 to
            15, if the step has them.
        poll_every: Number of steps between two reads of `done`.
        cuda_graphs: Capture rounds of steps as CUDA graphs and replay them.
        store: Called after captures, and when a device has been closed, to store what later
            processes can reuse.
        memory: Returns the free and the total memory of devices in Python in bytes; None if
            unknown.
        scratch_bytes: Memory that a device needs beside its state: scratch memory of the engines,
            or a bound of the activations.
    """

    device: Callable[[], Device] | CudaContexts
    encoder_profiles: tuple[Profile, ...]
    step_profiles: tuple[Profile, ...]
    poll_every: int = 4
    cuda_graphs: bool = True
    store: Callable[[], None] = lambda: None
    memory: Callable[[], tuple[int, int]] | None = None
    scratch_bytes: int = 0
