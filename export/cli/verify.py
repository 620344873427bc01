"""`translate-trt verify`: compare a bundle with the checkpoint that it was exported from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import click

from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.cli.bundle_flags import bundle_argument
from translate_trt.runtime.cli.command import Command, given
from translate_trt.runtime.cli.names import PATH, threads_flag
from translate_trt.runtime.cli.search_flags import language_flags
from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.io.lines import open_input, read_lines


@click.command(cls=Command)
@bundle_argument
@click.option(
    "--checkpoint",
    "checkpoints",
    type=PATH,
    multiple=True,
    required=True,
    help="Run or checkpoint that the bundle was exported from; for an ensemble, once for each "
    "member, in the order of the export.",
)
@click.option("--source", type=PATH, required=True, help="Lines to translate.")
@click.option(
    "--reference",
    type=PATH,
    help="Reference translations of --source; not needed with --layers.",
)
@click.option(
    "--target", "targets", multiple=True, help="Target to verify; repeatable. Default: all targets."
)
@threads_flag
@click.option(
    "--require-engines", is_flag=True, help="Fail if an engine cannot run on this machine."
)
@click.option(
    "--layers", is_flag=True, help="Compare tensors layer by layer instead of translations."
)
@click.option(
    "--layers-lines",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Number of lines that --layers compares.",
)
@language_flags
def verify(
    bundle: Path,
    checkpoints: tuple[Path, ...],
    source: Path,
    reference: Path | None,
    targets: tuple[str, ...],
    threads: int | None,
    require_engines: bool,
    layers: bool,
    layers_lines: int,
    **languages: str | None,
) -> None:
    """Compare every target of a bundle with the PyTorch model that it was exported from.

    For each target, prints the share of identical translations, the largest score difference, BLEU
    and its difference with a paired bootstrap interval, and the speed. The same numbers are written
    to the bundle's manifest, unless the manifest has stronger evidence: an engine that ran, or more
    lines. An engine that cannot run here is emulated: its graph runs in ONNX Runtime on the CPU,
    and the result says so. The exit code is 1 if a target misses its acceptance thresholds, or if
    the bundle was not exported from the checkpoint.

    With --layers, prints the difference of every layer's tensors from PyTorch's, and the first
    tensor beyond the tolerance of its precision. The exit code is 1 if there is such a tensor.
    """
    if reference is None and not layers:
        raise click.UsageError(
            "--reference is missing: pass the translations of --source, "
            "or compare only layers with --layers."
        )
    read_manifest(bundle)  # report a wrong path before the slow import of torch

    from translate_trt.train.trainer.distributed import use_threads

    use_threads(threads)
    if reference is None or layers:
        _compare_layers(bundle, checkpoints, source, targets, threads, layers_lines)
        return
    _compare_translations(
        bundle, checkpoints, (source, reference), targets, threads, require_engines,
        given(languages),
    )  # fmt: skip


def _compare_translations(
    bundle: Path,
    checkpoints: Sequence[Path],
    test_set: tuple[Path, Path],
    targets: tuple[str, ...],
    threads: int | None,
    require_engines: bool,
    languages: dict[str, str],
) -> None:
    from translate_trt.export.cli.verify_tables import parity_table
    from translate_trt.export.verify import parity
    from translate_trt.train.checkpoint import open_checkpoint
    from translate_trt.train.data.text_sources import read_sides

    lines, reference = read_sides(*test_set)
    parity.warn_of_few_lines(len(lines))
    first, *others = map(open_checkpoint, checkpoints)
    found = parity.verify(
        bundle, first, lines, reference, targets or None, threads, languages, others
    )
    click.echo(parity_table(found))
    failed = [name for name, result in found.items() if not result.passed]
    if failed:
        raise TranslateTrtError(
            f"{', '.join(failed)} missed the acceptance thresholds above; do not deploy."
        )
    not_run = [name for name, result in found.items() if result.engine_not_run is not None]
    if require_engines and not_run:
        raise TranslateTrtError(
            f"the engines of {', '.join(not_run)} did not run, but --require-engines is set; the "
            "reasons are above. Verify on a machine that can run them."
        )


def _compare_layers(
    bundle: Path,
    checkpoints: Sequence[Path],
    source: Path,
    targets: tuple[str, ...],
    threads: int | None,
    count: int,
) -> None:
    from translate_trt.export.cli.verify_tables import layer_tables
    from translate_trt.export.verify.layers import compare_layers
    from translate_trt.train.checkpoint import open_checkpoint

    with open_input(str(source)) as stream:
        lines = list(islice(read_lines(stream, str(source)), count))
    first, *others = map(open_checkpoint, checkpoints)
    reports = compare_layers(bundle, first, lines, targets or None, threads, others)
    click.echo(layer_tables(reports))
    drifting = [f"{report.target} (from {report.first})" for report in reports if report.first]
    if drifting:
        raise TranslateTrtError(
            f"{', '.join(drifting)} differs from PyTorch by more than the tolerance."
        )
