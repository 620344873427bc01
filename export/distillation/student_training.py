"""Training of students by `translate-trt train`, in processes of their own."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import threading
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


class TrainingProcesses:
    """Trainings that run at the same time, each a process or a torchrun of its own.

    Args of the constructor:
        prefixed: Begin each line of their messages with the student's name.
    """

    def __init__(self, prefixed: bool = False) -> None:
        self._prefixed = prefixed
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, name: str, command: list[str]) -> int:
        """Run the training of a student.

        Args:
            name: Name of the student.
            command: Program and arguments.

        Returns:
            Exit status; that of SIGTERM if the trainings were stopped before it started.
        """
        with self._lock:
            if self._stopped:
                return -signal.SIGTERM
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE if self._prefixed else None,
                text=True, encoding="utf-8", errors="replace",
            )  # fmt: skip
            self._running.add(process)
        try:
            if process.stderr is not None:
                with process.stderr as messages:
                    for line in messages:
                        sys.stderr.write(f"{name}: {line}")
                        sys.stderr.flush()
            return process.wait()
        finally:
            with self._lock:
                self._running.discard(process)

    def stop(self, terminate: bool) -> None:
        """Start no further training.

        Args:
            terminate: Let those that run save a checkpoint and end, as by Ctrl-C on a terminal,
                which reaches them itself.
        """
        with self._lock:
            self._stopped = True
            for process in self._running if terminate else ():
                process.send_signal(signal.SIGTERM)


def train_student(
    student: Student,
    data: Path,
    run: Path,
    more: Mapping[str, Any],
    resume: bool,
    running: TrainingProcesses,
    processes: int = 1,
    flags: tuple[str, ...] = (),
) -> None:
    """Train a student on prepared data.

    Args:
        student: Preset and settings.
        data: Directory of prepared data.
        run: Directory of the run.
        more: Further fields of TrainConfig.
        resume: Continue the run, if there is one; otherwise it is replaced.
        running: Trainings that run at the same time; stopping them stops this one.
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
    status = running.run(student.name, _command(arguments, processes))
    if status or not (run / AVERAGED).is_dir():
        why = f"ended with status {status}" if status else "was stopped"
        raise TranslateTrtError(
            f"the training of {student.name} {why}; its messages are above. Run the same command "
            "to continue."
        )


def _command(arguments: list[str], processes: int) -> list[str]:
    """Return the command of translate-trt, under torchrun for several processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(launcher if processes > 1 else [])]
    return [*command, "-m", "translate_trt.runtime.cli", *arguments]


# The best of many validations is the best partly by chance; the average is validated once.
_MARGINS = {"bleu": 0.5, "chrf": 0.5, "f1": 0.5, "loss": -0.01}


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
