"""Options of engine builds, and the buckets of shapes that engines are tuned for."""

from __future__ import annotations

import importlib.util
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
from translate_trt.runtime.settings import check_settings, setting

PORTABLE, CURRENT = "portable", "current"

# Translations of most sentences fit the first or second of these numbers of tokens.
_TARGET_LENGTHS = (32, 64, 128)

# Different tokens U of the constraints of a sentence that a step takes, which compares
# K (2K + U + 1) candidates with each other.
_CONSTRAINT_TOKENS = 64

# Largest K of TensorRT's TopK (TensorRT operator reference, TopK).
_MOST_TOP_K = 3_840


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


@dataclass(frozen=True)
class EngineOptions:
    """Options of engine builds.

    Raises:
        OptionError: A value is out of range; the message names the option.
    """

    # ---- shapes ----
    max_batch: int | None = setting(
        None, "Engines, torch, cuda: largest batch. Default: that of --profiles, or 64.", least=1
    )
    profiles: tuple[Profile, ...] = setting(
        (), "Engines: buckets of batch x source length that kernels are tuned for, such as "
        "1x64,8x64,64x256. Default: one sentence, and --max-batch sentences.",
        parse=parse_profiles,
    )  # fmt: skip
    target_lengths: tuple[int, ...] = setting(
        (), "Engines, torch, cuda: translation lengths in tokens. A step reads as many cache "
        "slots as the smallest that holds its batch. Default: 32,64,128; --max-target-length is "
        "always added.", least=1, parse=parse_lengths,
    )  # fmt: skip

    # ---- speed ----
    optimization_level: int = setting(
        3, "Engines: from 0, the fastest build, to 5, the longest search for fast kernels.",
        least=0, most=5,
    )  # fmt: skip
    tf32: bool = setting(False, "Engines: allow TF32 in fp32 matmuls (10 bits).")
    workspace_mib: int | None = setting(
        None, "Engines: limit of the workspace of kernels. Default: all GPU memory.", least=1
    )
    plugins: bool = setting(
        False, "TensorRT engines: attention, norms and the search of a step run the kernels of "
        "cuda targets, as ahead-of-time plugins; needs Triton. Never run yet.",
    )  # fmt: skip

    # ---- where the engines run ----
    version_compatible: bool = setting(
        False, "TensorRT engines: loadable by newer TensorRT versions of the same major version; "
        "slower.",
    )  # fmt: skip
    hardware_compatible: str = setting(
        "none", f"TensorRT engines: {', '.join(HARDWARE_LEVELS)}.", tuple(HARDWARE_LEVELS)
    )
    compute_capabilities: tuple[str, ...] = setting(
        (), f"TensorRT-RTX engines, cuda: GPUs to build for, as 8.9, or {CURRENT} or {PORTABLE} "
        "(all that the package supports but 7.5); may be given several times. Default: the GPU of "
        f"this machine, or {PORTABLE} if it has none; cuda: {PORTABLE}.",
        flag="--compute-capability",
    )  # fmt: skip
    strip_weights: bool = setting(
        False, "Engines: leave out the weights, which the loader restores from the graph (needs a "
        "GPU).",
    )  # fmt: skip

    # ---- engine cache ----
    cache: Path | None = field(default_factory=engine_directory)  # None for no cache

    def __post_init__(self) -> None:
        check_settings(self)
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
        if self.plugins and (self.strip_weights or self.version_compatible):
            raise OptionError(
                "plugins go neither with strip_weights nor with version_compatible; omit one."
            )
        for name in ("target_lengths", "profiles", "compute_capabilities"):
            given = getattr(self, name)
            if len(set(given)) < len(given):
                raise OptionError(f"{name} contain duplicates: {','.join(map(str, given))}.")
        for capability in self.compute_capabilities:
            if capability in (PORTABLE, CURRENT) and len(self.compute_capabilities) > 1:
                raise OptionError(
                    f"the compute capability {capability!r} cannot be combined with others."
                )
            if not re.fullmatch(rf"{PORTABLE}|{CURRENT}|[1-9]\d*\.\d", capability):
                raise OptionError(
                    f"{capability!r} is not a compute capability; write 8.6, {CURRENT} or "
                    f"{PORTABLE}."
                )

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
        if self.plugins:
            check_triton("plugins")
        if package == "tensorrt_rtx" and self.plugins:
            # Its parser takes plugins of IPluginCreatorV3One alone, which are no kernels.
            raise OptionError(
                "plugins is only for tensorrt: TensorRT-RTX has no ahead-of-time plugins. Choose a "
                "tensorrt target, or a cuda target, which runs the same kernels without TensorRT."
            )
        if package == "tensorrt_rtx" and self.version_compatible:
            # The package (1.7.1) lacks libnvinfer_lean, without which the build fails.
            raise OptionError(
                "version_compatible is only for tensorrt: the package tensorrt-rtx lacks the lean "
                "runtime that loads such engines. Rebuild engines after an upgrade."
            )


def check_triton(what: str) -> None:
    """Check that kernels can be compiled.

    Raises:
        OptionError: Triton is not installed.
    """
    if importlib.util.find_spec("triton") is None:
        raise OptionError(
            f"{what} needs Triton, which compiles its kernels, on the machine that exports: "
            "pip install triton (Linux on x86-64)"
        )


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
