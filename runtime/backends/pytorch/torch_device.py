"""Implementation of `Device` by PyTorch: memory, one stream, events, and captured graphs.

On a GPU (`torch.cuda`, which is also AMD's, and `torch.xpu`) work is enqueued on a stream of the
device. On the CPU everything runs at once, and a capture records the requests and repeats them on
the same addresses: tests exercise everything but the calls of a GPU, which they run against a fake.
`scripts/gpu_check.sh` has run those of `torch.cuda` on an NVIDIA H200, in the version of
2026-11-26; **no GPU of AMD or Intel has run them**.
"""

from __future__ import annotations

import bisect
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from translate_trt.runtime.backends.device import ALIGNMENT, Launch
from translate_trt.runtime.backends.pytorch.onnx_program import Plan, Program
from translate_trt.runtime.errors import BackendError

# Launches of different shapes or addresses that a device remembers; captured graphs keep their own.
# A step has one launch per bucket and ring entry, an encoder one per batch size and padded length.
_MOST_LAUNCHES = 512

# Integers by their size in bytes, for copies.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

OUT_OF_MEMORY = (
    "the GPU is out of memory. Lower workers, or export the target with a smaller --max-batch or "
    "--profiles."
)

# PyTorch documents that only one capture may be in progress in a process.
_CAPTURING = threading.Lock()
# PyTorch's allocator of pinned memory keeps a reference to graphs whose capture failed.
_FAILED_GRAPHS: list[Any] = []
_SWITCHES = threading.Lock()


@contextmanager
def exact_math() -> Iterator[None]:
    """Use FP32 accumulation, FP32 matmuls without TF32, and no attention of cuDNN.

    Graphs decide their precision, and cuDNN's attention makes a new plan for each shape. PyTorch
    has switches for the whole process alone, so they are restored at once; the lock keeps the
    devices of other workers from restoring them too early.
    """
    matmul, attention = torch.backends.cuda.matmul, torch.backends.cuda
    with _SWITCHES:
        before = (
            matmul.fp32_precision,
            matmul.allow_fp16_reduced_precision_reduction,
            matmul.allow_bf16_reduced_precision_reduction,
            attention.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
        )
        try:
            _switch("ieee", False, False, False)
            yield
        finally:
            _switch(*before)


def _switch(fp32: str, fp16_sums: bool, bf16_sums: bool, cudnn: bool) -> None:
    matmul = torch.backends.cuda.matmul
    matmul.fp32_precision = fp32
    matmul.allow_fp16_reduced_precision_reduction = fp16_sums
    matmul.allow_bf16_reduced_precision_reduction = bf16_sums
    torch.backends.cuda.enable_cudnn_sdp(cudnn)


class Memory:
    """Allocations that are found by an address within them."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: list[Tensor] = []

    def allocate(self, size: int, make: Callable[[int], Tensor]) -> int:
        """Allocate bytes at a multiple of ALIGNMENT, and return their address.

        Args:
            size: Number of bytes.
            make: Makes a tensor of a number of bytes.
        """
        size = max(1, -(-size // ALIGNMENT)) * ALIGNMENT
        block = make(size + ALIGNMENT)
        begin = -block.data_ptr() % ALIGNMENT
        block = block[begin : begin + size]
        index = bisect.bisect(self._starts, block.data_ptr())
        self._starts.insert(index, block.data_ptr())
        self._blocks.insert(index, block)
        return block.data_ptr()

    def at(self, address: int, size: int) -> tuple[Tensor, int]:
        """Return the allocation of `size` bytes at an address, and their offset in it.

        Raises:
            BackendError: The bytes are in no allocation.
        """
        index = bisect.bisect(self._starts, address) - 1
        offset = address - self._starts[index] if index >= 0 else 0
        if index < 0 or offset + size > self._blocks[index].numel():
            raise BackendError(f"{size} bytes at {address:#x} are not in the device's memory.")
        return self._blocks[index], offset

    def bytes(self, address: int, size: int) -> Tensor:
        """Return the bytes at an address."""
        block, offset = self.at(address, size)
        return block[offset : offset + size]

    def tensor(self, address: int, dtype: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor over the bytes at an address."""
        kind: torch.dtype = getattr(torch, dtype)
        return self.bytes(address, math.prod(shape) * kind.itemsize).view(kind).view(shape)

    def rows(self, address: int, unit: int, shape: tuple[int, int], pitch: int) -> Tensor:
        """Return rows of bytes whose starts are `pitch` bytes apart.

        Args:
            address: Address of the first row.
            unit: Size of an element; it divides all other numbers.
            shape: Number of rows, and bytes per row.
            pitch: Distance of rows in bytes.
        """
        height, width = shape
        block, offset = self.at(address, (height - 1) * pitch + width)
        elements = block.view(_WORDS[unit])
        begin = elements.storage_offset() + offset // unit
        return elements.as_strided((height, width // unit), (pitch // unit, 1), begin)


@dataclass(frozen=True)
class _Bound:
    """A launch with tensors over its addresses."""

    plan: Plan
    inputs: Mapping[str, Tensor]
    outputs: tuple[Tensor | None, ...]  # None: written in place

    def run(self) -> None:
        """Enqueue the launch."""
        with exact_math():
            targets = dict(zip(self.plan.outputs, self.outputs, strict=True))
            _write(self.outputs, self.plan.run(self.inputs, targets))


def _write(outputs: Sequence[Tensor | None], results: Sequence[Tensor]) -> None:
    for target, result in zip(outputs, results, strict=True):
        if target is not None and target is not result:
            target.copy_(result)


class TorchEvent:
    """Implementation of `Event`.

    Args:
        event: `torch.cuda.Event` or `torch.xpu.Event`; None on the CPU, where all work is done.
    """

    def __init__(self, event: Any) -> None:
        self._event = event

    def wait(self) -> None:
        """See `Event`; the call releases the GIL."""
        if self._event is not None:
            self._event.synchronize()


class TorchDevice:
    """Implementation of `Device` with both graphs.

    Args:
        device: A GPU with an index, or the CPU.
        programs: Graphs by role, with their weights on the device.
        module: `torch.cuda` or `torch.xpu`; None for the CPU.
    """

    def __init__(
        self, device: torch.device, programs: Mapping[str, Program], module: Any = None
    ) -> None:
        self._device, self._programs, self._module = device, programs, module
        self._plans: OrderedDict[Any, Plan] = OrderedDict()
        self._launches: OrderedDict[Any, _Bound] = OrderedDict()
        self._capture: _Capture | None = None
        self._stream: Any = None
        self._pool: Any = None  # memory of captured graphs, which run one after another
        if module is not None:
            self.activate()
            self._stream = module.Stream(device=device)
            weakref.finalize(self, self._stream.synchronize).atexit = False
        self._memory, self._pinned = Memory(), Memory()

    def activate(self) -> None:
        if self._module is not None:
            self._module.set_device(self._device)

    # ---- memory ----

    def allocate(self, size: int) -> int:
        with self._current():  # PyTorch's allocator gives memory to the current stream
            return self._memory.allocate(size, self._allocate)

    def pin(self, size: int) -> int:
        return self._pinned.allocate(size, self._pin)

    def _allocate(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def _pin(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._module is not None)

    def copy_in(self, target: int, source: int, size: int) -> None:
        self._copy(self._memory.bytes(target, size), self._pinned.bytes(source, size))

    def copy_out(self, target: int, source: int, size: int) -> None:
        self._copy(self._pinned.bytes(target, size), self._memory.bytes(source, size))

    def copy(
        self,
        target: int,
        source: int,
        width: int,
        height: int = 1,
        target_pitch: int = 0,
        source_pitch: int = 0,
    ) -> None:
        if height == 1 or width == target_pitch == source_pitch:
            size = width * height
            self._copy(self._memory.bytes(target, size), self._memory.bytes(source, size))
            return
        # A kernel copies elements: the larger they are, the fewer.
        unit = math.gcd(8, target, source, width, target_pitch, source_pitch)
        rows = height, width
        self._copy(
            self._memory.rows(target, unit, rows, target_pitch),
            self._memory.rows(source, unit, rows, source_pitch),
        )

    def fill(self, target: int, value: int, size: int) -> None:
        place = self._memory.bytes(target, size)
        self._enqueue(lambda: place.fill_(value & 0xFF))

    def _copy(self, target: Tensor, source: Tensor) -> None:
        self._enqueue(lambda: target.copy_(source, non_blocking=True))

    # ---- graphs ----

    def launch(self, work: Launch) -> None:
        key = (work.role, tuple(work.shapes.items()), tuple(work.addresses.items()))
        bound = self._launches.get(key)
        if bound is not None:
            self._launches.move_to_end(key)
            self._enqueue(bound.run, bound)
            return
        if self._capture is not None:
            raise BackendError(f"the {work.role} graph must have run before it is captured.")
        with self._current():
            self._launches[key] = self._first_run(work)
        _forget_oldest(self._launches)

    def _first_run(self, work: Launch) -> _Bound:
        """Make tensors over the addresses of a launch, and run it."""
        program = self._programs[work.role]
        inputs = {
            spec.name: self._memory.tensor(
                work.addresses[spec.name], spec.dtype, work.shapes[spec.name]
            )
            for spec in program.inputs
        }
        key = (work.role, tuple(work.shapes.items()))
        with exact_math():
            if key in self._plans:
                plan = self._plans[key]
                self._plans.move_to_end(key)
                results = plan.run(inputs)
            else:
                plan, results = Plan.record(program, inputs)
                self._plans[key] = plan
                _forget_oldest(self._plans)
            outputs: list[Tensor | None] = []
            for spec, result in zip(program.outputs, results, strict=True):
                address = work.addresses[spec.name]
                cache = program.in_place.get(spec.name)
                if cache is None:
                    shape = tuple(result.shape)
                    outputs.append(self._memory.tensor(address, spec.dtype, shape))
                elif address == work.addresses[cache]:
                    outputs.append(None)
                else:
                    raise BackendError(f"{spec.name} and {cache} must have one address.")
            _write(outputs, results)
        return _Bound(plan, inputs, tuple(outputs))

    # ---- the queue ----

    def record(self) -> TorchEvent:
        if self._module is None:
            return TorchEvent(None)
        # Blocking synchronization: the thread sleeps while the device works on queued steps.
        blocking = {"blocking": True} if self._device.type == "cuda" else {}
        event = self._module.Event(**blocking)
        event.record(self._stream)
        return TorchEvent(event)

    def begin_capture(self) -> None:
        if self._module is None:
            self._capture = _Capture(None)
            return
        _CAPTURING.acquire()
        try:
            with self._current():
                self._capture = _Capture(self._begin())
        except RuntimeError as error:
            raise BackendError(f"a capture does not begin: {error}") from error
        finally:
            if self._capture is None:
                _CAPTURING.release()

    def _begin(self) -> Any:
        """Begin a capture on the current stream, and return its graph."""
        if self._pool is None:
            self._pool = self._module.graph_pool_handle()
        mode = {}
        if self._device.type == "cuda":
            # A thread's first matmul makes a handle of cuBLAS, which a capture does not permit.
            self._module.current_blas_handle()
            # Other threads may use the device during the capture.
            mode = {"capture_error_mode": "thread_local"}
            graph = self._module.CUDAGraph()
        else:
            graph = self._module.XPUGraph()
        try:
            graph.capture_begin(pool=self._pool, **mode)
        except RuntimeError:
            self._abandon(graph)
            raise
        return graph

    def _abandon(self, graph: Any) -> None:
        """End the allocations of a failed capture, and let later captures use another pool.

        PyTorch ends them only after a capture has ended well. Until then its allocator refuses the
        pool ("already recording to mempool_id") and asks the graph about every allocation.
        """
        pool, self._pool = self._pool, None
        with suppress(RuntimeError):  # the allocations had ended, and the graph frees the pool
            getattr(torch._C, f"_{self._device.type}_endAllocateToPool")(self._device.index, pool)
            getattr(torch._C, f"_{self._device.type}_releasePool")(self._device.index, pool)
            _FAILED_GRAPHS.append(graph)

    def end_capture(self) -> Callable[[], None]:
        capture, self._capture = self._capture, None
        if capture is None:
            raise BackendError("no capture has begun.")
        if self._module is None:
            return lambda: self._enqueue(capture.repeat)
        try:
            with self._current():
                capture.graph.capture_end()
        except RuntimeError as error:
            self._abandon(capture.graph)
            raise BackendError(f"a capture does not end: {error}") from error
        finally:
            _CAPTURING.release()
        return lambda: self._enqueue(capture.graph.replay, capture)

    def _enqueue(self, work: Callable[[], Any], read: object = None) -> None:
        """Enqueue work.

        Args:
            work: Calls of PyTorch.
            read: Tensors that the work reads; a captured graph keeps them.
        """
        if self._capture is not None:
            self._capture.read.append(read)
            if self._module is None:
                self._capture.requests.append(work)
                return
        with self._current():
            work()

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Make the stream current, and translate errors about memory."""
        stream = nullcontext() if self._module is None else self._module.stream(self._stream)
        try:
            with torch.inference_mode(), stream:
                yield
        except torch.OutOfMemoryError as error:
            raise BackendError(OUT_OF_MEMORY) from error


@dataclass
class _Capture:
    """Captured work: a graph of the GPU or, on the CPU, requests that are repeated."""

    graph: Any
    requests: list[Callable[[], Any]] = field(default_factory=list)
    read: list[object] = field(default_factory=list)

    def repeat(self) -> None:
        """Run the requests."""
        for request in self.requests:
            request()


def _forget_oldest(known: OrderedDict[Any, Any]) -> None:
    if len(known) > _MOST_LAUNCHES:
        known.popitem(last=False)
