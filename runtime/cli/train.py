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
            choices = field.metadata["choices"]
            command = click.option(
                "--" + field.name.replace("_", "-"),
                type=click.Choice(choices) if choices else _TYPES[str(field.type)],
                default=None,
                help=f"{field.metadata['help']} (base: {field.default})",
            )(command)
    return command


@click.command()
@click.option(
    "--config",
    default="base",
    show_default=True,
    metavar="PRESET",
    help=f"Model and recipe: {', '.join(PRESETS)}, or a row of the paper's Table 3, as base-h16 "
    "(docs/train.md lists them). The flags below change single settings of it.",
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

    The vocabulary is trained from the text. Ctrl-C and SIGTERM save a checkpoint; --resume
    continues from the last one. Under torchrun, its processes train one model together. At the end
    the last checkpoints are averaged; `translate-trt export` takes the result.
    """
    if not ctx.find_root().params.get("quiet"):
        log.setLevel(min(log.level or logging.INFO, logging.INFO))  # progress is what one waits for
    from translate_trt.train.distributed import choose_device, open_group
    from translate_trt.train.run import TextPair, in_turn, prepare_job, train_model, use_threads

    use_threads(threads)
    chosen = choose_device(device)  # first: a device that is not there must not cost an old run
    overrides = {name: value for name, value in settings.items() if value is not None}
    files = TextPair(*train_files), TextPair(*valid_files)
    with open_group(chosen) as group:
        if not group.leads:  # one process tells for all
            log.setLevel(logging.ERROR)
        job = in_turn(
            group,
            lambda reopen: prepare_job(
                *files, out, config, overrides, resume or reopen, force and not reopen
            ),
        )
        path = train_model(job, group, resume)
    if group.leads and path is not None:
        click.echo(path)
