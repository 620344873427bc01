"""Bound of the GPU memory that a `torch` target takes beside its weights and its state.

The graphs run on PyTorch's meta device, whose tensors have shapes and no content, and the sizes of
living tensors are added up: activations, FP32 logits, constants. Not known in advance, and covered
by a constant, are workspaces inside of operators and how well blocks of the allocator fit.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from translate_trt.runtime.backends import Records
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.backends.pytorch.onnx_program import Plan, Program
from translate_trt.runtime.bundle.contract import Contract

# Blocks of PyTorch's allocator are multiples of this.
_BLOCK = 512

# Workspaces of cuBLAS and cuBLASLt, 32 MiB on Hopper, and segments of the allocator that are used
# in part, 20 MiB each.
_WORKSPACE_BYTES = 96 << 20


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of tensors that operators make, as long as the tensors live.

    Args:
        device: Kind of the device of these tensors.
        others: Tensors that exist already, of which operators return views.

    Attributes:
        peak: Largest number of bytes at one time.
    """

    def __init__(self, device: str, others: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak, self._bytes = 0, 0
        self._device = device
        self._live = {tensor.untyped_storage()._cdata for tensor in others}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        results = func(*args, **(kwargs or {}))
        for value in tree_leaves(results):
            if isinstance(value, Tensor) and value.device.type == self._device:
                self._add(value.untyped_storage())
        return results

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._live:
            return
        size = -(-storage.nbytes() // _BLOCK) * _BLOCK
        self._live.add(storage._cdata)
        weakref.finalize(storage, self._remove, storage._cdata, size)
        self._bytes += size
        self.peak = max(self.peak, self._bytes)

    def _remove(self, address: int, size: int) -> None:
        self._live.discard(address)
        self._bytes -= size


def activation_bytes(program: Program, inputs: Mapping[str, Tensor]) -> int:
    """Return the most bytes that a run of a program has in use at once, outputs included.

    On the meta device this takes no memory, and milliseconds.
    """
    others = [*program.weights.values(), *inputs.values()]
    allocations = _Allocations(program.device.type, others)
    with torch.inference_mode(), allocations:
        Plan.record(program, inputs)
    return allocations.peak


def scratch_bytes(
    files: Mapping[str, Path], contract: Contract, records: Records, captures: bool
) -> int:
    """Return the memory that a device needs to run both graphs at their largest sizes.

    Args:
        files: Graph files by role.
        contract: Inputs and outputs of the graphs.
        records: Manifest records of the graphs.
        captures: Steps are captured as well, which allocate from a pool of their own.
    """
    peaks = {}
    for role, specs in contract.graphs.items():
        program = Program(files[role], *specs, torch.device("meta"))
        profiles = records[role].profiles
        slots = max(one.slots or 0 for one in profiles)
        peaks[role] = max(
            activation_bytes(program, _inputs(program, one, contract))
            for one in profiles
            if (one.slots or 0) == slots
        )
    # Whatever runs uncaptured shares the blocks of one stream.
    uncaptured = max(peaks.values())
    return _WORKSPACE_BYTES + uncaptured + (peaks["step"] if captures else 0)


def _inputs(program: Program, profile: Profile, contract: Contract) -> dict[str, Tensor]:
    """Return inputs of a profile's largest shapes on the meta device."""
    sizes = {axis: largest for axis, (_, _, largest) in profile.ranges().items()}
    sizes["K"] = contract.beams or 1
    return program.blank_inputs(sizes)
