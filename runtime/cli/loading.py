"""Options that say how a bundle is loaded, of commands that translate or score lines themselves."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime import kernels
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.cli.bundle_flags import BATCH_TOKENS_HELP
from translate_trt.runtime.cli.command import section
from translate_trt.runtime.io.lines import is_stream

if TYPE_CHECKING:
    from translate_trt.runtime.translator import Translator

log = logging.getLogger("translate_trt")


@section("Speed and device")
def loading_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments of `load_translator`, and --chunk-lines."""
    flags = (
        click.option("--batch-tokens", type=click.IntRange(min=1), help=BATCH_TOKENS_HELP),
        click.option("--threads", type=click.IntRange(min=1), help="CPU threads per worker."),
        click.option(
            "--workers",
            type=click.IntRange(min=1),
            help="Batches run at once. [one per core for files, 1 with all cores for pipes; for "
            "engines 2]",
        ),
        click.option(
            "--device", help="cpu, cuda, cuda:1 or xpu. [a GPU if the target is made for one]"
        ),
        click.option(
            "--trust-code",
            is_flag=True,
            help="Allow version-compatible engines to run the machine code that they contain.",
        ),
        click.option(
            "--chunk-lines",
            type=click.IntRange(min=1),
            default=1024,
            show_default=True,
            help="Lines that are read, sorted by length and written together.",
        ),
    )
    for flag in reversed(flags):
        command = flag(command)
    return command


def load_translator(
    bundle: Path,
    target: str | None,
    shortlist: bool,
    inputs: Sequence[str],
    *,
    threads: int | None,
    workers: int | None,
    batch_tokens: int | None,
    device: str | None,
    trust_code: bool,
) -> Translator:
    """Load a bundle for the lines of the inputs.

    Args:
        bundle: Directory of the bundle.
        target: Name of the target; None for the first.
        shortlist: Use the target's shortlist variant.
        inputs: Paths, or "-" for standard input. On CPUs, files get a worker per core, and pipes,
            where latency matters, one with all cores.
        threads: CPU threads per worker; None for the default.
        workers: Number of batches run at once; None for the default.
        batch_tokens: Source tokens per batch; None for the default.
        device: Device; None for the default.
        trust_code: Allow engines to run the machine code that they contain.

    Raises:
        TranslateTrtError: See `Translator`.
    """
    from translate_trt.runtime.backends import has_worker_per_core
    from translate_trt.runtime.cores import available_cores
    from translate_trt.runtime.process import return_large_blocks
    from translate_trt.runtime.translator import Translator

    if workers is None and has_worker_per_core(
        read_manifest(bundle).target(target, shortlist), device
    ):
        streamed = any(is_stream(path) for path in inputs)
        workers = 1 if streamed else max(1, available_cores() // (threads or 1))
    return_large_blocks()
    arguments: dict[str, Any] = {
        "shortlist": shortlist or None, "threads": threads, "workers": workers,
        "batch_tokens": batch_tokens, "device": device, "trust_code": trust_code or None,
    }  # fmt: skip
    begin = time.perf_counter()
    given = {name: value for name, value in arguments.items() if value is not None}
    translator = Translator(bundle, target, **given)
    log.info("loaded %r in %.2f s", translator, time.perf_counter() - begin)
    log.info("compiled kernels: %s", kernels.status())
    return translator
