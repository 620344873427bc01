"""`translate-trt plot`: the curves of training runs as a picture."""

from __future__ import annotations

from pathlib import Path

import click

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=_PATH, metavar="RUN...")
@click.option("--out", type=_PATH, help="Picture to write: .png, .pdf or .svg. [RUN/curves.png]")
@click.option("--force", is_flag=True, help="Replace the picture that is there.")
def plot(runs: tuple[Path, ...], out: Path | None, force: bool) -> None:
    """Draw loss, BLEU, learning rate and tokens per second of training runs.

    Several runs come into one picture, a colour each. Without --out the picture goes into the first
    run, and replaces the one before.
    """
    from translate_trt.train.plots import draw_curves, save_figure

    path = runs[0] / "curves.png" if out is None else out
    save_figure(draw_curves(runs), path, force or out is None)
    click.echo(path)
