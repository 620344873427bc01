"""Skeleton of a benchmark: options, systems run in turn, medians with extremes, one JSON file.

A new benchmark begins as a copy of this:

    '''Time two ways to sort.

        python benchmarks/sorting.py [--rounds 9]
    '''
    from harness import alternate, compared, parser, seconds_of, write

    def main() -> None:
        args = parser(__doc__).parse_args()
        numbers = [random.random() for _ in range(10**6)]
        ways = {"sorted": lambda: sorted(numbers), "numpy": lambda: np.sort(numbers)}
        samples = alternate({name: seconds_of(way) for name, way in ways.items()}, args.rounds)
        results = {"seconds": compared(samples, "sorted")}
        print(write("sorting", {"numbers": len(numbers)}, results, args, samples))

Figures in the repository are medians and extremes, `[median, least, most]`. `--samples` keeps the
raw measurements in a file beside them, which git ignores. To show a report in the docs, add a
function to `results_tables.py` or `performance_tables.py` and its name to `render.py`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeVar

from translate_trt.runtime import kernels

Sample = TypeVar("Sample")  # of one run: seconds, or whatever else it returns

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = (
    "translate-trt",
    "torch",
    "numpy",
    "onnx",
    "onnxruntime",
    "ctranslate2",
    "pymarian",
    "joeynmt",
    "ray",
    "transformers",
)
# Variables that limit the instructions a peer's library may use; "kernels" names our own.
LIMITS = ("MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")

#: Columns of a JSON file; longer objects are broken, lists of numbers are not.
_WIDTH = 120
#: Significant digits of its numbers.
_DIGITS = 7
#: Kernels of a profile that a report lists, and characters of their names.
_KERNELS, _NAME = 40, 110


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, help="JSON file; default: benchmarks/results/...")
    options.add_argument("--samples", action="store_true", help="keep raw samples beside --out")
    options.add_argument("--rounds", type=int, default=5, help="rounds measured after a warm-up")
    options.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads")
    return options


def alternate(
    systems: Mapping[str, Callable[[], Sample]], rounds: int, warmup: int = 1
) -> dict[str, list[Sample]]:
    """Run systems in turn (A B A B ...), because a shared machine drifts, and collect results."""
    for _ in range(warmup):
        for run in systems.values():
            run()
    samples: dict[str, list[Sample]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, run in systems.items():
            samples[name].append(run())
    return samples


def seconds_of(run: Callable[[], object]) -> Callable[[], float]:
    """Wrap a callable in one that returns the seconds of a run."""

    def timed() -> float:
        begin = perf_counter()
        run()
        return perf_counter() - begin

    return timed


def cpu_seconds_of(run: Callable[[], object]) -> Callable[[], float]:
    """Wrap a callable in one that returns the CPU seconds of a run, of all its threads."""

    def timed() -> float:
        begin = process_time()
        run()
        return process_time() - begin

    return timed


def spread(values: Iterable[float]) -> list[float]:
    """Return median, smallest and largest."""
    found = list(values)
    return [statistics.median(found), min(found), max(found)]


def ratios(samples: Mapping[str, Sequence[float]], over: str, under: str) -> list[float]:
    """Return the spread of the ratios `over / under`, each of two neighbours in time."""
    return spread(a / b for a, b in zip(samples[over], samples[under], strict=True))


def compared(samples: Mapping[str, Sequence[float]], over: str) -> dict[str, list[float]]:
    """Return the spread of each system, and of `over`'s figure divided by each other system's."""
    others = [name for name in samples if name != over]
    return {name: spread(values) for name, values in samples.items()} | {
        f"{over} / {name}": ratios(samples, over, name) for name in others
    }


def machine() -> dict[str, Any]:
    """Describe this machine: processor, cores, memory, and the compiled kernels in use."""
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
    """Return the versions of the installed packages that matter."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write(
    name: str,
    settings: dict[str, Any],
    results: dict[str, Any],
    args: argparse.Namespace,
    samples: Any = None,
) -> Path:
    """Write a report; the default file name has the date and the class of the processor.

    Args:
        name: Name of the benchmark, or of one of its configurations.
        settings: How it ran.
        results: Figures that tables and plots are made from.
        args: Options of `parser`.
        samples: Raw measurements, for `--samples`.

    Returns:
        The path of the report.
    """
    report = {
        "benchmark": name,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "settings": settings,
        "results": results,
    }
    out = save(report, args.out)
    if samples is not None and args.samples:
        out.with_suffix(".samples.json").write_text(json.dumps(samples) + "\n")
    return out


def save(report: dict[str, Any], out: Path | None) -> Path:
    """Write a whole report to a file, or to the default file if `out` is None; return its path."""
    if out is None:
        newest = report["machine"]["instructions"][-1:] or [platform.machine()]
        host = f"{report['machine']['cores']}core-{newest[0].replace('_', '')}"
        out = RESULTS / f"{report['date']}-{host}-{report['benchmark']}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    # Replaced as a whole: a benchmark that writes after each case may be interrupted at any time.
    part = out.with_name(f"{out.name}.part")
    part.write_text(dumps(report) + "\n")
    part.replace(out)
    return out


def read_reports() -> dict[str, dict[str, Any]]:
    """Return the newest report in `benchmarks/results/` of each name."""
    newest = {}
    for path in sorted(RESULTS.glob("*.json")):  # names begin with the date
        if not path.name.endswith(".samples.json"):
            newest[path.stem.split("-", 5)[5]] = json.loads(path.read_text())
    return newest


def dumps(value: Any, indent: str = "") -> str:
    """Format JSON with rounded numbers, and with a list or a small object on one line."""
    if isinstance(value, float):
        value = float(f"{value:.{_DIGITS}g}")
    if not isinstance(value, dict | list) or not value:
        return json.dumps(value)
    inner = list(value.values() if isinstance(value, dict) else value)
    if not any(isinstance(one, dict) for one in inner):
        flat = [dumps(one) for one in inner]
        if isinstance(value, dict):
            pairs = zip(value, flat, strict=True)
            line = "{" + ", ".join(f"{json.dumps(key)}: {one}" for key, one in pairs) + "}"
        else:
            line = f"[{', '.join(flat)}]"
        if isinstance(value, list) or len(indent) + len(line) <= _WIDTH:
            return line
    deeper = indent + " "
    if isinstance(value, list):
        return "[\n" + ",\n".join(deeper + dumps(one, deeper) for one in inner) + f"\n{indent}]"
    lines = (f"{deeper}{json.dumps(key)}: {dumps(one, deeper)}" for key, one in value.items())
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def kernels_of(run: Callable[[], object]) -> dict[str, Any]:
    """Return the kernels of a run and their time on the GPU, the longest first.

    Args:
        run: Enqueues the work on the current GPU of PyTorch.

    Returns:
        Totals of all kernels and copies, and a list of those with most time.
    """
    import torch  # other benchmarks run without it

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    kernels = [
        {"name": event.key[:_NAME], "launches": event.count,
         "milliseconds": event.self_device_time_total / 1000}
        for event in profile.key_averages()
        if event.self_device_time_total > 0
    ]  # fmt: skip
    kernels.sort(key=lambda kernel: -kernel["milliseconds"])
    return {
        "launches": sum(kernel["launches"] for kernel in kernels),
        "milliseconds": sum(kernel["milliseconds"] for kernel in kernels),
        "longest": kernels[:_KERNELS],
    }


def peak_bytes(run: Callable[[], object], device: str) -> int:
    """Return the peak of memory that a run allocates on a device of PyTorch."""
    import torch  # other benchmarks run without it

    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True) as profile:
        run()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return peak


def kernel_times(kernels: Mapping[str, Any]) -> str:
    """Format what `kernels_of` has found as a table of text."""
    total = kernels["milliseconds"]
    rows = [{**kernels, "name": "all kernels and copies"}, *kernels["longest"]]
    return "\n".join(
        f"{row['milliseconds']:10.3f} ms {row['milliseconds'] / total:6.1%} "
        f"{row['launches']:7} {row['name']}"
        for row in rows
    )
