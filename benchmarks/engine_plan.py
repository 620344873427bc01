"""Compute bytes, kernel launches and time of a decoding step from execution plans.

    python benchmarks/engine_plan.py [--presets base,big] [--batches 1,64]
        [--lengths 32,64,128,306] [--source-lengths 256,64]

No GPU is needed: TensorRT-RTX builds the step engine of a model with random weights for compute
capability 8.9, and the execution plan of the engine is read (export/engines/plan.py). For each
batch size, source length and number of target tokens whose cache slots are live, the step is built
with sums over the live slots (`attention-sums`), with the attention operator over them, and with
the attention operator over whole caches. Source lengths after the first are for the first preset
and the largest batch only. docs/gpu.md shows the tables.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from harness import parser, write
from step_cost import GPUS, LAUNCH_SECONDS, Cost, Shapes, costs, seconds, total
from tables import table

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import Compiler
from translate_trt.export.engines.builder import build_engine
from translate_trt.export.engines.network import Graph, load_builder
from translate_trt.export.engines.options import EngineOptions
from translate_trt.export.engines.plan import Kernel, Plan, read_plans
from translate_trt.export.trace import check
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.train.config import preset
from translate_trt.train.model import Transformer

BEAMS = 4
LIMITS = Limits(256, 306)
VOCABULARY = 37_000
TARGET = "tensorrt-rtx-fp16"
CAPABILITY = "8.9"
#: Passes that each form of the step leaves out.
FORMS = {"sums": (), "attention": ("attention-sums",)}
WHOLE = "attention, whole caches"
SHOWN_KERNELS = 12
#: Assumed tokens of a translation, for sentences per second.
TOKENS_PER_SENTENCE = 30


def step_graph(model: Transformer, options: BuildOptions) -> Graph:
    """Compile the step graph of a model."""
    compiler = Compiler(model, LIMITS, options)
    content = check(compiler.graphs(TARGET)["step"]).SerializeToString()
    return Graph("step", content, *compiler.contract(TARGET).graphs["step"])


def plan_of(graph: Graph, profile: Profile) -> Plan:
    """Build the engine of a step graph with one profile, and read its plan."""
    options = EngineOptions(cache=None, compute_capabilities=(CAPABILITY,))
    engine = build_engine(load_builder("tensorrt_rtx"), graph, (profile,), options)
    (plan,) = read_plans(engine.plan)
    return plan


class Steps:
    """Step graphs of a preset in every form, and their engines."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        config = dataclasses.replace(preset(name).model, vocabulary_size=VOCABULARY)
        model = Transformer(config).eval()
        self._graphs = {}
        for form, disabled in FORMS.items():
            options = BuildOptions((TARGET,), beam_size=BEAMS, disabled_passes=disabled)
            self._graphs[form] = step_graph(model, options)

    def plan(self, form: str, batch: int, source: int, tokens: int) -> Plan:
        """Build the engine for exactly these shapes and read its plan."""
        return plan_of(self._graphs[form], Profile(batch, source, BEAMS * tokens))


def describe(plan: Plan, tokens: int, beams: int = BEAMS) -> dict[str, Any]:
    """Return the figures of a plan as JSON values."""
    found = costs(plan, Shapes(beams * LIMITS.max_target_length, beams * tokens))
    whole = total(found)
    return {
        "launches": plan.launches,
        "fallback_launches": plan.fallback_launches,
        "scratch_bytes": plan.scratch_bytes,
        "cache_bytes": whole.caches,
        "weight_bytes": whole.weights,
        "other_bytes": whole.rest,
        "operations": whole.operations,
        "milliseconds": {gpu.name: 1e3 * seconds(found, gpu) for gpu in GPUS},
        "kernels": kernels(plan.kernels, found),
    }


def kernels(given: Sequence[Kernel], found: Sequence[Cost]) -> dict[str, dict[str, float]]:
    """Return number and bytes of equal kernels, only of those with most bytes."""
    groups: dict[str, dict[str, float]] = {}
    for kernel, cost in zip(given, found, strict=True):
        name = "GEMM" if kernel.is_gemm else kernel.name
        group = groups.setdefault(name, {"count": 0, "bytes": 0})
        group["count"] += 1
        group["bytes"] += cost.bytes
    largest = sorted(groups.items(), key=lambda item: -item[1]["bytes"])
    return dict(largest[:SHOWN_KERNELS])


def name_of(model: str, batch: int, source: int, tokens: int) -> str:
    """Return the name of a case."""
    return f"{model}, batch {batch}, S {source}, {tokens} tokens"


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Build every step and return its figures by case and form."""
    results: dict[str, Any] = {}
    longest = LIMITS.max_target_length
    for model in given.presets:
        steps = Steps(model)
        for source, batch in itertools.product(given.source_lengths, given.batches):
            most = model == given.presets[0] and batch == max(given.batches)
            if source != given.source_lengths[0] and not most:
                continue
            whole = None
            for tokens in given.lengths:
                case = results[name_of(model, batch, source, tokens)] = {}
                for form in FORMS:
                    case[form] = describe(steps.plan(form, batch, source, tokens), tokens)
                if whole is None:
                    whole = describe(steps.plan("attention", batch, source, longest), longest)
                case[WHOLE] = whole
                shown = {form: figures["launches"] for form, figures in case.items()}
                print(name_of(model, batch, source, tokens), shown, flush=True)
    return results


# ---- tables of docs/gpu.md ----


def render(report: dict[str, Any]) -> str:
    """Render the steps by model, batch, source length and live tokens, in every form."""
    settings, results = report["settings"], report["results"]
    forms = (WHOLE, "attention", "sums")
    header = ["model, batch, S, live tokens", "launches", "caches MB", "weights MB", "other MB"]
    header += [f"{gpu['name']} ms" for gpu in settings["gpus"]]
    rows = []
    for case, found in results.items():
        figures = [found[form] for form in forms]
        columns = [[f"{figure['launches']}" for figure in figures]]
        for size in ("cache_bytes", "weight_bytes", "other_bytes"):
            columns.append([f"{figure[size] / 1e6:,.0f}" for figure in figures])
        for gpu in settings["gpus"]:
            columns.append([f"{figure['milliseconds'][gpu['name']]:.2f}" for figure in figures])
        columns[2] = columns[2][-1:]  # weights are the same in every form
        rows.append([case, *(" / ".join(column) for column in columns)])
    return (
        f"`python benchmarks/engine_plan.py --presets {','.join(settings['presets'])}`: a step of "
        f"{settings['beams']} beams in FP16, "
        f"{settings['vocabulary']:,} tokens, caches of {settings['longest']} tokens, engines of "
        f"TensorRT-RTX {settings['version']} for compute capability {settings['capability']}. Each "
        "cell has three values: the attention operator over whole caches, the attention operator "
        "over the live slots, and sums over the live slots (what `export` builds). "
        f"{computed_times(settings)}\n\n{table(header, rows)}\n{_speeds(report)}"
    )


def computed_times(settings: dict[str, Any]) -> str:
    """Say how milliseconds are computed."""
    peaks = "; ".join(
        f"{gpu['name']}: {gpu['bandwidth'] / 1e12:.3g} TB/s, {gpu['operations'] / 1e12:.4g} "
        f"TFLOP/s ({gpu['source']})"
        for gpu in settings["gpus"]
    )
    return (
        "**Milliseconds are computed, not measured**: a kernel takes at least the launch floor "
        f"({1e6 * settings['launch_seconds']:.1f} us, assumed) and its bytes at the memory "
        f"bandwidth, and a GEMM its operations at the peak. {peaks}."
    )


def _speeds(report: dict[str, Any]) -> str:
    """Return the sentences per second that the largest batch of the first model allows."""
    settings = report["settings"]
    batch = max(settings["batches"])
    case = name_of(settings["presets"][0], batch, settings["source_lengths"][0], 64)
    if case not in report["results"]:
        return ""
    times = report["results"][case]["sums"]["milliseconds"]
    shown = ", ".join(
        f"{1e3 * batch / (TOKENS_PER_SENTENCE * time):,.0f} on {name}"
        for name, time in times.items()
    )
    return (
        f"With all {batch} rows in use and {TOKENS_PER_SENTENCE} tokens per sentence, the step of "
        f"{case} allows at most this many sentences per second: {shown}.\n"
    )


def render_kernels(report: dict[str, Any]) -> str:
    """Render the kernels of the largest batch and 64 live tokens, as a profiler lists them."""
    settings = report["settings"]
    batch, source = max(settings["batches"]), settings["source_lengths"][0]
    case = name_of(settings["presets"][0], batch, source, 64)
    found = report["results"][case]["sums"]["kernels"]
    rows = [
        [f"`{name}`", str(group["count"]), f"{group['bytes'] / 1e6:,.1f}"]
        for name, group in found.items()
    ]
    return (
        f"Kernels of {case}, sums, with most bytes:\n\n{table(['kernel', 'launches', 'MB'], rows)}"
    )


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--presets", default="base,big", help="models")
    options.add_argument("--batches", default="1,64", help="sentences of a batch")
    options.add_argument("--lengths", default="32,64,128,306", help="live target tokens")
    options.add_argument("--source-lengths", default="256,64", help="source tokens")
    given = options.parse_args()
    given.presets = given.presets.split(",")
    for name in ("batches", "lengths", "source_lengths"):
        setattr(given, name, [int(part) for part in getattr(given, name).split(",")])
    return given


def settings_of_plans() -> dict[str, Any]:
    """Return the settings that plans and their computed times depend on."""
    return {
        "vocabulary": VOCABULARY,
        "longest": LIMITS.max_target_length,
        "capability": CAPABILITY,
        "version": load_builder("tensorrt_rtx").version,
        "launch_seconds": LAUNCH_SECONDS,
        "gpus": [dataclasses.asdict(gpu) for gpu in GPUS],
    }


def main() -> None:
    given = arguments()
    settings = {
        "presets": given.presets,
        "batches": given.batches,
        "source_lengths": given.source_lengths,
        "beams": BEAMS,
        **settings_of_plans(),
    }
    print(write("engine-plan", settings, measure(given), given))


if __name__ == "__main__":
    main()
