"""Packages that build and run engines, and the GPUs that each of them supports.

`SUPPORT` is the only table of packages and compute capabilities in this repository. gpu_package.py
prints it, and the package for a GPU.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Collection
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from translate_trt.runtime.backends.nvidia_driver import driver_version
from translate_trt.runtime.errors import BackendError, TranslateTrtError
from translate_trt.runtime.version import version_numbers


@dataclass(frozen=True)
class Support:
    """GPUs that a package supports.

    Attributes:
        title: Name in messages and documents.
        since: First version of the package that this table applies to.
        capabilities: Supported compute capabilities.
        later: Also supports later compute capabilities, through PTX kernels.
    """

    title: str
    since: str
    capabilities: tuple[str, ...]
    later: bool = False


#: Support by package, in the order of preference; the packages have the same API.
#:
#: TensorRT-RTX: the members of its ComputeCapability (1.6 and 1.7 have the same ones). NVIDIA's
#: support matrix lists all of them but 8.0, which is the enumeration's and the documentation's
#: ("CPU-Only AOT and TensorRT-RTX Engines"). TensorRT: builder resources of its packages (sm75 to
#: sm120, and PTX), and its release notes for 10.3 (11.5) and 12.1 (11.1).
SUPPORT: dict[str, Support] = {
    "tensorrt_rtx": Support("TensorRT-RTX", "1.7", ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")),
    "tensorrt": Support(
        "TensorRT",
        "10.15",
        ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"),
        later=True,
    ),
}

#: Names of the packages.
PACKAGES = ("tensorrt", "tensorrt_rtx")

#: Backend that runs graphs by PyTorch. Its records name it as their package; no engine is built.
TORCH = "torch"

#: Backend that runs plans by the CUDA driver alone, and the version of their format, which their
#: records name as that of the package.
CUDA = "cuda"
PLAN_FORMAT = 1

#: Compute capabilities that kernels of plans are compiled for.
CUBINS = ("8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1")

# From here on, a cubin runs on GPUs of its capability alone.
_SINGLE_CUBINS = (9, 0)

# From Hopper on, kernels of plans are the default where no package for engines is installed.
_FIRST_OF_PLANS = (9, 0)

# Turing's tensor cores multiply FP16 only: TensorRT-RTX refuses FP32 matmuls there, and bfloat16
# needs 8.0.
_TURING = "7.5"
_TURING_PRECISIONS = {"tensorrt_rtx": ("fp16",), "tensorrt": ("fp32", "fp16")}

# Oldest driver of a CUDA version, from the release notes of the CUDA toolkit (minor version
# compatibility, Linux). PyPI has builds of both packages for these versions.
_DRIVERS = {12: "525.60.13", 13: "580"}


def extra(package: str) -> str:
    """Name of a package on PyPI, of the pip extra that installs it, and of its targets."""
    return package.replace("_", "-")


def install_command(package: str, *others: str) -> str:
    """Return the command that installs a package, and other extras."""
    return f"pip install 'translate-trt[{','.join((*others, extra(package)))}]'"


def capabilities(package: str, module: Any = None) -> tuple[str, ...]:
    """Return the compute capabilities that a package supports.

    Args:
        package: Name of the package.
        module: The imported package, whose own list replaces the table's if it has one.
    """
    members = getattr(module, "ComputeCapability", None)
    if members is None:
        return SUPPORT[package].capabilities
    names = (name.removeprefix("SM") for name in members.__members__ if name.startswith("SM"))
    return tuple(f"{name[:-1]}.{name[-1]}" for name in names)


def portable_capabilities(module: Any = None) -> tuple[str, ...]:
    """Return the compute capabilities of a portable TensorRT-RTX engine.

    These are all that the package supports, except Turing.
    """
    return tuple(name for name in capabilities("tensorrt_rtx", module) if name != _TURING)


def supports(package: str, capability: str, module: Any = None) -> bool:
    """Return whether a package supports GPUs of a compute capability (see `capabilities`)."""
    known = capabilities(package, module)
    later = SUPPORT[package].later and version_numbers(capability) >= version_numbers(known[0])
    return later or capability in known


def precisions(package: str, capability: str) -> tuple[str, ...]:
    """Return the precisions that a package supports on a compute capability, best first."""
    if capability == _TURING:
        return _TURING_PRECISIONS[package]
    return ("fp16", "bf16", "fp32")


def package_for(capability: str, installed: Collection[str] | None = None) -> str | None:
    """Return the package to use on GPUs of a compute capability, or `CUDA`; None if there is none.

    Args:
        capability: Compute capability.
        installed: Installed packages; None: those of this machine.
    """
    if installed is None:
        installed = [one for one in PACKAGES if importlib.util.find_spec(one) is not None]
    found = [package for package in SUPPORT if supports(package, capability)]
    newer = version_numbers(capability) >= _FIRST_OF_PLANS
    if newer and cubin_for(capability) is not None and not {*installed}.intersection(found):
        return CUDA
    return next(iter(found), None)


def cubin_for(capability: str, compiled: Collection[str] = CUBINS) -> str | None:
    """Return the compute capability whose cubins run on GPUs of another one; None if none does.

    A cubin runs on GPUs of the same major capability and any later minor one; from 9.0 on, Triton
    makes them for one capability alone (`sm_90a`).
    """
    wanted = version_numbers(capability)
    if wanted >= _SINGLE_CUBINS:
        return capability if capability in compiled else None
    fitting = [
        name
        for name in compiled
        if version_numbers(name)[:1] == wanted[:1] and version_numbers(name) <= wanted
    ]
    return max(fitting, key=version_numbers, default=None)


def target_for(target: str, package: str, other: str) -> str:
    """Return the name of the same target of another package."""
    return extra(other) + target.removeprefix(extra(package))


def unsupported(target: str, package: str, gpu: str, capability: str, module: Any = None) -> str:
    """Return the message for a GPU that a target's package does not support.

    Args:
        target: Name of the target.
        package: Package of the target.
        gpu: Description of the GPU.
        capability: Compute capability of the GPU.
        module: The imported package, if it is installed.
    """
    version = getattr(module, "__version__", None)
    title = SUPPORT[package].title + (f" {version}" if version else "")
    reason = (
        f"{title} does not support {gpu}; it supports compute capability "
        f"{', '.join(capabilities(package, module))}."
    )
    other = package_for(capability)
    if other is None:
        return (
            f"{target}: {reason} For this GPU, use a torch target, such as torch-fp16: "
            "pip install 'translate-trt[torch,export]'"
        )
    return (
        f"{target}: {reason} For this GPU, use the target {target_for(target, package, other)}: "
        f"{install_command(other, 'cpu', 'export')}"
    )


def import_package(package: str, required: bool = True) -> ModuleType | None:
    """Import one of `PACKAGES`.

    Args:
        package: Name of the package.
        required: Raise if the package is missing; otherwise return None.

    Raises:
        TranslateTrtError: The package is required but not installed, or does not load.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if not required:
            return None
        raise TranslateTrtError(
            f"{package} is not installed ({error}). Install it: {install_command(package)}"
        ) from error
    except (ImportError, OSError) as error:  # a shared library is missing
        raise TranslateTrtError(
            f"{package} is installed but does not load: {error}. "
            f"Install it again: pip install --force-reinstall 'translate-trt[{extra(package)}]'"
        ) from error


def check_driver(package: str) -> None:
    """Refuse a driver that is older than the CUDA version of the installed package.

    Without this check, TensorRT fails with messages that name no remedy.

    Raises:
        BackendError: The driver is too old; the message names the build for it.
    """
    driver = driver_version()
    if driver is None:
        return  # whoever needs the GPU reports that there is none
    (supported, *_) = version_numbers(driver)
    needed = _installed_build(package)
    if needed is None or needed <= supported:
        return
    name = f"{extra(package)}-cu{needed}"
    remedy = f"Update the driver (to {_DRIVERS.get(needed, 'a newer one')} or newer)"
    if supported in _DRIVERS:
        remedy += (
            f", or install the build for CUDA {supported}: pip uninstall -y {extra(package)} "
            f"{name}; pip install {extra(package)}-cu{supported}"
        )
    raise BackendError(
        f"the driver supports CUDA {driver}, and {name} needs CUDA {needed}. {remedy}"
    )


def _installed_build(package: str) -> int | None:
    """Return the newest major CUDA version of the installed builds; None if there are none."""
    builds = (cuda for cuda in range(19, 11, -1) if _installed(f"{extra(package)}-cu{cuda}"))
    return next(builds, None)


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
