"""TensorRT and TensorRT-RTX: loaded engines, execution contexts, and the device.

libtranslate_trt runs the search on this device (`DeviceBatch`); tests emulate the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from translate_trt.runtime.backends import Records, Settings
from translate_trt.runtime.backends.cuda import Cuda, CudaQueue, load_cuda
from translate_trt.runtime.backends.device import Engines, Launch
from translate_trt.runtime.backends.engine_log import logger
from translate_trt.runtime.backends.engines import EngineRecord, load_engine
from translate_trt.runtime.backends.packages import check_driver, import_package
from translate_trt.runtime.backends.runtime_cache import RuntimeCache, runtime_cache_path
from translate_trt.runtime.bundle.contract import (
    NEXT,
    Contract,
    TensorSpec,
    check_in_place,
    check_tensors,
)
from translate_trt.runtime.errors import BackendError

#: File role of the ONNX graph with an engine's weights, by role of the engine.
_GRAPHS = {"encoder": "encoder_graph", "step": "step_graph"}

# Element types by their TensorRT names.
_TYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT64": "int64",
    "BOOL": "bool",
}


def load(
    files: Mapping[str, Path], contract: Contract, settings: Settings, records: Records
) -> Engines:
    """Load both engines of a target; see `backends.load_engines`."""
    if settings.device == "cpu":
        raise BackendError("engines run on a GPU alone; choose an onnx target to run on the CPU.")
    package = records["step"].package
    check_driver(package)
    cuda, index = load_cuda(package), settings.gpu or 0
    engines = {
        role: Engine(
            # Engines load onto the current GPU of the thread.
            cuda.on_gpu(index, partial(_load, files, role, records[role], settings)),
            records[role],
            *specs,
            _runtime_cache(files[role], records[role], index),
        )
        for role, specs in contract.graphs.items()
    }
    engines["step"].check_aliases([spec.name for spec in contract.caches])
    make_device = partial(TensorRTDevice, cuda, index, engines)
    store = partial(_store_kernels, tuple(engines.values()))
    return Engines(
        make_device,
        records["encoder"].profiles,
        records["step"].profiles,
        settings.poll_every,
        settings.cuda_graphs,
        store,
        memory=partial(cuda.memory, index),
        scratch_bytes=_scratch_bytes(engines),
    )


def _scratch_bytes(engines: Mapping[str, Engine]) -> int:
    """Size of the scratch memory of a device, which the contexts of both engines share."""
    return max(engine.scratch_bytes for engine in engines.values())


def _load(files: Mapping[str, Path], role: str, record: EngineRecord, settings: Settings) -> Any:
    weights = files.get(_GRAPHS[role]) if record.weights_stripped else None
    return load_engine(files[role], record, weights, settings.trust_code)


def _runtime_cache(path: Path, record: EngineRecord, device: int) -> RuntimeCache | None:
    if record.package != "tensorrt_rtx":
        return None  # the package has no such cache: its engines contain their kernels
    return RuntimeCache(runtime_cache_path(path, record.version, device))


def _store_kernels(engines: Iterable[Engine]) -> None:
    for engine in engines:
        engine.store_kernels()


class Engine:
    """A loaded engine. Thread-safe.

    Args:
        engine: ICudaEngine of the package.
        record: Manifest record of the engine.
        inputs: Expected inputs.
        outputs: Expected outputs.
        cache: Kernels that TensorRT-RTX compiles.

    Raises:
        BundleError: The inputs or outputs of the engine differ from the expected ones.
    """

    def __init__(
        self,
        engine: Any,
        record: EngineRecord,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        cache: RuntimeCache | None = None,
    ) -> None:
        self._engine, self._record, self._cache = engine, record, cache
        self._module: Any = import_package(record.package)
        self._lock = Lock()
        self._check(inputs, outputs)

    @property
    def scratch_bytes(self) -> int:
        """Size of the scratch memory of a running context."""
        return int(self._engine.device_memory_size_v2)

    def _check(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        found = {name: self._kind(name) for name in names}
        declared = {
            spec.name: (mode, spec.dtype, "DEVICE")
            for mode, specs in (("INPUT", inputs), ("OUTPUT", outputs))
            for spec in specs
        }
        check_tensors(f"an engine of {self._record.package}", found, declared)

    def _kind(self, name: str) -> tuple[str, str, str]:
        dtype = self._engine.get_tensor_dtype(name).name
        return (
            self._engine.get_tensor_mode(name).name,
            _TYPES.get(dtype, dtype),
            self._engine.get_tensor_location(name).name,
        )

    def check_aliases(self, caches: Sequence[str]) -> None:
        """Refuse an engine that does not update its caches in place; older versions do not tell.

        Raises:
            BundleError: A cache output is not an alias of its input.
        """
        if hasattr(self._engine, "get_aliased_input_tensor"):
            alias = self._engine.get_aliased_input_tensor
            check_in_place("the step engine", {name: alias(NEXT + name) for name in caches})

    def context(self, role: str, profile: int, stream: int) -> Any:
        """Create an IExecutionContext for a profile; the caller must set its scratch memory.

        Args:
            role: Role of the engine.
            profile: Index of the profile.
            stream: Address of the stream that the context will run on.

        Raises:
            BackendError: TensorRT cannot create the context.
        """
        strategy = self._module.ExecutionContextAllocationStrategy.USER_MANAGED
        lines = logger(self._record.package)
        with self._lock:
            lines.start()
            if self._cache is not None:
                config = self._configured(role, profile, strategy, self._cache)
                made = self._engine.create_execution_context(config)
            else:
                made = self._engine.create_execution_context(strategy)
        if made is None or not made.set_optimization_profile_async(profile, stream):
            raise BackendError(
                f"{self._record.package} has no context for the profile "
                f"{self._record.profiles[profile]}: {lines.reasons()} "
                "If memory ran out, lower workers."
            )
        return made

    def ran(self, profile: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Record a run, for which kernels may have been compiled."""
        if self._cache is not None:
            self._cache.ran((profile, *shapes.items()))

    def store_kernels(self) -> None:
        """Store the kernels that TensorRT-RTX has compiled."""
        if self._cache is not None:
            self._cache.store()

    def _configured(self, role: str, profile: int, strategy: Any, cache: RuntimeCache) -> Any:
        """Create the runtime configuration of a TensorRT-RTX context."""
        config = self._engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        kinds = self._module.DynamicShapesKernelSpecializationStrategy
        # The shapes of a step never change, and a captured step keeps its kernels: the best ones
        # must be compiled in advance. The encoder's shapes vary, and those of a step with changes.
        has_one_shape = role == "step" and self._record.profiles[profile].changes is None
        config.dynamic_shapes_kernel_specialization_strategy = (
            kinds.EAGER if has_one_shape else kinds.LAZY
        )
        cache.attach(config)
        return config

    def reasons(self) -> str:
        """Return the last error messages of the package."""
        return str(logger(self._record.package).reasons())


class TensorRTDevice(CudaQueue):
    """Implementation of `Device` with both engines.

    Each profile has its own context: contexts are not thread-safe, and a captured graph belongs to
    one context, whose device memory depends on its shapes. Contexts run one after another and
    share one scratch buffer.

    Args:
        cuda: The CUDA runtime.
        index: Index of the GPU.
        engines: Engines by role.
    """

    def __init__(self, cuda: Cuda, index: int, engines: Mapping[str, Engine]) -> None:
        super().__init__(cuda, index)
        self._engines = engines
        self._scratch_bytes = _scratch_bytes(engines)
        self._scratch = self.allocate(self._scratch_bytes)
        self._capturing = False

    def launch(self, work: Launch) -> None:
        context = self._context(work.role, work.profile)
        engine = self._engines[work.role]
        for name, shape in work.shapes.items():
            if tuple(context.get_tensor_shape(name)) != shape and not context.set_input_shape(
                name, shape
            ):
                raise BackendError(
                    f"the {work.role} engine refuses {name} of shape {list(shape)}: "
                    f"{engine.reasons()}"
                )
        for name, address in work.addresses.items():
            if not context.set_tensor_address(name, address):
                raise BackendError(f"the {work.role} engine has no {name}: {engine.reasons()}")
        query = getattr(context, "is_stream_capturable", None)
        if self._capturing and query is not None and not query(self.stream_address):
            raise BackendError(f"the {work.role} engine allocates memory while it runs.")
        if not context.execute_async_v3(self.stream_address):
            raise BackendError(f"the {work.role} engine does not run: {engine.reasons()}")
        engine.ran(work.profile, work.shapes)

    def begin_capture(self) -> None:
        super().begin_capture()
        self._capturing = True

    def end_capture(self) -> Callable[[], None]:
        self._capturing = False
        replay = super().end_capture()
        # All kernels of the bucket have been compiled by now. A process that is killed later has
        # stored them.
        _store_kernels(self._engines.values())
        return replay

    def _context(self, role: str, profile: int) -> Any:
        if (role, profile) not in self.contexts:
            if self._capturing:
                raise BackendError("an engine must have run before it is captured.")
            context = self._engines[role].context(role, profile, self.stream_address)
            if self._scratch_bytes:
                context.set_device_memory(self._scratch, self._scratch_bytes)
            self.contexts[role, profile] = context
        return self.contexts[role, profile]
