"""Bytes of a launch, and the shortest time that they take on a GPU: computed, not measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
