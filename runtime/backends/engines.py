"""Compatibility checks and loading of TensorRT and TensorRT-RTX engines.

An engine only runs on the TensorRT version that built it and on the GPUs it was built for. The
checks compare the manifest's record with this machine before TensorRT deserializes the engine:
their messages name both sides and the command that rebuilds the engine.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from translate_trt.runtime.backends.engine_log import logger
from translate_trt.runtime.backends.nvidia_driver import Gpu, find_gpu
from translate_trt.runtime.backends.packages import (
    CUDA,
    PACKAGES,
    TORCH,
    extra,
    import_package,
    install_command,
    supports,
    unsupported,
)
from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.bundle.manifest import MANIFEST_NAME, TargetEntry
from translate_trt.runtime.errors import BundleError
from translate_trt.runtime.version import version_numbers

#: TensorRT's levels of hardware compatibility.
HARDWARE_LEVELS = ("none", "same_compute_capability", "ampere_plus")

# Axes of the step inputs of rules 13 to 15, with their fields of `ChangeSizes`, and the size that
# TensorRT tunes kernels for.
_CHANGE_AXES = {
    "B": "marked_tokens", "R": "sampled_ranks", "D": "tail_tokens", "U": "constraint_tokens"
}  # fmt: skip
_USUAL_CHANGES = 16

# Minimum compute capability of ampere_plus engines.
_AMPERE = (8, 0)


@dataclass(frozen=True)
class ChangeSizes:
    """Largest sizes of the step inputs of rules 13 to 15 (docs/beam-search.md).

    Attributes:
        marked_tokens: Marked tokens of a beam, B.
        sampled_ranks: Ranks of a sentence that may be drawn, R.
        tail_tokens: Further tokens of a sentence that may be drawn, D.
        constraint_tokens: Different tokens of a sentence's constraints, U.
    """

    marked_tokens: int
    sampled_ranks: int
    tail_tokens: int
    constraint_tokens: int


@dataclass(frozen=True)
class Profile:
    """Optimization profile of an encoder, for all shapes up to its sizes, or of a step.

    A step always runs at exactly the shape of its profile, except for the inputs of `changes`: the
    rows of a batch that have no sentence are idle, and sources are padded. So does the encoder of a
    plan.

    Attributes:
        batch: Batch size N.
        source_length: Source length S in tokens, end symbol included.
        slots: Number P of cache slots that a step reads, 0 without caches; None for an encoder.
        changes: Largest sizes of the inputs of rules 13 to 15; None for steps without them.
    """

    batch: int
    source_length: int
    slots: int | None = None
    changes: ChangeSizes | None = None

    def __str__(self) -> str:
        bucket = f"{self.batch}x{self.source_length}"
        return f"{bucket} with {self.slots} slots" if self.slots else bucket

    def ranges(self) -> dict[str, tuple[int, int, int]]:
        """Return the minimum, optimum and maximum of each dynamic axis.

        An encoder's ranges start at 1: the smallest profile that holds the new sentences of a batch
        encodes them. TensorRT tunes kernels at the optimum, which is the full batch and half the
        length, because most sentences are much shorter than the maximum. With a single shape it
        plans a step without computing sizes on the host; so most steps have profiles without
        `changes`, whose inputs are empty.
        """
        if self.slots is None:
            return {
                "N": (1, self.batch, self.batch),
                "S": (1, (self.source_length + 1) // 2, self.source_length),
            }
        sizes = {"N": self.batch, "S": self.source_length, "P": self.slots}
        largest = {} if self.changes is None else asdict(self.changes)
        return {axis: (size, size, size) for axis, size in sizes.items()} | {
            axis: (0, min(largest.get(name, 0), _USUAL_CHANGES), largest.get(name, 0))
            for axis, name in _CHANGE_AXES.items()
        }


@dataclass(frozen=True)
class EngineRecord:
    """Manifest record of one engine.

    Attributes:
        package: Package that built the engine, one of `PACKAGES`, or `TORCH` or `CUDA`.
        version: Version of the package; of `CUDA`, of the format of plans.
        system: Operating system and processor, such as "linux-x86_64".
        compute_capabilities: Compute capabilities of the supported GPUs, such as "8.6".
        hardware_compatibility: One of `HARDWARE_LEVELS`.
        version_compatible: Later versions with the same major version can load the engine.
        weights_stripped: The weights must be refitted from the ONNX file after loading.
        profiles: Optimization profiles by index.
        layers: Number of layers of the parsed network, by TensorRT layer type.
        tensors: Type and axes of the inputs and outputs as parsed.
        options: Other builder options, for information.
        gpu: The only GPU model that the engine supports; None for TensorRT-RTX, and for a
            level of hardware compatibility.
    """

    package: str
    version: str
    system: str
    compute_capabilities: tuple[str, ...]
    hardware_compatibility: str
    version_compatible: bool
    weights_stripped: bool
    profiles: tuple[Profile, ...]
    layers: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    gpu: Gpu | None = None

    def to_json(self) -> dict[str, Any]:
        """Convert the record to JSON values, which `from_json` reads back."""
        value = asdict(self)
        if self.gpu is None:
            del value["gpu"]
        value["compute_capabilities"] = list(self.compute_capabilities)
        for profile in value["profiles"]:
            if profile["changes"] is None:
                del profile["changes"]
        value["profiles"] = {str(i): one for i, one in enumerate(value["profiles"])}
        return value

    @classmethod
    def from_json(cls, fields: Fields) -> EngineRecord:
        """Read a record from the object of an engine in a manifest.

        Raises:
            BundleError: A field is missing or has the wrong type.
        """
        return cls(
            package=fields.choice("package", (*PACKAGES, TORCH, CUDA)),
            version=fields.text("version"),
            system=fields.text("system"),
            compute_capabilities=tuple(fields.texts("compute_capabilities")),
            hardware_compatibility=fields.choice("hardware_compatibility", HARDWARE_LEVELS),
            version_compatible=fields.boolean("version_compatible"),
            weights_stripped=fields.boolean("weights_stripped"),
            profiles=tuple(
                Profile(
                    one.integer("batch", 1),
                    one.integer("source_length", 1),
                    None if one.is_null("slots") else one.integer("slots", 0),
                    _read_changes(one.object("changes")) if "changes" in one.values else None,
                )
                for _, one in fields.object("profiles").objects(at_least_one=True)
            ),
            layers=fields.object("layers").all_integers(0),
            tensors=fields.object("tensors").all_texts(),
            options=fields.object("options").all_texts(),
            gpu=_read_gpu(fields.object("gpu")) if "gpu" in fields.values else None,
        )


def _read_changes(fields: Fields) -> ChangeSizes:
    return ChangeSizes(*(fields.integer(name, 0) for name in _CHANGE_AXES.values()))


def _read_gpu(fields: Fields) -> Gpu:
    return Gpu(
        name=fields.text("name"),
        compute_capability=fields.text("compute_capability"),
        multiprocessors=fields.integer("multiprocessors", 1),
    )


@dataclass(frozen=True)
class Machine:
    """Properties of a machine that engines depend on.

    Attributes:
        version: Version of the installed package; None if it is not installed.
        system: Operating system and processor (see `EngineRecord.system`).
        gpu: The GPU; None without a GPU or driver.
    """

    version: str | None
    system: str
    gpu: Gpu | None

    @classmethod
    def present(cls, package: str, device: int = 0) -> Machine:
        """Return the properties of this machine for a package and a GPU."""
        module = import_package(package, required=False)
        version = None if module is None else str(module.__version__)
        return cls(version, system_name(), find_gpu(device))


def system_name() -> str:
    """Operating system and processor, such as "linux-x86_64"."""
    return f"{sys.platform}-{platform.machine().lower()}"


def check_engine(record: EngineRecord, machine: Machine, target: str, bundle: Path | str) -> None:
    """Refuse an engine of another TensorRT version or for another GPU.

    Args:
        record: Manifest record of the engine.
        machine: Machine to run on.
        target: Name of the target, for messages.
        bundle: Path of the bundle, for messages.

    Raises:
        BundleError: The engine cannot run on the machine.
    """
    rebuild = (
        f"Rebuild it: translate-trt export CHECKPOINT --target {target} --output {bundle} --force"
    )
    made = f"{bundle}: the engines of {target} were made by {record.package} {record.version}"
    gpu = machine.gpu
    # First, because installing or rebuilding would not help.
    if gpu is not None and not _gpu_fits(record, gpu):
        if not supports(record.package, gpu.compute_capability):
            remedy = unsupported(target, record.package, str(gpu), gpu.compute_capability)
        elif record.gpu is not None:
            remedy = (
                f"{rebuild}\nOr build engines for all GPUs of compute capability "
                f"{record.gpu.compute_capability}: --hardware-compatible same_compute_capability"
            )
        else:
            remedy = rebuild
        raise BundleError(f"{made} for {supported_gpus(record)}; this GPU is {gpu}. {remedy}")
    if machine.version is None:
        raise BundleError(
            f"{made}, which is not installed. Install it: {install_command(record.package)}"
        )
    if not _version_fits(record, machine.version):
        raise BundleError(
            f"{made}; installed is {machine.version}, which does not load them. {rebuild}\n"
            f"Or install their version: pip install '{extra(record.package)}=={record.version}'"
        )
    # TensorRT-RTX engines are portable between systems: the loading machine compiles their kernels.
    if record.package == "tensorrt" and machine.system != record.system:
        raise BundleError(f"{made} for {record.system}; this is {machine.system}. {rebuild}")
    if gpu is None:
        raise BundleError(
            f"{bundle}: {target} needs an NVIDIA GPU and its driver, and none was found "
            "(nvidia-smi shows what the driver sees). Choose an onnx target to run on the CPU."
        )


def engine_records(entry: TargetEntry, bundle: Path) -> dict[str, EngineRecord]:
    """Read the engine records of a target, by role.

    Raises:
        BundleError: The target has no engines, or a record is damaged.
    """
    records = Fields(entry.engine, bundle / MANIFEST_NAME, f"targets.{entry.name}.engine")
    return {
        role: EngineRecord.from_json(fields) for role, fields in records.objects(at_least_one=True)
    }


def check_engines(entry: TargetEntry, bundle: Path, device: int = 0) -> dict[str, EngineRecord]:
    """Check that this machine can run a target's engines.

    Args:
        entry: Manifest entry of a target with engines.
        bundle: Directory of the bundle.
        device: Index of the GPU.

    Returns:
        The engine records by role.

    Raises:
        BundleError: An engine cannot run on this machine (`check_engine`), or a record is damaged.
    """
    records = engine_records(entry, bundle)
    for record in records.values():
        if record.package in PACKAGES:
            machine = Machine.present(record.package, device)
            check_engine(record, machine, entry.name, bundle)
    return records


def _version_fits(record: EngineRecord, installed: str) -> bool:
    if not record.version_compatible:
        return installed == record.version
    made, here = version_numbers(record.version), version_numbers(installed)
    return made[:1] == here[:1] and here >= made


def _gpu_fits(record: EngineRecord, gpu: Gpu) -> bool:
    if record.hardware_compatibility == "ampere_plus":
        return version_numbers(gpu.compute_capability) >= _AMPERE
    # TensorRT does not support engines of another model of the same compute capability.
    same_model = record.gpu is None or record.gpu == gpu
    return gpu.compute_capability in record.compute_capabilities and same_model


def supported_gpus(record: EngineRecord) -> str:
    """Return the GPUs that an engine supports, as text."""
    if record.package == TORCH:
        return "every GPU that PyTorch supports"
    if record.gpu is not None:
        return str(record.gpu)
    if record.hardware_compatibility == "ampere_plus":
        return "compute capability 8.0 and later"
    return f"compute capability {', '.join(record.compute_capabilities)}"


def load_engine(
    path: Path, record: EngineRecord, weights: Path | None = None, trust_code: bool = False
) -> Any:
    """Deserialize an engine that `check_engine` has accepted. This requires a GPU.

    Args:
        path: Path of the engine.
        record: Manifest record of the engine.
        weights: ONNX file of the same graph, if the engine was stripped of its weights.
        trust_code: Allow a version-compatible engine, which contains machine code that is executed
            on loading. Set this only for bundles from a trusted source.

    Returns:
        The ICudaEngine of the package.

    Raises:
        BundleError: The engine does not load; the message contains TensorRT's errors.
        TranslateTrtError: The package is missing.
    """
    if record.version_compatible and not trust_code:
        raise BundleError(
            f"{path} is version-compatible: it brings machine code that is executed on loading. "
            "Load it with trust_code if you trust its source, or build it without that option."
        )
    if record.weights_stripped and weights is None:
        raise BundleError(f"{path} was stripped of its weights; give the ONNX file they are in.")
    module: Any = import_package(record.package)
    log = logger(record.package)
    log.start()
    runtime = module.Runtime(log)
    if record.version_compatible:
        runtime.engine_host_code_allowed = True
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise BundleError(f"{path} does not load. {record.package} says: {log.reasons()}")
    if weights is not None and record.weights_stripped:
        refit_engine(engine, weights, record.package)
    return engine


def refit_engine(engine: Any, weights: Path, package: str) -> None:
    """Refit a stripped engine with the weights of its ONNX file.

    Refitting needs a deserialized engine and therefore a GPU; **it has never been run**, because no
    GPU with TensorRT was available during development.

    Args:
        engine: ICudaEngine, changed in place.
        weights: ONNX file that the engine was built from.
        package: Package that built the engine.

    Raises:
        BundleError: The file does not belong to the engine, or does not parse.
    """
    module: Any = import_package(package)
    log = logger(package)
    log.start()
    refitter = module.Refitter(engine, log)
    parser = module.OnnxParserRefitter(refitter, log)
    if not parser.refit_from_file(str(weights)) or not refitter.refit_cuda_engine():
        raise BundleError(
            f"the weights of {weights} do not fit the engine. {package} says: {log.reasons()} "
            "Export the bundle again."
        )
