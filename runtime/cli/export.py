"""`translate-trt export`: checkpoint to bundle."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The bundle to make.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=("onnx-fp32",),
    show_default=True,
    help="onnx-fp32 or onnx-int8; may be given several times, the first is the default.",
)
@click.option(
    "--max-source-length",
    type=int,
    help="Longest source in tokens with the end symbol. Default: --max-length of the training.",
)
@click.option(
    "--max-target-length",
    type=int,
    help="Longest translation in tokens with the end symbol. Default: the source's and 50.",
)
@click.option("--attention", is_flag=True, help="Let translations come with attention weights.")
@click.option("--force", is_flag=True, help="Replace the bundle at --out.")
def export(
    checkpoint: Path,
    out: Path,
    targets: tuple[str, ...],
    max_source_length: int | None,
    max_target_length: int | None,
    attention: bool,
    force: bool,
) -> None:
    """Compile CHECKPOINT, a directory made by `translate-trt train`, into a bundle.

    Given a whole run, its averaged checkpoint is taken, or the latest while there is none.
    """
    from translate_trt.export.compile import BuildOptions, compile_bundle
    from translate_trt.train.checkpoint import open_checkpoint

    options = BuildOptions(targets, max_source_length, max_target_length, attention)
    manifest = compile_bundle(open_checkpoint(checkpoint), out, options, force)
    for name, target in manifest.targets.items():
        size = sum(file.bytes for file in target.files.values())
        click.echo(f"{out}: {name}, {size / 1e6:.1f} MB")
