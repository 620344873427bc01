"""`translate-trt train`: train a model, or fine-tune a checkpoint."""

from __future__ import annotations

import dataclasses
import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

# No torch yet: this module is imported for --help too.
from translate_trt.runtime.cli.command import Command, given
from translate_trt.runtime.cli.names import (
    PATH,
    field_options,
    output_option,
    threads_flag,
    torch_device_option,
)
from translate_trt.runtime.cli.search_flags import language_flags
from translate_trt.runtime.cli.verbosity import show_progress
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.io.locks import locked_directory
from translate_trt.train.cli.torch_settings import set_training_defaults
from translate_trt.train.config import (
    FINE_TUNE_NAME,
    PRESETS,
    ModelConfig,
    TrainConfig,
    apply,
    default_recipe,
    preset,
    recipe,
)

log = logging.getLogger("translate_trt")

_RESTART_LOCK_SECONDS = 60.0


#: Every setting of a new model and of the recipe.
_SETTINGS = [
    field
    for kind in (ModelConfig, TrainConfig)
    for field in dataclasses.fields(kind)
    if not field.metadata["imported"]
]


@click.command(cls=Command)
@click.option(
    "--config",
    default=None,
    metavar="PRESET",
    help=f"Preset of model and recipe: {', '.join(PRESETS)}, or a row of the paper's Table 3 such "
    f"as base-h16 (docs/train.md). With --from only the recipe is used, which may be "
    f"{FINE_TUNE_NAME}. The flags below override single settings.  [default: base; with --from "
    f"{FINE_TUNE_NAME}]",
)
@click.option(
    "--from",
    "start",
    type=PATH,
    metavar="CHECKPOINT",
    help="Checkpoint or run to fine-tune, imported or trained. Its shape and its tokenizers are "
    "kept; the dropout rates and the flags of the recipe may be given.",
)
@click.option("--train", "train_files", nargs=2, type=PATH, help="Source, target for training.")
@click.option("--valid", "valid_files", nargs=2, type=PATH, help="Source, target for validation.")
@click.option(
    "--data", type=PATH, help="Directory of `translate-trt data prepare`, instead of text."
)
@output_option("Directory of the run.")
@click.option(
    "--resume", is_flag=True, help="Continue the run in --output from its last checkpoint."
)
@click.option("--force", is_flag=True, help="Delete the run in --output and start over.")
@torch_device_option("Device to train on")
@threads_flag
@language_flags
@field_options(_SETTINGS, lambda field: f"(base: {field.default})")
def train(
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
    """Train a Transformer on parallel text, or fine-tune a checkpoint.

    The vocabulary is trained on the text, or taken from --data or --from. Ctrl-C, SIGTERM and
    SIGHUP save a checkpoint; --resume continues from the last one. Under torchrun, the processes
    train a model together. At the end the last checkpoints are averaged for `translate-trt export`.
    """
    show_progress()
    if (data is None) == (train_files is None) or (train_files is None) != (valid_files is None):
        raise OptionError("give --train and --valid, or --data alone.")
    overrides = given(settings)
    # Ranges are checked before torch is imported and a vocabulary is trained.
    name = config or default_recipe(start is not None)
    apply(recipe(name), overrides)
    if start is None:
        apply(preset(name).model, overrides)
    set_training_defaults()  # before torch is imported, which is now
    from translate_trt.train.data.token_files import PreparedData, open_prepared
    from translate_trt.train.trainer.distributed import (
        choose_device,
        open_group,
        torchrun_session,
        use_threads,
    )
    from translate_trt.train.trainer.job import Job
    from translate_trt.train.trainer.load_data import TextFiles, TextPair
    from translate_trt.train.trainer.loop import Trainer
    from translate_trt.train.trainer.run import in_turn, prepare_job
    from translate_trt.train.trainer.settings import end_session, read_session

    use_threads(threads)
    chosen = choose_device(device)  # before --force: a missing device must not cost an old run
    session = torchrun_session()

    def source() -> TextFiles | PreparedData:
        if data is not None:
            return open_prepared(data)
        assert train_files is not None
        assert valid_files is not None
        return TextFiles(TextPair(*train_files), TextPair(*valid_files))

    def prepare(reopen: bool) -> Job:
        return prepare_job(
            source(), out, config, overrides, resume or reopen, force and not reopen,
            None if reopen else start, read_session(out) if reopen else session,
        )  # fmt: skip

    with open_group(chosen) as group, ExitStack() as stack:
        # Whether torchrun has restarted the processes of this run, because one died or a machine
        # joined. The number of restarts tells neither: each machine has its own, and torchrun also
        # restarts a process that has refused the directory.
        again = group.leads and session is not None and read_session(out) == session
        if group.leads:
            # A process that torchrun restarts may find the lock still held by the dying one.
            stack.enter_context(locked_directory(out, _RESTART_LOCK_SECONDS if again else 0.0))
        else:  # only the leading process logs
            log.setLevel(logging.ERROR)
        if group.largest(int(again)):
            if force:
                log.warning("--force: %s is of this torchrun and is continued", out)
            resume, force = True, False
        path = Trainer(in_turn(group, prepare), group, resume).run()
        if path is not None:  # not SIGTERM, by which torchrun also restarts processes
            group.wait()  # a process that has failed is restarted
            if group.leads:
                end_session(out)
    if group.leads and path is not None:
        click.echo(path)
