"""What every benchmark writes down: machine, versions, settings, every sample, as JSON."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from translate_trt.runtime import kernels

Sample = TypeVar("Sample")  # a time, or whatever else a run gives

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = (
    "translate-trt",
    "torch",
    "numpy",
    "onnx",
    "onnxruntime",
    "ctranslate2",
    "joeynmt",
    "ray",
)


# Variables that limit the instructions a peer's library may use; "kernels" says what ours uses.
LIMITS = ("MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")


def machine() -> dict[str, Any]:
    """Processor, cores and memory of this machine, and the compiled kernels in use on it."""
    model = platform.processor()
    flags: set[str] = set()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            elif key.strip() == "flags":
                flags = set(value.split())
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "instructions": [name for name in wanted if name in flags],
        "kernels": kernels.status(),
        "limits": {name: os.environ[name] for name in LIMITS if name in os.environ},
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Versions of the packages that matter, where they are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write(name: str, settings: dict[str, Any], samples: dict[str, Any], out: Path | None) -> Path:
    """Write one benchmark's JSON; the default name tells the date and the processor's class."""
    report = {
        "benchmark": name,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "settings": settings,
        "samples": samples,
    }
    if out is None:
        newest = report["machine"]["instructions"][-1:] or [platform.machine()]
        host = f"{report['machine']['cores']}core-{newest[0].replace('_', '')}"
        out = RESULTS / f"{report['date']}-{host}-{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    return out


def alternate(
    systems: Mapping[str, Callable[[], Sample]], rounds: int, warmup: int = 1
) -> dict[str, list[Sample]]:
    """Run systems in turn (A B A B ...), since a shared machine drifts; each returns its figure."""
    for _ in range(warmup):
        for run in systems.values():
            run()
    samples: dict[str, list[Sample]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, run in systems.items():
            samples[name].append(run())
    return samples


def seconds_of(run: Callable[[], object]) -> Callable[[], float]:
    """The same as a callable that returns how long it took, in seconds."""

    def timed() -> float:
        begin = perf_counter()
        run()
        return perf_counter() - begin

    return timed


def ratios(samples: dict[str, list[float]], ours: str, theirs: str) -> tuple[float, float, float]:
    """Median, smallest and largest of theirs / ours, pair by pair."""
    pairs: Sequence[float] = [b / a for a, b in zip(samples[ours], samples[theirs], strict=True)]
    return statistics.median(pairs), min(pairs), max(pairs)


def throughput_figures(samples: dict[str, Any]) -> dict[str, float]:
    """What a report of training speed says: medians over its rounds."""

    def median(of: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(of(one) for one in samples["rounds"])

    steps, schedule = samples["steps_a_round"], samples["schedule_steps"]
    speed = median(lambda one: one["target"] / one["seconds"])
    per_step = median(lambda one: one["flops"]) / steps
    return {
        "target tokens per second": speed,
        "source and target tokens per second": median(
            lambda one: (one["source"] + one["target"]) / one["seconds"]
        ),
        "padding of a whole epoch, %": 100 * samples["padding_of_an_epoch"],
        "waiting for input, % of the time": 100
        * median(lambda one: one["waiting"] / one["seconds"]),
        "input pipeline alone, target tokens per second": samples["input_target_tokens_per_second"],
        "model-FLOPs utilization, %": 100
        * median(lambda one: one["flops"] / one["seconds"])
        / samples["peak_flops"],
        "hours for the schedule": schedule * median(lambda one: one["seconds"]) / steps / 3600,
        "FLOPs for the schedule": schedule * per_step,
    }


def parser(description: str | None) -> argparse.ArgumentParser:
    """Options that every benchmark has."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, help="JSON file; default: benchmarks/results/...")
    options.add_argument("--rounds", type=int, default=5, help="pairs measured after a warm-up")
    options.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads")
    return options
