"""Training of a student by `translate-trt train`, in processes of its own."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from translate_trt.export.distillation.distillation_options import Student
from translate_trt.runtime.cli.names import flag_of
from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.train.checkpoint import AVERAGED, BEST, open_checkpoint, selected_scores
from translate_trt.train.config import ModelConfig, TrainConfig, config_from_json
from translate_trt.train.hashed_files import read_json
from translate_trt.train.selection import is_better
from translate_trt.train.trainer.metrics import read_metrics
from translate_trt.train.trainer.settings import SETTINGS

_FLAGS = {
    field.name: flag_of(field)
    for kind in (ModelConfig, TrainConfig)
    for field in dataclasses.fields(kind)
}


def train_student(
    student: Student,
    data: Path,
    run: Path,
    more: Mapping[str, Any],
    resume: bool,
    processes: int = 1,
    flags: tuple[str, ...] = (),
) -> None:
    """Train a student on prepared data.

    Ctrl-C and SIGTERM let the training save a checkpoint first.

    Args:
        student: Preset and settings.
        data: Directory of prepared data.
        run: Directory of the run.
        more: Further fields of TrainConfig.
        resume: Continue the run, if there is one; otherwise it is replaced.
        processes: Processes that train together, one per GPU.
        flags: Further flags of `translate-trt train`.

    Raises:
        TranslateTrtError: The training failed or was stopped.
    """
    settings = {**more, **student.settings}
    exists = (run / SETTINGS).is_file()
    arguments = [
        "train", "--data", str(data), "--config", student.preset, "--output", str(run), *flags,
        *(["--resume" if resume else "--force"] if exists else []),
    ]  # fmt: skip
    for name, value in settings.items():
        arguments += [_FLAGS[name], str(value)]
    status = _run_command(arguments, processes)
    if status or not (run / AVERAGED).is_dir():
        why = f"ended with status {status}" if status else "was stopped"
        raise TranslateTrtError(
            f"the training of {student.name} {why}; its messages are above. Run the same command "
            "to continue."
        )


def _run_command(arguments: list[str], processes: int) -> int:
    """Run translate-trt, under torchrun for several processes; return its exit status."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(launcher if processes > 1 else [])]
    command += ["-m", "translate_trt.runtime.cli", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        return process.wait()
    except SystemExit:  # SIGTERM, by `exit_on_sigterm` of the command
        process.send_signal(signal.SIGTERM)
        raise
    finally:
        # Ctrl-C on a terminal has reached the process, too; it saves a checkpoint and ends.
        process.wait()


# The best of many validations is the best partly by chance; the average is validated once.
_MARGINS = {"bleu": 0.5, "chrf": 0.5, "loss": -0.01}


def best_checkpoint(run: Path) -> Path:
    """Return the averaged checkpoint of a finished run, or the best if that is clearly better.

    The run's `best_metric` decides: by more than 0.5 BLEU or chrF, or 0.01 nats of loss per token.

    Raises:
        CheckpointError: The run has no checkpoint, or run.json is damaged.
        InputError: metrics.jsonl is damaged.
    """
    best, averaged = selected_scores(run), None
    for entry in read_metrics(run):
        averaged = entry.get("averaged", averaged)
    if best is not None and averaged is not None:
        path = run / SETTINGS
        values = read_json(path)
        metric = config_from_json(TrainConfig, values.get("train"), path).best_metric
        if is_better(metric, best[metric], averaged[metric] + _MARGINS[metric]):
            return run / BEST
    return open_checkpoint(run).path
