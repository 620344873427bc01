"""`translate-trt plot`: plot the curves of training runs."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.names import PATH, output_option

log = logging.getLogger("translate_trt")

_DEFAULT_OUT = Path("curves.png")


@click.command(cls=Command)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=PATH)
@output_option("Picture to write: .png, .svg or .pdf. Default: curves.png.", required=False)
@click.option("--force", is_flag=True, help="Replace the picture if it exists.")
def plot(runs: tuple[Path, ...], out: Path | None, force: bool) -> None:
    """Plot loss, BLEU, learning rate and tokens per second of training runs by step.

    A RUN is the --output directory of `translate-trt train`, finished or not. Several runs share a
    picture, each in a colour of its own. The training loss is drawn with label smoothing, as it is
    minimized, and without, like the validation loss. Stars mark the averaged checkpoint.
    """
    from translate_trt.train.evaluation.pictures import check_picture, save_picture
    from translate_trt.train.evaluation.training_curves import draw_curves, read_runs

    out = out or _DEFAULT_OUT
    check_picture(out, force, runs)
    save_picture(draw_curves(read_runs(runs)), out)
    log.info("%s shows %d runs", out, len(runs))
