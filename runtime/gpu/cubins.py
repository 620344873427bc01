"""Cubins: launches compiled ahead of time for NVIDIA's GPUs, and their resources; also PTX.

Triton's package contains NVIDIA's assembler, so no GPU and no CUDA toolkit is needed.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.gpu.launch import DEPENDENT, Launch

#: Types of kernels' parameters; a type of a pointer begins with an asterisk.
_TYPES = {
    torch.bool: "i1", torch.int32: "i32", torch.int64: "i64",
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32",
}  # fmt: skip

#: Parameters that Triton appends to a kernel's own: scratch memory, which no kernel here needs.
_SCRATCH = (("global_scratch", "*i8"), ("profile_scratch", "*i8"))

#: Compute capability, times ten, since which a kernel can wait for its predecessor.
DEPENDENT_LAUNCHES = 90

# What a kernel does first, in PTX: wait for its predecessor, or access the GPU's memory.
_WAIT = "griddepcontrol.wait"
_FIRST = re.compile(rf"{re.escape(_WAIT)}|\b(?:ld|st|atom|red)\.[\w.:]*\bglobal\b|\bcp\.")

# Versions of PTX, times ten: those of CUDA 12.0, and of 12.9, the first with 10.3 and 12.1. Drivers
# refuse versions newer than their own, and Triton's default is the newest.
_OLD_PTX, _NEW_PTX = 80, 88

#: Alignment of tensors that Triton's kernels make use of, in bytes.
_ALIGNMENT = 16


@dataclass(frozen=True)
class Specialization:
    """A kernel for given types, constants and options; launches of all other sizes share it.

    Attributes:
        module: Module of the kernel.
        name: Name of the kernel.
        types: Parameters in order with their types, without constants; those of a tuple are
            `name.0`, `name.1` and so on.
        aligned: Pointers that are multiples of 16.
        constants: Constants by parameter, without `DEPENDENT`.
        options: Options of Triton's compiler.
    """

    module: str
    name: str
    types: tuple[tuple[str, str], ...]
    aligned: frozenset[str]
    constants: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]


#: Compute capabilities, times ten, that kernels are compiled for.
ARCHITECTURES = (80, 86, 89, 90, 100, 103, 120, 121)


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel: what a loader needs, and its resources.

    Attributes:
        architecture: Compute capability, times ten.
        binary: Content of the cubin.
        entry: Name of the kernel in the cubin.
        parameters: Names and types of the parameters in order, such as ("x", "*fp16") for a
            pointer; those of scratch memory, which Triton adds, take null pointers.
        threads: Threads of a program.
        shared: Dynamic shared memory of a program in bytes.
        registers: Registers of a thread.
        stack: Stack of a thread in bytes.
        local_accesses: Number of instructions that load from or store to local memory. Registers
            that are spilled need such instructions, or a stack.
    """

    architecture: int
    binary: bytes
    entry: str
    parameters: tuple[tuple[str, str], ...]
    threads: int
    shared: int
    registers: int
    stack: int
    local_accesses: int


@dataclass(frozen=True)
class Ptx:
    """PTX of a kernel.

    Attributes:
        text: The PTX, whose only kernel has the parameters of the `Specialization`, and of scratch
            memory, in order. Those of index i are named `{entry}_param_{i}`.
        entry: Name of the kernel.
        threads: Threads of a program.
        shared: Dynamic shared memory of a program in bytes.
    """

    text: str
    entry: str
    threads: int
    shared: int


def specialize(launch: Launch) -> Specialization:
    """Find the kernel of a launch as Triton does when it runs one.

    Raises:
        BackendError: Triton would make another kernel for other values of an integer.
    """
    function, tensors = launch.kernel.fn, launch.tensors
    types: list[tuple[str, str]] = []
    absent = {name: None for name, value in launch.arguments.items() if value is None}
    for name in launch.kernel.arg_names:
        if name in launch.constants or name in absent or name == DEPENDENT:
            continue
        value = launch.arguments[name]
        if not isinstance(value, int):
            parts = [one for one in tensors if one.partition(".")[0] == name]
            types += [(one, f"*{_TYPES[tensors[one].dtype]}") for one in parts]
        elif name in _not_specialized(launch.kernel) and 0 <= value < 2**31:
            types.append((name, "i32"))
        else:
            raise BackendError(
                f"{function.__name__} has no cubin for all values of {name}, such as {value}: add "
                "it to do_not_specialize, or make it a constant."
            )
    aligned = [name for name, tensor in tensors.items() if tensor.data_ptr() % _ALIGNMENT == 0]
    return Specialization(
        module=function.__module__,
        name=function.__name__,
        types=tuple(types),
        aligned=frozenset(aligned),
        constants=tuple({**launch.constants, **absent}.items()),
        options=tuple(launch.options.items()),
    )


def _not_specialized(kernel: Any) -> set[str]:
    """Names of parameters that Triton does not specialize a kernel for."""
    if hasattr(kernel, "params"):
        return {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
    return {*(kernel.kwargs.get("do_not_specialize") or ())}  # in Triton's interpreter


def compile_kernels(
    kernels: Iterable[Specialization], architectures: Sequence[int], processes: int = 1
) -> dict[tuple[Specialization, int], Cubin]:
    """Compile kernels in other processes, where Triton's interpreter is off.

    Args:
        kernels: The kernels.
        architectures: Those of `ARCHITECTURES`, or some of them.
        processes: Number of processes.

    Returns:
        Cubins by kernel and architecture.

    Raises:
        BackendError: A kernel needs scratch memory, has other parameters than expected, or does not
            wait for its predecessor.
    """
    wanted = [(kernel, number) for kernel in dict.fromkeys(kernels) for number in architectures]
    with _compilers(processes) as pool:
        found = pool.map(compile_kernel, *zip(*wanted, strict=True))
        return dict(zip(wanted, found, strict=True))


def compile_to_ptx(
    kernels: Iterable[Specialization], architecture: int, processes: int = 1
) -> dict[Specialization, Ptx]:
    """Compile kernels to PTX of one architecture; see `compile_kernels`."""
    wanted = [*dict.fromkeys(kernels)]
    with _compilers(processes) as pool:
        found = pool.map(_compile_to_ptx, wanted, [architecture] * len(wanted))
        return dict(zip(wanted, found, strict=True))


def _compilers(processes: int) -> ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, spawn, _leave_interpreter)


def _leave_interpreter() -> None:
    """Turn Triton's interpreter off, before a process imports kernels."""
    os.environ.pop("TRITON_INTERPRET", None)


def compile_kernel(kernel: Specialization, architecture: int) -> Cubin:
    """Compile a kernel for an architecture in this process; see `compile_kernels`."""
    dependent = architecture >= DEPENDENT_LAUNCHES
    compiled, metadata = _compile(kernel, architecture, dependent, {})
    binary = compiled["cubin"]
    return Cubin(
        architecture=architecture,
        binary=binary,
        entry=metadata.name,
        parameters=(*kernel.types, *_SCRATCH),
        threads=32 * metadata.num_warps,
        shared=metadata.shared,
        **_resources(binary),
    )


def _compile_to_ptx(kernel: Specialization, architecture: int) -> Ptx:
    version = {"ptx_version": _OLD_PTX if architecture < 100 else _NEW_PTX}
    compiled, metadata = _compile(kernel, architecture, False, version)
    return Ptx(compiled["ptx"], metadata.name, 32 * metadata.num_warps, metadata.shared)


def _compile(
    kernel: Specialization, architecture: int, dependent: bool, options: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Any]:
    """Compile a kernel; return its forms by name, and Triton's metadata."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_source
    from triton.runtime.jit import JITFunction

    function = getattr(importlib.import_module(kernel.module), kernel.name)
    if not isinstance(function, JITFunction):
        raise BackendError(f"{kernel.name} is interpreted: unset TRITON_INTERPRET to compile it.")
    signature: dict[str, Any] = dict.fromkeys(function.arg_names, "constexpr")
    paths: dict[str, tuple[int, ...]] = {}
    for name, kind in kernel.types:
        parameter, _, part = name.partition(".")
        path = (function.arg_names.index(parameter), *([int(part)] if part else []))
        paths[name] = path
        earlier = () if part in ("", "0") else signature[parameter]
        signature[parameter] = (*earlier, kind) if part else kind
    constants = {**dict(kernel.constants), DEPENDENT: dependent}
    source = ASTSource(
        function,
        signature,
        constexprs={(function.arg_names.index(name),): value for name, value in constants.items()},
        attrs={paths[name]: [["tt.divisibility", _ALIGNMENT]] for name in kernel.aligned},
    )
    target = GPUTarget("cuda", architecture, 32)
    compiled = compile_source(source, target, {**dict(kernel.options), **options})
    metadata = compiled.metadata
    if metadata.global_scratch_size or metadata.profile_scratch_size:
        raise BackendError(f"{kernel.name} needs scratch memory, which a cubin's loader has not.")
    parameters = (*kernel.types, *_SCRATCH)
    text = compiled.asm["ptx"]
    (declared,) = re.findall(r"\.entry \w+\((.*?)\)\s", text, re.DOTALL)
    if declared.count(".param") != len(parameters):
        raise BackendError(
            f"Triton {metadata.triton_version} gives {kernel.name} other parameters than "
            f"{', '.join(name for name, _ in parameters)}: {declared}"
        )
    first = _FIRST.search(text)
    if dependent and (first is None or first[0] != _WAIT):
        raise BackendError(f"{kernel.name} does not call wait_for_predecessor first.")
    return compiled.asm, metadata


def _resources(binary: bytes) -> dict[str, int]:
    """Read resources of a cubin's only kernel with NVIDIA's cuobjdump, which Triton contains."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", "-sass", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (registers,), (stack,) = (re.findall(rf"{name}:(\d+)", text) for name in ("REG", "STACK"))
    return {
        "registers": int(registers),
        "stack": int(stack),
        "local_accesses": len(re.findall(r"\b(?:LDL|STL)\b", text)),
    }
