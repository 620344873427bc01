"""Launches of a graph as data: kernels of fused operators, and work of PyTorch.

The graph runs on PyTorch's meta device, so neither a GPU nor memory is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from translate_trt.runtime.backends.pytorch.onnx_program import Plan, Program
from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.gpu.launch import Launch, recording

# PyTorch's operators that launch nothing, beside those that are declared as views.
_FREE = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty"}

_MATMULS = {"mm", "bmm", "addmm", "_addmm_activation"}


@dataclass(frozen=True)
class Matmul:
    """Matmul of cuBLASLt, with the bias and the activation of its epilogue.

    Attributes:
        a: [M, K] or, of a batch, [B, M, K]; any of the two axes may be the inner one.
        b: [K, N], or [B, K, N].
        out: [M, N], or [B, M, N].
        bias: [N], if any.
        relu: Whether the result is ReLU of the sum.
    """

    a: Tensor
    b: Tensor
    out: Tensor
    bias: Tensor | None = None
    relu: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Inputs and output."""
        given = (self.a, self.b) if self.bias is None else (self.bias, self.a, self.b)
        return (*given, self.out)

    @property
    def operations(self) -> int:
        """Number of multiplications and additions."""
        return 2 * self.a.shape[-1] * self.out.numel()


@dataclass(frozen=True)
class Copy:
    """Copy of a dense tensor."""

    target: Tensor
    source: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Output and input."""
        return self.target, self.source


#: A launch of a graph.
AnyLaunch: TypeAlias = Launch | Matmul | Copy


@dataclass(frozen=True)
class Recording:
    """Launches of a graph at one set of sizes.

    Attributes:
        plan: Plan of the graph.
        tensors: Inputs and outputs of the graph by name; what a graph updates in place is one
            tensor with two names.
        launches: Launches in order.
    """

    plan: Plan
    tensors: Mapping[str, Tensor]
    launches: list[AnyLaunch]


class _NoLaunchError(RuntimeError):
    """An operator of PyTorch has no launch. `Plan.run` adds the name of the node."""


class _LibraryLaunches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Add the launches of PyTorch's operators to a record."""

    def __init__(self, record: list[AnyLaunch]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._record = record

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if not func.is_view and name not in _FREE:
            self._record.append(_launch(name, args, kwargs or {}, result))
        return result


def _launch(name: str, args: tuple[Any, ...], options: dict[str, Any], result: Any) -> AnyLaunch:
    """Describe the launch of an operator of PyTorch.

    Raises:
        _NoLaunchError: There is none.
    """
    if name in _MATMULS and not options:
        *bias, a, b = args
        if is_matrix(a) and is_matrix(b) and not (bias and bias[0].ndim > 1):
            relu = name == "_addmm_activation"
            return Matmul(a, b, result, bias[0] if bias else None, relu)
    if name == "copy_":
        source = args[1]
        if source.dtype == result.dtype and source.is_contiguous() and result.is_contiguous():
            return Copy(result, source)
    floats = {torch.float32, torch.float16, torch.bfloat16}
    if name == "_to_copy" and args[0].is_contiguous() and {args[0].dtype, result.dtype} <= floats:
        from translate_trt.runtime.gpu.activation import cast  # Triton need not be installed

        return cast(args[0], result)
    raise _NoLaunchError(f"{name} of {', '.join(map(_form, args))} has no launch")


def is_matrix(tensor: Tensor) -> bool:
    """Whether the rows or the columns of the last two axes are dense, as matmuls need them."""
    return 1 in tensor.stride()[-2:]


def _form(argument: Any) -> str:
    if not isinstance(argument, Tensor):
        return str(argument)
    return f"{argument.dtype} {[*argument.shape]} with strides {[*argument.stride()]}"


def record_launches(program: Program, sizes: Mapping[str, int]) -> Recording:
    """Record the launches of a graph's second run; the first one computes constants, too.

    Outputs of the graph are written where the device wants them, as in a second run on a device.

    Args:
        program: A graph with kernels, on the meta device.
        sizes: Sizes by the letters of the inputs' axes, such as N, S and P.

    Raises:
        BackendError: An operator has no launch; the message names it and its node.
    """
    inputs = program.blank_inputs(sizes)
    with recording():
        plan, found = Plan.record(program, inputs)
    names = dict(zip(plan.outputs, found, strict=True))
    outputs = {
        name: inputs[program.in_place[name]]
        if name in program.in_place
        else torch.empty(one.shape, dtype=one.dtype, device=one.device)
        for name, one in names.items()
    }
    with recording() as record, _LibraryLaunches(record):
        results = plan.run(inputs, outputs)
        for (name, target), result in zip(outputs.items(), results, strict=True):
            if target is not result:
                try:
                    target.copy_(result)
                except _NoLaunchError as error:
                    raise BackendError(f"the output {name} is not written: {error}") from error
    return Recording(plan, {**inputs, **outputs}, record)
