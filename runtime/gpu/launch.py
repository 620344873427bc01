"""Launches of Triton kernels: what an operator runs on a GPU, as data.

The same description runs a kernel, in Triton's interpreter as well (TRITON_INTERPRET=1, without a
GPU), and says what a compiler needs to make a cubin of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

#: Constant of every kernel: whether it begins while its predecessor ends (`wait_for_predecessor`).
DEPENDENT = "DEPENDENT"

#: A value of a kernel's parameter.
Argument: TypeAlias = Tensor | int | tuple[Tensor, ...] | None

# Multiplications and additions are rounded one by one, as in Triton's interpreter. Which of them a
# compiler would fuse depends on its version, and whether it may by default, on Triton's.
_OPTIONS = {"enable_fp_fusion": False}

_recorded: ContextVar[list[Any] | None] = ContextVar("recorded", default=None)


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel.

    Attributes:
        kernel: Function decorated with `triton.jit`.
        grid: Number of programs along each axis, at most three.
        arguments: Tensors, whose addresses the kernel takes, and integers, by parameter. A tuple
            is as many parameters of a cubin as it has tensors, and None is a constant.
        constants: Values of the parameters that are compile-time constants, without `DEPENDENT`.
        warps: Warps of a program.
        stages: Stages of software pipelining.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Argument]
    constants: Mapping[str, int | float | bool]
    warps: int = 4
    stages: int = 2

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Tensors by parameter; those of a tuple are `name.0`, `name.1` and so on."""
        found = {}
        for name, value in self.arguments.items():
            if isinstance(value, Tensor):
                found[name] = value
            elif isinstance(value, tuple):
                found |= {f"{name}.{index}": tensor for index, tensor in enumerate(value)}
        return found

    @property
    def options(self) -> dict[str, Any]:
        """Options of Triton's compiler."""
        return {"num_warps": self.warps, "num_stages": self.stages, **_OPTIONS}

    def run(self) -> None:
        """Enqueue the launch on PyTorch's current stream, or add it to the record."""
        record = _recorded.get()
        if record is None:
            values = {**self.arguments, **self.constants, DEPENDENT: False}
            self.kernel[self.grid](**values, **self.options)
        else:
            record.append(self)


@contextmanager
def recording() -> Iterator[list[Any]]:
    """Record launches in order instead of running them; tensors may be on the device `meta`."""
    record: list[Any] = []
    token = _recorded.set(record)
    try:
        yield record
    finally:
        _recorded.reset(token)


def warps_of_row(block: int) -> int:
    """Return the number of warps for a program with one row of `block` columns."""
    return min(8, max(1, block // 256))


def power_of_two(size: int, least: int = 1) -> int:
    """Return the smallest power of two that is at least both numbers, as blocks of Triton are."""
    return 1 << (max(size, least) - 1).bit_length()
