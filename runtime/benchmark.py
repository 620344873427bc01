"""How fast a bundle translates a user's own text on the user's own machine.

Each target runs in a process of its own, so that its memory is its own and nothing that another
one loaded or started is in its way. Figures of different machines, or of different days on a shared
one, do not compare; those of one run do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import numpy as np

from translate_trt.runtime import kernels
from translate_trt.runtime.cores import available_cores, within_cores
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.process import return_large_blocks
from translate_trt.runtime.translator import Translator

_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class BenchOptions:
    """What to measure."""

    rounds: int = 3  # times that the whole text is translated; the median counts
    latency_lines: int = 100  # translated one at a time, evenly spaced in the text
    cores: int | None = None  # processor cores to use; None: all
    batch_tokens: int = 512  # source tokens in a batch


@dataclass(frozen=True)
class BenchResult:
    """One target's figures.

    Attributes:
        target: its name.
        load_seconds: to check and load the bundle.
        lines_per_second: of the text, one worker of one thread per core; each round's.
        tokens_per_second: target tokens, the end symbol included; each round's.
        latency_ms: percentile -> milliseconds of one line alone, one worker with all cores.
        peak_memory_mib: largest resident set of the process while it translated the text, or None
            where the system does not tell.
        kernels: what ONNX Runtime was given on this CPU, such as "avx512_vnni", or why nothing.
    """

    target: str
    load_seconds: float
    lines_per_second: list[float]
    tokens_per_second: list[float]
    latency_ms: dict[int, float]
    peak_memory_mib: float | None
    kernels: str


def bench(
    bundle: Path,
    lines: Sequence[str],
    targets: Sequence[str],
    search: SearchOptions,
    options: BenchOptions,
) -> list[BenchResult]:
    """Measure targets one after the other.

    Args:
        bundle: directory of the bundle.
        lines: the text.
        targets: names of targets.
        search: how to search.
        options: what to measure.

    Raises:
        TranslateTrtError: as of `Translator`.
    """
    cores = available_cores() if options.cores is None else within_cores("cores", options.cores)
    options = replace(options, cores=cores)
    results = []
    for target in targets:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            run = process.submit(_bench_target, bundle, list(lines), target, search, options)
            results.append(run.result())
    return results


def _bench_target(
    bundle: Path, lines: list[str], target: str, search: SearchOptions, options: BenchOptions
) -> BenchResult:
    return_large_blocks()  # as `translate` does; the process is this function's
    cores = options.cores or available_cores()
    begin = perf_counter()
    translator = Translator(
        bundle, target, threads=1, workers=cores, batch_tokens=options.batch_tokens
    )
    load_seconds = perf_counter() - begin
    translator.translate(lines[:1], search)  # the first call allocates
    lines_rate, tokens_rate = [], []
    for _ in range(options.rounds):
        begin = perf_counter()
        found = translator.translate(lines, search)
        seconds = perf_counter() - begin
        tokens = sum(len(line.hypotheses[0].token_log_probs) for line in found)
        lines_rate.append(len(lines) / seconds)
        tokens_rate.append(tokens / seconds)
    memory = peak_memory_mib()
    del translator
    return BenchResult(
        target,
        load_seconds,
        lines_rate,
        tokens_rate,
        _latency(Translator(bundle, target, threads=cores), lines, search, options.latency_lines),
        memory,
        kernels.status(),
    )


def _latency(
    translator: Translator, lines: list[str], search: SearchOptions, count: int
) -> dict[int, float]:
    chosen = lines[:: max(1, len(lines) // count)][:count]
    translator.translate(chosen[:1], search)
    times = []
    for line in chosen:
        begin = perf_counter()
        translator.translate([line], search)
        times.append(1e3 * (perf_counter() - begin))
    return {percent: float(np.percentile(times, percent)) for percent in _PERCENTILES}


def peak_memory_mib() -> float | None:
    """The largest resident set of this process so far; None on a system that does not tell."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
