"""Fakes of TensorRT's objects in Python, on the fake CUDA driver."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.fake_driver import FakeDriver
from support.graph_contexts import GraphContexts, StandInEngines
from translate_trt.runtime.backends.device import Launch
from translate_trt.runtime.bundle.contract import NEXT


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
        self.graphs: GraphContexts | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.memory = 0

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        self.graphs = GraphContexts(self.engine.graphs, self.engine.driver, stream)
        return True

    def set_device_memory(self, address: int, size: int) -> None:
        assert self.engine.driver.c.has_memory(address, size)
        self.memory = size
        weakref.finalize(self, self.engine.note_freed, id(self.graphs)).atexit = False

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shapes.get(name, (-1,))

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = tuple(shape)
        return name not in self.engine.refused

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def is_stream_capturable(self, stream: int) -> bool:
        return self.engine.driver.c.is_capturing(stream) and self.engine.capturable

    def execute_async_v3(self, stream: int) -> bool:
        assert self.memory >= self.engine.device_memory_size_v2
        assert self.profile is not None
        assert self.graphs is not None
        self.engine.note_gpu()
        self.graphs.launch(
            Launch(
                self.engine.role, self.profile, dict(self.shapes), dict(self.addresses),
                bool(self.engine.driver.c.is_capturing(stream)),
            )
        )  # fmt: skip
        # TensorRT-RTX compiles kernels for the shapes of a run.
        for config in self.engine.configs:
            config.cache.kernels.add(f"{self.profile} {sorted(self.shapes.items())}")
        return not self.engine.broken


class FakeEngine:
    """Fake ICudaEngine whose contexts run graphs on streams of the fake driver.

    Attributes:
        gpus: those that were current when it was loaded or run, or a context was created or freed.
        created, freed: numbers of contexts.
    """

    device_memory_size_v2 = 1 << 12
    capturable = True
    broken = False

    def __init__(self, role: str, graphs: StandInEngines, driver: FakeDriver) -> None:
        self.role, self.graphs, self.driver = role, graphs, driver
        self.refused: set[str] = set()
        self.gpus: set[int] = set()
        self.created = self.freed = 0
        self.configs: list[Any] = []
        inputs, outputs = graphs.specs(role)
        self.tensors = {
            spec.name: (mode, spec.dtype)
            for mode, specs in (("INPUT", inputs), ("OUTPUT", outputs))
            for spec in specs
        }
        self.in_place = {NEXT + spec.name: spec.name for spec in graphs.contract.caches}

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
        self.note_gpu()
        self.created += 1
        return FakeContext(self)

    def note_gpu(self) -> None:
        self.gpus.add(self.driver.c.current_gpu())

    def note_freed(self, owner: int) -> None:
        self.note_gpu()
        self.freed += 1
        if self.driver.c.is_in_a_graph(owner) or not self.driver.c.alive(b"memory"):
            self.driver.violation("a context is freed before its graphs, or after its memory")


def fake_load_engine(engines: dict[str, FakeEngine]) -> Callable[..., FakeEngine]:
    """Fake of `load_engine`."""

    def load(path: Path, record: Any, weights: Path | None, trust_code: bool) -> FakeEngine:
        engines[path.stem].note_gpu()
        return engines[path.stem]

    return load
