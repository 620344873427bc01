"""Plan of a graph: its launches at the sizes of each profile, as JSON.

    {"format": 1,
     "kernels": [{"entry": NAME, "parameters": ["*fp16", "i32", ...], "threads": 128,
                  "dependent": true,
                  "cubins": {"90": {"tensor": NAME, "shared": BYTES}, ...}}, ...],
     "profiles": [{"sizes": {"N": 64, "S": 256, "P": 128}, "arena": BYTES, "launches": [...]}, ...]}

The last two parameters of a kernel are Triton's scratch memory, which is null. Cubins of a
dependent kernel for compute capability 9.0 and later wait for their predecessor. A launch is

    {"kernel": INDEX, "grid": [X, Y, Z], "arguments": [NUMBER or ADDRESS, ...]}
    {"matmul": {"rows", "columns", "inner", "batch", "type", "out_type", "bias", "relu",
                "a", "a_stride", "a_step", "a_transposed", and so on for "b" and "out"}}
    {"copy": {"target": ADDRESS, "source": ADDRESS, "bytes": BYTES}}
    {"fill": {"target": ADDRESS, "value": BYTE, "bytes": BYTES}}

A stride is the number of elements between rows, a step that between the matrices of a batch. An
address is ["tensor", NAME, BYTES], ["weight", NAME, BYTES] or ["arena", BYTES]. The C++ side is
runtime/cpp/src/cuda/plan.h.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from translate_trt.export.plans.arena import Lifetime, allocate
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.backends.pytorch.onnx_program import Program
from translate_trt.runtime.backends.pytorch.step_launches import (
    AnyLaunch,
    Copy,
    Matmul,
    Recording,
    record_launches,
)
from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.gpu.cubins import Specialization, specialize
from translate_trt.runtime.gpu.launch import Launch

#: Address in a plan.
Address: TypeAlias = list[str | int]

_TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


@dataclass(frozen=True)
class GraphPlan:
    """Plan of a graph.

    Attributes:
        kernels: Kernels, by the index with which launches name them.
        profiles: Plans of the profiles, as JSON.
        weights: Names of the weights that the launches read.
    """

    kernels: tuple[Specialization, ...]
    profiles: list[dict[str, Any]]
    weights: frozenset[str]


def plan_graph(
    program: Program, profiles: Sequence[Profile], weight_names: Mapping[str, str]
) -> GraphPlan:
    """Make the plan of a graph.

    Args:
        program: The graph with kernels, on the meta device.
        profiles: Profiles, at whose largest sizes the graph runs.
        weight_names: Names of weights in their file, by the names in the graph.

    Raises:
        BackendError: An operator has no launch, or reads a constant that is computed from shapes;
            the message names it.
    """
    kernels: dict[Specialization, int] = {}
    plans, weights = [], set[str]()
    for profile in profiles:
        sizes = {"N": profile.batch, "S": profile.source_length}
        if profile.slots is not None:
            sizes["P"] = profile.slots
        recording = record_launches(program, sizes)
        writer = _Writer(program, recording, weight_names, kernels)
        launches = [writer.launch(one) for one in recording.launches]
        plans.append({"sizes": sizes, "arena": writer.arena, "launches": launches})
        weights |= writer.weights
    return GraphPlan(tuple(kernels), plans, frozenset(weights))


class _Writer:
    """Converts the launches of one recording to JSON.

    Attributes:
        arena: Bytes of intermediate tensors.
        weights: Names of the weights that the launches read.
    """

    def __init__(
        self,
        program: Program,
        recording: Recording,
        weight_names: Mapping[str, str],
        kernels: dict[Specialization, int],
    ) -> None:
        self._kernels = kernels
        self.weights = set[str]()
        # Views share the storage of their tensor, and outputs in place that of an input.
        self._begins: dict[int, Address] = {}
        for name, tensor in program.weights.items():
            self._begins.setdefault(_storage(tensor), ["weight", weight_names[name]])
        for name, tensor in recording.tensors.items():
            self._begins.setdefault(_storage(tensor), ["tensor", name])
        self._computed = {_storage(x): name for name, x in recording.plan.constants.items()}
        lifetimes: dict[int, Lifetime] = {}
        for index, launch in enumerate(recording.launches):
            for tensor in _tensors(launch):
                key = _storage(tensor)
                if key not in self._begins:
                    first = lifetimes[key].first if key in lifetimes else index
                    lifetimes[key] = Lifetime(tensor.untyped_storage().nbytes(), first, index)
        offsets, self.arena = allocate([*lifetimes.values()])
        self._arena = dict(zip(lifetimes, offsets, strict=True))

    def launch(self, launch: AnyLaunch) -> dict[str, Any]:
        """Convert a launch."""
        if isinstance(launch, Matmul):
            return {"matmul": self._matmul(launch)}
        if isinstance(launch, Copy):
            target, source = map(self._address, (launch.target, launch.source))
            size = launch.target.numel() * launch.target.element_size()
            return {"copy": {"target": target, "source": source, "bytes": size}}
        kernel = specialize(launch)
        values = {**launch.arguments, **launch.tensors}
        return {
            "kernel": self._kernels.setdefault(kernel, len(self._kernels)),
            "grid": [*launch.grid, *[1] * (3 - len(launch.grid))],
            "arguments": [self._argument(values[name]) for name, _ in kernel.types],
        }

    def _argument(self, value: Any) -> int | Address:
        return self._address(value) if isinstance(value, Tensor) else int(value)

    def _matmul(self, matmul: Matmul) -> dict[str, Any]:
        """Convert a matmul: strides are elements between rows, or columns if they are dense."""
        matrices = {"a": matmul.a, "b": matmul.b, "out": matmul.out}
        value: dict[str, Any] = {
            "rows": matmul.a.shape[-2], "columns": matmul.b.shape[-1], "inner": matmul.b.shape[-2],
            "bias": None if matmul.bias is None else self._address(matmul.bias),
            "relu": matmul.relu, "batch": matmul.out.shape[0] if matmul.out.ndim == 3 else 1,
            "type": _TYPES[matmul.a.dtype], "out_type": _TYPES[matmul.out.dtype],
        }  # fmt: skip
        for name, matrix in matrices.items():
            rows, columns = matrix.stride()[-2:]
            # Of a single row or column, one stride is arbitrary, but must not be too small.
            transposed = columns != 1
            outer = rows if not transposed else columns
            value[name] = self._address(matrix)
            value[f"{name}_stride"] = max(outer, matrix.shape[-2 if transposed else -1])
            value[f"{name}_step"] = matrix.stride(0) if matrix.ndim == 3 else 0
            if name != "out":
                value[f"{name}_transposed"] = transposed
        return value

    def _address(self, tensor: Tensor) -> Address:
        offset = int(tensor.storage_offset()) * tensor.element_size()
        key = _storage(tensor)
        begin = self._begins.get(key)
        if begin is None and key in self._computed:
            raise BackendError(f"{self._computed[key]} is computed once, which a plan cannot")
        if begin is None:
            return ["arena", self._arena[key] + offset]
        if begin[0] == "weight":
            self.weights.add(str(begin[1]))
        return [*begin, offset]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(launch: AnyLaunch) -> Sequence[Tensor]:
    return [*launch.tensors.values()] if isinstance(launch, Launch) else launch.tensors
