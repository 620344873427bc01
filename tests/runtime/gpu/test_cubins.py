"""Launches of a step as data, and their kernels compiled ahead of time; no GPU is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.compiled import compile_once
from support.models import save_model
from support.paths import ROOT
from support.scripts import load_script
from support.shared import SharedFiles

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.engines.options import EngineOptions
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.backends.pytorch.onnx_program import Plan, Program
from translate_trt.runtime.backends.pytorch.step_launches import (
    AnyLaunch,
    Matmul,
    record_launches,
)
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.gpu.activation import bias_activation, cast, gated_gelu
from translate_trt.runtime.gpu.attention import beam_attention_mean, cached_attention
from translate_trt.runtime.gpu.cubins import (
    Cubin,
    Specialization,
    compile_kernels,
    specialize,
)
from translate_trt.runtime.gpu.encoder import self_attention, source_bias, split_heads
from translate_trt.runtime.gpu.launch import Launch, recording
from translate_trt.runtime.gpu.norm import norm
from translate_trt.runtime.gpu.recurrence import recurrent_unit
from translate_trt.runtime.gpu.top_logits import top_logits
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Transformer

pytestmark = pytest.mark.slow
COSTS = load_script("kernel_costs")

#: Decoders by name, with their beam size; all have the width of `base`, but few of its layers.
DECODERS: dict[str, tuple[int, dict[str, Any]]] = {
    "base": (4, {"decoder_layers": 2}),
    "one beam": (1, {"decoder_layers": 1}),
    "student": (4, {"decoder_layers": 2, "decoder_mixer": "ssru"}),
}


@pytest.fixture(scope="module")
def shared_files(shared: SharedFiles, tokenizer_model: Path) -> tuple[SharedFiles, Path]:
    return shared, tokenizer_model


def record(files: tuple[SharedFiles, Path], name: str, size: int) -> tuple[Plan, list[AnyLaunch]]:
    """Return plan and launches of a step with random weights, for a number of sentences."""
    shared, tokenizer = files
    beams, decoder = DECODERS[name]
    config = ModelConfig(
        vocabulary_size=Tokenizer(tokenizer, tokenizer).vocabulary_size, d_model=512, d_ff=2048,
        heads=8, encoder_layers=1, dropout=0.0, **decoder,
    )  # fmt: skip
    path = shared.once(
        f"launches-{name}", lambda path: save_model(Transformer(config), path, tokenizer)
    )
    options = BuildOptions(
        ("torch-fp16",), beam_size=beams, engines=EngineOptions(profiles=(Profile(64, 48),))
    )
    bundle = compile_once(shared, open_checkpoint(path), options)
    specs = read_manifest(bundle).targets["torch-fp16"].contract.graphs["step"]
    graph = bundle / "targets" / "torch-fp16" / "step.onnx"
    program = Program(graph, *specs, torch.device("meta"), kernels=True)
    found = record_launches(program, {"N": size, "S": 48, "P": 32 * beams})
    return found.plan, found.launches


# Six and 11 of each layer, so 72 with the six layers of base; 10 of each layer of a student.
@pytest.mark.parametrize(("name", "most"), [("base", 28), ("student", 25)])
@pytest.mark.parametrize("size", [1, 64])
def test_a_step_has_few_launches(
    shared_files: tuple[SharedFiles, Path], name: str, most: int, size: int
) -> None:
    plan, launches = record(shared_files, name, size)
    assert plan.launches == len(launches) <= most
    matmuls = [launch for launch in launches if not isinstance(launch, Launch)]
    assert all(isinstance(launch, Matmul) and launch.operations for launch in matmuls)


def test_the_table_has_the_kernels_of_both_steps(
    shared_files: tuple[SharedFiles, Path],
) -> None:
    text = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    table = text.split("made by scripts/gpu_kernels.py -->")[1].split("<!-- end -->")[0]
    named = {row.split("|")[1].strip(" `") for row in table.splitlines() if "|" in row}
    launches = [x for name in ("base", "student") for x in record(shared_files, name, 64)[1]]
    kernels = {launch.kernel.__name__ for launch in launches if isinstance(launch, Launch)}
    assert {name for name in named if name.isidentifier()} == kernels | {"kernel", "matmuls"}


# ---- compilation ----


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def other_launches() -> Iterable[Launch]:
    """Launches that the steps above have not: encoders, other models, and 37,000 tokens."""
    half, integer = torch.float16, torch.int64
    n, k, s, v, c, width = 64, 4, 48, 37000, 9, 512
    rows = empty(n, k, width)
    source = empty(n, s, 3 * width, dtype=half)
    yield from source_bias(empty(n, dtype=integer), empty(n, 1, 1, s), hidden=0)
    context = source[..., :width].clone()
    yield from self_attention(source, empty(n, 1, 1, s), context, empty(8, 257), heads=8)
    yield from self_attention(source, empty(n, 1, 1, s), context, heads=8)
    caches = [empty(n, 8, 4 * s, 64, dtype=half) for _ in "kv"]
    yield from cached_attention(
        empty(n, k, 3 * width, dtype=half), *caches, empty(n, k, 4 * s), empty(n, dtype=integer),
        empty(n, dtype=torch.bool), rows.to(half), empty(8, 129), heads=8,
    )  # fmt: skip
    yield from split_heads(source, [empty(n, 8, s, 64, dtype=half) for _ in range(3)])
    for gelu in (False, True):
        x = empty(n, k, 2048, dtype=half)
        yield from bias_activation(x, empty(2048), torch.empty_like(x), gelu=gelu)
    yield from beam_attention_mean(
        rows.to(half), *(empty(n, 8, s, 64, dtype=half) for _ in "kv"), empty(n, 1, 1, s),
        empty(n, dtype=torch.bool), rows.to(half), empty(n, k, s), heads=8, averaged=range(8),
    )  # fmt: skip
    yield from gated_gelu(empty(n, k, 4096, dtype=half), empty(n, k, 2048, dtype=half))
    yield cast(rows.to(half), rows)
    for beta in (None, empty(width)):
        outputs = None, None, rows.to(half)
        yield from norm(rows, None, None, empty(width), beta, *outputs, epsilon=1e-5)
    yield from recurrent_unit(empty(n, k, 2 * width, dtype=half), rows, rows.clone(), rows.clone())
    yield from top_logits(
        empty(n, k, v, dtype=half), empty(n, dtype=integer), empty(n, k, c),
        empty(n, k, c, dtype=integer), empty(n, k, 1), bias=empty(v),
    )  # fmt: skip


@pytest.fixture(scope="module")
def kernels(shared_files: tuple[SharedFiles, Path]) -> list[Specialization]:
    """All kernels."""
    steps = [launch for name in DECODERS for launch in record(shared_files, name, 64)[1]]
    launches = [launch for launch in steps if isinstance(launch, Launch)]
    return [*dict.fromkeys(map(specialize, [*launches, *other_launches()]))]


@pytest.mark.parametrize(
    "architectures",
    [(90,), pytest.param((80, 86, 89, 100, 103, 120, 121), marks=pytest.mark.nightly)],
    ids=str,
)
def test_kernels_do_not_spill(
    kernels: list[Specialization], architectures: tuple[int, ...]
) -> None:
    """Nothing else sees what a compiler makes of kernels; by default, of one of each function."""
    if len(architectures) == 1:
        kernels = [*{kernel.name: kernel for kernel in kernels}.values()]
    cubins = compile_kernels(kernels, architectures, processes=2)
    assert len(cubins) == len(kernels) * len(architectures) > 12
    assert not [key for key, cubin in cubins.items() if cubin.stack or cubin.local_accesses]
    for (kernel, architecture), cubin in cubins.items():
        assert cubin.binary.startswith(b"\x7fELF")
        assert cubin.entry == kernel.name
        limits = COSTS.MULTIPROCESSORS[architecture]
        assert 8 <= COSTS.warps_of(cubin) <= limits.warps, (kernel, cubin.registers)
        assert cubin.parameters[: len(kernel.types)] == kernel.types
        assert [name for name, _ in cubin.parameters[-2:]] == ["global_scratch", "profile_scratch"]


AS_AT_RUN_TIME = """
import torch, triton
from triton.backends.compiler import GPUTarget
from translate_trt.runtime.gpu.cubins import compile_kernel, specialize
from translate_trt.runtime.gpu.encoder import split_heads
from translate_trt.runtime.gpu.launch import DEPENDENT
from translate_trt.runtime.gpu.recurrence import recurrent_unit

class Driver:
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", 80, 32)

triton.runtime.driver.set_active(Driver())
gates, *states = (torch.empty(2, 4, size, device="meta") for size in (128, 64, 64, 64))
parts = [torch.empty(2, 4, 3, 16, device="meta") for _ in range(2)]
heads = split_heads(torch.empty(2, 3, 128, device="meta"), parts)
for launch in (*recurrent_unit(gates.half(), *states), *heads):
    arguments = {**launch.arguments, **launch.constants, DEPENDENT: False, **launch.options}
    at_run_time = launch.kernel.warmup(grid=launch.grid, **arguments)
    cubin = compile_kernel(specialize(launch), 80)
    assert at_run_time.metadata.enable_fp_fusion is False
    assert at_run_time.asm["cubin"] == cubin.binary
    assert at_run_time.metadata.shared == cubin.shared
"""


def test_cubins_are_those_of_the_run_time(tmp_path: Path) -> None:
    # A cache of its own: cubins contain the paths of their sources, which Triton's keys leave out.
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", AS_AT_RUN_TIME], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_integers_that_select_a_kernel_are_refused() -> None:
    (launch,) = recurrent_unit(empty(1, 4, 64), *(empty(1, 4, 32) for _ in range(3)))
    assert dict(specialize(launch).types)["size"] == "i32"
    large = Launch(
        launch.kernel, launch.grid, {**launch.arguments, "size": 2**31}, launch.constants
    )
    with pytest.raises(BackendError, match="no cubin for all values of size, such as 2147483648"):
        specialize(large)


def test_unaligned_tensors_have_another_kernel() -> None:
    gates, *states = (empty(4, size) for size in (64, 32, 32, 32))
    (launch,) = recurrent_unit(gates, *states)
    (unaligned,) = recurrent_unit(empty(4 * 64 + 1)[1:].view(4, 64), *states)
    assert specialize(launch).aligned - specialize(unaligned).aligned == {"gates"}


@pytest.mark.parametrize(
    ("architecture", "threads", "registers", "memory", "programs"),
    [
        (90, 128, 32, 0, 16),  # warps
        (86, 32, 32, 0, 16),  # programs
        (80, 128, 255, 0, 2),  # registers
        (80, 256, 72, 0, 3),  # registers, of which a quarter holds 7 warps
        (89, 128, 32, 32 << 10, 3),  # shared memory, a KB of it for the system
    ],
)
def test_programs_of_a_multiprocessor(
    architecture: int, threads: int, registers: int, memory: int, programs: int
) -> None:
    cubin = Cubin(architecture, b"", "", (), threads, memory, registers, 0, 0)
    assert COSTS.programs_of(cubin) == programs
    assert COSTS.warps_of(cubin) == programs * threads // 32


# ---- costs ----


def test_recorded_launches_do_not_run() -> None:
    (launch,) = recurrent_unit(empty(1, 4, 64), *(empty(1, 4, 32) for _ in range(3)))
    with recording() as record:
        launch.run()
    assert record == [launch]


def test_bytes_of_launches(shared_files: tuple[SharedFiles, Path]) -> None:
    _, launches = record(shared_files, "base", 2)
    of_kernels = {
        launch.kernel.__name__: launch for launch in launches if isinstance(launch, Launch)
    }
    progress = COSTS.Progress(position=10, live_slots=1.5, source_tokens=20)
    n, k, h, d, s = 2, 4, 8, 64, 48
    rows, caches = n * k * h * d, n * h * d * 2
    assert COSTS.bytes_of(of_kernels["beam_attention_kernel"], progress) == (
        2 * (2 * rows + caches * 20) + 4 * n * s + n
    )
    assert COSTS.bytes_of(of_kernels["cached_attention_kernel"], progress) == (
        2 * (4 * rows + caches * (10 * 1.5 + k)) + 4 * n * k * 10 * k + 8 * n + n
    )
    assert COSTS.bytes_of(of_kernels["embed_kernel"], progress) == (
        (2 + 4 + 2) * rows + 4 * n * h * d + 8 * n * k + 8 * n
    )
