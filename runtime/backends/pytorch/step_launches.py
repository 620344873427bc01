"""Launches of a graph as data: kernels of fused operators, and those of PyTorch.

The graph runs on PyTorch's meta device, so neither a GPU nor memory is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from translate_trt.runtime.backends.pytorch.onnx_program import Plan, Program
from translate_trt.runtime.gpu.launch import Launch, recording

# PyTorch's operators that launch nothing, beside those that are declared as views.
_FREE = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty"}

_MATMULS = {"mm", "bmm", "addmm", "_addmm_activation"}


@dataclass(frozen=True)
class LibraryLaunch:
    """Launch of a kernel that PyTorch brings, such as a matmul of cuBLASLt.

    Attributes:
        operator: PyTorch's operator, such as "mm".
        tensors: Its inputs and outputs.
        operations: Multiplications and additions of a matmul, 0 for others.
    """

    operator: str
    tensors: tuple[Tensor, ...]
    operations: int


#: A launch of a step.
AnyLaunch: TypeAlias = Launch | LibraryLaunch


class _LibraryLaunches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Add the launches of PyTorch's operators to a record."""

    def __init__(self, record: list[AnyLaunch]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._record = record

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        results = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if not func.is_view and name not in _FREE:
            inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            outputs = [x for x in tree_leaves(results) if isinstance(x, Tensor)]
            operations = 0
            if name in _MATMULS:
                inner = inputs[-1].shape[-2]  # the last input is the second matrix
                operations = 2 * inner * outputs[0].numel()
            self._record.append(LibraryLaunch(name, (*inputs, *outputs), operations))
        return results


def record_launches(program: Program, sizes: Mapping[str, int]) -> tuple[Plan, list[AnyLaunch]]:
    """Return the plan of a graph and the launches of its second run, in order.

    The first run computes constants, too.

    Args:
        program: A graph with kernels, on the meta device.
        sizes: Sizes by the letters of the inputs' axes, such as N, S and P.
    """
    inputs = program.blank_inputs(sizes)
    with recording():
        plan, _ = Plan.record(program, inputs)
    with recording() as record, _LibraryLaunches(record):
        plan.run(inputs)
    return plan, record
