"""Execution plans of engines: what a TensorRT-RTX engine launches, read without a GPU.

TensorRT-RTX serializes one program per optimization profile as plain text, with the sections
`descriptors` (tensors), `main` (kernels in order) and `shape_main` (host code of dynamic shapes).
The format is not documented; it was established with tensorrt_rtx 1.7.1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_PROGRAM = re.compile(rb"header \{\n[^\0]*")
_TOKEN = re.compile(r'"[^"]*"|[{}=]|[^\s{}="]+')
# Programs that replace a GEMM with a fused epilogue, if it does not compile, have this region.
_FALLBACK = "runtime-fusion-consts"
# Commands of `main` that launch nothing: host code of shapes, and events between streams.
_NO_LAUNCH = {"shape_call", "signal", "wait"}
# The name of a generated kernel is a list of its operations, as in __myl_ReshTran. These move or
# convert elements without computing anything.
_MOVING = {"Move", "Resh", "Tran", "Repl", "Conc", "Slic", "Cast"}


@dataclass(frozen=True)
class Kernel:
    """Command of a plan that runs on the GPU.

    Attributes:
        name: Name of the kernel; for a GEMM, that of its layer.
        kind: "function" (generated kernel), "fully_connected" (GEMM), "copy" and others.
        covered: Number of elements that grid and vector width cover, at the largest shapes of the
            profile; those of the largest output of a copy without a grid; otherwise 0.
    """

    name: str
    kind: str
    covered: int

    @property
    def operations(self) -> list[str]:
        """Operations of a generated kernel, such as ["Resh", "Tran"]; empty for other kernels."""
        return _operations(self.name)

    @property
    def is_copy(self) -> bool:
        """Whether the kernel only moves or converts elements."""
        return _is_copy(self.name, self.kind)


@dataclass(frozen=True)
class Plan:
    """Execution plan of one optimization profile.

    Attributes:
        kernels: What is launched per execution, in order.
        shape_commands: Copies of computed sizes to the GPU, and checks of sizes on the host.
    """

    kernels: list[Kernel]
    shape_commands: int

    def covering(self, elements: int) -> list[Kernel]:
        """Return the kernels whose grid covers at least that many elements."""
        return [kernel for kernel in self.kernels if kernel.covered >= elements]

    def copies(self, elements: int) -> list[Kernel]:
        """Return the kernels that only move or convert at least that many elements."""
        return [kernel for kernel in self.covering(elements) if kernel.is_copy]


def read_plans(engine: bytes) -> list[Plan]:
    """Read the plans of an engine by profile, without fallbacks of GEMMs."""
    programs = [_parse(match[0].decode("utf-8", "replace")) for match in _PROGRAM.finditer(engine)]
    regions = [[block for _, block in one.block("header").blocks()] for one in programs]
    return [
        _plan(program)
        for program, blocks in zip(programs, regions, strict=True)
        if _FALLBACK not in [block.text("name") for block in blocks]
    ]


def _operations(name: str) -> list[str]:
    match = re.match(r"__myl_((?:[A-Z][a-z0-9]*)+)", name)
    return re.findall(r"[A-Z][a-z0-9]*", match[1]) if match else []


def _is_copy(name: str, kind: str) -> bool:
    operations = _operations(name)
    return kind == "copy" or (bool(operations) and _MOVING.issuperset(operations))


@dataclass(frozen=True)
class _Block:
    """Content of a pair of braces: `key=value` pairs, whose keys may repeat, and plain items."""

    pairs: list[tuple[str, str | _Block]] = field(default_factory=list)
    items: list[str] = field(default_factory=list)

    def text(self, key: str, default: str = "") -> str:
        return next((v for k, v in self.pairs if k == key and isinstance(v, str)), default)

    def block(self, key: str) -> _Block:
        return next((v for k, v in self.blocks() if k == key), _Block())

    def blocks(self) -> Iterator[tuple[str, _Block]]:
        return ((key, value) for key, value in self.pairs if isinstance(value, _Block))

    def volume(self, key: str) -> int | None:
        """Return three numbers multiplied; None without them."""
        numbers = [int(item) for item in self.block(key).items if item.isdecimal()]
        return math.prod(numbers) if numbers else None


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
            if len(open_blocks) == 1:
                break
            open_blocks.pop()
            key = ""
        elif assigned:
            block.items.pop()
            block.pairs.append((key, token.strip('"')))
            key = ""
        else:
            key = token.strip('"')
            block.items.append(key)
        assigned = False
    return open_blocks[0]


def _plan(program: _Block) -> Plan:
    sizes = {
        block.text("name"): block.block("dims").items
        for _, block in program.block("descriptors").blocks()
    }
    shapes = [key for key, _ in program.block("shape_main").blocks()]
    commands = program.block("main").blocks()
    return Plan(
        [_kernel(kind, block, sizes) for kind, block in commands if kind not in _NO_LAUNCH],
        shapes.count("copy") + shapes.count("assert"),
    )


def _kernel(kind: str, block: _Block, sizes: dict[str, list[str]]) -> Kernel:
    name, grid, threads = block.text("name"), block.volume("grid"), block.volume("block")
    covered = 0
    if grid and threads:  # 0: computed at run time
        width = int(block.text("vec_width", "1")) * int(block.text("unroll_factor", "1"))
        tile = block.volume("tile_dims") if block.text("is_tiled") == "true" else None
        covered = grid * (tile or threads * width)
    elif _is_copy(name, kind):
        outputs = [*block.block("output_args").items, *block.block("output").items]
        known = [sizes[x] for x in outputs if x in sizes and all(map(str.isdecimal, sizes[x]))]
        covered = max((math.prod(map(int, one)) for one in known), default=0)
    return Kernel(name, kind, covered)
