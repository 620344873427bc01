"""CUDA streams, memory, events and graphs through cuda-python; PyTorch is not required.

All calls of the CUDA runtime are checked. Handles are objects of cuda-python; addresses are
integers.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

from translate_trt.runtime.backends.packages import extra, install_command
from translate_trt.runtime.errors import BackendError

Result = TypeVar("Result")


def load_cuda(package: str) -> Cuda:
    """Load the CUDA runtime.

    Args:
        package: Package of the engines, for messages.

    Raises:
        BackendError: cuda-python, the driver or a GPU is missing.
    """
    try:
        runtime = import_module("cuda.bindings.runtime")
        utilities = import_module("cuda.bindings.utils")
    except ImportError as error:
        raise BackendError(
            f"{package} engines need cuda-python, which is missing ({error}). "
            f"Install it: {install_command(package)}"
        ) from error
    if not hasattr(utilities, "get_cuda_native_handle"):
        raise BackendError(
            f"{package} engines need cuda-bindings 12.9.1 or newer. "
            f"Upgrade it: pip install -U 'translate-trt[{extra(package)}]'"
        )
    cuda = Cuda(runtime, utilities.get_cuda_native_handle)
    try:
        found = cuda.call("cudaGetDeviceCount")
    except BackendError as error:
        raise BackendError(
            f"no NVIDIA GPU can be used: {error} nvidia-smi shows what the driver sees; choose an "
            "onnx target to run on the CPU."
        ) from error
    if not found:
        raise BackendError("there is no NVIDIA GPU; choose an onnx target to run on the CPU.")
    return cuda


class Cuda:
    """Checked calls of the CUDA runtime.

    Args:
        runtime: The module `cuda.bindings.runtime`.
        address_of: Returns the address of a handle, for libraries that take addresses.
    """

    def __init__(self, runtime: Any, address_of: Callable[[Any], int]) -> None:
        self.runtime, self.address_of = runtime, address_of

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the runtime and return its results without the error code.

        Raises:
            BackendError: The call failed.
        """
        code, *values = getattr(self.runtime, name)(*arguments)
        if code != self.runtime.cudaError_t.cudaSuccess:
            raise BackendError(self._message(name, code))
        return values[0] if len(values) == 1 else values or None

    def _message(self, name: str, code: Any) -> str:
        _, text = self.runtime.cudaGetErrorString(code)
        reason = text.decode() if isinstance(text, bytes) else str(text)
        if code == self.runtime.cudaError_t.cudaErrorMemoryAllocation:
            return (
                "the GPU is out of memory. Lower workers, or export engines with a smaller "
                "--max-batch or --profiles."
            )
        return f"{name} failed: {reason}."

    def on_gpu(self, index: int, work: Callable[[], Result]) -> Result:
        """Return what work returns that runs in a thread of its own, with a GPU as its current one.

        Setting and restoring the GPU of the caller's thread would create a CUDA context, of some
        hundred megabytes, on a GPU that the program may never have used.

        Raises:
            BackendError: There is no such GPU.
        """
        future: Future[Result] = Future()

        def run() -> None:
            try:
                self.call("cudaSetDevice", index)
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        # A thread pool would deadlock if the garbage collector ran this inside another pool.
        threading.Thread(target=run).start()
        return future.result()

    def memory(self, index: int) -> tuple[int, int]:
        """Return the free and the total memory of a GPU."""
        free, total = self.on_gpu(index, lambda: self.call("cudaMemGetInfo"))
        return int(free), int(total)

    def kind(self, name: str) -> Any:
        """Return the constant of a copy direction, such as "HostToDevice"."""
        return getattr(self.runtime.cudaMemcpyKind, f"cudaMemcpy{name}")


class _CollectorPause:
    """Pause of the garbage collector while any thread captures.

    The collector can run in every thread. In a capturing one, it could free another queue, and
    CUDA does not allow that: the capture would fail.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._captures = 0
        self._was_enabled = False

    def begin(self) -> None:
        """Pause the collector until each `begin` has had its `end`."""
        with self._lock:
            if self._captures == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._captures += 1

    def end(self) -> None:
        """See `begin`."""
        with self._lock:
            self._captures -= 1
            if self._captures == 0 and self._was_enabled:
                gc.enable()


#: The pause that all captures of this process share.
COLLECTOR = _CollectorPause()


@dataclass
class _Owned:
    """Resources of a queue, in the order in which they are freed."""

    cuda: Cuda
    gpu: int
    graphs: list[Any] = field(default_factory=list)
    contexts: dict[Hashable, Any] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    pinned: list[int] = field(default_factory=list)
    streams: list[Any] = field(default_factory=list)

    def free(self) -> None:
        """Free all resources, ignoring errors: each was reported before, or the process ends."""
        try:
            self.cuda.on_gpu(self.gpu, self._free)
        except (BackendError, RuntimeError):  # no GPU, or no thread can be started
            self._free()

    def _free(self) -> None:
        runtime = self.cuda.runtime
        for stream in self.streams:
            runtime.cudaStreamSynchronize(stream)
        for graph in self.graphs:
            runtime.cudaGraphExecDestroy(graph)
        self.contexts.clear()
        for event in self.events:
            runtime.cudaEventDestroy(event)
        for address in self.memory:
            runtime.cudaFree(address)
        for address in self.pinned:
            runtime.cudaFreeHost(address)
        for stream in self.streams:
            runtime.cudaStreamDestroy(stream)


class CudaEvent:
    """Implementation of `Event`."""

    def __init__(self, cuda: Cuda, handle: Any, spare: list[Any]) -> None:
        self._cuda, self._handle = cuda, handle
        # Handles are reused; the maximum number of pending events bounds their number.
        weakref.finalize(self, spare.append, handle).atexit = False

    def wait(self) -> None:
        """See `Event`; the call releases the GIL."""
        self._cuda.call("cudaEventSynchronize", self._handle)


class CudaQueue:
    """CUDA part of `Device`: one stream on one GPU, with its memory.

    Args:
        cuda: The CUDA runtime.
        index: Index of the GPU.
    """

    def __init__(self, cuda: Cuda, index: int) -> None:
        self._cuda, self._index = cuda, index
        self._owned = _Owned(cuda, index)
        self._spare: list[Any] = []
        weakref.finalize(self, self._owned.free).atexit = False
        self.activate()
        # The default stream, and streams that synchronize with it, cannot be captured.
        flags = cuda.runtime.cudaStreamNonBlocking
        self.stream = cuda.call("cudaStreamCreateWithFlags", flags)
        self._owned.streams.append(self.stream)

    @property
    def stream_address(self) -> int:
        """Address of the stream, for libraries that take addresses."""
        return self._cuda.address_of(self.stream)

    @property
    def contexts(self) -> dict[Hashable, Any]:
        """Execution contexts, which are freed after their graphs and before their memory."""
        return self._owned.contexts

    def activate(self) -> None:
        self._cuda.call("cudaSetDevice", self._index)

    def allocate(self, size: int) -> int:
        address = int(self._cuda.call("cudaMalloc", max(1, size)))
        self._owned.memory.append(address)
        return address

    def pin(self, size: int) -> int:
        flags = self._cuda.runtime.cudaHostAllocDefault
        address = int(self._cuda.call("cudaHostAlloc", max(1, size), flags))
        self._owned.pinned.append(address)
        return address

    def copy_in(self, target: int, source: int, size: int) -> None:
        kind = self._cuda.kind("HostToDevice")
        self._cuda.call("cudaMemcpyAsync", target, source, size, kind, self.stream)

    def copy_out(self, target: int, source: int, size: int) -> None:
        kind = self._cuda.kind("DeviceToHost")
        self._cuda.call("cudaMemcpyAsync", target, source, size, kind, self.stream)

    def copy(
        self,
        target: int,
        source: int,
        width: int,
        height: int = 1,
        target_pitch: int = 0,
        source_pitch: int = 0,
    ) -> None:
        kind = self._cuda.kind("DeviceToDevice")
        if height == 1 or width == target_pitch == source_pitch:
            self._cuda.call("cudaMemcpyAsync", target, source, width * height, kind, self.stream)
            return
        pitched = (target, target_pitch, source, source_pitch, width, height)
        self._cuda.call("cudaMemcpy2DAsync", *pitched, kind, self.stream)

    def fill(self, target: int, value: int, size: int) -> None:
        self._cuda.call("cudaMemsetAsync", target, value, size, self.stream)

    def record(self) -> CudaEvent:
        runtime = self._cuda.runtime
        if self._spare:
            handle = self._spare.pop()
        else:
            # Blocking synchronization: the thread sleeps while the device works on queued steps.
            flags = runtime.cudaEventBlockingSync | runtime.cudaEventDisableTiming
            handle = self._cuda.call("cudaEventCreateWithFlags", flags)
            self._owned.events.append(handle)
        self._cuda.call("cudaEventRecord", handle, self.stream)
        return CudaEvent(self._cuda, handle, self._spare)

    def begin_capture(self) -> None:
        # Other threads may use the device during the capture.
        mode = self._cuda.runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        COLLECTOR.begin()
        try:
            self._cuda.call("cudaStreamBeginCapture", self.stream, mode)
        except BackendError:
            COLLECTOR.end()
            raise

    def end_capture(self) -> Callable[[], None]:
        try:
            graph = self._cuda.call("cudaStreamEndCapture", self.stream)
            executable = self._cuda.call("cudaGraphInstantiate", graph, 0)
            self._cuda.call("cudaGraphDestroy", graph)
        except BackendError:
            self._cuda.runtime.cudaGetLastError()  # clears the error, which the next call would get
            raise
        finally:
            COLLECTOR.end()
        self._owned.graphs.append(executable)
        return lambda: self._cuda.call("cudaGraphLaunch", executable, self.stream)
