"""`translate-trt train`: text pairs to a checkpoint."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

# No torch yet: this module is imported for --help too.
from translate_trt.train.config import PRESETS, ModelConfig, TrainConfig

log = logging.getLogger("translate_trt")

_FILES = click.Path(path_type=Path)
_TYPES: dict[str, type] = {"int": int, "float": float, "str": str}


def _settings(command: Callable[..., None]) -> Callable[..., None]:
    """One flag for every field of the two configurations, with the field's own description."""
    for kind in (TrainConfig, ModelConfig):
        for field in reversed(dataclasses.fields(kind)):
            command = click.option(
                "--" + field.name.replace("_", "-"),
                type=_TYPES[str(field.type)],
                default=None,
                help=f"{field.metadata['help']} (base: {field.default})",
            )(command)
    return command


@click.command()
@click.option(
    "--config",
    type=click.Choice(list(PRESETS)),
    default="base",
    show_default=True,
    help="Preset of model and recipe; the flags below change single settings of it.",
)
@click.option("--train", "train_files", nargs=2, type=_FILES, required=True, help="Source, target.")
@click.option("--valid", "valid_files", nargs=2, type=_FILES, required=True, help="Source, target.")
@click.option("--out", type=_FILES, required=True, help="Directory of the run.")
@click.option("--resume", is_flag=True, help="Continue the run in --out exactly where it was.")
@click.option("--force", is_flag=True, help="Delete the run in --out and start over.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; default: all cores.")
@_settings
@click.pass_context
def train(
    ctx: click.Context,
    /,
    config: str,
    train_files: tuple[Path, Path],
    valid_files: tuple[Path, Path],
    out: Path,
    resume: bool,
    force: bool,
    device: str,
    threads: int | None,
    **settings: Any,
) -> None:
    """Train a Transformer on a source file and its translation, line by line.

    The vocabulary is trained from the text. Ctrl-C saves a checkpoint; --resume continues from the
    last one. At the end the last checkpoints are averaged; `translate-trt export` takes the result.
    """
    if not ctx.find_root().params.get("quiet"):
        log.setLevel(min(log.level or logging.INFO, logging.INFO))  # progress is what one waits for
    from translate_trt.train.run import (
        TextPair,
        choose_device,
        prepare_job,
        train_model,
        use_threads,
    )

    use_threads(threads)
    chosen = choose_device(device)  # first: a device that is not there must not cost an old run
    job = prepare_job(
        TextPair(*train_files),
        TextPair(*valid_files),
        out,
        config,
        {name: value for name, value in settings.items() if value is not None},
        resume,
        force,
    )
    click.echo(train_model(job, chosen, resume))
