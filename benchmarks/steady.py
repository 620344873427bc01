"""Measure memory and throughput over very many sentences of mixed lengths, in one process.

    python benchmarks/steady.py BUNDLE [--sentences 100000] [--longest 400] [--max-length 16]

Sources are random tokens with lengths drawn evenly from 1 to --longest; a call translates 500 of
them. Resident memory and sentences per second are recorded after each call, and the halves of the
run are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from harness import parser, write

from translate_trt.runtime import SearchOptions, Translator

CALL = 500


def resident_mib() -> float:
    """Return the resident set of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__)
    options.add_argument("bundle", type=Path)
    options.add_argument("--target")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--sentences", type=int, default=100_000)
    options.add_argument("--longest", type=int, default=400, help="tokens of the longest source")
    options.add_argument(
        "--max-length", type=int, default=16, help="tokens of the longest translation"
    )
    return options.parse_args()


def summarize(samples: dict[str, list[float]]) -> dict[str, Any]:
    """Return the most memory and the median speed of both halves of a run."""
    memory, speed = samples["resident_mib"][1:], samples["sentences_per_second"]
    half = len(speed) // 2
    return {
        "most_resident_mib": {
            "after a tenth": max(memory[: max(1, len(speed) // 10)]),
            "first half": max(memory[:half]),
            "second half": max(memory[half:]),
        },
        "sentences_per_second": {
            "first half": statistics.median(speed[:half]),
            "second half": statistics.median(speed[half:]),
        },
    }


def main() -> None:
    """Measure, and write the report."""
    args = arguments()
    threads = max(1, args.threads // args.workers)
    translator = Translator(args.bundle, args.target, threads=threads, workers=args.workers)
    vocabulary = translator.manifest.model.vocabulary_size
    longest = min(args.longest, translator.manifest.limits.max_source_length - 1)
    options = SearchOptions(max_length=args.max_length)
    random = np.random.default_rng(1)
    memory, speed = [resident_mib()], []
    for _ in range(args.sentences // CALL):
        lengths = random.integers(1, longest + 1, CALL)
        sources = [random.integers(4, vocabulary, length).tolist() for length in lengths]
        begin = perf_counter()
        found = translator.translate_ids(sources, options)
        speed.append(CALL / (perf_counter() - begin))
        assert all(hypotheses for hypotheses in found)
        memory.append(resident_mib())
    settings = {"sentences": len(speed) * CALL, "longest": longest, "max_length": args.max_length,
                "workers": args.workers, "threads": threads,
                "target": translator.target.name}  # fmt: skip
    samples = {"resident_mib": memory, "sentences_per_second": speed}
    results = summarize(samples)
    for name, found in results.items():
        print(f"{name}: {found}")
    print(write("steady", settings, results, args, samples))


if __name__ == "__main__":
    main()
