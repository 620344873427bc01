"""TensorRT and TensorRT-RTX: loaded engines, and execution contexts for devices of the library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from translate_trt.runtime.backends import Records, Settings
from translate_trt.runtime.backends.device import CudaContexts, Engines, Launch
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
from translate_trt.runtime.native.device_functions import on_gpu

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
    check_driver(records["step"].package)
    gpu = settings.gpu or 0
    engines = {}
    for role, specs in contract.graphs.items():
        path, record, cache = files[role], records[role], None
        if record.package == "tensorrt_rtx":  # engines of the other package have their kernels
            cache = RuntimeCache(runtime_cache_path(path, record.version, gpu))
        weights = files.get(_GRAPHS[role]) if record.weights_stripped else None
        # Engines load onto the current GPU of the thread.
        loaded = on_gpu(gpu, partial(load_engine, path, record, weights, settings.trust_code))
        engines[role] = Engine(loaded, record, *specs, cache)
    engines["step"].check_aliases([spec.name for spec in contract.caches])
    return Engines(
        CudaContexts(gpu, partial(EngineContexts, engines)),
        records["encoder"].profiles,
        records["step"].profiles,
        settings.poll_every,
        settings.cuda_graphs,
        store=partial(_store_kernels, tuple(engines.values())),
        scratch_bytes=max(engine.scratch_bytes for engine in engines.values()),
    )


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


class EngineContexts:
    """Implementation of `Contexts`.

    Each profile has its own context: contexts are not thread-safe, and a captured graph belongs to
    one context, whose device memory depends on its shapes. Contexts run one after another and
    share the scratch memory.

    Args:
        engines: Engines by role.
        stream: Address of the stream.
        scratch: Address of scratch memory for any of the engines; 0 if none needs it.
    """

    def __init__(self, engines: Mapping[str, Engine], stream: int, scratch: int) -> None:
        self._engines, self._stream, self._scratch = engines, stream, scratch
        self._contexts: dict[tuple[str, int], Any] = {}

    def launch(self, work: Launch) -> None:
        context = self._context(work)
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
        if work.capturing and query is not None and not query(self._stream):
            raise BackendError(f"the {work.role} engine allocates memory while it runs.")
        if not context.execute_async_v3(self._stream):
            raise BackendError(f"the {work.role} engine does not run: {engine.reasons()}")
        engine.ran(work.profile, work.shapes)

    def _context(self, work: Launch) -> Any:
        key = work.role, work.profile
        if key not in self._contexts:
            if work.capturing:
                raise BackendError("an engine must have run before it is captured.")
            engine = self._engines[work.role]
            context = engine.context(*key, self._stream)
            if self._scratch:
                context.set_device_memory(self._scratch, engine.scratch_bytes)
            self._contexts[key] = context
        return self._contexts[key]
