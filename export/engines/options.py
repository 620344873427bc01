"""How engines are built: the options, and the buckets of shapes that they are tuned for."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from translate_trt.runtime.backends.engines import HARDWARE_LEVELS, Profile
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.runtime.errors import OptionError

PORTABLE, CURRENT = "portable", "current"


def default_cache() -> Path:
    """Where engines are kept between exports: the user's cache directory."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        # The XDG specification: a relative path in the variable is to be ignored.
        named = Path(os.environ.get("XDG_CACHE_HOME", ""))
        base = named if named.is_absolute() else Path.home() / ".cache"
    return base / "translate-trt" / "engines"


@dataclass(frozen=True)
class EngineOptions:
    """How to build engines.

    Raises:
        OptionError: a value is out of range; the message names the option.
    """

    # ---- shapes ----
    max_batch: int | None = None  # sentences; None: the largest of the profiles, or 64
    profiles: tuple[Profile, ...] = ()  # empty: one for a single sentence, one for max_batch

    # ---- speed ----
    optimization_level: int = 3  # 0 builds fastest, 5 searches longest for fast kernels
    tf32: bool = False  # 32-bit products with 10 bits of mantissa: faster, no longer exact
    workspace_mib: int | None = None  # scratch memory of the builder's kernels; None: all there is

    # ---- where the engines run ----
    version_compatible: bool = False  # newer TensorRT of the same major version loads them; slower
    hardware_compatible: str = "none"  # TensorRT: none | same_compute_capability | ampere_plus
    # TensorRT-RTX: "8.6", "8.9", ... or "current" or "portable" (8.0 and later). Empty: the GPU
    # that is here; without one, portable.
    compute_capabilities: tuple[str, ...] = ()
    strip_weights: bool = False  # small engines, whose weights are put back at load (needs a GPU)

    # ---- engines of earlier exports ----
    cache: Path | None = field(default_factory=default_cache)  # None: keep and reuse nothing

    def __post_init__(self) -> None:
        if self.max_batch is not None and self.max_batch < 1:
            raise OptionError(f"max_batch is {self.max_batch}; it must be at least 1.")
        for profile in self.profiles:
            if min(profile.batch, profile.source_length) < 1:
                raise OptionError(f"profile {profile}: batch and length must be at least 1.")
            if self.max_batch is not None and profile.batch > self.max_batch:
                raise OptionError(
                    f"profile {profile} is for more sentences than max_batch, {self.max_batch}; "
                    "raise max_batch or leave it out."
                )
        if len(set(self.profiles)) < len(self.profiles):
            raise OptionError(f"a profile is named twice in {','.join(map(str, self.profiles))}.")
        if not 0 <= self.optimization_level <= 5:
            raise OptionError(f"optimization_level is {self.optimization_level}; it goes 0 to 5.")
        if self.workspace_mib is not None and self.workspace_mib < 1:
            raise OptionError(f"workspace_mib is {self.workspace_mib}; it must be at least 1.")
        if self.hardware_compatible not in HARDWARE_LEVELS:
            raise OptionError(
                f"hardware_compatible is {self.hardware_compatible!r}; choose from "
                f"{', '.join(HARDWARE_LEVELS)}."
            )
        _check_capabilities(self.compute_capabilities)

    def buckets(self, limits: Limits) -> tuple[Profile, ...]:
        """The profiles to build, smallest first.

        Args:
            limits: of the bundle.

        Raises:
            OptionError: a profile is longer than the bundle's sentences, or none is as long.
        """
        longest = limits.max_source_length
        batch = self.max_batch or 64
        # Latency and throughput; kernels tuned for a full batch are slow on a single sentence.
        chosen = self.profiles or (Profile(1, longest), Profile(batch, longest))
        for profile in chosen:
            if profile.source_length > longest:
                raise OptionError(
                    f"profile {profile} is for longer sentences than the bundle, whose "
                    f"max_source_length is {longest}; raise that or shorten the profile."
                )
        if max(profile.source_length for profile in chosen) < longest:
            raise OptionError(
                f"no profile of {','.join(map(str, chosen))} takes a sentence of "
                f"max_source_length, {longest} tokens; add one, such as 1x{longest}."
            )
        return tuple(sorted(set(chosen), key=lambda one: (one.batch, one.source_length)))

    def check_package(self, package: str) -> None:
        """Refuse what only the other package has.

        Raises:
            OptionError: naming the option and what to use instead.
        """
        if package == "tensorrt" and self.compute_capabilities:
            raise OptionError(
                "compute_capabilities are chosen for tensorrt-rtx alone: tensorrt builds for the "
                "GPU that is here; use hardware_compatible for others."
            )
        if package == "tensorrt_rtx" and self.hardware_compatible != "none":
            raise OptionError(
                "hardware_compatible is for tensorrt alone; with tensorrt-rtx choose "
                f"compute_capabilities, or {PORTABLE!r} for 8.0 and later."
            )
        if package == "tensorrt_rtx" and self.version_compatible:
            # libnvinfer_lean is missing in the package (1.7.1); without it the build fails.
            raise OptionError(
                "version_compatible is for tensorrt alone: the package tensorrt-rtx lacks the lean "
                "runtime that such engines load with. Rebuild them after an upgrade."
            )


def _check_capabilities(capabilities: tuple[str, ...]) -> None:
    for name in capabilities:
        if name in (PORTABLE, CURRENT):
            if len(capabilities) > 1:
                raise OptionError(f"the compute capability {name!r} stands alone or not at all.")
        elif not re.fullmatch(r"[1-9]\d*\.\d", name):
            raise OptionError(
                f"{name!r} is no compute capability; write it as 8.6, or {CURRENT} or {PORTABLE}."
            )
    if len(set(capabilities)) < len(capabilities):
        raise OptionError(f"a compute capability is named twice in {', '.join(capabilities)}.")


def parse_profiles(text: str) -> tuple[Profile, ...]:
    """Read what `--profiles` takes: "1x64,8x64,64x256", batch x source length each.

    Raises:
        OptionError: it is written otherwise.
    """
    profiles = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*[xX]\s*(\d{1,9})\s*", part)
        if match is None:
            raise OptionError(
                f"{part.strip()!r} is no profile; write batch x source length, such as 1x64,8x64."
            )
        profiles.append(Profile(int(match[1]), int(match[2])))
    return tuple(profiles)
