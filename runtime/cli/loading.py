"""Options that say how a bundle is loaded, of commands that translate or score lines themselves."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translate_trt.runtime import kernels
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.cli.bundle_flags import batch_tokens_flag, device_flag, trust_code_flag
from translate_trt.runtime.cli.command import section, together
from translate_trt.runtime.io.lines import is_stream

if TYPE_CHECKING:
    from translate_trt.runtime.translator import Translator

log = logging.getLogger("translate_trt")

#: Fields of `Loading` beside the bundle and its target, and --chunk-lines.
loading_flags = section("Speed and device")(
    together(
        batch_tokens_flag,
        click.option("--threads", type=click.IntRange(min=1), help="CPU threads per worker."),
        click.option(
            "--workers",
            type=click.IntRange(min=1),
            help="Batches run at once. [one per core for files, 1 with all cores for pipes; for "
            "engines 2]",
        ),
        device_flag,
        trust_code_flag,
        click.option(
            "--chunk-lines",
            type=click.IntRange(min=1),
            default=1024,
            show_default=True,
            help="Lines that are read, sorted by length and written together.",
        ),
    )
)


@dataclass(frozen=True)
class Loading:
    """A bundle and how it is loaded; None stands for the default of `Translator`.

    Attributes:
        bundle: Directory of the bundle.
        target: Name of the target.
        shortlist: Use the target's shortlist variant.
        threads: CPU threads per worker.
        workers: Number of batches run at once.
        batch_tokens: Source tokens per batch.
        device: Device.
        trust_code: Allow engines to run the machine code that they contain.
    """

    bundle: Path
    target: str | None
    shortlist: bool
    threads: int | None
    workers: int | None
    batch_tokens: int | None
    device: str | None
    trust_code: bool


def load_translator(loading: Loading, inputs: Sequence[str]) -> Translator:
    """Load a bundle for the lines of the inputs.

    Args:
        loading: The bundle and how it is loaded.
        inputs: Paths, or "-" for standard input. On CPUs, files get a worker per core, and pipes,
            where latency matters, one with all cores.

    Raises:
        TranslateTrtError: See `Translator`.
    """
    from translate_trt.runtime.backends import has_worker_per_core
    from translate_trt.runtime.cores import available_cores
    from translate_trt.runtime.process import return_large_blocks
    from translate_trt.runtime.translator import Translator

    arguments = {name: value for name, value in vars(loading).items() if value not in (None, False)}
    entry = read_manifest(loading.bundle).target(loading.target, loading.shortlist)
    if loading.workers is None and has_worker_per_core(entry, loading.device):
        streamed = any(is_stream(path) for path in inputs)
        cores = 1 if streamed else available_cores()
        arguments["workers"] = max(1, cores // (loading.threads or 1))
    return_large_blocks()
    begin = time.perf_counter()
    translator = Translator(**arguments)
    log.info("loaded %r in %.2f s", translator, time.perf_counter() - begin)
    log.info("compiled kernels: %s", kernels.status())
    return translator
