"""Engines of TensorRT and TensorRT-RTX at load: does this one fit this machine, and loading it.

An engine runs on the version that made it and on the GPUs it was made for. TensorRT finds out when
it deserializes, and says so in its own words; here the manifest's record is compared first, so that
a service is told which side is which and the command that mends it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.bundle.manifest import MANIFEST_NAME, TargetEntry
from translate_trt.runtime.errors import BundleError, TranslateTrtError
from translate_trt.runtime.version import version_numbers

#: The Python packages that make and run engines; their APIs agree.
PACKAGES = ("tensorrt", "tensorrt_rtx")

#: What the builder keeps of compatibility with other GPUs; the names of TensorRT's own levels.
HARDWARE_LEVELS = ("none", "same_compute_capability", "ampere_plus")

# Both ampere_plus and an engine of TensorRT-RTX without a list of its own begin here.
_AMPERE = (8, 0)

# CUdevice_attribute in cuda.h.
_MAJOR, _MINOR = 75, 76


@dataclass(frozen=True)
class Profile:
    """One bucket of shapes that an engine takes: everything up to `batch` x `source_length`.

    Attributes:
        batch: largest N.
        source_length: largest S, in tokens with the end symbol.
    """

    batch: int
    source_length: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.source_length}"

    def ranges(self) -> dict[str, tuple[int, int, int]]:
        """Smallest, optimal and largest size of each dynamic axis of the graphs.

        Every bucket reaches down to 1, so that the smallest bucket that holds a batch can run it.
        Kernels are tuned at the optimum: the full batch, which is what a bucket is chosen for, and
        half the length, as sentences are mostly far shorter than the longest.
        """
        return {
            "N": (1, self.batch, self.batch),
            "S": (1, (self.source_length + 1) // 2, self.source_length),
        }


@dataclass(frozen=True)
class EngineRecord:
    """What a manifest says of one engine: what it was made by, for and from.

    Attributes:
        package: that made it, one of `PACKAGES`.
        version: of that package.
        system: such as "linux-x86_64".
        compute_capabilities: of the GPUs it was made for, such as "8.6"; empty: TensorRT-RTX's
            portable engine, for all from 8.0 on.
        hardware_compatibility: one of `HARDWARE_LEVELS`.
        version_compatible: newer versions of the same major one load it too.
        weights_stripped: the weights must be put back from the ONNX file before it runs.
        profiles: by index of TensorRT's optimization profiles.
        layers: of the network that the builder was given, by TensorRT's name of their type.
        tensors: inputs and outputs: type and axes as the parser understood them.
        options: what else the builder was told, for people.
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

    def to_json(self) -> dict[str, Any]:
        """The same as values that JSON knows; `from_json` reads it back."""
        value = asdict(self)
        value["compute_capabilities"] = list(self.compute_capabilities)
        value["profiles"] = {str(i): asdict(profile) for i, profile in enumerate(self.profiles)}
        return value

    @classmethod
    def from_json(cls, fields: Fields) -> EngineRecord:
        """Read it from the object of an engine in a manifest.

        Raises:
            BundleError: a field is missing or of another type.
        """
        level = fields.text("hardware_compatibility")
        if level not in HARDWARE_LEVELS:
            fields.fail("hardware_compatibility", f"one of {', '.join(HARDWARE_LEVELS)}", level)
        package = fields.text("package")
        if package not in PACKAGES:
            fields.fail("package", f"one of {', '.join(PACKAGES)}", package)
        layers = fields.object("layers")
        return cls(
            package=package,
            version=fields.text("version"),
            system=fields.text("system"),
            compute_capabilities=tuple(fields.texts("compute_capabilities")),
            hardware_compatibility=level,
            version_compatible=fields.boolean("version_compatible"),
            weights_stripped=fields.boolean("weights_stripped"),
            profiles=tuple(
                Profile(one.integer("batch", 1), one.integer("source_length", 1))
                for _, one in fields.object("profiles").objects(at_least_one=True)
            ),
            layers={name: layers.integer(name, 0) for name in layers.values},
            tensors=fields.object("tensors").all_texts(),
            options=fields.object("options").all_texts(),
        )


@dataclass(frozen=True)
class Machine:
    """What an engine must fit.

    Attributes:
        version: of the installed package of the engines; None: not installed.
        system: as `EngineRecord.system`.
        gpu: compute capability of the GPU, such as "8.6"; None: no GPU or no driver.
    """

    version: str | None
    system: str
    gpu: str | None

    @classmethod
    def present(cls, package: str, device: int = 0) -> Machine:
        """This machine, for engines of that package on that GPU."""
        module = import_package(package, required=False)
        version = None if module is None else str(module.__version__)
        return cls(version, system_name(), compute_capability(device))


def system_name() -> str:
    """Operating system and processor, as engines are bound to them: "linux-x86_64"."""
    return f"{sys.platform}-{platform.machine().lower()}"


def compute_capability(device: int = 0, library: Any = None) -> str | None:
    """The GPU's compute capability, such as "8.6"; None without a GPU or its driver.

    The driver's own library is asked: it is there whenever a GPU can be used, and neither torch nor
    the CUDA toolkit nor its Python package need be installed.

    Args:
        device: index of the GPU among those visible.
        library: in place of the driver's, for tests.
    """
    try:
        cuda = library or ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    handle, value = ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(handle), device):
        return None
    numbers = []
    for attribute in (_MAJOR, _MINOR):
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle):
            return None
        numbers.append(value.value)
    return ".".join(map(str, numbers))


def check_engine(record: EngineRecord, machine: Machine, target: str, bundle: Path | str) -> None:
    """Refuse an engine that was made by another version or for another GPU.

    Args:
        record: the manifest's.
        machine: what it is to run on.
        target: name of the target, for the message.
        bundle: where the bundle is, for the message.

    Raises:
        BundleError: it cannot run here; the message names both sides and how to mend it.
    """
    rebuild = (
        f"Rebuild it: translate-trt export CHECKPOINT --target {target} --output {bundle} --force"
    )
    install = f"pip install 'translate-trt[{_extra(record.package)}]'"
    made = f"{bundle}: the engines of {target} were made by {record.package} {record.version}"
    if machine.version is None:
        raise BundleError(f"{made}, which is not installed. Install it: {install}")
    if not _version_fits(record, machine.version):
        raise BundleError(
            f"{made}; installed is {machine.version}, which does not load them. {rebuild}\n"
            f"Or install their version: pip install '{_extra(record.package)}=={record.version}'"
        )
    # An engine of TensorRT-RTX is finished on the machine that loads it, Windows or Linux alike.
    if record.package == "tensorrt" and machine.system != record.system:
        raise BundleError(f"{made} for {record.system}; this is {machine.system}. {rebuild}")
    if machine.gpu is None:
        raise BundleError(
            f"{bundle}: {target} needs an NVIDIA GPU and its driver, and none was found "
            "(nvidia-smi shows what the driver sees). Choose an onnx target to run on the CPU."
        )
    if not _gpu_fits(record, machine.gpu):
        raise BundleError(
            f"{made} for {_gpus(record)}; this GPU has compute capability {machine.gpu}. {rebuild}"
        )


def check_engines(entry: TargetEntry, bundle: Path, device: int = 0) -> dict[str, EngineRecord]:
    """Refuse the engines of a target that this machine cannot run.

    Args:
        entry: of the manifest, of a target with engines.
        bundle: where the bundle is.
        device: index of the GPU.

    Returns:
        What the manifest says of each, by role.

    Raises:
        BundleError: see `check_engine`; or the records are damaged.
    """
    records = Fields(entry.engine, bundle / MANIFEST_NAME, f"targets.{entry.name}.engine")
    found = {}
    for role, fields in records.objects(at_least_one=True):
        found[role] = record = EngineRecord.from_json(fields)
        check_engine(record, Machine.present(record.package, device), entry.name, bundle)
    return found


def _version_fits(record: EngineRecord, installed: str) -> bool:
    if not record.version_compatible:
        return installed == record.version
    made, here = version_numbers(record.version), version_numbers(installed)
    return made[:1] == here[:1] and here >= made


def _gpu_fits(record: EngineRecord, gpu: str) -> bool:
    if gpu in record.compute_capabilities:
        return True
    if record.hardware_compatibility == "ampere_plus" or not record.compute_capabilities:
        return version_numbers(gpu) >= _AMPERE
    return False


def _gpus(record: EngineRecord) -> str:
    if record.hardware_compatibility == "ampere_plus" or not record.compute_capabilities:
        return "compute capability 8.0 and later"
    return f"compute capability {', '.join(record.compute_capabilities)}"


def _extra(package: str) -> str:
    """The extra of translate-trt that installs it, which is also its name in the index."""
    return package.replace("_", "-")


def import_package(package: str, required: bool = True) -> ModuleType | None:
    """Import one of `PACKAGES`.

    Args:
        package: its name.
        required: raise if it is missing; otherwise None.

    Raises:
        TranslateTrtError: it is not installed, or is and does not load.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if not required:
            return None
        raise TranslateTrtError(
            f"{package} is not installed ({error}). "
            f"Install it: pip install 'translate-trt[{_extra(package)}]'"
        ) from error
    except (ImportError, OSError) as error:  # a library that it needs is missing
        raise TranslateTrtError(
            f"{package} is installed but does not load: {error}. "
            f"Install it again: pip install --force-reinstall 'translate-trt[{_extra(package)}]'"
        ) from error


def load_engine(
    path: Path, record: EngineRecord, weights: Path | None = None, trust_code: bool = False
) -> Any:
    """Deserialize an engine that `check_engine` has let pass.

    It needs a GPU and could be run without one only as far as the driver's refusal.

    Args:
        path: of the engine.
        record: the manifest's.
        weights: the ONNX file of the same graph, if the engine was stripped of its weights.
        trust_code: a version-compatible engine brings its own runtime, machine code that is
            executed; say True for a bundle from a source that you trust.

    Returns:
        The package's ICudaEngine.

    Raises:
        BundleError: it does not load; the message has TensorRT's own reasons.
        TranslateTrtError: the package is missing.
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
    """Put the weights of an ONNX file into an engine that was stripped of them.

    Refitting works on a deserialized engine and so needs a GPU; **it has never been run**, as
    there was none where it was written.

    Args:
        engine: ICudaEngine, changed in place.
        weights: the ONNX file that the engine was built from.
        package: that made the engine.

    Raises:
        BundleError: the file is not that of the engine, or does not parse.
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


@functools.cache
def logger(package: str) -> Any:
    """The one logger of that package in this process.

    TensorRT keeps the first logger that it is given and ignores all later ones; a build after the
    first one had been freed crashed (tensorrt_rtx 1.7.1). So there is one, and it is never freed.

    Returns:
        An ILogger with `lines`, `start()` and `reasons()`.
    """
    module: Any = import_package(package)

    class Logger(module.ILogger):  # type: ignore[misc]
        """Collects (severity, message) of one build or load at a time."""

        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.lines: list[tuple[str, str]] = []

        def start(self) -> None:
            self.lines = []

        def log(self, severity: Any, message: str) -> None:
            self.lines.append((severity.name, message))

        def reasons(self, last: int = 3) -> str:
            return _reasons(self.lines, last)

    return Logger()


def is_noise(message: str) -> bool:
    """True for what TensorRT reports besides every error on a machine without a GPU."""
    return "Thread context has not been set" in message or "catchCudaError" in message


def _reasons(lines: Sequence[tuple[str, str]], last: int) -> str:
    errors = [text.strip() for severity, text in lines if severity in ("ERROR", "INTERNAL_ERROR")]
    errors = [text for text in errors if not is_noise(text)]
    return " | ".join(dict.fromkeys(errors[-last:])) or "(no reason given)"
