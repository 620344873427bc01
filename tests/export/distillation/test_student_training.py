"""Choice of the checkpoint that a student is exported from."""

from __future__ import annotations

from pathlib import Path

import pytest

from translate_trt.export.distillation import student_training
from translate_trt.export.distillation.student_training import best_checkpoint
from translate_trt.train.checkpoint import Checkpoint


@pytest.mark.parametrize(
    ("metric", "best", "averaged", "chosen"),
    [
        ("bleu", 30.0, 30.2, "average"),
        ("bleu", 30.0, 29.6, "average"),
        ("bleu", 30.0, 29.4, "best"),
        ("chrf", 60.0, 59.0, "best"),
        ("loss", 2.0, 2.005, "average"),
        ("loss", 2.0, 2.02, "best"),
        ("loss", 2.0, 1.9, "average"),
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
