"""Compare beam search by engines, in several forms, with torch.compile on a GPU.

    python benchmarks/gpu.py [--package tensorrt_rtx] [--precision fp16] [--batches 64,1]
        [--preset base] [--vocabulary 37000] [--source-length 256] [--steps 48] [--seconds 900]
    python benchmarks/gpu.py --work DIR --case "64 engines"      one case, for a profiler
    python benchmarks/gpu.py --work DIR --case "64 engines" --profile      and reports its kernels

Every system runs the same step (export/graphs.py) with the same random weights at the shapes of a
translation: sources padded to S = 256, caches of 306 tokens, of which the first 64 are read while
translations are short. No sentence ends before the last step. Figures are microseconds per step of
the whole batch (for engines, from the difference of a long and a short call), and tokens per second
from sources to the last step, for which torch.compile has an encoder that is not compiled.

A case is a batch size and a system: engines whose attention is sums over the live slots, engines
with TensorRT's attention operator, the former without CUDA graphs, and PyTorch's step compiled by
torch.compile for static shapes and captured as a CUDA graph, with caches that are written in place.
With --package torch, the graphs of a `torch` target replace the engines, and with cuda, plans.

Each case runs in a process of its own with a time limit, and the report is replaced after each.
torch.compile tries dozens of kernels for each matmul: a minute for each batch size on an H200.
Cases for which --seconds are too few end as "not finished" or "not run"; the exit code is then 1,
and the last line names them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from harness import Report, alternate, benchmark, kernels_of, main, option, spread
from models import random_checkpoint
from torch import Tensor

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.export.engines.options import CURRENT, EngineOptions
from translate_trt.export.graphs import AttentionPast, EncoderGraph, StaticCaches, StepGraph
from translate_trt.runtime import Translator
from translate_trt.runtime.backends import Settings
from translate_trt.runtime.backends.device import Engines
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.backends.packages import CUDA, TORCH
from translate_trt.runtime.bundle.contract import NEXT, Contract, request_values
from translate_trt.runtime.bundle.manifest import Limits, read_manifest
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import END, START, preset
from translate_trt.train.model import Transformer

NO_GPU = 3  # exit code
#: Tokens of a translation at which engines start to read more cache slots, without the longest.
TARGET_LENGTHS = (32, 64, 128)
#: Systems in the order in which they are measured: what decides the default comes first.
SYSTEMS = ("engines", "engines with attention operator", "torch.compile",
           "engines without CUDA graphs")  # fmt: skip
TORCH_SYSTEMS = ("graphs", "torch.compile", "graphs without CUDA graphs")
#: Passes that the bundle of a system leaves out.
DISABLED = {"engines with attention operator": ("attention-sums",)}
#: Longest time of one case in seconds. Compiling the step with PyTorch takes longest.
CASE_SECONDS = 240
#: Longest time of a build, which traces the model; TensorRT also measures kernels.
BUILD_SECONDS = 480
BUILD = "build"
#: Variables of a case's process: torch.compile otherwise prints every kernel that it tries.
QUIET = {
    "TORCHINDUCTOR_AUTOTUNE_NUM_CHOICES_DISPLAYED": "0",
    "TORCHINDUCTOR_MAX_AUTOTUNE_REPORT_CHOICES_STATS": "0",
    "TORCH_LOGS": "-inductor",
}


class InPlace(StaticCaches):
    """Static caches that PyTorch writes in place."""

    def write(self, past: Tensor, new: Tensor) -> Tensor:
        slots = self.positions[:, None] * self.beams + torch.arange(self.beams, device=new.device)
        index = slots[:, None, :, None].expand(new.shape)
        return past.scatter_(2, index, new.to(past.dtype))


class TorchStep(StepGraph):
    """Step graph with PyTorch's caches."""

    def _past(self, named: dict[str, Tensor]) -> AttentionPast:
        assert self.contract.beams is not None
        return AttentionPast(named, InPlace(named["positions"], self.contract.beams))


class TorchSearch:
    """Search in PyTorch with a compiled and captured step of one shape."""

    def __init__(
        self, model: Transformer, contract: Contract, limits: Limits, dtype: torch.dtype,
        device: str = "cuda",
    ) -> None:  # fmt: skip
        self.device, self.dtype, self.contract = torch.device(device), dtype, contract
        self.limits = limits
        with self.device:
            self.encoder = EncoderGraph(model, limits.max_source_length).to(device).eval()
            self.step = TorchStep(model, limits.max_target_length, contract).to(device).eval()
        if device == "cuda":
            # Static shapes: a graph of dynamic ones has slower kernels from the second batch on.
            self.call: Callable[..., Any] = torch.compile(
                self.step, mode="max-autotune-no-cudagraphs", dynamic=False
            )
        else:
            self.call = self.step
        self.inputs: dict[str, Tensor] = {}
        self.graph: torch.cuda.CUDAGraph | None = None

    def start(self, sources: list[list[int]], options: SearchOptions, steps: int) -> None:
        """Encode sources of equal length into the buffers that the captured step reads."""
        ids = torch.tensor([[*row, END] for row in sources], device=self.device)
        lengths = torch.full((len(ids),), ids.shape[1], device=self.device)
        with torch.no_grad(), self.device, self._autocast():
            encoded = self.encoder(ids, lengths)
        contract, rows = self.contract, len(sources)
        names = [spec.name for spec in contract.encoder_outputs]
        values = dict(zip(names, encoded, strict=True))
        most = torch.full((rows,), steps, dtype=torch.int64).numpy()
        host = request_values([options] * rows, most)
        longest = self.limits.max_target_length
        fitting = (length for length in TARGET_LENGTHS if steps <= length < longest)
        slots = options.beam_size * min(fitting, default=longest)
        host |= contract.initial_state(rows, options.beam_size, START, slots)
        values |= {name: torch.from_numpy(value).to(self.device) for name, value in host.items()}
        types = {spec.name: getattr(torch, spec.dtype) for spec in contract.step_inputs}
        values = {
            spec.name: values[spec.name].to(types[spec.name]) for spec in contract.step_inputs
        }
        if not self.inputs:
            self.inputs = values
        for name, value in values.items():
            self.inputs[name].copy_(value)

    def advance(self) -> None:
        """Run a step, by replay if possible."""
        if self.device.type != "cuda":
            self._eager()
            return
        if self.graph is None:
            saved = {name: value.clone() for name, value in self.inputs.items()}
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._eager()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._eager()
            for name, value in saved.items():
                self.inputs[name].copy_(value)
        self.graph.replay()

    def _eager(self) -> None:
        with torch.no_grad(), self.device, self._autocast():
            outputs = self.call(*self.inputs.values())
        written = {spec.name for spec in self.contract.caches}
        for spec, output in zip(self.contract.step_outputs, outputs, strict=True):
            name = spec.name.removeprefix(NEXT)
            if name in self.inputs and name not in written:
                self.inputs[name].copy_(output)

    def _autocast(self) -> torch.autocast:
        half = self.dtype != torch.float32
        return torch.autocast(self.device.type, self.dtype if half else None, enabled=half)

    def run(self, sources: list[list[int]], options: SearchOptions, steps: int) -> dict[str, float]:
        """Time a search of that many steps."""
        begin = time.perf_counter()
        self.start(sources, options, steps)
        self._wait()
        middle = time.perf_counter()
        for number in range(steps):
            self.advance()
            if number % 4 == 3:
                self.inputs["done"].all().item()  # as often as the other systems check it
        self._wait()
        end = time.perf_counter()
        return {
            "microseconds_per_step": 1e6 * (end - middle) / steps,
            "tokens_per_second": len(sources) * steps / (end - begin),
        }

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class EngineSearch:
    """Search of libtranslate_trt on a bundle's engines, timed by two calls.

    The difference of the calls consists of steps alone.
    """

    def __init__(self, bundle: Path, target: str, batch_tokens: int, settings: Settings) -> None:
        class GivenSettings(Translator):
            def _load_engines(self, _: Settings) -> Engines:
                return super()._load_engines(settings)

        self.translator = GivenSettings(
            bundle, target, threads=1, workers=1, batch_tokens=batch_tokens, device=settings.device
        )

    def run(self, sources: list[list[int]], options: SearchOptions, steps: int) -> dict[str, float]:
        """Time a search of that many steps."""
        few, times = steps // 4, [time.perf_counter()]
        for length in (few, steps):
            changed = dataclasses.replace(options, min_length=length, max_length=length)
            self.translator.translate_ids(sources, changed)
            times.append(time.perf_counter())
        short, long = times[1] - times[0], times[2] - times[1]
        return {
            "microseconds_per_step": 1e6 * (long - short) / (steps - few),
            "tokens_per_second": len(sources) * steps / long,
        }


# ---- what the cases share: a model and bundles ----


def limits_of(given: Namespace) -> Limits:
    """Return the limits of the bundles."""
    return Limits(given.source_length, given.source_length + 50)


def target_of(given: Namespace) -> str:
    """Return the target of the bundles."""
    return f"{given.package.replace('_', '-')}-{given.precision}"


def bundle_of(given: Namespace, system: str) -> Path:
    """Return the path of a system's bundle."""
    disabled = "-".join(DISABLED.get(system, ()))
    return Path(given.work, f"bundle-without-{disabled}" if disabled else "bundle")


def build(given: Namespace, system: str) -> Path:
    """Build the bundle of a system with both engines, unless it exists, and return its path."""
    bundle, checkpoint = bundle_of(given, system), Path(given.work, "checkpoint")
    if bundle.exists():
        return bundle
    if not checkpoint.exists():
        shape = dataclasses.replace(preset(given.preset).model, vocabulary_size=given.vocabulary)
        random_checkpoint(checkpoint, shape)
    limits = limits_of(given)
    profiles = tuple(Profile(count, limits.max_source_length) for count in given.batches)
    options = BuildOptions(
        (target_of(given),), limits.max_source_length, limits.max_target_length,
        disabled_passes=DISABLED.get(system, ()),
        engines=EngineOptions(
            profiles=profiles, cache=None,
            compute_capabilities=(CURRENT,) if given.package == CUDA else (),
        ),
    )  # fmt: skip
    compile_bundle(open_checkpoint(checkpoint), bundle, options)
    return bundle


# ---- cases ----

Samples = dict[str, list[float]]


class CaseError(Exception):
    """A case that was not measured; the message says why."""


def run_case(given: Namespace, what: str, system: str) -> tuple[Samples, Report | None]:
    """Run a case in this process.

    Args:
        given: Options.
        what: A batch size, or "build".
        system: One of the systems.

    Returns:
        The samples of every figure, and the report of `--profile`.
    """
    begin = time.perf_counter()
    bundle = build(given, system)
    if what == BUILD:
        return {"seconds": [time.perf_counter() - begin]}, None
    batch = int(what)
    torch.backends.cuda.matmul.allow_tf32 = False
    generator = torch.Generator().manual_seed(1)
    shape = (batch, given.source_length - 1)  # the search adds the end symbol
    sources = torch.randint(4, given.vocabulary, shape, generator=generator).tolist()
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[given.precision]
    search: TorchSearch | EngineSearch
    if system == "torch.compile":
        contract = read_manifest(bundle).target(target_of(given)).contract
        model = open_checkpoint(Path(given.work, "checkpoint")).load_model().eval()
        search = TorchSearch(model, contract, limits_of(given), dtype, given.device)
    else:
        settings = Settings(cuda_graphs="without" not in system, device=given.device)
        search = EngineSearch(bundle, target_of(given), batch * given.source_length, settings)
    options = SearchOptions(min_length=given.steps, max_length=given.steps)
    run = functools.partial(search.run, sources, options, given.steps)
    report = None
    if given.profile:
        run()
        run()
        # A run by two calls is a short search and a long one, each with its encoder.
        searches = [given.steps] if system == "torch.compile" else [given.steps // 4, given.steps]
        setup = {**settings_of(given), "batch": batch, "system": system, "searches": searches}
        name = f"kernels-{given.preset}-{given.precision}-{batch}-{system.replace(' ', '-')}"
        report = Report(kernels_of(run), setup, name=name)
    rounds = alternate({system: run}, given.rounds, warmup=2)[system]
    return {unit: [one[unit] for one in rounds] for unit in rounds[0]}, report


def in_process(case: str, limit: float) -> Samples:
    """Measure a case by this program in a process of its own.

    Raises:
        CaseError: The process failed, or did not end in time.
    """
    command = [sys.executable, __file__, *sys.argv[1:], "--case", case]
    try:
        done = subprocess.run(
            command, timeout=limit, check=False, stdout=subprocess.PIPE, text=True,
            env={**QUIET, **os.environ},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise CaseError(f"failed: not finished after {limit:.0f} s") from error
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        raise CaseError(f"failed: exit code {done.returncode}")
    samples: Samples = json.loads(lines[-1])
    return samples


def measure_all(
    given: Namespace, run: Callable[[str, float], Samples], clock: Callable[[], float]
) -> Iterator[Report]:
    """Build all bundles and measure every case within a time limit; report after each case."""
    begin = clock()
    results: dict[str, Any] = {}
    samples: dict[str, Any] = {}
    bundles: dict[Path, str] = {}
    for system in given.systems:
        bundles.setdefault(bundle_of(given, system), system)
    missing: set[Path] = set()
    for what in (BUILD, *given.batches_in_order):
        group = BUILD if what == BUILD else f"batch {what}"
        for system in bundles.values() if what == BUILD else given.systems:
            left = given.seconds - (clock() - begin)
            found: dict[str, Any]
            try:
                if bundle_of(given, system) in missing:
                    raise CaseError("not run: the build failed")
                if left < 1:
                    raise CaseError("not run: the time is up")
                longest = BUILD_SECONDS if what == BUILD else CASE_SECONDS
                measured = run(f"{what} {system}", min(left, longest))
                samples.setdefault(group, {})[system] = measured
                found = {unit: spread(values) for unit, values in measured.items()}
                shown = "  ".join(f"{value[0]:10.1f} {unit}" for unit, value in found.items())
            except CaseError as error:
                found, shown = {"failed": str(error)}, str(error)
                if what == BUILD:
                    missing.add(bundle_of(given, system))
            print(f"{group:10} {system:32} {shown}", flush=True)
            results.setdefault(group, {})[system] = found
            name = f"gpu-{given.preset}-{given.precision}"
            yield Report(results, settings_of(given), samples, name)


def settings_of(given: Namespace) -> dict[str, Any]:
    """Return the settings of a report."""
    names = ("package", "precision", "preset", "vocabulary", "source_length", "steps", "batches")
    settings = {name: getattr(given, name) for name in names}
    return {**settings, "gpu": torch.cuda.get_device_name() if given.device == "cuda" else "none"}


def complete(given: Namespace) -> Namespace:
    """Split the lists of the options, and check them."""
    given.batches_in_order = list(dict.fromkeys(int(part) for part in given.batches.split(",")))
    given.batches = sorted(given.batches_in_order)
    known = TORCH_SYSTEMS if given.package == TORCH else SYSTEMS
    given.systems = given.systems.split(",") if given.systems else list(known)
    if given.profile and given.case is None:
        raise SystemExit("--profile is of one case; name it with --case.")
    if unknown := set(given.systems) - set(known):
        raise SystemExit(f"no system {', '.join(unknown)}; choose from {', '.join(known)}.")
    return given


@benchmark(
    "gpu",
    option("--package", default="tensorrt_rtx", choices=("tensorrt", "tensorrt_rtx", TORCH, CUDA)),
    option("--precision", default="fp16", choices=("fp32", "fp16", "bf16")),
    option("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: to try --package torch"),
    option("--preset", default="base"),
    option("--vocabulary", type=int, default=37_000),
    option("--source-length", type=int, default=256, help="tokens of every source"),
    option("--steps", type=int, default=48, help="steps of each search"),
    option("--batches", default="64,1", help="batch sizes, in that order"),
    option("--systems", help="systems, in that order; default: all of the package"),
    option("--seconds", type=float, default=1800, help="longest time in all"),
    option("--work", help="directory that keeps the bundles, to run cases again"),
    option("--case", help='measure one case only, such as "64 engines"'),
    option("--profile", action="store_true", help="with --case: report its kernels"),
    timed=False,  # --case is a process for each case
)
def gpu(given: Namespace) -> Iterator[Report]:
    """Measure every case, or print the samples of one."""
    given = complete(given)
    if given.device == "cuda" and not torch.cuda.is_available():
        print("no GPU: torch.cuda.is_available() is False", file=sys.stderr)
        raise SystemExit(NO_GPU)
    with tempfile.TemporaryDirectory() as name:
        if given.work is None:
            given.work = name
            sys.argv += ["--work", name]  # for the processes of cases
        Path(given.work).mkdir(parents=True, exist_ok=True)
        if given.case is not None:
            what, _, system = given.case.partition(" ")
            found, report = run_case(given, what, system)
            if report is not None:
                yield report
            print(json.dumps(found))
            return
        results: dict[str, Any] = {}
        for one in measure_all(given, in_process, time.monotonic):
            results = one.results
            yield one
    failed = [
        f"{group} {system} ({one['failed']})"
        for group, systems in results.items() for system, one in systems.items() if "failed" in one
    ]  # fmt: skip
    if failed:
        print(f"not measured: {'; '.join(failed)}", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main(__doc__)
