"""Fakes of the Python packages of CUDA and TensorRT on `HostDevice`."""

from __future__ import annotations

import enum
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.host_device import HostDevice
from translate_trt.runtime.backends.device import Launch
from translate_trt.runtime.bundle.contract import NEXT

STREAM = 7  # the handle of cuda-python
STREAM_ADDRESS = 0x7000


class Error(enum.IntEnum):
    cudaSuccess = 0  # noqa: N815
    cudaErrorMemoryAllocation = 2  # noqa: N815
    cudaErrorInsufficientDriver = 35  # noqa: N815
    cudaErrorStreamCaptureUnsupported = 900  # noqa: N815


class FakeRuntime:
    """Fake of `cuda.bindings.runtime` and `utils`.

    Each call returns a tuple headed by its error code.

    Attributes:
        failing: by name of a call, the error that it gives.
        calls: names of the calls, in order.
        gpu: the current GPU of the calling thread.
        gpus: the GPUs that were current in calls which need one.
    """

    cudaError_t = Error  # noqa: N815
    cudaHostAllocDefault = 0  # noqa: N815
    cudaStreamNonBlocking = 1  # noqa: N815
    cudaEventBlockingSync = 1  # noqa: N815
    cudaEventDisableTiming = 2  # noqa: N815
    cudaMemcpyKind = SimpleNamespace(  # noqa: N815
        cudaMemcpyHostToDevice="in", cudaMemcpyDeviceToHost="out", cudaMemcpyDeviceToDevice="on"
    )
    cudaStreamCaptureMode = SimpleNamespace(  # noqa: N815
        cudaStreamCaptureModeThreadLocal="thread"
    )

    def __init__(self, device: HostDevice) -> None:
        self.device = device
        self.failing: dict[str, Error] = {}
        self.calls: list[str] = []
        self.gpus: set[int] = set()
        self._current: dict[int, int] = {}  # a thread of C++ keeps no thread-local data of Python

    @property
    def gpu(self) -> int:
        return self._current.get(threading.get_native_id(), 0)

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        if not name.startswith("cuda"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            if name not in ("cudaSetDevice", "cudaGetDeviceCount", "cudaGetLastError"):
                self.gpus.add(self.gpu)
            if name in self.failing:
                return self.failing[name], None
            values = getattr(self, "_" + name.removeprefix("cuda"))(*arguments)
            return (Error.cudaSuccess, *(() if values is None else (values,)))

        return call

    @staticmethod
    def get_cuda_native_handle(handle: Any) -> int:
        assert handle == STREAM
        return STREAM_ADDRESS

    def cudaGetErrorString(self, code: Error) -> tuple[Any, bytes]:  # noqa: N802
        return Error.cudaSuccess, f"the reason of {code.name}".encode()

    def _GetDeviceCount(self) -> int:  # noqa: N802
        return 1

    def _SetDevice(self, index: int) -> None:  # noqa: N802
        self._current[threading.get_native_id()] = index
        self.device.activate()

    def _StreamCreateWithFlags(self, flags: int) -> int:  # noqa: N802
        assert flags == 1
        return STREAM

    def cudaMemGetInfo(self) -> tuple[Any, int, int]:  # noqa: N802
        self.calls.append("cudaMemGetInfo")
        self.gpus.add(self.gpu)
        return Error.cudaSuccess, max(self.device.capacity, 0), self.device.capacity

    def _Malloc(self, size: int) -> int:  # noqa: N802
        return self.device.allocate(size)

    def _HostAlloc(self, size: int, flags: int) -> int:  # noqa: N802
        return self.device.pin(size)

    def _MemcpyAsync(  # noqa: N802
        self, target: int, source: int, size: int, kind: str, stream: int
    ) -> None:
        assert stream == STREAM
        if kind == "in":
            self.device.copy_in(target, source, size)
        elif kind == "out":
            self.device.copy_out(target, source, size)
        else:
            self.device.copy(target, source, size)

    def _Memcpy2DAsync(  # noqa: N802
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int,
        height: int, kind: str, stream: int,
    ) -> None:  # fmt: skip
        assert (stream, kind) == (STREAM, "on")
        self.device.copy(target, source, width, height, target_pitch, source_pitch)

    def _MemsetAsync(self, target: int, value: int, size: int, stream: int) -> None:  # noqa: N802
        self.device.fill(target, value, size)

    def _EventCreateWithFlags(self, flags: int) -> list[Any]:  # noqa: N802
        assert flags == 3
        return [None]

    def _EventRecord(self, event: list[Any], stream: int) -> None:  # noqa: N802
        event[0] = self.device.record()

    def _EventSynchronize(self, event: list[Any]) -> None:  # noqa: N802
        event[0].wait()

    def _StreamBeginCapture(self, stream: int, mode: str) -> None:  # noqa: N802
        assert mode == "thread"
        self.device.counts["capture"] += 1
        self.device.capturing = []

    def _StreamEndCapture(self, stream: int) -> Any:  # noqa: N802
        captured, self.device.capturing = self.device.capturing, None
        return captured

    def _GraphInstantiate(self, graph: Any, flags: int) -> Any:  # noqa: N802
        return graph

    def _GraphDestroy(self, graph: Any) -> None:  # noqa: N802
        pass

    def _GraphLaunch(self, graph: Any, stream: int) -> None:  # noqa: N802
        self.device.replay(graph)

    def _GetLastError(self) -> None:  # noqa: N802
        pass

    def _free(self, *arguments: Any) -> None:
        pass

    _StreamSynchronize = _GraphExecDestroy = _EventDestroy = _Free = _free
    _FreeHost = _StreamDestroy = _free


class FakeRuntimeCache:
    """Fake IRuntimeCache: a set of kernels, serialized for one GPU."""

    def __init__(self, gpu: str = "this GPU") -> None:
        self.gpu = gpu
        self.kernels: set[str] = set()
        self.loaded: set[str] = set()

    def serialize(self) -> bytes:
        return "\n".join([self.gpu, *sorted(self.kernels | self.loaded)]).encode()

    def deserialize(self, blob: bytes) -> bool:
        gpu, *kernels = blob.decode().split("\n")
        if gpu == self.gpu:
            self.loaded.update(kernels)
        return gpu == self.gpu


class FakeContext:
    """Fake IExecutionContext, which runs with the addresses and shapes set last."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.profile: int | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.memory = 0

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        return stream == STREAM_ADDRESS

    def set_device_memory(self, address: int, size: int) -> None:
        self.engine.device.at(address, size)
        self.memory = size

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shapes.get(name, (-1,))

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = tuple(shape)
        return name not in self.engine.refused

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def is_stream_capturable(self, stream: int) -> bool:
        return stream == STREAM_ADDRESS and self.engine.capturable

    def execute_async_v3(self, stream: int) -> bool:
        assert self.memory >= self.engine.device_memory_size_v2
        assert self.profile is not None
        work = Launch(self.engine.role, self.profile, dict(self.shapes), dict(self.addresses))
        self.engine.device.launch(work)
        # TensorRT-RTX compiles kernels for the shapes of a run.
        for config in self.engine.configs:
            config.cache.kernels.add(f"{self.profile} {sorted(self.shapes.items())}")
        return stream == STREAM_ADDRESS and not self.engine.broken


class FakeEngine:
    """Fake ICudaEngine whose contexts run graphs on a `HostDevice`."""

    device_memory_size_v2 = 1 << 12
    capturable = True
    broken = False
    freed: Callable[[], None] | None = None  # called when a context is freed
    keeps_contexts = True

    def __init__(self, role: str, device: HostDevice) -> None:
        self.role, self.device = role, device
        self.refused: set[str] = set()
        self.contexts: list[FakeContext] = []
        self.configs: list[Any] = []
        inputs, outputs = device.engines.specs(role)
        self.tensors = {
            spec.name: (mode, spec.dtype)
            for mode, specs in (("INPUT", inputs), ("OUTPUT", outputs))
            for spec in specs
        }
        self.in_place = {NEXT + spec.name: spec.name for spec in device.engines.contract.caches}

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> Any:
        return SimpleNamespace(name=self.tensors[name][0])

    def get_tensor_dtype(self, name: str) -> Any:
        names = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16"}
        dtype = self.tensors[name][1]
        return SimpleNamespace(name=names.get(dtype, dtype.upper()))

    def get_tensor_location(self, name: str) -> Any:
        return SimpleNamespace(name="DEVICE")

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self.in_place.get(name)

    def create_runtime_config(self) -> Any:
        def set_runtime_cache(cache: FakeRuntimeCache) -> bool:
            config.cache = cache
            return True

        config = SimpleNamespace(
            create_runtime_cache=FakeRuntimeCache,
            set_runtime_cache=set_runtime_cache,
            set_execution_context_allocation_strategy=lambda kind: setattr(config, "memory", kind),
        )
        self.configs.append(config)
        return config

    def create_execution_context(self, config: Any) -> FakeContext:
        context = FakeContext(self)
        if self.keeps_contexts:
            self.contexts.append(context)
        if self.freed is not None:
            weakref.finalize(context, self.freed)
        return context


def fake_load_engine(engines: dict[str, FakeEngine]) -> Callable[..., FakeEngine]:
    """Fake of `load_engine`."""

    def load(path: Path, record: Any, weights: Path | None, trust_code: bool) -> FakeEngine:
        return engines[path.stem]

    return load
