"""The recorded table of a distillation, and its plot."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from translate_trt.train.config import ModelConfig

pytestmark = pytest.mark.slow


def row(system: str, target: str, beam: int, bleu: float, speed: float) -> dict[str, Any]:
    """Return a row of table.json."""
    return {
        "system": system, "target": target, "beam_size": beam, "bleu": bleu, "chrf": bleu + 20,
        "words_per_second": speed, "milliseconds": 1e4 / speed, "megabytes": 8.0,
        "on_front": True,
    }  # fmt: skip


@pytest.fixture
def report(
    tmp_path: Path, compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Record a distillation of two students, whose bundles are the teacher's."""
    import front

    out = tmp_path / "distilled"
    rows = [row("teacher", "onnx-int8", 4, 37.9, 1_000)]
    for name, mixer in (("recurrent", "ssru"), ("attentive", "self-attention")):
        run = out / "students" / name / "run"
        run.mkdir(parents=True)
        config = ModelConfig(decoder_layers=2, d_model=256, decoder_mixer=mixer)
        (run / "run.json").write_text(json.dumps({"model": vars(config)}))
        shutil.copytree(compiled_bundle, out / "students" / name / "bundle")
        rows += [
            row(name, target, beam, 36 + beam / 4, 8_000 / beam)
            for target in ("onnx-int8-shortlist", "onnx-int8")
            for beam in (1, 4)
        ]
    (out / "table.json").write_text(json.dumps(rows))
    (out / "pairs").mkdir()
    (out / "pairs" / "selection.json").write_text(json.dumps({"read": 1_010, "kept": 1_000}))
    path = tmp_path / "report.json"
    command = ["front.py", "test", "--distilled", out, "--teacher", compiled_bundle]
    command += ["--command", "bash distill.sh", "--test", "a test set", "--out", path]
    monkeypatch.setattr(sys, "argv", list(map(str, command)))
    front.main()
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_table_names_shapes_and_ratios_to_the_teacher(report: dict[str, Any]) -> None:
    from results_tables import render_front

    text = render_front(report)
    assert "`bash distill.sh`" in text
    assert "a test set; 1,000 of 1,010 translated lines were selected" in text
    lines = [line for line in text.splitlines() if line.startswith("| ssru")]
    assert lines[0] == (
        "| ssru | 6+2 layers, d_model 256, d_ff 2048 | yes | 1 | 36.25 | 56.25 | 8,000 | 8.0x "
        "| 1.2 | 8.0x | 8.0 | * |"
    )
    assert len(lines) == 4
    assert "| teacher | " in text


def test_the_summary_has_the_teacher_and_the_pareto_front(report: dict[str, Any]) -> None:
    from results_tables import render_front_summary

    for one in report["results"]["rows"]:
        one["on_front"] = one["beam_size"] == 1 and one["target"] == "onnx-int8-shortlist"
    *_, teacher, first, second = render_front_summary(report).splitlines()
    assert teacher.startswith("| teacher | ")
    assert first == (
        "| ssru | 6+2 layers, d_model 256, d_ff 2048 | yes | 1 | 36.25 | -1.65 | 8,000 | 8.0x "
        "| 1.2 | 8.0 |"
    )
    assert second.startswith("| self-attention |")


def test_the_plot_is_the_same_from_the_same_report(report: dict[str, Any], tmp_path: Path) -> None:
    from plots import plot_front

    for name in ("first.svg", "second.svg"):
        plot_front(report, tmp_path / name)
    first, second = ((tmp_path / name).read_text() for name in ("first.svg", "second.svg"))
    assert first == second
    for text in ("SSRU, shortlist", "6+2 layers, d_model 256", "BLEU", "chrF", "words/s"):
        assert text in first
