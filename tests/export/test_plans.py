"""Plans of cuda targets, played in Triton's interpreter against the graphs they were made of."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.plans import (
    BEAMS,
    BUCKETS,
    ENGINES,
    Player,
    blank_tensors,
    describe_kernels,
    plan_bundle,
)
from support.shared import SharedFiles
from support.small_models import small_model

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import Compiler, compile_bundle
from translate_trt.export.engines.options import EngineOptions
from translate_trt.export.plans import build, cubin_cache
from translate_trt.export.plans.arena import ALIGNMENT, Lifetime, allocate
from translate_trt.export.plans.build import architectures, encoder_profiles
from translate_trt.export.verify import cpu_emulation
from translate_trt.runtime.backends.engines import Profile, engine_records
from translate_trt.runtime.backends.nvidia_driver import Gpu
from translate_trt.runtime.backends.packages import CUBINS
from translate_trt.runtime.backends.pytorch.onnx_program import Plan, Program
from translate_trt.runtime.backends.pytorch.step_launches import record_launches
from translate_trt.runtime.bundle.contract import request_values
from translate_trt.runtime.bundle.manifest import Limits, read_manifest
from translate_trt.runtime.errors import BackendError, BundleError, OptionError
from translate_trt.runtime.gpu.cubins import ARCHITECTURES
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.checkpoint import Checkpoint

pytestmark = pytest.mark.slow

TARGET, SAME_GRAPHS = "cuda-fp16", "torch-fp16"


@pytest.fixture(
    scope="module",
    params=[
        "post-norm",
        "ssru",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("pre-norm", "t5 1.1")),
    ],
)
def bundle(request: pytest.FixtureRequest, shared: SharedFiles, tokenizer_model: Path) -> Path:
    return plan_bundle(shared, tokenizer_model, request.param, (TARGET, SAME_GRAPHS))


def program_of(bundle: Path, role: str, device: str = "cpu") -> Program:
    """The graph that a plan was made of, with kernels."""
    specs = read_manifest(bundle).targets[SAME_GRAPHS].contract.graphs[role]
    path = bundle / "targets" / SAME_GRAPHS / f"{role}.onnx"
    return Program(path, *specs, torch.device(device), kernels=True)


def play(
    bundle: Path, role: str, profile: int, inputs: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Run plan and graph, check that all outputs have equal bits, and return them."""
    player, program = Player(bundle, TARGET, role), program_of(bundle, role)
    own = blank_tensors(program.inputs, player.plan["profiles"][profile]["sizes"])
    for name, tensor in own.items():
        tensor.copy_(inputs[name])
    sizes = player.plan["profiles"][profile]["sizes"]
    outputs = blank_tensors(
        [spec for spec in program.outputs if spec.name not in program.in_place], sizes
    )
    player.run(profile, {**own, **outputs})
    plan, found = Plan.record(program, inputs)
    expected = dict(zip(plan.outputs, found, strict=True))
    for name, tensor in expected.items():
        played = own[program.in_place[name]] if name in program.in_place else outputs[name]
        assert torch.equal(bits(played), bits(tensor)), name
    return expected


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


@pytest.mark.parametrize("bucket", BUCKETS, ids=str)
def test_plans_compute_what_their_graphs_compute(bundle: Path, bucket: Profile) -> None:
    """The encoder and two steps, to the bit; a fresh arena is NaN."""
    entry = read_manifest(bundle).targets[TARGET]
    contract, records = entry.contract, engine_records(entry, bundle)
    n, s = bucket.batch, bucket.source_length
    lengths = torch.tensor([s, 9][:n])
    sources = torch.randint(4, 40, (n, s), generator=torch.Generator().manual_seed(1))
    encoded = play(
        bundle, "encoder", records["encoder"].profiles.index(bucket),
        {"source_ids": sources, "source_lengths": lengths},
    )  # fmt: skip
    profiles = records["step"].profiles
    index = next(i for i, one in enumerate(profiles) if (one.batch, one.source_length) == (n, s))
    slots = profiles[index].slots
    values: dict[str, Any] = contract.initial_state(n, BEAMS, 2)
    if "ancestry" in values:
        values["ancestry"] = values["ancestry"][:, :, :slots]
    values |= request_values([SearchOptions()] * n, np.full(n, 20))
    state = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in values.items()}
    for _ in range(2):
        following = play(bundle, "step", index, {**encoded, **state})
        state |= {spec.name: following[spec.following.name] for spec in contract.state}
    assert int(state["positions"][0]) == 2


def test_plans_have_the_launches_of_their_graphs(bundle: Path) -> None:
    entry = read_manifest(bundle).targets[TARGET]
    records = engine_records(entry, bundle)
    for role in ("encoder", "step"):
        program, plan = program_of(bundle, role, "meta"), Player(bundle, TARGET, role).plan
        assert len(plan["profiles"]) == len(records[role].profiles)
        for found, profile in zip(plan["profiles"], records[role].profiles, strict=True):
            sizes = found["sizes"]
            assert (sizes["N"], sizes["S"]) == (profile.batch, profile.source_length)
            assert sizes.get("P") == profile.slots
            recording = record_launches(program, sizes)
            launches = found["launches"]
            assert len(launches) == len(recording.launches) == recording.plan.launches
            # Profiles share kernels, and no intermediate tensor is copied.
            first = [launch.get("kernel") for launch in plan["profiles"][0]["launches"]]
            assert [launch.get("kernel") for launch in launches] == first
            assert {kind for launch in launches for kind in launch} <= {
                "kernel", "grid", "arguments", "matmul"
            }  # fmt: skip
            # What kernels were compiled for: tensors at multiples of 16.
            arena = [
                value[1]
                for launch in launches
                for value in launch.get("arguments", ())
                if isinstance(value, list) and value[0] == "arena"
            ]
            assert all(offset % ALIGNMENT == 0 for offset in arena)


def test_files_of_a_target(bundle: Path) -> None:
    entry = read_manifest(bundle).targets[TARGET]
    assert sorted(entry.files) == ["encoder", "step", "weights"]
    assert entry.backend == "cuda"
    for record in engine_records(entry, bundle).values():
        assert (record.package, record.version) == ("cuda", "1")
        assert record.compute_capabilities == CUBINS
    players = [Player(bundle, TARGET, role) for role in ("encoder", "step")]
    tensors = players[0]._weights
    weights = [one for name, one in tensors.items() if not name.startswith("kernels.")]
    assert len({(one.dtype, one.shape, bytes(bits(one))) for one in weights}) == len(weights)
    read = {value[1] for player in players for value in addresses(player.plan["profiles"])
            if value[0] == "weight"}  # fmt: skip
    cubins = {one["tensor"] for player in players for kernel in player.plan["kernels"]
              for one in kernel["cubins"].values()}  # fmt: skip
    assert read | cubins == set(tensors)
    assert tuple(f"{number / 10}" for number in ARCHITECTURES) == CUBINS


def test_verify_names_the_target_with_the_same_graphs(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = read_manifest(bundle).targets[TARGET]
    monkeypatch.setattr(cpu_emulation, "find_gpu", lambda: None)
    assert cpu_emulation.why_engine_cannot_run(entry, bundle) == cpu_emulation.NO_GPU
    with pytest.raises(BundleError, match=r"cuda-fp16 .* Choose torch-fp16"):
        cpu_emulation.graphs_of(entry)
    monkeypatch.setattr(cpu_emulation, "find_gpu", lambda: Gpu("Tesla T4", "7.5", 40))
    monkeypatch.setattr(cpu_emulation.native, "library", lambda: Path("library"))
    assert "Tesla T4" in str(cpu_emulation.why_engine_cannot_run(entry, bundle))
    monkeypatch.setattr(cpu_emulation, "find_gpu", lambda: Gpu("B300", "10.3", 148))
    assert cpu_emulation.why_engine_cannot_run(entry, bundle) is None


def addresses(value: Any) -> list[Any]:
    """All addresses in a part of a plan."""
    if isinstance(value, dict):
        return [found for part in value.values() for found in addresses(part)]
    if not isinstance(value, list):
        return []
    if value and isinstance(value[0], str):
        return [value]
    return [found for part in value for found in addresses(part)]


# ---- memory ----


def test_tensors_in_use_at_the_same_time_never_overlap() -> None:
    chance = random.Random(3)
    for _ in range(200):
        lifetimes = []
        for _ in range(chance.randint(0, 30)):
            first, last = sorted((chance.randrange(20), chance.randrange(20)))
            lifetimes.append(Lifetime(chance.choice((0, 1, 255, 256, 1000, 4096)), first, last))
        offsets, end = allocate(lifetimes)
        assert all(offset % ALIGNMENT == 0 for offset in (*offsets, end))
        for i, (offset, one) in enumerate(zip(offsets, lifetimes, strict=True)):
            assert offset + one.size <= end
            for other_offset, other in zip(offsets[:i], lifetimes[:i], strict=True):
                apart = offset + one.size <= other_offset or other_offset + other.size <= offset
                assert apart or one.last < other.first or other.last < one.first
        in_use = [sum(-(-one.size // ALIGNMENT) * ALIGNMENT for one in lifetimes
                      if one.first <= time <= one.last) for time in range(20)]  # fmt: skip
        assert max(in_use) <= end <= sum(-(-one.size // 256) * 256 for one in lifetimes)


def test_memory_is_used_again() -> None:
    lifetimes = [Lifetime(512, index, index + 1) for index in range(10)]
    assert allocate(lifetimes)[1] == 1024


# ---- options ----


def test_encoders_run_at_powers_of_two_up_to_each_bucket() -> None:
    found = encoder_profiles([Profile(1, 100), Profile(6, 32)])
    long = [(1, s) for s in (16, 32, 64, 100)]
    assert [(one.batch, one.source_length) for one in found] == [
        *long, *((n, s) for n in (2, 4, 6) for s in (16, 32))
    ]  # fmt: skip
    assert encoder_profiles([Profile(1, 7)]) == (Profile(1, 7),)


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ((), ARCHITECTURES),
        (("portable",), ARCHITECTURES),
        (("9.0",), (90,)),
        (("12.1", "8.7"), (86, 121)),
    ],
    ids=str,
)
def test_kernels_are_compiled_for_the_named_gpus(
    named: tuple[str, ...], expected: Sequence[int]
) -> None:
    assert architectures(EngineOptions(compute_capabilities=named)) == expected


def test_refused_options(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for options, message in (
        (BuildOptions((TARGET,), all_options=True), "all_options; choose torch-fp16"),
        (BuildOptions((TARGET,), engines=EngineOptions(compute_capabilities=("7.5",))),
         "no kernels for compute capability 7.5"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=message):
            compile_bundle(checkpoint, tmp_path / "bundle", options)


def test_without_a_gpu_none_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_gpu", lambda: None)
    with pytest.raises(OptionError, match="no GPU or driver was found"):
        architectures(EngineOptions(compute_capabilities=("current",)))


@pytest.mark.parametrize(
    ("changes", "options", "operator"),
    [
        (
            {},
            {"disabled_passes": ("fuse-gpu-ops",)},
            r"GreaterOrEqual \w+ failed: ge of .* has no launch",
        ),
        # Keys and values of different sizes.
        pytest.param({"key_size": 4}, {}, "has no launch", marks=pytest.mark.nightly),
        pytest.param({}, {"beam_size": 17}, "has no launch", marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_operators_without_launches_are_named(
    changes: dict[str, Any], options: dict[str, Any], operator: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(build, "load_or_compile", describe_kernels)
    compiler = Compiler(
        small_model(**changes), Limits(24, 74),
        BuildOptions((TARGET,), engines=ENGINES, **options),
    )  # fmt: skip
    with pytest.raises(BackendError, match=rf"cuda-fp16, the \w+ graph: .*{operator}") as caught:
        compiler.write(TARGET, tmp_path)
    assert "Choose torch-fp16" in str(caught.value)


# ---- cubins ----


def test_cubins_are_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                  shared: SharedFiles, tokenizer_model: Path) -> None:  # fmt: skip
    compiled: list[int] = []

    def compile_kernels(kernels: Any, architectures: Any, processes: int) -> Any:
        compiled.append(len(kernels) * len(architectures))
        return describe_kernels(kernels, architectures)

    monkeypatch.setattr(cubin_cache, "compile_kernels", compile_kernels)
    bundle = plan_bundle(shared, tokenizer_model, "post-norm", (TARGET, SAME_GRAPHS))
    player = Player(bundle, TARGET, "step")
    program = program_of(bundle, "step", "meta")
    names = {name: name for name in program.weights}
    from translate_trt.export.plans.plan import plan_graph

    kernels = plan_graph(program, [Profile(1, 24, 32 * BEAMS)], names).kernels
    assert len(kernels) == len(player.plan["kernels"])
    first = cubin_cache.load_or_compile(kernels, (80, 90), tmp_path)
    assert cubin_cache.load_or_compile(kernels, (80, 90), tmp_path) == first
    assert compiled == [2 * len(kernels)]
    more = cubin_cache.load_or_compile(kernels[:1], (80, 120), tmp_path)
    assert compiled == [2 * len(kernels), 2]
    assert more[kernels[0], 80] == first[kernels[0], 80]
    assert cubin_cache.load_or_compile(kernels[:1], (80,), None) == {
        (kernels[0], 80): first[kernels[0], 80]
    }


@pytest.mark.nightly
def test_a_target_has_cubins(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """25 s: the only test that compiles what a bundle contains."""
    engines = EngineOptions(profiles=(Profile(1, 48),), compute_capabilities=("9.0",))
    compile_bundle(checkpoint, tmp_path / "bundle", BuildOptions((TARGET,), engines=engines))
    player = Player(tmp_path / "bundle", TARGET, "step")
    assert all(cubin.startswith(b"\x7fELF\x02") for cubin in player._cubins)
    kernels = json.loads((tmp_path / "bundle/targets/cuda-fp16/step.json").read_text())["kernels"]
    assert all(one["parameters"][-2:] == ["*i8", "*i8"] for one in kernels)
