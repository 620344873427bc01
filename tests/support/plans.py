"""Plans of cuda targets, played on the CPU: kernels in Triton's interpreter, matmuls in PyTorch.

In bundles of `plan_bundle`, a cubin is the JSON of its kernel's `Specialization`, so that whoever
loads it can run the kernel (`run_kernel`).
"""

from __future__ import annotations

import ctypes
import importlib
import json
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from support.compiled import APART
from support.disk_cache import hash_files
from support.models import T5, enlarge, lively_model, save_model
from support.shared import SharedFiles
from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.export.engines.options import EngineOptions
from translate_trt.export.plans import build
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.bundle.contract import TensorSpec
from translate_trt.runtime.gpu.cubins import Cubin, Specialization
from translate_trt.runtime.gpu.launch import DEPENDENT
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import GATED

#: Changes of `lively_model` by name.
MODELS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": {"norm": "pre", "activation": "gelu", "norm_embedding": True, "tied": "none",
                 "output_bias": True},
    "ssru": {"decoder_mixer": "ssru"},
    "t5 1.1": {**T5, "relative_positions": 3},
    "t5 1.0": {**T5, "relative_positions": 3, "activation": "relu", "tied": "all"},
}  # fmt: skip

# The interpreter takes as long as there are heads and layers.
_SIZES = {"encoder_layers": 1, "decoder_layers": 1, "heads": 2}

#: Buckets of bundles, no powers of two.
BUCKETS = (Profile(1, 24), Profile(2, 17))
BEAMS = 2
ENGINES = EngineOptions(profiles=BUCKETS, cache=None)

_TYPES = {
    "i1": torch.bool, "i8": torch.int8, "i32": torch.int32, "i64": torch.int64,
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32,
}  # fmt: skip

# What cubins of these bundles begin with.
_MAGIC = b"\x7fELF"


def plan_bundle(
    shared: SharedFiles, tokenizer_model: Path, model: str, targets: Sequence[str]
) -> Path:
    """Return a bundle of one of `MODELS`, with attention; its cuda targets have no real cubins."""
    size = Tokenizer(tokenizer_model, tokenizer_model).vocabulary_size

    def save(path: Path) -> None:
        made = lively_model(size, **{**MODELS[model], **_SIZES})
        if made.config.activation == GATED:
            enlarge(made)
        save_model(made, path, tokenizer_model)

    checkpoint = shared.once(f"plans-{model}", save)
    options = BuildOptions(
        tuple(targets), max_source_length=24, attention=True, beam_size=BEAMS, engines=ENGINES
    )

    def make(path: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(build, "load_or_compile", describe_kernels)
            compile_bundle(open_checkpoint(checkpoint), path, options)

    makers = ("translate_trt.export.compile", __name__)
    return shared.kept("plans", makers, (hash_files(checkpoint), options), make, APART)


def describe_kernels(
    kernels: Iterable[Specialization], architectures: Sequence[int], _: object = None
) -> dict[tuple[Specialization, int], Cubin]:
    """Make cubins that describe their kernels, in place of `load_or_compile`."""
    return {
        (kernel, number): Cubin(
            architecture=number,
            binary=_MAGIC + _text(kernel).encode(),
            entry=kernel.name,
            parameters=(*kernel.types, ("global_scratch", "*i8"), ("profile_scratch", "*i8")),
            threads=32 * dict(kernel.options)["num_warps"],
            shared=0, registers=0, stack=0, local_accesses=0,
        )
        for kernel in kernels
        for number in architectures
    }  # fmt: skip


def _text(kernel: Specialization) -> str:
    return json.dumps(asdict(kernel) | {"aligned": sorted(kernel.aligned)})


def run_kernel(cubin: bytes, grid: Sequence[int], parameters: bytes | Sequence[int]) -> None:
    """Run the kernel that a cubin describes.

    Args:
        cubin: Content of the cubin.
        grid: Number of programs along three axes.
        parameters: Values of the kernel's parameters: addresses and numbers; or their block, as
            drivers take it. Scratch pointers are ignored.
    """
    assert cubin.startswith(_MAGIC)
    kernel = json.loads(cubin.removeprefix(_MAGIC))
    if isinstance(parameters, bytes):
        layout = "".join("i" if kind == "i32" else "q" for _, kind in kernel["types"])
        parameters = struct.unpack_from(f"@{layout}", parameters)
    values: dict[str, Any] = {}
    for value, (name, kind) in zip(parameters, kernel["types"], strict=False):
        if kind.startswith("*"):
            assert value % 16 == 0 or name not in kernel["aligned"], (kernel["name"], name)
            # The interpreter uses the address alone.
            value = tensor_at(value, _TYPES[kind[1:]], (1,), (1,), 16)
        parameter, _, part = name.partition(".")
        values[parameter] = (*values.get(parameter, ()), value) if part else value
    function = getattr(importlib.import_module(kernel["module"]), kernel["name"])
    values |= {**dict(kernel["constants"]), DEPENDENT: False}
    function[tuple(grid)](**values, **dict(kernel["options"]))


def tensor_at(
    address: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], size: int = 0
) -> Tensor:
    """Return a tensor over memory, of `size` bytes or as many as its shape needs."""
    last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    size = max(size, (last + 1) * dtype.itemsize)
    memory = (ctypes.c_char * size).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided([*shape], [*strides])


def matmul(value: Mapping[str, Any], addresses: Mapping[str, int]) -> None:
    """Run a matmul of a plan with the calls of PyTorch that the torch target has.

    Args:
        value: The matmul as JSON.
        addresses: Addresses of a, b, out and, if it has one, bias.
    """
    sizes = {"a": ("rows", "inner"), "b": ("inner", "columns"), "out": ("rows", "columns")}
    found = {}
    for name, axes in sizes.items():
        shape = [value["batch"], *(value[axis] for axis in axes)]
        strides = [value[f"{name}_step"], value[f"{name}_stride"], 1]
        if value.get(f"{name}_transposed"):
            strides = [strides[0], 1, strides[1]]
        dtype = _TYPES[value["out_type" if name == "out" else "type"]]
        found[name] = tensor_at(addresses[name], dtype, shape, strides)
    a, b, out = found.values()
    if value["batch"] > 1:
        out.copy_(torch.bmm(a, b))
    elif value["bias"] is None:
        out.copy_(torch.mm(a[0], b[0])[None])
    else:
        call = torch._addmm_activation if value["relu"] else torch.addmm
        bias = tensor_at(addresses["bias"], out.dtype, (value["columns"],), (1,))
        out.copy_(call(bias, a[0], b[0])[None])


class Player:
    """Plan of a graph in memory of its own.

    Args:
        bundle: Bundle of `plan_bundle`.
        target: Name of a cuda target.
        role: "encoder" or "step".
    """

    def __init__(self, bundle: Path, target: str, role: str) -> None:
        folder = bundle / "targets" / target
        self.plan = json.loads((folder / f"{role}.json").read_text())
        assert self.plan["format"] == 1
        self._weights = load_file(folder / "weights.safetensors")
        self._cubins = [
            self._weights[one["cubins"]["90"]["tensor"]].numpy().tobytes()
            for one in self.plan["kernels"]
        ]
        # Where safetensors puts a tensor in memory is not aligned.
        self._weights = {name: _aligned_copy(one) for name, one in self._weights.items()}

    def run(self, profile: int, tensors: Mapping[str, Tensor]) -> None:
        """Run the launches of a profile, for inputs and outputs of its sizes by name.

        They are addressed where they are; those of a kernel must be multiples of 16.
        """
        plan = self.plan["profiles"][profile]
        arena = _aligned_copy(torch.full((max(1, plan["arena"]),), 0xFF, dtype=torch.uint8))
        begins = {
            **{("tensor", name): tensor for name, tensor in tensors.items()},
            **{("weight", name): tensor for name, tensor in self._weights.items()},
            ("arena",): arena,
        }

        def address(value: Any) -> int:
            if isinstance(value, int):
                return value
            *name, offset = value
            begin = begins[tuple(name)]
            assert 0 <= offset < max(1, begin.numel() * begin.element_size())
            return begin.data_ptr() + offset

        for launch in plan["launches"]:
            if "kernel" in launch:
                values = [address(value) for value in launch["arguments"]]
                run_kernel(self._cubins[launch["kernel"]], launch["grid"], values)
            elif "matmul" in launch:
                value = launch["matmul"]
                names = [name for name in ("a", "b", "out", "bias") if value[name] is not None]
                matmul(value, {name: address(value[name]) for name in names})
            elif "copy" in launch:
                value = launch["copy"]
                ctypes.memmove(address(value["target"]), address(value["source"]), value["bytes"])
            else:
                value = launch["fill"]
                ctypes.memset(address(value["target"]), value["value"], value["bytes"])


def _aligned_copy(tensor: Tensor) -> Tensor:
    memory = torch.empty(tensor.numel() * tensor.element_size() + 256, dtype=torch.uint8)
    begin = -memory.data_ptr() % 256
    copied = memory[begin : begin + tensor.numel() * tensor.element_size()]
    copied = copied.view(tensor.dtype).view(tensor.shape)
    return copied.copy_(tensor)


def blank_tensors(specs: Collection[TensorSpec], sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Return aligned tensors of NaN or -1 by name, for sizes by the letters of their axes."""
    made = {}
    for spec in specs:
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes]
        dtype: torch.dtype = getattr(torch, spec.dtype)
        count = dtype.itemsize * int(torch.tensor(shape).prod())
        memory = _aligned_copy(torch.full((count,), 0xFF, dtype=torch.uint8))
        made[spec.name] = memory.view(dtype).view(shape)
    return made
