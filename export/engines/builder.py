"""ONNX graphs to engines.

Networks are strongly typed: every precision stands in the graph (export/precision.py), none is
chosen here.
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
from translate_trt.export.engines.progress import Progress, monitor, shown
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

# Of TensorRT's log, what the bundle keeps: its notes on each layer alone are megabytes.
_KEPT = ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO")
_LAYERS = "Engine Layer Information"

# The logger is one per process, and so are the lines it collects.
_BUILDING = threading.Lock()


def build_engine(
    builder: Builder, graph: Graph, profiles: Sequence[Profile], options: EngineOptions
) -> Engine:
    """Build an engine, or take it from the cache.

    Args:
        builder: from `load_builder`.
        graph: what to build.
        profiles: from `EngineOptions.buckets`.
        options: how to build.

    Raises:
        OptionError: an option is for the other package, or names a GPU that the package lacks.
        EngineError: the graph does not parse, departs from the contract or does not build.
        KeyboardInterrupt: Ctrl-C; nothing was written.
    """
    options.check_package(builder.package)
    content = graph.content()
    record = _record(builder, options, profiles)
    key = cache.engine_key(content, record.to_json())
    if options.cache is not None and (found := cache.load_engine(options.cache, key)):
        log.info("the engine of the %s graph comes from %s", graph.name, options.cache)
        return found
    with _BUILDING, shown(f"{builder.package} {graph.name}") as progress:
        engine = _build(builder, graph, content, record, options, progress)
    if engine is None:
        reasons = logger(builder.package).reasons()
        raise EngineError(
            f"{builder.package} {builder.version} cannot build the {graph.name} graph: {reasons} "
            f"{_build_mend(reasons, options)}"
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
    """The engine; None if there is none: whether it was stopped is looked at first."""
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
    """Give the builder one bucket of shapes.

    Raises:
        EngineError: an input has a dynamic axis other than N and S, or TensorRT refuses the shapes.
    """
    shapes = trt_builder.create_optimization_profile()
    ranges = profile.ranges()
    for spec in inputs:
        letters = {axis for axis in spec.axes if isinstance(axis, str)}
        if unknown := letters - ranges.keys():
            raise EngineError(
                f"input {spec.name} has the dynamic axes {', '.join(sorted(unknown))}; engines "
                "take N and S alone: trace the graph with `beams` and `slots`."
            )
        if letters:
            shapes.set_shape(
                spec.name,
                *(
                    [ranges[axis][end] if isinstance(axis, str) else axis for axis in spec.axes]
                    for end in range(3)
                ),
            )
    if config.add_optimization_profile(shapes) != index:
        raise EngineError(f"profile {profile} is refused; its shapes contradict each other.")


def _configure(builder: Builder, config: Any, options: EngineOptions) -> None:
    trt = builder.module
    config.builder_optimization_level = options.optimization_level
    if not options.tf32:
        config.clear_flag(trt.BuilderFlag.TF32)  # it is on by default
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
        # No memory of its own while it runs: else a step could not be captured as a CUDA graph.
        config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
        targets = _rtx_targets(builder, options)
        config.num_compute_capabilities = len(targets)
        for index, target in enumerate(targets):
            config.set_compute_capability(target, index)


def _rtx_targets(builder: Builder, options: EngineOptions) -> list[Any]:
    """Members of ComputeCapability to build for; none: the package's default, 8.0 and later.

    Raises:
        OptionError: the package has none of that name.
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
                f"{name}; it has {', '.join(known)}, {CURRENT} and {PORTABLE}."
            )
        targets.append(members[member])
    return targets


def _chosen(options: EngineOptions) -> str:
    """The GPUs to build for as the options have it, their default resolved."""
    default = CURRENT if compute_capability() else PORTABLE
    return " ".join(options.compute_capabilities or (default,))


def _architectures(builder: Builder, options: EngineOptions) -> tuple[str, ...]:
    """Compute capabilities that the engine will be made for; empty: portable, of TensorRT-RTX.

    Raises:
        OptionError: the package has none of that name.
        EngineError: the GPU to build on, or for, is not there.
    """
    gpu = compute_capability()
    if builder.is_rtx:
        _rtx_targets(builder, options)  # refuses what the package does not have
        if (chosen := _chosen(options)) != CURRENT:
            return () if chosen == PORTABLE else tuple(chosen.split())
        mend = f"name a compute capability such as 8.6, or {PORTABLE}."
    else:
        mend = "build on the machine that will run it, or choose a tensorrt-rtx target."
    if gpu is None:
        raise EngineError(
            f"{builder.package} would build for the GPU that is here, and no GPU or driver was "
            f"found (nvidia-smi shows what the driver sees); {mend}"
        )
    return (gpu,)


def _record(builder: Builder, options: EngineOptions, profiles: Sequence[Profile]) -> EngineRecord:
    """All that decides what is made of a graph: it is the cache's key too.

    Raises:
        OptionError: see `_architectures`; so EngineError.
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
            # One GPU named and the one that is here give engines of different kinds.
            "compute_capabilities": _chosen(options) if builder.is_rtx else CURRENT,
            "optimization_level": str(options.optimization_level),
            "tf32": str(options.tf32).lower(),
            "workspace_mib": str(options.workspace_mib or "all"),
            "user_allocation": str(builder.is_rtx).lower(),
        },
    )


def _with_facts(record: EngineRecord, network: Any) -> EngineRecord:
    """The record, with what the parser made of the graph."""
    layers = Counter(network.get_layer(i).type.name for i in range(network.num_layers))
    inputs, outputs = inputs_outputs(network)
    return replace(
        record,
        layers=dict(sorted(layers.items())),
        tensors={one.name: f"{dtype_name(one)} {axes(one)}" for one in (*inputs, *outputs)},
    )


def _build_mend(reasons: str, options: EngineOptions) -> str:
    """What to change after a failed build, as far as its reasons tell."""
    if "workspace" in reasons and options.workspace_mib is not None:
        return f"Raise workspace_mib, now {options.workspace_mib}, or leave it out."
    if options.strip_weights:
        return (
            "Leave strip_weights out, or build on a machine with a GPU: stripping runs parts of "
            "the graph on it."
        )
    if "Turing" in reasons or "sm75" in reasons:
        return "Compute capability 7.5 takes float16 products alone: choose tensorrt-rtx-fp16."
    if "element type" in reasons:
        return "Cast both inputs of that operation to one type: none is converted silently."
    return "Try a lower optimization_level, or another precision."


class _TimingCache:
    """TensorRT's measured kernels, kept per version and GPU between builds.

    For TensorRT-RTX there is nothing to keep: kernels are chosen where the engine is loaded, and
    the operations of its timing cache do nothing, as the package itself warns since 1.2.
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
        """Keep what was measured, together with what others have kept since."""
        if self._path is None:
            return
        timings = self._config.get_timing_cache()
        others = cache.load(self._path)
        if others is not None:
            timings.combine(self._config.create_timing_cache(others), ignore_mismatch=False)
        cache.store(self._path, bytes(timings.serialize()))
