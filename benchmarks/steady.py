"""Memory and throughput over very many sentences of mixed lengths, in one process.

    python benchmarks/steady.py BUNDLE [--sentences 100000] [--longest 400] [--max-length 16]

Sources are random tokens, as many as drawn evenly from 1 to --longest; every call translates 500 of
them. Resident memory and sentences per second are noted after each call; the summary compares the
second half of the run with the end of its first tenth.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from time import perf_counter

import numpy as np
from report import parser, write

from translate_trt.runtime import SearchOptions, Translator

CALL = 500


def resident_mib() -> float:
    """Resident set of this process now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def arguments() -> argparse.Namespace:
    """From the command line."""
    options = parser(__doc__)
    options.add_argument("bundle", type=Path)
    options.add_argument("--target")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--sentences", type=int, default=100_000)
    options.add_argument("--longest", type=int, default=400, help="tokens of a source")
    options.add_argument("--max-length", type=int, default=16, help="tokens of a translation")
    return options.parse_args()


def main() -> None:
    """Measure and write."""
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
    warm = memory[1 : 1 + max(1, len(speed) // 10)]
    late = memory[1 + len(speed) // 2 :]
    first, second = (
        statistics.median(part) for part in (speed[: len(speed) // 2], speed[len(speed) // 2 :])
    )
    print(
        f"{len(speed) * CALL} sentences: {max(warm):.0f} MiB at most in the first tenth, "
        f"{max(late):.0f} MiB in the second half; {first:.1f} and {second:.1f} sentences/s"
    )
    settings = {"sentences": len(speed) * CALL, "longest": longest, "max_length": args.max_length,
                "workers": args.workers, "threads": threads,
                "target": translator.target.name}  # fmt: skip
    samples = {"resident_mib": memory, "sentences_per_second": speed}
    print(write("steady", settings, samples, args.out))


if __name__ == "__main__":
    main()
