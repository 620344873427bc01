"""Throughput, latency and memory of a bundle's targets on the user's machine and text.

Each target runs in its own process, unaffected by what other targets have loaded or started.
Compare only numbers of one run; other machines, and other days on a shared one, differ.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from translate_trt.runtime import kernels
from translate_trt.runtime.backends import has_worker_per_core
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.cores import available_cores, within_cores
from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.process import ctrl_c_blocked, return_large_blocks
from translate_trt.runtime.translator import Translator

_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class BenchOptions:
    """Benchmark settings."""

    rounds: int = 3  # translations of the whole text; the median counts
    latency_lines: int = 100  # lines translated one at a time, evenly spaced in the text
    cores: int | None = None  # CPU cores to use; None: all
    batch_tokens: int | None = None  # source tokens per batch; None: the translator's default
    device: str | None = None  # see `Translator`


@dataclass(frozen=True)
class BenchResult:
    """Measurements of one target.

    Attributes:
        target: Name of the target.
        workers: Number of workers for throughput: one per core, or the default for engines.
        batch_tokens: Source tokens per batch, padding included.
        load_seconds: Time to check and load the bundle.
        lines_per_second: Throughput of each round, with `workers` of one thread each.
        tokens_per_second: Target tokens per second of each round, end symbols included.
        latency_ms: Latency of single lines by percentile, with one worker on all cores or a GPU.
        peak_memory_mib: Largest resident set of the process during the rounds; None if the
            system does not report it.
        kernels: Compiled kernels used on this CPU, such as "avx512_vnni", or why none are.
    """

    target: str
    workers: int
    batch_tokens: int
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
        bundle: Directory of the bundle.
        lines: Lines of the text.
        targets: Names of the targets.
        search: Search options.
        options: Benchmark settings.

    Raises:
        TranslateTrtError: See `Translator`.
        BackendError: The process of a target ended unexpectedly.
    """
    cores = available_cores() if options.cores is None else within_cores("cores", options.cores)
    options = replace(options, cores=cores)
    results = []
    context = get_context("spawn")
    for target in targets:
        receiver, sender = context.Pipe(duplex=False)
        arguments = (sender, bundle, list(lines), target, search, options)
        process = context.Process(target=_send_result, args=arguments)
        try:
            with ctrl_c_blocked():
                process.start()
            sender.close()
            result = receiver.recv()
        except EOFError as error:
            raise BackendError(
                f"the process that measured {target} ended unexpectedly, perhaps for lack of "
                "memory; try fewer cores, or a smaller --batch-tokens."
            ) from error
        finally:
            if process.pid is not None:
                process.kill()
                process.join()
        if isinstance(result, Exception):
            raise result
        results.append(result)
    return results


def _send_result(sender: Connection, *arguments: Any) -> None:
    try:
        sender.send(_bench_target(*arguments))
    except Exception as error:
        sender.send(error)


def _bench_target(
    bundle: Path, lines: list[str], target: str, search: SearchOptions, options: BenchOptions
) -> BenchResult:
    return_large_blocks()  # as the command `translate` does; this process runs nothing else
    cores = options.cores or available_cores()
    begin = perf_counter()
    per_core = has_worker_per_core(read_manifest(bundle).target(target), options.device)
    translator = Translator(
        bundle, target, threads=1, workers=cores if per_core else None,
        batch_tokens=options.batch_tokens, device=options.device,
    )  # fmt: skip
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
    memory = peak_memory()
    used = translator.workers, translator.batch_tokens
    del translator
    single = Translator(
        bundle, target, threads=cores, workers=1, batch_tokens=options.batch_tokens,
        device=options.device,
    )  # fmt: skip
    latency = _latency(single, lines, search, options.latency_lines)
    return BenchResult(
        target, *used, load_seconds, lines_rate, tokens_rate, latency,
        None if memory is None else memory / 2**20, kernels.status(),
    )  # fmt: skip


def _latency(
    translator: Translator, lines: list[str], search: SearchOptions, count: int
) -> dict[int, float]:
    count = min(count, len(lines))
    chosen = [lines[i * len(lines) // count] for i in range(count)]  # evenly spaced
    translator.translate(chosen[:1], search)
    times = []
    for line in chosen:
        begin = perf_counter()
        translator.translate([line], search)
        times.append(1e3 * (perf_counter() - begin))
    return {percent: float(np.percentile(times, percent)) for percent in _PERCENTILES}


def peak_memory(process: int | None = None) -> int | None:
    """Largest resident set so far of a process, or of this one, in bytes; None if unknown."""
    with contextlib.suppress(OSError):  # elsewhere than on Linux
        for line in Path(f"/proc/{process or 'self'}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 2**10
    if process is not None:
        return None
    # On Linux, this would include the memory of the process that started this one.
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 2**10
