"""Warps, bytes and the shortest time of a launch on a GPU: computed, not measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from translate_trt.runtime.gpu.cubins import Cubin
from translate_trt.runtime.gpu.launch import Launch


@dataclass(frozen=True)
class Gpu:
    """Data sheet of a GPU.

    Attributes:
        name: Name.
        architecture: Compute capability, times ten.
        bandwidth: Bytes per second of the DRAM.
        peak: Operations per second of FP16 matmuls with FP32 accumulation, without sparsity.
        source: Source of both.
    """

    name: str
    architecture: int
    bandwidth: float
    peak: float
    source: str


GPUS = (
    Gpu("RTX 4090", 89, 1.008e12, 165.2e12, "NVIDIA Ada GPU Architecture 2.02, appendix A"),
    Gpu("A100", 80, 2.039e12, 312e12, "NVIDIA A100 data sheet, SXM with 80 GB"),
    Gpu("H100", 90, 3.35e12, 989.4e12, "NVIDIA H100 data sheet, SXM"),
    Gpu("H200", 90, 4.8e12, 989.4e12, "NVIDIA H200 data sheet, SXM"),
    Gpu("B200", 100, 8e12, 2250e12, "DGX B200 data sheet: 64 TB/s, 36e15 sparse, of 8 GPUs"),
)


@dataclass(frozen=True)
class Progress:
    """State of a search on average over its sentences, which decides what attention reads.

    Attributes:
        position: Tokens of each beam.
        live_slots: Cache slots of a position that are in the past of any beam.
        source_tokens: Tokens of a source, without padding.
    """

    position: int
    live_slots: float
    source_tokens: int


def _cached_attention(launch: Launch, progress: Progress) -> dict[str, float]:
    tensors = launch.tensors
    n, k, slots = tensors["ancestry"].shape
    _, h, _, d = tensors["past_key"].shape
    read = min(progress.position * k, slots)
    # Live slots are read; those of this step are written.
    elements = n * h * (progress.position * progress.live_slots + k) * d
    return {"past_key": elements, "past_value": elements, "ancestry": n * k * read}


def _beam_attention(launch: Launch, progress: Progress) -> dict[str, float]:
    n, h, _, d = launch.tensors["key"].shape
    elements = n * h * progress.source_tokens * d
    return {"key": elements, "value": elements}


def _embed(launch: Launch, progress: Progress) -> dict[str, float]:
    tensors, width = launch.tensors, launch.constants["WIDTH"]
    return {
        "table": tensors["tokens"].numel() * width,
        "position_table": tensors["positions"].numel() * width,
    }


def _select_logits(launch: Launch, progress: Progress) -> dict[str, float]:
    rows, _ = launch.tensors["group_maxima"].shape
    return {"logits": rows * (launch.constants["C"] * launch.constants["GROUP"] + 1)}


#: Elements that kernels read or write of a tensor, by kernel, where they do not access all.
_PARTS: dict[str, Callable[[Launch, Progress], dict[str, float]]] = {
    "cached_attention_kernel": _cached_attention,
    "beam_attention_kernel": _beam_attention,
    "embed_kernel": _embed,
    "select_logits": _select_logits,
}


def bytes_of(launch: Launch, progress: Progress) -> float:
    """Return the bytes that a kernel has to read from and write to the DRAM, each once.

    A tensor that is passed for several parameters counts for the first, as those of absent inputs
    are.
    """
    parts = _PARTS.get(launch.kernel.__name__)
    elements = {} if parts is None else parts(launch, progress)
    accessed: dict[int, float] = {}
    for name, tensor in launch.tensors.items():
        count = elements.get(name, tensor.numel())
        accessed.setdefault(id(tensor), count * tensor.element_size())
    return sum(accessed.values())


def seconds(gpu: Gpu, size: float, operations: float = 0, floor: float = 0) -> float:
    """Return the shortest time of a launch.

    Args:
        gpu: The GPU.
        size: Bytes.
        operations: Multiplications and additions of a matmul.
        floor: Seconds of a launch that does nothing.
    """
    return max(size / gpu.bandwidth, operations / gpu.peak, floor)


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of a multiprocessor.

    Attributes:
        programs: Resident programs (CUDA's thread blocks).
        warps: Resident warps.
        shared: Shared memory in bytes.
    """

    programs: int
    warps: int
    shared: int


#: Limits by compute capability, times ten: tables of the CUDA programming guide, "Features and
#: technical specifications".
MULTIPROCESSORS = {
    80: Multiprocessor(32, 64, 164 << 10),
    86: Multiprocessor(16, 48, 100 << 10),
    89: Multiprocessor(24, 48, 100 << 10),
    90: Multiprocessor(32, 64, 228 << 10),
    100: Multiprocessor(32, 64, 228 << 10),
    103: Multiprocessor(32, 64, 228 << 10),
    120: Multiprocessor(24, 48, 100 << 10),
    121: Multiprocessor(24, 48, 100 << 10),
}

# The same for all of them, from the same tables and from the occupancy calculator of the CUDA
# toolkit (cuda_occupancy.h): registers of a quarter of a multiprocessor, which are allocated by
# warp; shared memory that the system takes of a program, and its unit, in bytes.
_QUARTER_REGISTERS = 16384
_REGISTER_UNIT = 256
_SYSTEM_SHARED = 1024
_SHARED_UNIT = 128


def programs_of(cubin: Cubin) -> int:
    """Return the number of programs that are resident on a multiprocessor at a time."""
    limits, warps = MULTIPROCESSORS[cubin.architecture], cubin.threads // 32
    of_warp = _round_up(32 * cubin.registers, _REGISTER_UNIT)
    by_registers = 4 * (_QUARTER_REGISTERS // of_warp) // warps
    of_program = _round_up(cubin.shared + _SYSTEM_SHARED, _SHARED_UNIT)
    return min(limits.programs, limits.warps // warps, by_registers, limits.shared // of_program)


def warps_of(cubin: Cubin) -> int:
    """Return the number of warps that are resident on a multiprocessor at a time."""
    return programs_of(cubin) * cubin.threads // 32


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
