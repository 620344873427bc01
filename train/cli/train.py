"""`translate-trt train`: text pairs to a checkpoint."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

# No torch yet: this module is imported for --help too.
from translate_trt.runtime.cli.names import field_option, output_option
from translate_trt.runtime.cli.search_flags import language_flags
from translate_trt.runtime.cli.verbosity import is_quiet
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.io.locks import locked_directory
from translate_trt.train.cli.torch_settings import set_training_defaults
from translate_trt.train.config import (
    FINE_TUNE_NAME,
    PRESETS,
    ModelConfig,
    TrainConfig,
    apply,
    preset,
    recipe,
)

log = logging.getLogger("translate_trt")

_SECONDS_TO_GO_AWAY = 60.0

_FILES = click.Path(path_type=Path)
_TYPES: dict[str, type] = {"int": int, "float": float, "str": str}


def _settings(command: Callable[..., None]) -> Callable[..., None]:
    """One flag for every field of the two configurations, with the field's own description."""
    for kind in (TrainConfig, ModelConfig):
        for field in reversed(dataclasses.fields(kind)):
            if field.metadata["imported"]:
                continue
            choices = field.metadata["choices"]
            command = field_option(
                field,
                type=click.Choice(choices) if choices else _TYPES[str(field.type)],
                help=f"{field.metadata['help']} (base: {field.default})",
            )(command)
    return command


def _check_ranges(name: str, is_new: bool, overrides: dict[str, Any]) -> None:
    """Refuse settings out of range before torch is imported and a vocabulary is trained."""
    apply(recipe(name), overrides)
    if is_new:
        apply(preset(name).model, overrides)


@click.command()
@click.option(
    "--config",
    default=None,
    metavar="PRESET",
    help=f"Model and recipe: {', '.join(PRESETS)}, or a row of the paper's Table 3, as base-h16 "
    "(docs/train.md lists them); with --from the recipe alone, of these or fine-tune. The flags "
    f"below change single settings of it.  [default: base; with --from {FINE_TUNE_NAME}]",
)
@click.option(
    "--from",
    "start",
    type=_FILES,
    metavar="CHECKPOINT",
    help="Fine-tune this model, imported or trained: a checkpoint, or a run. Its shape and its "
    "tokenizers stay; --dropout and the flags of the recipe may be given.",
)
@click.option("--train", "train_files", nargs=2, type=_FILES, help="Source, target.")
@click.option("--valid", "valid_files", nargs=2, type=_FILES, help="Source, target.")
@click.option("--data", type=_FILES, help="Instead: what `translate-trt data prepare` made.")
@output_option("Directory of the run.")
@click.option("--resume", is_flag=True, help="Continue the run in --output exactly where it was.")
@click.option("--force", is_flag=True, help="Delete the run in --output and start over.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; default: all cores.")
@language_flags
@_settings
@click.pass_context
def train(
    ctx: click.Context,
    /,
    config: str | None,
    start: Path | None,
    train_files: tuple[Path, Path] | None,
    valid_files: tuple[Path, Path] | None,
    data: Path | None,
    out: Path,
    resume: bool,
    force: bool,
    device: str,
    threads: int | None,
    **settings: Any,
) -> None:
    """Train a Transformer on a source file and its translation, line by line.

    The vocabulary is trained from the text, or is that of the prepared --data, or of the model that
    --from continues to train. Ctrl-C and SIGTERM save a checkpoint; --resume continues from the
    last one. Under torchrun, its processes train one model together. At the end the last
    checkpoints are averaged; `translate-trt export` takes the result.
    """
    if not is_quiet(ctx):
        log.setLevel(min(log.level or logging.INFO, logging.INFO))  # progress is what one waits for
    if (data is None) == (train_files is None) or (train_files is None) != (valid_files is None):
        raise OptionError("give --train and --valid, or --data alone.")
    overrides = {name: value for name, value in settings.items() if value is not None}
    name = config or ("base" if start is None else FINE_TUNE_NAME)
    _check_ranges(name, start is None, overrides)
    set_training_defaults()  # before torch is imported, which is now
    from translate_trt.train.data.token_files import PreparedData, open_prepared
    from translate_trt.train.shutdown import exit_on_sigterm
    from translate_trt.train.trainer.distributed import (
        choose_device,
        open_group,
        started_again,
        use_threads,
    )
    from translate_trt.train.trainer.job import Job
    from translate_trt.train.trainer.load_data import TextFiles, TextPair
    from translate_trt.train.trainer.loop import Trainer
    from translate_trt.train.trainer.run import in_turn, prepare_job

    use_threads(threads)
    chosen = choose_device(device)  # first: a device that is not there must not cost an old run
    if started_again():  # the checkpoints there are this run's own
        resume, force = True, False

    def source() -> TextFiles | PreparedData:
        if data is not None:
            return open_prepared(data)
        assert train_files is not None
        assert valid_files is not None
        return TextFiles(TextPair(*train_files), TextPair(*valid_files))

    def prepare(reopen: bool) -> Job:
        with exit_on_sigterm():  # there is nothing to save yet
            return prepare_job(
                source(), out, name, overrides, resume or reopen, force and not reopen,
                None if reopen else start,
            )  # fmt: skip

    with open_group(chosen) as group, ExitStack() as stack:
        if group.leads:
            # Torchrun starts processes again while one that has died may still be going away.
            wait = _SECONDS_TO_GO_AWAY if started_again() else 0.0
            stack.enter_context(locked_directory(out, wait))
        else:  # one process tells for all
            log.setLevel(logging.ERROR)
        path = Trainer(in_turn(group, prepare), group, resume).run()
    if group.leads and path is not None:
        click.echo(path)
