"""Launches of Triton kernels: what an operator runs on a GPU, as data.

The same description runs a kernel, in Triton's interpreter as well (TRITON_INTERPRET=1, without a
GPU), and says what a compiler needs to make a cubin of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

#: A value of a kernel's parameter.
Argument: TypeAlias = Tensor | int | tuple[Tensor, ...]


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel.

    Attributes:
        kernel: Function decorated with `triton.jit`.
        grid: Number of programs along each axis, at most three.
        arguments: Tensors, whose addresses the kernel takes, and integers, by parameter. A tuple
            is as many parameters of a cubin as it has tensors.
        constants: Values of the parameters that are compile-time constants.
        warps: Warps of a program.
        stages: Stages of software pipelining.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Argument]
    constants: Mapping[str, int | float | bool]
    warps: int = 4
    stages: int = 2

    def run(self) -> None:
        """Enqueue the launch on PyTorch's current stream."""
        self.kernel[self.grid](
            **self.arguments, **self.constants, num_warps=self.warps, num_stages=self.stages
        )


def power_of_two(size: int, least: int = 1) -> int:
    """Return the smallest power of two that is at least both numbers, as blocks of Triton are."""
    return 1 << (max(size, least) - 1).bit_length()
