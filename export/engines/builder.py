"""Building of engines from ONNX graphs.

Networks are strongly typed: passes fix every precision in the graph, the builder chooses none.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from translate_trt.export.engines import cache
from translate_trt.export.engines.cache import Engine
from translate_trt.export.engines.network import (
    Builder,
    EngineError,
    Graph,
    axes,
    check_network,
    dtype_name,
    inputs_outputs,
    parse,
)
from translate_trt.export.engines.options import CURRENT, PORTABLE, EngineOptions
from translate_trt.export.engines.progress import Progress, monitor, progress_bar
from translate_trt.runtime.backends.engine_log import logger
from translate_trt.runtime.backends.engines import EngineRecord, Profile, system_name
from translate_trt.runtime.backends.nvidia_driver import Gpu, find_gpu
from translate_trt.runtime.backends.packages import (
    capabilities,
    check_driver,
    extra,
    import_package,
    portable_capabilities,
    precisions,
    supports,
    unsupported,
)
from translate_trt.runtime.bundle.contract import TensorSpec
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.io.cache_files import load_cached, store_cached
from translate_trt.runtime.version import version_numbers

log = logging.getLogger("translate_trt")

# The process has a single logger, so builds must not overlap.
_BUILDING = threading.Lock()


def check_gpus(target: str, package: str, precision: str, options: EngineOptions) -> None:
    """Refuse a target whose package does not support the GPUs to build for.

    The package need not be installed: on other GPUs, the message names the one to install.

    Raises:
        OptionError: The package or the precision is not supported on a GPU.
        EngineError: The engines are for the GPU of this machine, which has none.
        BackendError: The driver is too old for the package.
    """
    module = import_package(package, required=False)
    if not _is_named(package, options):
        gpu = _present(package)
        if not supports(package, gpu.compute_capability, module):
            raise OptionError(
                unsupported(target, package, str(gpu), gpu.compute_capability, module)
            )
        check_driver(package)
    for capability in _supported(package, options, module):
        if precision not in (supported := precisions(package, capability)):
            raise OptionError(
                f"{target}: on GPUs of compute capability {capability}, {package} supports only "
                f"{' and '.join(supported)}; choose {extra(package)}-{supported[0]}, or other GPUs."
            )


def build_engine(
    builder: Builder, graph: Graph, profiles: Sequence[Profile], options: EngineOptions
) -> Engine:
    """Build an engine, or load it from the cache.

    Args:
        builder: Result of `load_builder`.
        graph: Graph to build.
        profiles: Profiles of the graph (`EngineOptions.encoder_profiles` or `step_profiles`).
        options: Build options.

    Raises:
        OptionError: An option belongs to the other package, or names an unsupported GPU.
        EngineError: The graph does not parse, violates the contract, or does not build.
        KeyboardInterrupt: Ctrl-C was pressed; nothing was written.
    """
    options.check_package(builder.package)
    record = _record(builder, options, profiles)
    content, register = graph.content(), None
    if options.plugins:
        # Imports Triton and PyTorch's symbols, which takes seconds.
        from translate_trt.export.engines.plugins import with_plugins

        content, register = with_plugins(content, _plugin_architecture(record))
    key = cache.engine_key(content, record.to_json())
    if options.cache is not None and (found := cache.load_engine(options.cache, key)):
        log.info("loaded the engine of the %s graph from %s", graph.name, options.cache)
        return found
    recording = logger(builder.package).recording()
    with _BUILDING, progress_bar(f"{builder.package} {graph.name}") as progress, recording as lines:
        if register is not None:
            register(builder.module)
        engine = _build(builder, graph, content, record, options, progress, lines)
    if engine is None:
        reasons = logger(builder.package).reasons()
        raise EngineError(
            f"{builder.package} {builder.version} cannot build the {graph.name} graph: {reasons} "
            f"{_build_advice(reasons, options)}"
        )
    if options.cache is not None:
        cache.store_engine(options.cache, key, engine)
    return engine


def _build(
    builder: Builder,
    graph: Graph,
    content: bytes,
    record: EngineRecord,
    options: EngineOptions,
    progress: Progress,
    lines: Iterable[str],
) -> Engine | None:
    """Build an engine; None after a failure or Ctrl-C, which the caller distinguishes."""
    trt_builder = builder.module.Builder(logger(builder.package))
    network = parse(builder, trt_builder, content, graph.name)
    check_network(network, graph)
    config = trt_builder.create_builder_config()
    config.progress_monitor = monitor(builder.module, progress)
    _configure(builder, config, options)
    for index, profile in enumerate(record.profiles):
        _add_profile(trt_builder, config, graph.inputs, profile, index)
    timings = _TimingCache(builder, config, options.cache)
    plan = trt_builder.build_serialized_network(network, config)
    if plan is None:
        return None
    timings.save()
    return Engine(bytes(plan), _with_facts(record, network), "\n".join(lines) + "\n")


def _add_profile(
    trt_builder: Any, config: Any, inputs: Sequence[TensorSpec], profile: Profile, index: int
) -> None:
    """Add an optimization profile for one bucket of shapes.

    Raises:
        EngineError: An input has a dynamic axis that the profile has no size for, or TensorRT
            rejects the shapes.
    """
    shapes = trt_builder.create_optimization_profile()
    bounds = profile.ranges()
    for spec in inputs:
        letters = {axis for axis in spec.axes if isinstance(axis, str)}
        if unknown := letters - bounds.keys():
            raise EngineError(
                f"input {spec.name} has the dynamic axes {', '.join(sorted(unknown))}, but engines "
                f"support only {' and '.join(bounds)}: trace the graph with `beams` and `slots`."
            )
        if letters:
            shapes.set_shape(
                spec.name,
                *(
                    [bounds[axis][end] if isinstance(axis, str) else axis for axis in spec.axes]
                    for end in range(3)
                ),
            )
    if config.add_optimization_profile(shapes) != index:
        raise EngineError(f"TensorRT rejects profile {profile}: its shapes contradict each other.")


def _configure(builder: Builder, config: Any, options: EngineOptions) -> None:
    trt = builder.module
    config.builder_optimization_level = options.optimization_level
    if not options.tf32:
        config.clear_flag(trt.BuilderFlag.TF32)  # on by default
    if options.version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    if options.strip_weights:
        config.set_flag(trt.BuilderFlag.STRIP_PLAN)
    if options.hardware_compatible != "none":
        level = getattr(trt.HardwareCompatibilityLevel, options.hardware_compatible.upper())
        config.hardware_compatibility_level = level
    if options.workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_mib << 20)
    if builder.is_rtx:
        # CUDA graph capture requires that the engine allocates no memory while it runs.
        config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
        targets = _rtx_targets(builder, options)
        config.num_compute_capabilities = len(targets)
        for index, target in enumerate(targets):
            config.set_compute_capability(target, index)


def _rtx_targets(builder: Builder, options: EngineOptions) -> list[Any]:
    """Return the members of ComputeCapability to build for; empty for portable engines.

    Raises:
        OptionError: The package does not support a compute capability.
    """
    members = builder.module.ComputeCapability.__members__
    chosen = _chosen(options)
    if chosen == (PORTABLE,):
        return []
    if chosen == (CURRENT,):
        return [members["CURRENT"]]
    named = _named(builder.package, options, builder.module)
    return [members["SM" + name.replace(".", "")] for name in named]


def _chosen(options: EngineOptions) -> tuple[str, ...]:
    """Return the compute capabilities for TensorRT-RTX, with the default resolved."""
    return options.compute_capabilities or (CURRENT if find_gpu() else PORTABLE,)


def _is_named(package: str, options: EngineOptions) -> bool:
    """Return whether the engines are for other GPUs than that of this machine."""
    return package == "tensorrt_rtx" and _chosen(options) != (CURRENT,)


def _named(package: str, options: EngineOptions, module: Any) -> tuple[str, ...]:
    """Return the compute capabilities that the options name.

    Raises:
        OptionError: The package does not support a compute capability.
    """
    chosen = _chosen(options)
    if chosen == (PORTABLE,):
        return portable_capabilities(module)
    known = capabilities(package, module)
    if unknown := [name for name in chosen if name not in known]:
        raise OptionError(
            f"{package} does not build for compute capability {', '.join(unknown)}; choose from "
            f"{', '.join(known)}, {CURRENT} and {PORTABLE}, or build a tensorrt target on a "
            "machine with that GPU."
        )
    return chosen


def _supported(package: str, options: EngineOptions, module: Any) -> tuple[str, ...]:
    """Return the compute capabilities that engines are for.

    Raises:
        OptionError: The package does not support a compute capability.
        EngineError: This machine lacks the GPU to build for.
    """
    if _is_named(package, options):
        return _named(package, options, module)
    return (_present(package).compute_capability,)


def _present(package: str) -> Gpu:
    """Return the GPU of this machine.

    Raises:
        EngineError: There is none.
    """
    gpu = find_gpu()
    if gpu is None:
        advice = (
            f"name a compute capability such as 8.6, or {PORTABLE}."
            if package == "tensorrt_rtx"
            else "build on the machine that will run the engine, or choose a tensorrt-rtx target."
        )
        raise EngineError(
            f"{package} builds for the GPU of this machine, but no GPU or driver was found "
            f"(nvidia-smi lists the GPUs); {advice}"
        )
    return gpu


def _record(builder: Builder, options: EngineOptions, profiles: Sequence[Profile]) -> EngineRecord:
    """Record everything that determines the engine of a graph; it is also the cache key.

    Raises:
        OptionError: The package does not support a compute capability.
        EngineError: This machine lacks the GPU to build for.
    """
    only_this_model = not builder.is_rtx and options.hardware_compatible == "none"
    return EngineRecord(
        package=builder.package,
        version=builder.version,
        system=system_name(),
        compute_capabilities=_supported(builder.package, options, builder.module),
        hardware_compatibility=options.hardware_compatible,
        version_compatible=options.version_compatible,
        weights_stripped=options.strip_weights,
        profiles=tuple(profiles),
        options={
            # A named GPU and the current one give different engines, even if they are equal.
            "compute_capabilities": " ".join(_chosen(options)) if builder.is_rtx else CURRENT,
            "optimization_level": str(options.optimization_level),
            "plugins": str(options.plugins).lower(),
            "tf32": str(options.tf32).lower(),
            "workspace_mib": str(options.workspace_mib or "all"),
            "user_allocation": str(builder.is_rtx).lower(),
        },
        gpu=find_gpu() if only_this_model else None,
    )


def _plugin_architecture(record: EngineRecord) -> int:
    """Return the compute capability, times ten, that plugins are compiled for.

    Raises:
        OptionError: Triton does not support the GPU.
    """
    (capability,) = record.compute_capabilities
    if version_numbers(capability) < (8, 0):
        raise OptionError(f"plugins need compute capability 8.0; this GPU has {capability}.")
    compatible = record.hardware_compatibility == "ampere_plus"
    return 80 if compatible else int(capability.replace(".", ""))


def _with_facts(record: EngineRecord, network: Any) -> EngineRecord:
    """Add the layers and tensors of the parsed network to the record."""
    layers = Counter(network.get_layer(i).type.name for i in range(network.num_layers))
    inputs, outputs = inputs_outputs(network)
    return replace(
        record,
        layers=dict(sorted(layers.items())),
        tensors={t.name: f"{dtype_name(t)} {axes(t)}" for t in (*inputs, *outputs)},
    )


def _build_advice(reasons: str, options: EngineOptions) -> str:
    """Return advice on a failed build, derived from its reasons."""
    if "workspace" in reasons and options.workspace_mib is not None:
        return f"Raise workspace_mib, now {options.workspace_mib}, or omit it."
    if options.strip_weights:
        return (
            "Omit strip_weights, or build on a machine with a GPU: stripping runs parts of the "
            "graph on the GPU."
        )
    if "Turing" in reasons or "sm75" in reasons:
        return "Compute capability 7.5 supports only FP16 matmuls: choose tensorrt-rtx-fp16."
    if "element type" in reasons:
        return "Cast both inputs of that operation to one type: casts are never implicit."
    return "Try a lower optimization_level or another precision."


class _TimingCache:
    """TensorRT's timing cache, stored per version and GPU model.

    TensorRT-RTX chooses kernels when an engine is loaded; its timing cache has been without effect
    since version 1.2.
    """

    def __init__(self, builder: Builder, config: Any, directory: Path | None) -> None:
        self._config = config
        self._path: Path | None = None
        self._attached: Any = None  # must live until the engine is built
        if directory is None or builder.is_rtx:
            return
        gpu = find_gpu()
        name = "none" if gpu is None else f"{gpu.name} {gpu.compute_capability} {gpu.sms}"
        name = re.sub(r"[^A-Za-z0-9.]+", "-", name)  # names of GPUs may contain a slash
        self._path = directory / f"timings-{builder.version}-{system_name()}-{name}.cache"
        stored = load_cached(self._path)
        if stored is not None and self._attach(stored):
            return
        if stored is not None:
            log.warning("%s does not fit this GPU or version; measuring anew.", self._path)
        if not self._attach(b""):
            log.warning("%s takes no timing cache; kernels are measured anew.", builder.package)
            self._path = None

    def _attach(self, content: bytes) -> bool:
        """Use stored timings, or new ones; False if they do not fit this GPU and version."""
        self._attached = self._config.create_timing_cache(content)
        return self._attached is not None and self._config.set_timing_cache(
            self._attached, ignore_mismatch=False
        )

    def save(self) -> None:
        """Store the timings, merged with those that other processes stored meanwhile.

        No failure here is an error, because the engine is finished.
        """
        timings = None if self._path is None else self._config.get_timing_cache()
        if self._path is None or timings is None:
            return
        others = load_cached(self._path)
        if others is not None:
            read = self._config.create_timing_cache(others)
            if read is None or not timings.combine(read, ignore_mismatch=False):
                log.warning("%s does not fit this GPU or version; replacing it.", self._path)
        content = timings.serialize()
        if content is not None:
            store_cached(self._path, bytes(content))
