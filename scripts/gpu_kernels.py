"""Write the table of GPU kernels in docs/gpu.md: resources, bytes and computed time.

    python scripts/gpu_kernels.py [--check]

Kernels are those of a decoding step of `base` and of an SSRU student, compiled for every
architecture; no GPU is needed, but Triton and some minutes. With --check nothing is written, and a
table that is out of date is an error.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from kernel_costs import GPUS, Gpu, Progress, bytes_of, seconds, warps_of

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.export.engines.options import EngineOptions
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.backends.pytorch.onnx_program import Program
from translate_trt.runtime.backends.pytorch.step_launches import (
    AnyLaunch,
    Matmul,
    record_launches,
)
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.gpu.cubins import (
    ARCHITECTURES,
    DEPENDENT_LAUNCHES,
    Cubin,
    Specialization,
    compile_kernels,
    specialize,
)
from translate_trt.runtime.gpu.launch import Launch
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import preset

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "benchmarks"))
from models import random_checkpoint  # noqa: E402

PAGE = ROOT / "docs/gpu.md"
VOCABULARY = 37_000
BATCHES = (1, 64)
#: Seconds of an empty launch in a CUDA graph, and of a kernel that begins while another ends.
FLOOR, DEPENDENT_FLOOR = 2.5e-6, 1e-6
PROGRESS = Progress(position=32, live_slots=1.5, source_tokens=30)
_SIZES = {"S": 64, "P": 256}

Cubins = dict[tuple[Specialization, int], Cubin]


def record(name: str, folder: Path) -> dict[int, list[AnyLaunch]]:
    """Launches of a step by batch size."""
    random_checkpoint(folder / name, replace(preset(name).model, vocabulary_size=VOCABULARY))
    bundle = folder / f"bundle-{name}"
    options = BuildOptions(("torch-fp16",), engines=EngineOptions(profiles=(Profile(64, 256),)))
    compile_bundle(open_checkpoint(folder / name), bundle, options)
    specs = read_manifest(bundle).targets["torch-fp16"].contract.graphs["step"]
    graph = bundle / "targets" / "torch-fp16" / "step.onnx"
    program = Program(graph, *specs, torch.device("meta"), kernels=True)
    return {size: record_launches(program, {"N": size, **_SIZES}).launches for size in BATCHES}


def cost(launch: AnyLaunch) -> tuple[float, float]:
    """Bytes and operations."""
    if isinstance(launch, Launch):
        return bytes_of(launch, PROGRESS), 0
    size = sum(x.numel() * x.element_size() for x in launch.tensors)
    return size, launch.operations if isinstance(launch, Matmul) else 0


def total(launches: Iterable[AnyLaunch], gpu: Gpu, floor: float = 0, own_floor: float = 0) -> float:
    """Computed microseconds; own_floor: the floor of own kernels."""
    return 1e6 * sum(
        seconds(gpu, *cost(launch), own_floor if isinstance(launch, Launch) else floor)
        for launch in launches
    )


@dataclass
class Row:
    """Launches of one kernel by batch size."""

    launches: dict[int, list[AnyLaunch]] = field(default_factory=dict)

    def cells(self, name: str, cubins: Cubins) -> list[str]:
        single, many = (self.launches[size] for size in BATCHES)
        kernels = {specialize(x) for x in many if isinstance(x, Launch)}
        compiled = [cubin for (kernel, _), cubin in cubins.items() if kernel in kernels]
        resources = ["", "", ""]
        if compiled:
            registers = sorted({cubin.registers for cubin in compiled})
            warps = [
                min(warps_of(cubin) for cubin in compiled if cubin.architecture == number)
                for number in ARCHITECTURES
            ]
            resources = [
                "-".join(map(str, dict.fromkeys((registers[0], registers[-1])))),
                f"{max(cubin.shared for cubin in compiled) / 1024:.1f}",
                " ".join(map(str, warps)),
            ]
        sizes = (sum(cost(launch)[0] for launch in batch) for batch in (single, many))
        times = (f"{total(many, gpu):.1f}" for gpu in GPUS)
        return [name, str(len(many)), *resources, *(f"{x / 1e6:.2f}" for x in sizes), *times]


def table() -> Iterable[str]:
    """Lines of the table."""
    with tempfile.TemporaryDirectory() as folder:
        steps = {name: record(name, Path(folder)) for name in ("base", "student-tiny")}
    rows: dict[str, Row] = {}
    for step in steps.values():
        known = set(rows)
        for size, launches in step.items():
            for launch in launches:
                kernel = isinstance(launch, Launch)
                name = f"`{launch.kernel.__name__}`" if kernel else "matmuls"
                if name not in known:
                    rows.setdefault(name, Row()).launches.setdefault(size, []).append(launch)
    own = (x for row in rows.values() for x in row.launches[BATCHES[1]] if isinstance(x, Launch))
    cubins = compile_kernels(map(specialize, own), [*ARCHITECTURES], processes=2)
    spilled = {kernel.name for (kernel, _), cubin in cubins.items()
               if cubin.stack or cubin.local_accesses}  # fmt: skip
    if spilled:
        raise SystemExit(f"registers are spilled in {', '.join(sorted(spilled))}")
    architectures = ", ".join(f"{number / 10}" for number in ARCHITECTURES)
    yield _line(["kernel", "launches", "registers", "shared KB", f"warps of {architectures}",
                 *(f"MB at {size}" for size in BATCHES), *(gpu.name for gpu in GPUS)])  # fmt: skip
    yield "|---" * (len(GPUS) + 7) + "|"
    for name, row in rows.items():
        yield _line(row.cells(name, cubins))
    for name, step in steps.items():
        for size, launches in step.items():
            times = [
                f"{total(launches, gpu, FLOOR, FLOOR):.0f} ({total(launches, gpu, FLOOR, own):.0f})"
                for gpu in GPUS
                for own in [DEPENDENT_FLOOR if gpu.architecture >= DEPENDENT_LAUNCHES else FLOOR]
            ]
            yield _line([f"step of `{name}` at {size}", str(len(launches)), *[""] * 5, *times])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    marks = re.compile(
        r"(<!-- kernels, made by scripts/gpu_kernels\.py -->\n).*?(?=<!-- end -->)", re.DOTALL
    )
    lines = "".join(f"{line}\n" for line in table())
    found, count = marks.subn(lambda match: match[1] + lines, text)
    if count != 1:
        raise SystemExit(f"{PAGE} has no marks of kernels, or several")
    if not check:
        PAGE.write_text(found, encoding="utf-8")
    elif found != text:
        raise SystemExit(f"{PAGE} is out of date: run scripts/gpu_kernels.py")


if __name__ == "__main__":
    main()
