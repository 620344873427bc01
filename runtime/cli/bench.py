"""`translate-trt bench`: speed of a bundle on the user's machine and text."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.cli.bundle_flags import batch_tokens_flag, bundle_flag, device_flag
from translate_trt.runtime.cli.command import Command, take
from translate_trt.runtime.cli.output import print_json, print_lines
from translate_trt.runtime.cli.search_flags import replace_options, search_flags
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.io.lines import check_input, display_name, open_input, read_lines
from translate_trt.runtime.io.report import columns

if TYPE_CHECKING:
    from translate_trt.runtime.benchmark import BenchResult


@click.command(cls=Command)
@bundle_flag
@click.option(
    "--target", "targets", multiple=True, help="Target to measure; may be repeated. [all]"
)
@click.argument("source", metavar="INPUT")
@click.option("--lines", type=click.IntRange(min=1), help="Number of lines of INPUT to use. [all]")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True,
    help="Translations of the whole text; the median counts.",
)  # fmt: skip
@click.option(
    "--latency-lines", type=click.IntRange(min=1), default=100, show_default=True,
    help="Lines translated one at a time.",
)  # fmt: skip
@click.option("--cores", type=click.IntRange(min=1), help="CPU cores to use. [all]")
@batch_tokens_flag
@device_flag
@search_flags
@click.option("--json", "as_json", is_flag=True, help="Print the results of every round as JSON.")
def bench(
    bundle: Path,
    targets: tuple[str, ...],
    source: str,
    lines: int | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Measure the speed of a bundle on the lines of INPUT, tokenization included.

    Throughput uses one single-threaded worker per core, or 2 for engines; latency uses one worker
    with all cores and one line at a time. Each target runs in its own process.
    """
    from translate_trt.runtime.benchmark import BenchOptions
    from translate_trt.runtime.benchmark import bench as measure

    manifest = read_manifest(bundle)
    names = [manifest.target(name).name for name in targets or tuple(manifest.targets)]
    settings, text = take(flags, BenchOptions), _read(source, lines)
    options = replace_options(manifest.search_options(), flags)
    results = measure(bundle, text, names, options, settings)
    if as_json:
        print_json([dataclasses.asdict(result) for result in results])
    else:
        print_lines(_table(results))


def _read(source: str, limit: int | None) -> list[str]:
    check_input(source)
    with open_input(source) as stream:
        text = [line for line in read_lines(stream, source) if line.strip()][:limit]
    if not text:
        raise InputError(f"{display_name(source)} has no lines to translate.")
    return text


def _table(results: Sequence[BenchResult]) -> list[str]:
    head = ("target", "workers", "batch tokens", "lines/s", "tokens/s", "p50 ms", "p95 ms",
            "p99 ms", "load s", "peak MiB")  # fmt: skip
    rows: list[tuple[str, ...]] = [head]
    for result in results:
        memory = result.peak_memory_mib
        rows.append(
            (
                result.target,
                str(result.workers),
                f"{result.batch_tokens:,}",
                f"{statistics.median(result.lines_per_second):.1f}",
                f"{statistics.median(result.tokens_per_second):.0f}",
                *(f"{milliseconds:.1f}" for milliseconds in result.latency_ms.values()),
                f"{result.load_seconds:.2f}",
                "" if memory is None else f"{memory:.0f}",
            )
        )
    return [*columns(rows), f"compiled kernels: {results[0].kernels}"]
