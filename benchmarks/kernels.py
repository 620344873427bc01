"""Time each compiled kernel by itself, on one core: nanoseconds per call, GB/s and GOP/s.

    python benchmarks/kernels.py [--kernel linear8] [--rounds 5]
        [--before ../before/build/native/tests/translate_trt_kernel_benchmark]

Builds and runs runtime/cpp/benchmarks/kernels.cc, which has the shapes. With --before, the program
of another version runs in turn with this one, and the last column is its time over ours. Times are
those of the fastest call of all rounds, since other work on the machine only adds to a time. Memory
alignment alone makes differences of up to 5 %, and more for calls of a few microseconds.
"""

from __future__ import annotations

import json
import os
import subprocess
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import ROOT, Report, alternate, benchmark, main, option

PROGRAM = ROOT / "build/native/tests/translate_trt_kernel_benchmark"
SAMPLES = 9  # of a round

Results = list[dict[str, Any]]  # a line of the program per kernel and shape


def build() -> None:
    """Build this version's program."""
    subprocess.run(
        ["bash", ROOT / "scripts/build_library.sh", "-D", "TRANSLATE_TRT_TESTS=ON"],
        env={name: value for name, value in os.environ.items() if name != "SANITIZE"},
        check=True,
    )


def runs(program: Path, kernel: str | None) -> Callable[[], Results]:
    """Return a callable that runs a program once."""
    only = [] if kernel is None else ["--kernel", kernel]

    def run() -> Results:
        done = subprocess.run(
            [program, "--samples", str(SAMPLES), *only], stdout=subprocess.PIPE, check=True
        )
        results: Results = json.loads(done.stdout)
        return results

    return run


def fastest(rounds: list[Results]) -> dict[str, dict[str, Any]]:
    """Return the fastest call of all rounds for each kernel and shape."""
    best: dict[str, dict[str, Any]] = {}
    for one in (one for results in rounds for one in results):
        key = f"{one['kernel']}, {one['shape']}"
        if key not in best or one["fastest"] < best[key]["fastest"]:
            best[key] = one
    return best


@benchmark(
    "kernels",
    option("--kernel", help="measure this kernel only"),
    option("--before", type=Path, help="benchmark program of another version"),
)
def kernels(given: Namespace) -> Report:
    """Time each compiled kernel by itself."""
    build()
    programs = {"this": PROGRAM} | ({"before": given.before} if given.before else {})
    systems = {name: runs(program, given.kernel) for name, program in programs.items()}
    samples = alternate(systems, given.rounds, warmup=0)
    best = {name: fastest(rounds) for name, rounds in samples.items()}
    for key, one in best["this"].items():
        before = best.get("before", {}).get(key)
        ratio = "" if before is None else f"{before['fastest'] / one['fastest']:8.3f}"
        print(
            f"{key:74}{one['fastest']:10} ns{one['gigabytes_per_second']:8.1f} GB/s"
            f"{one['giga_operations_per_second']:8.1f} GOP/s{ratio}"
        )
    return Report(best, {"samples of a round": SAMPLES}, samples)


if __name__ == "__main__":
    main(__doc__)
