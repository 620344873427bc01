"""Execution plans of built engines: kernels in order, with grids, tensors and scratch memory.

TensorRT-RTX serializes one program per optimization profile as plain text, so that a plan can be
read without a GPU. A program consists of sections:

    header {                       regions of memory, inputs, outputs
    descriptors {                  tensors and views of tensors
    main {                         commands in order: generated kernels, GEMMs, copies
    shape_main {                   host code of dynamic shapes, copies of its results to the GPU

The format is not documented; it was established with tensorrt_rtx 1.7.1. The package `tensorrt`
describes the layers of a loaded engine in JSON (`IEngineInspector`), which needs a GPU and has no
grids: `read_inspection` reads that description.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from translate_trt.export.engines.network import EngineError

_PROGRAM = b"header {\n"
_TOKEN = re.compile(r'"[^"]*"|[{}=]|[^\s{}="]+')
# Fallback programs, which run if a GEMM with a fused epilogue does not compile, have this region.
_FALLBACK = "runtime-fusion-consts"

# Bits of an element by the type's name in a plan and in an inspection.
_BITS = {
    "bool": 8,
    "int8": 8,
    "uint8": 8,
    "fp8": 8,
    "half": 16,
    "fp16": 16,
    "bf16": 16,
    "bfloat16": 16,
    "float": 32,
    "fp32": 32,
    "int32": 32,
    "int64": 64,
}

# Commands of `main` that launch nothing: host code of shapes, and events between streams.
_NO_LAUNCH = frozenset({"shape_call", "signal", "wait"})

# The name of a generated kernel is a list of its operations, as in __myl_ReshTran. These move or
# convert elements without computing anything.
_GENERATED = re.compile(r"^__myl_((?:[A-Z][a-z0-9]*)+)")
_MOVING = frozenset({"Move", "Resh", "Tran", "Repl", "Conc", "Slic", "Cast"})


@dataclass(frozen=True)
class Tensor:
    """Tensor of a plan.

    Attributes:
        name: Name in the plan; generated for most intermediate tensors.
        dtype: Type as the plan names it, such as "half".
        dims: Sizes; a string for a size that is known only at run time.
        base: Tensor of which this is a view; its own name otherwise.
        constant: Whether the tensor is part of the engine (weights and constants).
    """

    name: str
    dtype: str
    dims: tuple[int | str, ...]
    base: str
    constant: bool = False

    @property
    def elements(self) -> int | None:
        """Number of elements; None if a size is known only at run time."""
        sizes = [size for size in self.dims if isinstance(size, int)]
        return math.prod(sizes) if len(sizes) == len(self.dims) else None

    @property
    def bytes(self) -> int | None:
        """Size in bytes; None if a size is known only at run time."""
        elements = self.elements
        return None if elements is None else elements * _bits(self.dtype) // 8


@dataclass(frozen=True)
class Kernel:
    """Command of a plan that runs on the GPU.

    Attributes:
        name: Name of the kernel; for a GEMM, that of its layer.
        kind: Command of the plan: "function" (generated kernel or fused attention),
            "fully_connected" (GEMM), "runtime_fusion" (GEMM with a fused epilogue), "copy" and
            others. In an inspection, the type of the layer.
        layers: ONNX nodes that the kernel computes.
        inputs: Tensors that it reads.
        outputs: Tensors that it writes; one that is also an input is updated in place.
        grid: Thread blocks, 0 in an axis that is computed at run time; None where the runtime
            chooses the kernel, as for GEMMs.
        block: Threads of a block; None as above.
        covered: Number of elements that grid and vector width cover, at the largest shapes of the
            profile; None if the grid is unknown.
    """

    name: str
    kind: str
    layers: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    covered: int | None = None

    @property
    def operations(self) -> tuple[str, ...]:
        """Operations of a generated kernel, such as ("Resh", "Tran"); empty for other kernels."""
        match = _GENERATED.match(self.name)
        return tuple(re.findall(r"[A-Z][a-z0-9]*", match[1])) if match else ()

    @property
    def is_copy(self) -> bool:
        """Whether the kernel only moves or converts elements."""
        operations = self.operations
        return self.kind in ("copy", "reformat") or (
            bool(operations) and _MOVING.issuperset(operations)
        )

    @property
    def is_gemm(self) -> bool:
        """Whether the kernel is a GEMM, with or without a fused epilogue."""
        return self.kind in ("fully_connected", "runtime_fusion", "gemm")


@dataclass(frozen=True)
class Plan:
    """Execution plan of one optimization profile.

    Attributes:
        kernels: What is launched per execution, in order.
        scratch_bytes: Scratch memory on the GPU; None where the source does not state it.
        shape_copies: Copies of computed sizes to the GPU per execution. Static shapes have none.
        shape_checks: Checks of sizes on the host per execution.
        fallback_launches: Kernels in addition to `kernels` if no runtime fusion compiles.
        architectures: GPUs that the plan is made for, such as "sm89".
    """

    kernels: tuple[Kernel, ...]
    scratch_bytes: int | None = None
    shape_copies: int = 0
    shape_checks: int = 0
    fallback_launches: int = 0
    architectures: tuple[str, ...] = ()

    @property
    def launches(self) -> int:
        """Number of kernels and copies that one execution launches, without `shape_copies`."""
        return len(self.kernels)

    def covering(self, elements: int) -> tuple[Kernel, ...]:
        """Return the kernels whose grid covers at least that many elements.

        A kernel of unknown grid counts if it is a copy with an output of that size.
        """
        return tuple(kernel for kernel in self.kernels if _covers(kernel, elements))

    def copies(self, elements: int) -> tuple[Kernel, ...]:
        """Return the kernels that only move or convert at least that many elements."""
        return tuple(kernel for kernel in self.covering(elements) if kernel.is_copy)


def read_plans(engine: bytes) -> tuple[Plan, ...]:
    """Read the execution plans of a TensorRT-RTX engine.

    Args:
        engine: Serialized engine.

    Returns:
        One plan per optimization profile, in the order of the profiles.

    Raises:
        EngineError: The engine contains no plan in the known format.
    """
    plans: list[Plan] = []
    for program in _programs(engine):
        if _FALLBACK not in [region.text("name") for region in _regions(program)]:
            plans.append(_plan(program))
        elif plans:
            # The fallback replaces one launch.
            more = len(program.block("main").pairs) - 1
            plans[-1] = replace(plans[-1], fallback_launches=plans[-1].fallback_launches + more)
    if not any(plan.kernels for plan in plans):
        raise EngineError(
            "the engine contains no execution plan in the format of tensorrt_rtx 1.7.1; for the "
            "package tensorrt, use the description of its engine inspector."
        )
    return tuple(plans)


def read_inspection(text: str) -> Plan:
    """Read the JSON description of an engine by `IEngineInspector.get_engine_information`.

    The engine must have been built with `ProfilingVerbosity.DETAILED`, without which the layers
    are mere names. The format follows NVIDIA's developer guide; **no such description of this
    project's graphs has been seen yet**, because the inspector needs a GPU.

    Args:
        text: JSON with a list "Layers", each with Name, LayerType, Inputs and Outputs.

    Raises:
        EngineError: The text is not such a description.
    """
    try:
        return Plan(tuple(_inspected(layer) for layer in json.loads(text)["Layers"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise EngineError(
            f"not a detailed description of an engine ({error!r}): build with "
            "ProfilingVerbosity.DETAILED and ask for LayerInformationFormat.JSON."
        ) from error


# ---- text of a program ----


@dataclass(frozen=True)
class _Block:
    """Content of a pair of braces: `key=value` pairs, whose keys may repeat, and plain items."""

    pairs: list[tuple[str, str | _Block]] = field(default_factory=list)
    items: list[str] = field(default_factory=list)

    def text(self, key: str, default: str = "") -> str:
        return next((v for k, v in self.pairs if k == key and isinstance(v, str)), default)

    def block(self, key: str) -> _Block:
        return next((v for k, v in self.pairs if k == key and isinstance(v, _Block)), _Block())

    def blocks(self) -> Iterator[tuple[str, _Block]]:
        return ((key, value) for key, value in self.pairs if isinstance(value, _Block))

    def numbers(self, key: str) -> tuple[int, ...]:
        return tuple(int(item) for item in self.block(key).items if item.isdecimal())


def _programs(engine: bytes) -> Iterator[_Block]:
    begin = engine.find(_PROGRAM)
    while begin >= 0:
        end = engine.find(b"\0", begin)
        end = len(engine) if end < 0 else end
        yield _parse(engine[begin:end].decode("utf-8", "replace"))
        begin = engine.find(_PROGRAM, end)


def _parse(text: str) -> _Block:
    """Parse a program; text after an unbalanced brace is ignored."""
    open_blocks = [_Block()]
    key = ""  # last name, if a value may follow
    assigned = False  # "=" stands before the token
    for match in _TOKEN.finditer(text):
        token, block = match[0], open_blocks[-1]
        if token == "=":
            assigned = True
            continue
        if token == "{":
            if key:
                block.items.pop()
            open_blocks.append(_Block())
            block.pairs.append((key, open_blocks[-1]))
            key = ""
        elif token == "}":
            open_blocks.pop()
            key = ""
            if not open_blocks:
                break
        elif assigned:
            block.items.pop()
            block.pairs.append((key, token.strip('"')))
            key = ""
        else:
            key = token.strip('"')
            block.items.append(key)
        assigned = False
    return open_blocks[0] if open_blocks else block


# ---- plan of a program ----


def _regions(program: _Block) -> list[_Block]:
    return [block for key, block in program.block("header").blocks() if key == "region"]


def _plan(program: _Block) -> Plan:
    tensors: dict[str, Tensor] = {}
    for key, block in program.block("descriptors").blocks():
        if key in ("tensor", "sub_tensor"):
            tensor = _tensor(block)
            tensors[tensor.name] = tensor
    commands = [c for c in program.block("main").blocks() if c[0] not in _NO_LAUNCH]
    shapes = [key for key, _ in program.block("shape_main").blocks()]
    regions = [r for r in _regions(program) if r.text("name").startswith("devmem")]
    return Plan(
        kernels=tuple(_kernel(kind, block, tensors) for kind, block in commands),
        scratch_bytes=sum(int(region.text("size")) for region in regions),
        shape_copies=shapes.count("copy"),
        shape_checks=shapes.count("assert"),
        architectures=tuple(program.block("header").block("accelerators").items),
    )


def _tensor(block: _Block) -> Tensor:
    name = block.text("name")
    return Tensor(
        name=name,
        dtype=block.text("type"),
        dims=tuple(int(i) if i.isdecimal() else i for i in block.block("dims").items),
        base=block.text("base", name),
        constant=bool(block.text("const_payload_size")),
    )


def _kernel(kind: str, block: _Block, tensors: dict[str, Tensor]) -> Kernel:
    def named(*keys: str) -> tuple[Tensor, ...]:
        names = [name for key in keys for name in block.block(key).items]
        return tuple(tensors[name] for name in names if name in tensors)

    grid, threads = _three(block.numbers("grid")), _three(block.numbers("block"))
    return Kernel(
        name=block.text("name"),
        kind=kind,
        layers=tuple(re.findall(r"\[ONNX Layer: ([^\]]+)\]", block.text("layers"))),
        inputs=named("input_args", "input"),
        outputs=named("output_args", "output"),
        grid=grid,
        block=threads,
        covered=_covered(block, grid, threads),
    )


def _three(numbers: tuple[int, ...]) -> tuple[int, int, int] | None:
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def _covered(
    block: _Block, grid: tuple[int, ...] | None, threads: tuple[int, ...] | None
) -> int | None:
    if grid is None or threads is None or 0 in grid:  # 0: computed at run time
        return None
    if block.text("is_tiled") == "true":
        return math.prod(grid) * math.prod(block.numbers("tile_dims"))
    width = int(block.text("vec_width", "1")) * int(block.text("unroll_factor", "1"))
    return math.prod(grid) * math.prod(threads) * width


def _covers(kernel: Kernel, elements: int) -> bool:
    if kernel.covered is not None:
        return kernel.covered >= elements
    sizes = [tensor.elements or 0 for tensor in kernel.outputs]
    return kernel.is_copy and max(sizes, default=0) >= elements


def _bits(dtype: str) -> int:
    try:
        return _BITS[dtype.lower()]
    except KeyError:
        raise EngineError(
            f"the plan has a tensor of type {dtype!r}, whose size is unknown: add it to "
            "export/engines/plan.py."
        ) from None


# ---- engine inspector ----


def _inspected(layer: dict[str, Any]) -> Kernel:
    return Kernel(
        name=layer["Name"],
        kind=layer["LayerType"].lower(),
        layers=tuple(re.findall(r"\[ONNX Layer: ([^\]]+)\]", layer.get("Metadata", ""))),
        inputs=tuple(map(_inspected_tensor, layer["Inputs"])),
        outputs=tuple(map(_inspected_tensor, layer["Outputs"])),
    )


def _inspected_tensor(value: dict[str, Any]) -> Tensor:
    # For example "Row major linear FP16 format (kCHW2)": the type is the only known word.
    words = re.findall(r"[A-Za-z0-9]+", value.get("Format/Datatype", value.get("Format", "")))
    dtype = next((word for word in words if word.lower() in _BITS), "unknown")
    return Tensor(value["Name"], dtype.lower(), tuple(value["Dimensions"]), value["Name"])
