"""Skeleton of a benchmark: options, systems run in turn, medians with extremes, one JSON file.

    @benchmark("sorting", option("--numbers", type=int, default=10**6, help="numbers to sort"))
    def sorting(given: Namespace) -> Report:
        numbers = [random.random() for _ in range(given.numbers)]
        ways = {"sorted": lambda: sorted(numbers), "numpy": lambda: np.sort(numbers)}
        samples = alternate({name: seconds_of(way) for name, way in ways.items()}, given.rounds)
        results = {"seconds": compared(samples, "sorted")}
        return Report(results, {"numbers": given.numbers}, samples)

    if __name__ == "__main__":
        main(__doc__)

A script with several benchmarks has a subcommand for each. Figures in `benchmarks/results/` are
medians and extremes, `[median, least, most]`; `--samples` keeps the raw measurements in a file
beside them, which git ignores. To show a report in the docs, declare a section in `tables.toml`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, TypeVar

from translate_trt.runtime import TranslateTrtError, kernels

Sample = TypeVar("Sample")  # of one run: seconds, or whatever else it returns
Option = Callable[[argparse.ArgumentParser], object]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
PACKAGES = ("translate-trt", "torch", "numpy", "onnx", "onnxruntime", "ctranslate2", "pymarian",
            "ray", "transformers")  # fmt: skip
# Variables that limit the instructions a peer's library may use; "kernels" names our own.
LIMITS = ("MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
CORES = os.cpu_count() or 1
#: Share of the cores' time, in percent, above which other processes disturb a measurement.
BUSY = 5.0

#: Kernels of a profile that a report lists, and characters of their names.
_KERNELS, _NAME = 40, 110


# ---- declaration and command line ----


@dataclass(frozen=True)
class Report:
    """Figures of a benchmark, which tables and plots are made from."""

    results: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)  # beyond rounds, threads and note
    samples: Any = None  # raw measurements, for --samples
    name: str = ""  # of the report, if it differs from the benchmark's
    machines: Iterable[str] = ()  # others that results are from, as `machines_of` describes them
    show: Callable[[dict[str, Any], Path], None] | None = None  # called with the report's file


#: A function that measures. It returns a report, or yields one whenever there are more results; or
#: it returns a whole report as JSON values, or None.
Measure = Callable[[Namespace], Report | Iterator[Report] | dict[str, Any] | None]


@dataclass(frozen=True)
class _Benchmark:
    name: str
    measure: Measure
    options: tuple[Option, ...]
    timed: bool
    defaults: dict[str, Any]

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        for add in (*(COMMON if self.name else ()), *self.options):
            add(parser)
        parser.set_defaults(benchmark=self, **self.defaults)

    def run(self, given: Namespace) -> None:
        """Measure, and write every report."""
        busy = busy_percent() if self.timed else 0.0
        if busy > BUSY:
            print(f"other processes take {busy:.0f} % of the cores' time", file=sys.stderr)
        found, out = self.measure(given), None
        for report in [found] if isinstance(found, Report | dict) else found or ():
            if isinstance(report, dict):
                out = save(report, given.out)
                continue
            common = {name: getattr(given, name) for name in ("rounds", "threads", "note")}
            whole = {
                "benchmark": "-".join(filter(None, (report.name or self.name, given.name))),
                "date": datetime.date.today().isoformat(),
                "machine": machine() | {"busy_percent": busy},
                "versions": versions(),
                "settings": common | report.settings,
                "results": report.results,
            }
            if report.machines:
                whole["machines"] = sorted({*report.machines, *machines_of(whole)})
            out = save(whole, given.out)
            if report.samples is not None and given.samples:
                out.with_suffix(".samples.json").write_text(json.dumps(report.samples) + "\n")
            if report.show is not None:
                report.show(whole, out)
        if out is not None:
            print(out)


_BENCHMARKS: list[_Benchmark] = []


def option(*names: str, **settings: Any) -> Option:
    """Return an option of a benchmark, as for `argparse.ArgumentParser.add_argument`."""
    return lambda parser: parser.add_argument(*names, **settings)


#: Options of every benchmark.
COMMON = (
    option("--out", type=Path, help="JSON file; default: benchmarks/results/..."),
    option("--samples", action="store_true", help="keep raw samples beside --out"),
    option("--rounds", type=int, default=5, help="rounds measured after a warm-up"),
    option("--threads", type=int, default=CORES, help="CPU threads"),
    option("--name", default="", help="suffix of the report's name"),
    option("--note", default="", help="conditions of the measurement, as a sentence"),
)
#: Options that several benchmarks have, by name.
SHARED = {
    "bundle": option("--bundle", type=Path, required=True, help="bundle that translates"),
    "source": option("--source", type=Path, required=True, help="text to translate"),
    "reference": option("--reference", type=Path, required=True, help="its translation"),
    "target": option("--target", help="target of the bundle; default: the first"),
    "targets": option("--target", action="append", required=True, help="target of the bundle"),
}


def benchmark(
    name: str, *options: Option | str, timed: bool = True, **defaults: Any
) -> Callable[[Measure], Measure]:
    """Declare a function as a benchmark.

    Args:
        name: Name of its reports.
        options: Options beyond COMMON; a string has names of SHARED ones.
        timed: Whether other processes on the machine disturb it.
        defaults: Other defaults of options.
    """

    found: tuple[Option, ...] = ()
    for one in options:
        found += tuple(SHARED[n] for n in one.split()) if isinstance(one, str) else (one,)

    def declare(measure: Measure) -> Measure:
        _BENCHMARKS.append(_Benchmark(name, measure, found, timed, defaults))
        return measure

    return declare


def command(*options: Option | str) -> Callable[[Measure], Measure]:
    """Declare a function as a subcommand that makes no report."""
    return benchmark("", *options, timed=False)


def parse(measure: Measure, arguments: Iterable[object]) -> Namespace:
    """Return the options of a declared function."""
    (declared,) = (one for one in _BENCHMARKS if one.measure is measure)
    parser = argparse.ArgumentParser()
    declared.add_to(parser)
    return parser.parse_args([*map(str, arguments)])


def run(measure: Measure, arguments: Iterable[object]) -> None:
    """Run a declared function with command-line arguments."""
    given = parse(measure, arguments)
    given.benchmark.run(given)


def main(description: str | None) -> None:
    """Run the benchmark of the running script that the command line names."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=formatter)
    own = [one for one in _BENCHMARKS if one.measure.__module__ == "__main__"]
    if len(own) == 1:
        own[0].add_to(parser)
    else:
        commands = parser.add_subparsers(required=True, metavar="COMMAND")
        for one in own:
            command = one.measure.__name__.replace("_", "-")
            first = (one.measure.__doc__ or "").partition("\n")[0]
            one.add_to(commands.add_parser(command, help=first, description=one.measure.__doc__,
                                           formatter_class=formatter))  # fmt: skip
    given = parser.parse_args()
    try:
        given.benchmark.run(given)
    except TranslateTrtError as error:
        raise SystemExit(f"error: {error}") from error


# ---- measuring ----


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


def seconds_of(
    run: Callable[[], object], clock: Callable[[], float] = perf_counter
) -> Callable[[], float]:
    """Wrap a callable in one that returns the seconds of a run."""

    def timed() -> float:
        begin = clock()
        run()
        return clock() - begin

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


def shown(values: Sequence[float], digits: int = 2) -> str:
    """Format a median with its extremes in brackets."""
    middle, least, most = (f"{value:.{digits}f}" for value in values)
    return f"{middle} [{least}, {most}]"


def read_text(path: Path) -> list[str]:
    """Return the lines of a text."""
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def evenly(lines: Sequence[Sample], count: int) -> list[Sample]:
    """Return that many lines, spread evenly; all lines if there are fewer."""
    count = min(count, len(lines))
    return [lines[index * len(lines) // count] for index in range(count)]


def kernels_of(run: Callable[[], object]) -> dict[str, Any]:
    """Print and return the kernels of a run on PyTorch's GPU and their time, the longest first."""
    import torch  # other benchmarks run without it

    on_gpu, kinds = torch.cuda.is_available(), torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CUDA if on_gpu else kinds.CPU]) as profile:
        run()
        if on_gpu:
            torch.cuda.synchronize()
    found = [
        {"name": event.key[:_NAME], "launches": event.count,
         "milliseconds": event.self_device_time_total / 1000}
        for event in profile.key_averages()
        if event.self_device_time_total > 0
    ]  # fmt: skip
    found.sort(key=lambda kernel: -kernel["milliseconds"])
    totals = {unit: sum(one[unit] for one in found) for unit in ("launches", "milliseconds")}
    for row in [{**totals, "name": "all kernels and copies"}, *found[:_KERNELS]]:
        share = row["milliseconds"] / (totals["milliseconds"] or 1)
        print(f"{row['milliseconds']:10.3f} ms {share:6.1%} {row['launches']:7} {row['name']}",
              file=sys.stderr)  # fmt: skip
    return {**totals, "longest": found[:_KERNELS]}


# ---- the machine ----


def busy_percent(seconds: float = 0.5) -> float:
    """Return the share of all cores' time that processes take while this one sleeps (Linux)."""
    times = []
    for pause in (seconds, 0):
        fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
        times.append((sum(map(int, fields)), int(fields[3]) + int(fields[4])))  # idle, waiting
        sleep(pause)
    total, idle = (b - a for a, b in zip(*times, strict=True))
    return 100 * (1 - idle / max(total, 1))


def machine() -> dict[str, Any]:
    """Describe this machine: processor, cores, memory, and the compiled kernels in use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = {key.strip(): value.strip() for key, _, value in (one.partition(":") for one in lines)}
    flags = fields.get("flags", "").split()
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    return {
        "cpu": fields.get("model name", platform.processor()),
        "cores": os.cpu_count(),
        "instructions": [name for name in wanted if name in flags],
        "kernels": kernels.status(),
        "limits": {name: os.environ[name] for name in LIMITS if name in os.environ},
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def machines_of(report: Mapping[str, Any]) -> list[str]:
    """Describe the processors of the machines that a report is from."""
    one = report["machine"]
    name = f"{one['cores']} cores of {one['cpu']} ({', '.join(one['instructions'])})"
    machines: list[str] = report.get("machines", [name])
    return machines


def versions() -> dict[str, str]:
    """Return the versions of the installed packages that matter."""
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


# ---- JSON ----


def save(report: dict[str, Any], out: Path | None) -> Path:
    """Write a whole report to a file, or to the default file if `out` is None; return its path."""
    if out is None:
        newest = report["machine"]["instructions"][-1:] or [platform.machine()]
        host = f"{report['machine']['cores']}core-{newest[0].replace('_', '')}"
        out = RESULTS / f"{report['date']}-{host}-{report['benchmark']}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    # Replaced as a whole: a benchmark that writes after each case may be interrupted at any time.
    part = out.with_name(f"{out.name}.part")
    rounded = json.loads(json.dumps(report), parse_float=lambda text: float(f"{float(text):.7g}"))
    part.write_text(json.dumps(rounded, indent=1) + "\n")
    part.replace(out)
    return out


def read_reports() -> dict[str, dict[str, Any]]:
    """Return the newest report in `benchmarks/results/` of each name."""
    newest = {}
    for path in sorted(RESULTS.glob("*.json")):  # names begin with the date
        if not path.name.endswith(".samples.json"):
            newest[path.stem.split("-", 5)[5]] = json.loads(path.read_text())
    return newest
