"""Building of engines from ONNX graphs.

Networks are strongly typed: passes fix every precision in the graph, the builder chooses none.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
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
from translate_trt.runtime.backends.engines import (
    EngineRecord,
    Profile,
    compute_capability,
    logger,
    system_name,
)
from translate_trt.runtime.bundle.contract import TensorSpec
from translate_trt.runtime.errors import OptionError

log = logging.getLogger("translate_trt")

# Severities that the bundle's log keeps; verbose messages on layers take megabytes.
_KEPT = ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO")
_LAYERS = "Engine Layer Information"

# The process has a single logger, so builds must not overlap.
_BUILDING = threading.Lock()


def build_engine(
    builder: Builder, graph: Graph, profiles: Sequence[Profile], options: EngineOptions
) -> Engine:
    """Build an engine, or load it from the cache.

    Args:
        builder: Result of `load_builder`.
        graph: Graph to build.
        profiles: Result of `EngineOptions.buckets`.
        options: Build options.

    Raises:
        OptionError: An option belongs to the other package, or names an unsupported GPU.
        EngineError: The graph does not parse, violates the contract, or does not build.
        KeyboardInterrupt: Ctrl-C was pressed; nothing was written.
    """
    options.check_package(builder.package)
    content = graph.content()
    record = _record(builder, options, profiles)
    key = cache.engine_key(content, record.to_json())
    if options.cache is not None and (found := cache.load_engine(options.cache, key)):
        log.info("loaded the engine of the %s graph from %s", graph.name, options.cache)
        return found
    with _BUILDING, progress_bar(f"{builder.package} {graph.name}") as progress:
        engine = _build(builder, graph, content, record, options, progress)
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
) -> Engine | None:
    """Build an engine; None after a failure or Ctrl-C, which the caller distinguishes."""
    lines = logger(builder.package)
    lines.start()
    trt_builder = builder.module.Builder(lines)
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
    kept = [text for severity, text in lines.lines if severity in _KEPT or _LAYERS in text]
    return Engine(bytes(plan), _with_facts(record, network), "\n".join(kept) + "\n")


def _add_profile(
    trt_builder: Any, config: Any, inputs: Sequence[TensorSpec], profile: Profile, index: int
) -> None:
    """Add an optimization profile for one bucket of shapes.

    Raises:
        EngineError: An input has a dynamic axis other than N and S, or TensorRT rejects the shapes.
    """
    shapes = trt_builder.create_optimization_profile()
    bounds = profile.ranges()
    for spec in inputs:
        letters = {axis for axis in spec.axes if isinstance(axis, str)}
        if unknown := letters - bounds.keys():
            raise EngineError(
                f"input {spec.name} has the dynamic axes {', '.join(sorted(unknown))}, but engines "
                "support only N and S: trace the graph with `beams` and `slots`."
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
    """Return the members of ComputeCapability to build for; empty for 8.0 and later.

    Raises:
        OptionError: The package does not support a compute capability.
    """
    members = builder.module.ComputeCapability.__members__
    targets = []
    for name in _chosen(options).split():
        if name == PORTABLE:
            return []
        member = "CURRENT" if name == CURRENT else "SM" + name.replace(".", "")
        if member not in members:
            known = [f"{m[2:-1]}.{m[-1]}" for m in members if m.startswith("SM")]
            raise OptionError(
                f"{builder.package} {builder.version} does not build for compute capability "
                f"{name}; choose from {', '.join(known)}, {CURRENT} and {PORTABLE}."
            )
        targets.append(members[member])
    return targets


def _chosen(options: EngineOptions) -> str:
    """Return the compute capabilities of the options, with the default resolved."""
    default = CURRENT if compute_capability() else PORTABLE
    return " ".join(options.compute_capabilities or (default,))


def _architectures(builder: Builder, options: EngineOptions) -> tuple[str, ...]:
    """Return the compute capabilities of the engine; empty for a portable TensorRT-RTX engine.

    Raises:
        OptionError: The package does not support a compute capability.
        EngineError: This machine lacks the GPU to build on or for.
    """
    gpu = compute_capability()
    if builder.is_rtx:
        _rtx_targets(builder, options)  # raises for an unsupported compute capability
        if (chosen := _chosen(options)) != CURRENT:
            return () if chosen == PORTABLE else tuple(chosen.split())
        advice = f"name a compute capability such as 8.6, or {PORTABLE}."
    else:
        advice = "build on the machine that will run the engine, or choose a tensorrt-rtx target."
    if gpu is None:
        raise EngineError(
            f"{builder.package} builds for the GPU of this machine, but no GPU or driver was found "
            f"(nvidia-smi lists the GPUs); {advice}"
        )
    return (gpu,)


def _record(builder: Builder, options: EngineOptions, profiles: Sequence[Profile]) -> EngineRecord:
    """Record everything that determines the engine of a graph; it is also the cache key.

    Raises:
        OptionError: See `_architectures`.
        EngineError: See `_architectures`.
    """
    return EngineRecord(
        package=builder.package,
        version=builder.version,
        system=system_name(),
        compute_capabilities=_architectures(builder, options),
        hardware_compatibility=options.hardware_compatible,
        version_compatible=options.version_compatible,
        weights_stripped=options.strip_weights,
        profiles=tuple(profiles),
        options={
            # A named GPU and the current one give different engines, even if they are equal.
            "compute_capabilities": _chosen(options) if builder.is_rtx else CURRENT,
            "optimization_level": str(options.optimization_level),
            "tf32": str(options.tf32).lower(),
            "workspace_mib": str(options.workspace_mib or "all"),
            "user_allocation": str(builder.is_rtx).lower(),
        },
    )


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
    """TensorRT's timing cache, stored per version and GPU.

    TensorRT-RTX chooses kernels when an engine is loaded; its timing cache has been without effect
    since version 1.2.
    """

    def __init__(self, builder: Builder, config: Any, directory: Path | None) -> None:
        self._config = config
        self._path: Path | None = None
        if directory is None or builder.is_rtx:
            return
        gpu = compute_capability() or "none"
        self._path = directory / f"timings-{builder.version}-{system_name()}-{gpu}.cache"
        known = config.create_timing_cache(cache.load(self._path) or b"")
        config.set_timing_cache(known, ignore_mismatch=False)

    def save(self) -> None:
        """Store the timings, merged with those that other processes stored meanwhile."""
        if self._path is None:
            return
        timings = self._config.get_timing_cache()
        others = cache.load(self._path)
        if others is not None:
            timings.combine(self._config.create_timing_cache(others), ignore_mismatch=False)
        cache.store(self._path, bytes(timings.serialize()))
