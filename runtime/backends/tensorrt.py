"""TensorRT and TensorRT-RTX: engines loaded once, their contexts, and the device they run on.

libtranslate_trt runs the search on them (`DeviceBatch`); tests run it on an emulated device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from translate_trt.runtime.backends import Records, Settings
from translate_trt.runtime.backends.cuda import Cuda, CudaQueue, load_cuda
from translate_trt.runtime.backends.device import Engines, Launch
from translate_trt.runtime.backends.engines import (
    EngineRecord,
    import_package,
    load_engine,
    logger,
)
from translate_trt.runtime.bundle.contract import NEXT, Contract, TensorSpec
from translate_trt.runtime.errors import BackendError, BundleError

#: By role of an engine, that of the graph that its weights are in.
_GRAPHS = {"encoder": "encoder_graph", "step": "step_graph"}

# TensorRT's names of element types.
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
    """Load both engines of a target.

    Args:
        files: by role "encoder" and "step"; with the graphs, if the engines have no weights.
        contract: of the target.
        settings: which GPU, and how often to look at `done`.
        records: what the manifest says of each engine.

    Raises:
        BundleError: an engine is missing, does not load, or is not what the contract declares.
        BackendError: there is no GPU, or what it takes to use one is not installed.
    """
    for role in _GRAPHS:
        if role not in records or role not in files:
            raise BundleError(f"the target has no engine of the {role}; export the bundle again.")
    if contract.beams is None or contract.slots is None:
        raise BundleError("engines need a number of beams and of slots; export the bundle again.")
    if settings.device == "cpu":
        raise BackendError("engines run on a GPU alone; choose an onnx target to run on the CPU.")
    profiles = records["step"].profiles
    if records["encoder"].profiles != profiles:
        raise BundleError("both engines must have the same profiles; export the bundle again.")
    package = records["step"].package
    cuda, index = load_cuda(package), settings.gpu or 0
    cuda.call("cudaSetDevice", index)  # the engines are loaded onto this thread's GPU
    engines = {
        role: Engine(_load(files, role, records[role], settings), records[role], *specs)
        for role, specs in contract.graphs.items()
    }
    engines["step"].check_aliases([spec.name for spec in contract.caches])
    make_device = functools.partial(TensorRTDevice, cuda, index, engines)
    return Engines(make_device, profiles, settings.poll_every, settings.cuda_graphs)


def _load(files: Mapping[str, Path], role: str, record: EngineRecord, settings: Settings) -> Any:
    weights = files.get(_GRAPHS[role]) if record.weights_stripped else None
    return load_engine(files[role], record, weights, settings.trust_code)


class Engine:
    """A loaded engine; several threads may ask it for contexts.

    Args:
        engine: the package's ICudaEngine.
        record: the manifest's.
        inputs: what it must take.
        outputs: what it must give.

    Raises:
        BundleError: it takes or gives something else.
    """

    def __init__(
        self,
        engine: Any,
        record: EngineRecord,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
    ) -> None:
        self._engine, self._record = engine, record
        self._module: Any = import_package(record.package)
        self._lock = Lock()
        self._kernels: Any = None  # that TensorRT-RTX has compiled, for all contexts
        self._check(inputs, outputs)

    @property
    def scratch_bytes(self) -> int:
        """Memory that a context needs while it runs."""
        return int(self._engine.device_memory_size_v2)

    def _check(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        found = {name: self._kind(name) for name in names}
        declared = {
            spec.name: (mode, spec.dtype, "DEVICE")
            for mode, specs in (("INPUT", inputs), ("OUTPUT", outputs))
            for spec in specs
        }
        if found != declared:
            differing = sorted({name for name, _ in set(found.items()) ^ set(declared.items())})
            raise BundleError(
                f"an engine of {self._record.package} does not have the inputs and outputs that "
                f"this version expects (they differ in {', '.join(differing)}); it was exported "
                "by another version. Export the bundle again."
            )

    def _kind(self, name: str) -> tuple[str, str, str]:
        dtype = self._engine.get_tensor_dtype(name).name
        return (
            self._engine.get_tensor_mode(name).name,
            _TYPES.get(dtype, dtype),
            self._engine.get_tensor_location(name).name,
        )

    def check_aliases(self, caches: Sequence[str]) -> None:
        """Refuse an engine that does not write its caches in place.

        Raises:
            BundleError: it does not.
        """
        if not hasattr(self._engine, "get_aliased_input_tensor"):
            return
        for name in caches:
            if self._engine.get_aliased_input_tensor(NEXT + name) != name:
                raise BundleError(
                    f"the step engine does not write {name} in place, which this version relies "
                    "on. Export the bundle again."
                )

    def context(self, role: str, profile: int, stream: Any) -> Any:
        """A new IExecutionContext for a profile; its scratch memory is the caller's to set.

        Raises:
            BackendError: there is none.
        """
        strategy = self._module.ExecutionContextAllocationStrategy.USER_MANAGED
        lines = logger(self._record.package)
        with self._lock:
            lines.start()
            if self._record.package == "tensorrt_rtx":
                made = self._engine.create_execution_context(self._configured(role, strategy))
            else:
                made = self._engine.create_execution_context(strategy)
        if made is None or not made.set_optimization_profile_async(profile, int(stream)):
            raise BackendError(
                f"{self._record.package} has no context for the profile "
                f"{self._record.profiles[profile]}: {lines.reasons()} "
                "If memory ran out, lower workers."
            )
        return made

    def _configured(self, role: str, strategy: Any) -> Any:
        """How TensorRT-RTX is to run a context."""
        config = self._engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        kinds = self._module.DynamicShapesKernelSpecializationStrategy
        # A step has the shapes of its bucket for good, and a captured one keeps the kernels that
        # it was captured with: the best ones must be there. The encoder's shapes change.
        config.dynamic_shapes_kernel_specialization_strategy = (
            kinds.EAGER if role == "step" else kinds.LAZY
        )
        if self._kernels is None:
            self._kernels = config.create_runtime_cache()
        config.set_runtime_cache(self._kernels)
        return config

    def reasons(self) -> str:
        """What the package says of its last errors."""
        return str(logger(self._record.package).reasons())


class TensorRTDevice(CudaQueue):
    """`Device` with both engines.

    A context is one thread's, and a captured graph is one context's (what a context keeps on the
    device depends on its shapes): each profile has one of its own. They run one after another, so
    that one piece of scratch memory serves all.

    Args:
        cuda: the runtime.
        index: of the GPU.
        engines: by role.
    """

    def __init__(self, cuda: Cuda, index: int, engines: Mapping[str, Engine]) -> None:
        super().__init__(cuda, index)
        self._engines = engines
        self._contexts: dict[tuple[str, int], Any] = {}
        self._scratch_bytes = max(engine.scratch_bytes for engine in engines.values())
        self._scratch = self.allocate(self._scratch_bytes)
        self._capturing = False

    def launch(self, work: Launch) -> None:
        """See `Device`."""
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
        if self._capturing and not self._capturable(context):
            raise BackendError(f"the {work.role} engine allocates memory while it runs.")
        if not context.execute_async_v3(int(self.stream)):
            raise BackendError(f"the {work.role} engine does not run: {engine.reasons()}")

    def begin_capture(self) -> None:
        """See `Device`."""
        super().begin_capture()
        self._capturing = True

    def end_capture(self) -> Callable[[], None]:
        """See `Device`."""
        self._capturing = False
        return super().end_capture()

    def _capturable(self, context: Any) -> bool:
        asked = getattr(context, "is_stream_capturable", None)
        return asked is None or bool(asked(int(self.stream)))

    def _context(self, role: str, profile: int) -> Any:
        if (role, profile) not in self._contexts:
            if self._capturing:
                raise BackendError("an engine must have run before it is captured.")
            context = self._engines[role].context(role, profile, self.stream)
            if self._scratch_bytes:
                context.set_device_memory(self._scratch, self._scratch_bytes)
            self._contexts[role, profile] = context
        return self._contexts[role, profile]
