"""Processes of trainings, and the choice of the checkpoint that a student is exported from."""

from __future__ import annotations

import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from translate_trt.export.distillation import student_training
from translate_trt.export.distillation.student_training import TrainingProcesses, best_checkpoint
from translate_trt.train.checkpoint import Checkpoint


@pytest.mark.parametrize(
    ("metric", "best", "averaged", "chosen"),
    [
        ("bleu", 30.0, 29.6, "average"),
        ("bleu", 30.0, 29.4, "best"),
        ("chrf", 60.0, 59.0, "best"),
        ("loss", 2.0, 2.005, "average"),
        ("loss", 2.0, 2.02, "best"),
        ("bleu", 30.0, float("nan"), "average"),
    ],
)
def test_the_average_unless_the_best_is_clearly_better(
    metric: str, best: float, averaged: float, chosen: str, checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(student_training, "selected_scores", lambda _: {metric: best})
    monkeypatch.setattr(
        student_training, "read_metrics", lambda _: [{"step": 1}, {"averaged": {metric: averaged}}]
    )
    settings = {"train": {**checkpoint.train, "best_metric": metric}}
    monkeypatch.setattr(student_training, "read_json", lambda _: settings)
    monkeypatch.setattr(student_training, "open_checkpoint", lambda _: checkpoint)
    expected = {"best": tmp_path / "checkpoint-best", "average": checkpoint.path}
    assert best_checkpoint(tmp_path) == expected[chosen]


def test_messages_of_concurrent_trainings_begin_with_the_student(
    capfd: pytest.CaptureFixture[str],
) -> None:
    program = "import sys; print('step 1\\nstep 2', file=sys.stderr); sys.exit(3)"
    running = TrainingProcesses(prefixed=True)
    assert running.run("small", [sys.executable, "-c", program]) == 3
    assert capfd.readouterr().err == "small: step 1\nsmall: step 2\n"


# A training that saves its checkpoint when it is asked to end.
PATIENT = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
pathlib.Path(sys.argv[1]).touch()
while True:
    signal.pause()
"""


def test_stopping_ends_all_trainings_and_starts_no_other(tmp_path: Path) -> None:
    running = TrainingProcesses(prefixed=True)
    with ThreadPoolExecutor(2) as pool:
        statuses = [
            pool.submit(running.run, name, [sys.executable, "-c", PATIENT, str(tmp_path / name)])
            for name in ("one", "two")
        ]
        while not all((tmp_path / name).exists() for name in ("one", "two")):
            time.sleep(0.01)
        running.stop(terminate=True)
        assert [status.result() for status in statuses] == [0, 0]
    late = [sys.executable, "-c", PATIENT, str(tmp_path / "late")]
    assert running.run("late", late) == -signal.SIGTERM
    assert not (tmp_path / "late").exists()
