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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import alternate, parser, write

ROOT = Path(__file__).resolve().parent.parent
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


def vnni_limit() -> float | None:
    """Return the 8-bit operations per second of AVX-512 VNNI on one core.

    None on other processors, and where the benchmark cannot be built.
    """
    try:
        build()
    except subprocess.CalledProcessError:  # the build has said what it lacks
        return None
    found = fastest([runs(PROGRAM, "vnni_limit")()])
    return max((1e9 * one["giga_operations_per_second"] for one in found.values()), default=None)


def fastest(rounds: list[Results]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the fastest call of all rounds for each kernel and shape."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for results in rounds:
        for one in results:
            key = (one["kernel"], one["shape"])
            if key not in best or one["fastest"] < best[key]["fastest"]:
                best[key] = one
    return best


def main() -> None:
    """Measure, and write the report."""
    options = parser(__doc__)
    options.add_argument("--kernel", help="measure this kernel only")
    options.add_argument("--before", type=Path, help="benchmark program of another version")
    args = options.parse_args()
    build()
    programs = {"this": PROGRAM} | ({"before": args.before} if args.before else {})
    samples = alternate(
        {name: runs(program, args.kernel) for name, program in programs.items()},
        args.rounds,
        warmup=0,
    )
    best = {name: fastest(rounds) for name, rounds in samples.items()}
    for key, one in best["this"].items():
        before = best.get("before", {}).get(key)
        ratio = "" if before is None else f"{before['fastest'] / one['fastest']:8.3f}"
        print(
            f"{key[0]:16}{key[1]:58}{one['fastest']:10} ns{one['gigabytes_per_second']:8.1f} GB/s"
            f"{one['giga_operations_per_second']:8.1f} GOP/s{ratio}"
        )
    settings = {"rounds": args.rounds, "samples of a round": SAMPLES}
    results = {
        name: {f"{kernel}, {shape}": one for (kernel, shape), one in found.items()}
        for name, found in best.items()
    }
    print(write("kernels", settings, results, args, samples))


if __name__ == "__main__":
    main()
