"""Options of engine builds, and the buckets of shapes that engines are tuned for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from translate_trt.runtime.backends.engines import HARDWARE_LEVELS, ChangeSizes, Profile
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.interface.search_options import MAX_SUPPRESSED, MAX_TOP_K
from translate_trt.runtime.io.cache_files import engine_directory
from translate_trt.runtime.sampling import TOKENS_PER_TAIL_TOKEN

PORTABLE, CURRENT = "portable", "current"

# Translations of most sentences fit the first or second of these numbers of tokens.
_TARGET_LENGTHS = (32, 64, 128)

# Different tokens U of the constraints of a sentence that a step takes, which compares
# K (2K + U + 1) candidates with each other.
_CONSTRAINT_TOKENS = 64

# Largest K of TensorRT's TopK (TensorRT operator reference, TopK).
_MOST_TOP_K = 3_840


@dataclass(frozen=True)
class EngineOptions:
    """Options of engine builds.

    Raises:
        OptionError: A value is out of range; the message names the option.
    """

    # ---- shapes ----
    max_batch: int | None = None  # sentences; None for the largest profile, or 64
    profiles: tuple[Profile, ...] = ()  # empty for two profiles: 1 and max_batch sentences
    # Translation lengths in tokens, each of which gives a number of cache slots that steps read;
    # max_target_length is always added. Empty for 32, 64 and 128.
    target_lengths: tuple[int, ...] = ()

    # ---- speed ----
    optimization_level: int = 3  # 0 builds fastest, 5 searches longest for fast kernels
    tf32: bool = False  # FP32 matmuls with 10 bits of mantissa: faster, less accurate
    workspace_mib: int | None = None  # workspace of kernels; None for all GPU memory

    # ---- where the engines run ----
    version_compatible: bool = False  # loadable by later TensorRT of the same major version; slower
    hardware_compatible: str = "none"  # TensorRT: none | same_compute_capability | ampere_plus
    # TensorRT-RTX: "8.6", "8.9", ... or "current" or "portable" (all that the package supports but
    # 7.5). Empty for the current GPU or, without a GPU, portable.
    compute_capabilities: tuple[str, ...] = ()
    strip_weights: bool = False  # small engines, refitted with weights at load (needs a GPU)

    # ---- engine cache ----
    cache: Path | None = field(default_factory=engine_directory)  # None for no cache

    def __post_init__(self) -> None:
        if self.max_batch is not None and self.max_batch < 1:
            raise OptionError(f"max_batch is {self.max_batch}; it must be at least 1.")
        for profile in self.profiles:
            if min(profile.batch, profile.source_length) < 1:
                raise OptionError(f"profile {profile}: batch and length must be at least 1.")
            if self.max_batch is not None and profile.batch > self.max_batch:
                raise OptionError(
                    f"profile {profile} has more sentences than max_batch, {self.max_batch}; "
                    "raise max_batch or omit it."
                )
        largest = max((profile.batch for profile in self.profiles), default=self.max_batch)
        if self.max_batch != largest and self.max_batch is not None:
            raise OptionError(
                f"max_batch is {self.max_batch}, and no profile has as many sentences; add one, or "
                "omit max_batch."
            )
        for length in self.target_lengths:
            if length < 1:
                raise OptionError(f"target_lengths has {length}; a length must be at least 1.")
        if len(set(self.target_lengths)) < len(self.target_lengths):
            lengths = ",".join(map(str, self.target_lengths))
            raise OptionError(f"target_lengths contains duplicates: {lengths}.")
        if len(set(self.profiles)) < len(self.profiles):
            raise OptionError(f"profiles contain duplicates: {','.join(map(str, self.profiles))}.")
        if not 0 <= self.optimization_level <= 5:
            raise OptionError(
                f"optimization_level is {self.optimization_level}; it must be from 0 to 5."
            )
        if self.workspace_mib is not None and self.workspace_mib < 1:
            raise OptionError(f"workspace_mib is {self.workspace_mib}; it must be at least 1.")
        if self.hardware_compatible not in HARDWARE_LEVELS:
            raise OptionError(
                f"hardware_compatible is {self.hardware_compatible!r}; choose from "
                f"{', '.join(HARDWARE_LEVELS)}."
            )
        _check_capabilities(self.compute_capabilities)

    def encoder_profiles(self, limits: Limits) -> tuple[Profile, ...]:
        """Return the profiles of the encoder, smallest first.

        Args:
            limits: Limits of the bundle.

        Raises:
            OptionError: A profile exceeds max_source_length, or none reaches it.
        """
        longest = limits.max_source_length
        batch = self.max_batch or 64
        # For latency and throughput: kernels tuned for a full batch are slow on a single sentence.
        chosen = self.profiles or (Profile(1, longest), Profile(batch, longest))
        for profile in chosen:
            if profile.source_length > longest:
                raise OptionError(
                    f"profile {profile} has longer sources than max_source_length, {longest}; "
                    "raise max_source_length or shorten the profile."
                )
        if max(profile.source_length for profile in chosen) < longest:
            raise OptionError(
                f"none of the profiles {','.join(map(str, chosen))} supports max_source_length, "
                f"{longest} tokens; add a profile such as 1x{longest}."
            )
        return tuple(sorted(set(chosen), key=lambda p: (p.batch, p.source_length)))

    def step_profiles(
        self,
        limits: Limits,
        beams: int,
        caches: bool = True,
        changes: ChangeSizes | None = None,
    ) -> tuple[Profile, ...]:
        """Return the profiles of the step: each of the encoder's with each number of cache slots.

        Args:
            limits: Limits of the bundle.
            beams: Beam size, which is the number of cache slots per token.
            caches: Whether the model has caches; a recurrent one has not, and 0 slots.
            changes: Largest sizes of the inputs of rules 13 to 15, if the step has these: then all
                profiles without them are followed by all profiles with them.

        Raises:
            OptionError: See `encoder_profiles`, or a target length exceeds max_target_length.
        """
        longest = limits.max_target_length
        for length in self.target_lengths:
            if length > longest:
                raise OptionError(
                    f"target_lengths has {length}, more than max_target_length, {longest}; raise "
                    "max_target_length or remove that length."
                )
        lengths = {x for x in self.target_lengths or _TARGET_LENGTHS if x < longest} | {longest}
        if not caches:
            lengths = {0}
        profiles = tuple(
            replace(profile, slots=beams * length)
            for profile in self.encoder_profiles(limits)
            for length in sorted(lengths)
        )
        if changes is None:
            return profiles
        return (*profiles, *(replace(profile, changes=changes) for profile in profiles))

    def check_package(self, package: str) -> None:
        """Refuse options that only the other package supports.

        Raises:
            OptionError: An option is not supported; the message names an alternative.
        """
        if package == "tensorrt" and self.compute_capabilities:
            raise OptionError(
                "compute_capabilities is only for tensorrt-rtx: tensorrt builds for the GPU of "
                "this machine; use hardware_compatible for other GPUs."
            )
        if package == "tensorrt_rtx" and self.hardware_compatible != "none":
            raise OptionError(
                "hardware_compatible is only for tensorrt; with tensorrt-rtx use "
                f"compute_capabilities, or {PORTABLE!r} for all that it supports but 7.5."
            )
        if package == "tensorrt_rtx" and self.version_compatible:
            # The package (1.7.1) lacks libnvinfer_lean, without which the build fails.
            raise OptionError(
                "version_compatible is only for tensorrt: the package tensorrt-rtx lacks the lean "
                "runtime that loads such engines. Rebuild engines after an upgrade."
            )


def _check_capabilities(capabilities: tuple[str, ...]) -> None:
    for name in capabilities:
        if name in (PORTABLE, CURRENT):
            if len(capabilities) > 1:
                raise OptionError(
                    f"the compute capability {name!r} cannot be combined with others."
                )
        elif not re.fullmatch(r"[1-9]\d*\.\d", name):
            raise OptionError(
                f"{name!r} is not a compute capability; write 8.6, {CURRENT} or {PORTABLE}."
            )
    if len(set(capabilities)) < len(capabilities):
        raise OptionError(f"compute_capabilities contains duplicates: {', '.join(capabilities)}.")


def change_sizes(limits: Limits, beams: int, vocabulary_size: int) -> ChangeSizes:
    """Return sizes that hold the inputs of rules 13 to 15 of a search, within TensorRT's limits.

    Only searches with one beam draw samples, and only others have constraints. A beam's marked
    tokens are among those of its hypothesis, those that end suppressed sequences, the unknown and
    the end symbol.

    Args:
        limits: Limits of the bundle.
        beams: Beam size K.
        vocabulary_size: Number of tokens V.
    """
    ranks = tail = constrained = 0
    if beams == 1:
        ranks, tail = MAX_TOP_K, _rounded(math.ceil(vocabulary_size / TOKENS_PER_TAIL_TOKEN))
    else:  # a step divides K (2K + U + 1) candidates
        most = _MOST_TOP_K // beams - 2 * beams - 1
        constrained = max(0, min(_CONSTRAINT_TOKENS, most // 8 * 8))
    marked = _rounded(limits.max_target_length + MAX_SUPPRESSED + 2)
    # It selects 2K + 1 + B + R + U candidates of a beam.
    most = _MOST_TOP_K - (2 * beams + 1 + ranks + constrained)
    return ChangeSizes(min(marked, most // 8 * 8), ranks, tail, constrained)


def _rounded(size: int) -> int:
    """Round up as the runtime does (`rounded_count` of backend.h)."""
    return math.ceil(size / 8) * 8


def parse_lengths(text: str) -> tuple[int, ...]:
    """Parse the value of --target-lengths, such as "32,64,128".

    Raises:
        OptionError: The text is malformed.
    """
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not re.fullmatch(r"\d{1,9}", part):
            raise OptionError(
                f"{part!r} is not a length in tokens; write numbers, as in 32,64,128."
            )
    return tuple(int(part) for part in parts)


def parse_profiles(text: str) -> tuple[Profile, ...]:
    """Parse the value of --profiles, such as "1x64,8x64": batch x source length.

    Raises:
        OptionError: The text is malformed.
    """
    profiles = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*[xX]\s*(\d{1,9})\s*", part)
        if match is None:
            raise OptionError(
                f"{part.strip()!r} is not a profile; write batch x source length, as in 1x64,8x64."
            )
        profiles.append(Profile(int(match[1]), int(match[2])))
    return tuple(profiles)
