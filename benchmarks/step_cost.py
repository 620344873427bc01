"""Bytes, launches and time of a decoding step, computed from the execution plan of its engine.

Bytes of a kernel are those of the tensors that it reads and writes, each once. Of a tensor that is
updated in place, or read by a kernel without a reduction, no more elements count than the grid
covers: such a kernel reads one element of a tensor for each element that it computes. Of a cache
that a kernel slices, only the live slots count.

The time of a kernel is the longest of: the launch floor, its bytes at the GPU's memory bandwidth,
and, for a GEMM, its operations at the peak of the tensor cores. The sum is an estimate from below:
intermediate tensors may stay in the L2 cache, but no kernel reaches every peak, and address
patterns are not considered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from translate_trt.export.engines.plan import Kernel, Plan, Tensor

CACHES = ("self_key_", "self_value_", "cross_key_", "cross_value_",
          "next_self_key_", "next_self_value_")  # fmt: skip


@dataclass(frozen=True)
class Gpu:
    """Peaks of a GPU, from NVIDIA's data sheets.

    Attributes:
        name: Name of the GPU.
        bandwidth: Memory bandwidth in bytes per second.
        operations: Dense FP16 operations of the tensor cores per second, accumulated in FP32.
        source: Document.
    """

    name: str
    bandwidth: float
    operations: float
    source: str


GPUS = (
    Gpu("RTX 4090", 1.008e12, 165.2e12, "NVIDIA Ada GPU Architecture, version 2.02, appendix A"),
    Gpu("H100 SXM", 3.35e12, 989.4e12, "NVIDIA H100 Tensor Core GPU datasheet"),
    Gpu(
        "B200", 8.0e12, 2250e12, "NVIDIA DGX B200 datasheet: 64 TB/s and 36 PFLOPS sparse of 8 GPUs"
    ),
)

# Operations that read many elements for each one that they write.
_REDUCTIONS = frozenset({"Sum", "Maxr", "Mean", "Topk"})

#: Assumed least time from one kernel of a CUDA graph to the next that depends on it. NVIDIA's
#: "Getting Started with CUDA Graphs" measures 3.4 us per kernel of 2.9 us on a V100; the shortest
#: kernels take about 2 us there and later.
LAUNCH_SECONDS = 2.5e-6


@dataclass(frozen=True)
class Shapes:
    """Shapes of a step.

    Attributes:
        capacity: Slots of a cache.
        live: Slots that attention reads.
    """

    capacity: int
    live: int


@dataclass(frozen=True)
class Cost:
    """Cost of a kernel.

    Attributes:
        caches: Bytes of keys and values, and of copies of them.
        weights: Bytes of weights and constants.
        rest: Other bytes.
        operations: Operations of a GEMM.
    """

    caches: float
    weights: float
    rest: float
    operations: float = 0.0

    @property
    def bytes(self) -> float:
        """All bytes."""
        return self.caches + self.weights + self.rest

    def seconds(self, gpu: Gpu) -> float:
        """Return the least time on a GPU."""
        return max(LAUNCH_SECONDS, self.bytes / gpu.bandwidth, self.operations / gpu.operations)


def costs(plan: Plan, shapes: Shapes) -> list[Cost]:
    """Return the cost of each kernel of a plan with static shapes.

    Raises:
        ValueError: A tensor has a size that is known only at run time.
    """
    copied: set[str] = set()  # copies of caches, which later kernels read
    found = []
    for kernel in plan.kernels:
        if kernel.is_copy and any(_is_cache(tensor, copied) for tensor in kernel.inputs):
            copied |= {tensor.base for tensor in kernel.outputs}
        found.append(_cost(kernel, shapes, copied))
    return found


def total(given: Sequence[Cost]) -> Cost:
    """Return the sum of costs."""
    return Cost(
        sum(cost.caches for cost in given),
        sum(cost.weights for cost in given),
        sum(cost.rest for cost in given),
        sum(cost.operations for cost in given),
    )


def seconds(given: Sequence[Cost], gpu: Gpu) -> float:
    """Return the least time of a step: that of all kernels, one after another."""
    return sum(cost.seconds(gpu) for cost in given)


def _is_cache(tensor: Tensor, copied: set[str]) -> bool:
    return tensor.base.startswith(CACHES) or tensor.base in copied


def _cost(kernel: Kernel, shapes: Shapes, copied: set[str]) -> Cost:
    updated = {tensor.name for tensor in kernel.inputs} & {tensor.name for tensor in kernel.outputs}
    tensors = {tensor.name: tensor for tensor in (*kernel.inputs, *kernel.outputs)}
    caches = weights = rest = 0.0
    for tensor in tensors.values():
        size = _touched(kernel, tensor, shapes, tensor.name in updated)
        if tensor.constant:
            weights += size
        elif _is_cache(tensor, copied):
            caches += size
        else:
            rest += size
    return Cost(caches, weights, rest, _operations(kernel))


def _touched(kernel: Kernel, tensor: Tensor, shapes: Shapes, updated: bool) -> float:
    if tensor.bytes is None or tensor.elements is None:
        raise ValueError(
            f"{tensor.name} of {kernel.name} has the shape {list(tensor.dims)}: build the engine "
            "with static shapes."
        )
    size = float(tensor.bytes)
    operations = kernel.operations
    one_by_one = bool(operations) and not _REDUCTIONS.intersection(operations)
    if (updated or (one_by_one and tensor in kernel.inputs)) and kernel.covered is not None:
        return min(size, size / tensor.elements * kernel.covered)
    if "Slic" in operations and shapes.capacity in tensor.dims[1:]:
        return size * shapes.live / shapes.capacity
    return size


def _operations(kernel: Kernel) -> float:
    """Return the operations of a GEMM, two per multiplication."""
    if not kernel.is_gemm:
        return 0.0
    weights = max(kernel.inputs, key=lambda tensor: (tensor.constant, tensor.elements or 0))
    columns = weights.dims[-1] if weights.dims else None
    outputs = kernel.outputs[0].elements
    if weights.elements is None or outputs is None or not isinstance(columns, int):
        return 0.0
    return 2.0 * weights.elements * outputs / columns
