"""`translate-trt verify`: proof that a bundle translates like its checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.text import read_parallel

log = logging.getLogger("translate_trt")


@click.command()
@click.option("--bundle", type=click.Path(path_type=Path), required=True, help="What to verify.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    required=True,
    help="What it was exported from: a run or a checkpoint.",
)
@click.option(
    "--source", type=click.Path(path_type=Path), required=True, help="Lines to translate."
)
@click.option(
    "--reference", type=click.Path(path_type=Path), required=True, help="Their translations."
)
@click.option("--target", "targets", multiple=True, help="Only these; default: all of the bundle.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; default: all cores.")
def verify(
    bundle: Path,
    checkpoint: Path,
    source: Path,
    reference: Path,
    targets: tuple[str, ...],
    threads: int | None,
) -> None:
    """Compare every target of a bundle with the PyTorch model it was compiled from.

    Prints per target: identical outputs, largest score difference, BLEU and its difference with a
    paired bootstrap interval, and speed; writes the same into the bundle's manifest. The exit code
    is 1 if a target misses its gate.
    """
    from translate_trt.export import parity
    from translate_trt.train.checkpoint import open_checkpoint
    from translate_trt.train.run import use_threads

    use_threads(threads)
    lines = list(read_parallel(source, reference))
    found = parity.verify(
        bundle,
        open_checkpoint(checkpoint),
        [line for line, _ in lines],
        [line for _, line in lines],
        targets or None,
        threads,
    )
    click.echo(parity.table(found))
    failed = [name for name, result in found.items() if not result.passed]
    if failed:
        raise TranslateTrtError(
            f"{', '.join(failed)} missed the gate; do not ship. The numbers are in the manifest."
        )
