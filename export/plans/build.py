"""Files of a `cuda` target: plans of both graphs, and their weights and cubins."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from translate_trt.export.engines.network import Graph
from translate_trt.export.engines.options import (
    CURRENT,
    PORTABLE,
    EngineOptions,
    check_triton,
)
from translate_trt.export.plans.cubin_cache import load_or_compile
from translate_trt.export.plans.plan import GraphPlan, plan_graph
from translate_trt.runtime.backends.engines import EngineRecord, Profile, system_name
from translate_trt.runtime.backends.nvidia_driver import find_gpu
from translate_trt.runtime.backends.packages import (
    CUBINS,
    CUDA,
    PLAN_FORMAT,
    TORCH,
    cubin_for,
    target_for,
)
from translate_trt.runtime.backends.pytorch.onnx_program import Program
from translate_trt.runtime.errors import BackendError, OptionError
from translate_trt.runtime.gpu.cubins import Cubin
from translate_trt.train.hashed_files import write_tensors

# Shortest sources that the encoder has a profile for; matmuls of tensor cores have tiles of 16.
_LEAST_SOURCE = 16


def encoder_profiles(buckets: Sequence[Profile]) -> tuple[Profile, ...]:
    """Return the sizes that an encoder runs at: powers of two up to those of each bucket."""
    sizes = {
        (batch, length)
        for bucket in buckets
        for batch in _powers(1, bucket.batch)
        for length in _powers(_LEAST_SOURCE, bucket.source_length)
    }
    return tuple(Profile(*size) for size in sorted(sizes))


def _powers(least: int, most: int) -> list[int]:
    """Return the powers of two from `least` to below `most`, and `most`."""
    powers = []
    while least < most:
        powers.append(least)
        least *= 2
    return [*powers, most]


def architectures(options: EngineOptions) -> tuple[int, ...]:
    """Return the compute capabilities to compile kernels for, times ten.

    Raises:
        OptionError: There are no kernels for a compute capability, or this machine has no GPU.
    """
    chosen = options.compute_capabilities
    if chosen == (CURRENT,):
        gpu = find_gpu()
        if gpu is None:
            raise OptionError(
                f"compute_capability is {CURRENT}, but no GPU or driver was found (nvidia-smi "
                "lists the GPUs); name one, such as 9.0."
            )
        chosen = (gpu.compute_capability,)
    named = CUBINS if chosen in ((), (PORTABLE,)) else tuple(map(cubin_for, chosen))
    if None in named:
        raise OptionError(
            f"cuda targets have no kernels for compute capability {', '.join(chosen)}; choose from "
            f"{', '.join(CUBINS)}, or choose a torch target, such as torch-fp16."
        )
    return tuple(sorted({int(name.replace(".", "")) for name in named if name is not None}))


def check_options(name: str, options: EngineOptions, all_options: bool) -> None:
    """Refuse options that a `cuda` target does not have, before anything is traced.

    Raises:
        OptionError: An option has no effect, or Triton is not installed.
    """
    if all_options:
        raise OptionError(
            f"{name} has no kernels for all_options; choose {_torch_target(name)}, or leave it out."
        )
    architectures(options)
    check_triton(name)


def _torch_target(name: str) -> str:
    return target_for(name, CUDA, TORCH)


@dataclass(frozen=True)
class Plans:
    """Content of a target's files.

    Attributes:
        plans: Plan of each graph as JSON, by role.
        tensors: Weights and cubins by name.
        records: Records for the manifest, by role.
    """

    plans: Mapping[str, dict[str, Any]]
    tensors: Mapping[str, Tensor]
    records: Mapping[str, EngineRecord]

    def write(self, folder: Path) -> dict[str, Path]:
        """Write the files, and return their paths by role."""
        files = {role: folder / f"{role}.json" for role in self.plans}
        for role, path in files.items():
            path.write_text(json.dumps(self.plans[role], separators=(",", ":")), encoding="utf-8")
        files["weights"] = folder / "weights.safetensors"
        write_tensors(files["weights"], self.tensors)
        return files


def build_plans(
    name: str,
    graphs: Mapping[str, Graph],
    profiles: Mapping[str, Sequence[Profile]],
    options: EngineOptions,
) -> Plans:
    """Make the plans of a target's graphs, and compile their kernels.

    Args:
        name: Name of the target.
        graphs: Graphs by role, in files.
        profiles: Profiles by role; the graph of a role runs at their sizes alone.
        options: GPUs to compile for, and the cache.

    Raises:
        BackendError: A graph has an operator without a launch; the message names its node.
    """
    weights = _Weights()
    made: dict[str, GraphPlan] = {}
    for role, graph in graphs.items():
        assert isinstance(graph.model, Path)
        specs = graph.inputs, graph.outputs
        names = weights.add(Program(graph.model, *specs, torch.device("cpu"), kernels=True).weights)
        program = Program(graph.model, *specs, torch.device("meta"), kernels=True)
        if role == "step":
            program.check_aliases([spec.name for spec in graph.inputs if spec.in_place])
        try:
            made[role] = plan_graph(program, profiles[role], names)
        except BackendError as error:
            raise BackendError(
                f"{name}, the {role} graph: {error}. Choose {_torch_target(name)}, which runs "
                "every graph."
            ) from error
    kernels = {kernel: index for index, kernel in enumerate(
        dict.fromkeys(kernel for one in made.values() for kernel in one.kernels)
    )}  # fmt: skip
    numbers = architectures(options)
    cubins = load_or_compile(kernels, numbers, options.cache)
    tensors = weights.read({name for one in made.values() for name in one.weights})
    for (kernel, number), cubin in cubins.items():
        binary = torch.frombuffer(bytearray(cubin.binary), dtype=torch.uint8)
        tensors[_tensor(kernels[kernel], number)] = binary
    return Plans(
        {
            role: {
                "format": PLAN_FORMAT,
                "kernels": [_kernel(kernels[one], [cubins[one, number] for number in numbers])
                            for one in plan.kernels],
                "profiles": plan.profiles,
            }
            for role, plan in made.items()
        },
        tensors,
        {role: _record(numbers, profiles[role]) for role in made},
    )  # fmt: skip


class _Weights:
    """Weights of both graphs, once each by content."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[str, torch.Size, torch.dtype], str] = {}

    def add(self, weights: Mapping[str, Tensor]) -> dict[str, str]:
        """Add the weights of a graph, and return their names in the file."""
        names = {}
        for name, tensor in weights.items():
            content = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
            key = hashlib.sha256(content).hexdigest(), tensor.shape, tensor.dtype
            unique = name
            while unique in self._tensors:
                unique += "_"
            names[name] = self._names.setdefault(key, unique)
            self._tensors.setdefault(names[name], tensor.contiguous())
        return names

    def read(self, names: Collection[str]) -> dict[str, Tensor]:
        """Return the weights of these names."""
        return {name: self._tensors[name] for name in sorted(names)}


def _tensor(kernel: int, architecture: int) -> str:
    """Name of a cubin in the file of weights."""
    return f"kernels.{kernel}.{architecture}"


def _kernel(index: int, cubins: Sequence[Cubin]) -> dict[str, Any]:
    """Convert a kernel to JSON; its cubins differ in nothing but shared memory."""
    first = cubins[0]
    assert {(one.entry, one.parameters, one.threads) for one in cubins} == {
        (first.entry, first.parameters, first.threads)
    }
    return {
        "entry": first.entry,
        "parameters": [kind for _, kind in first.parameters],
        "threads": first.threads,
        "dependent": True,
        "cubins": {
            str(one.architecture): {
                "tensor": _tensor(index, one.architecture),
                "shared": one.shared,
            }
            for one in cubins
        },
    }


def _record(numbers: Sequence[int], profiles: Sequence[Profile]) -> EngineRecord:
    return EngineRecord(
        package=CUDA,
        version=str(PLAN_FORMAT),
        system=system_name(),
        compute_capabilities=tuple(f"{number / 10}" for number in numbers),
        hardware_compatibility="none",
        version_compatible=False,
        weights_stripped=False,
        profiles=tuple(profiles),
    )
