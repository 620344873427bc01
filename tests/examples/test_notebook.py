"""Notebooks of examples/: without outputs, and their code runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from support.paths import ROOT

from translate_trt.train.checkpoint import Checkpoint

NOTEBOOKS = sorted((ROOT / "examples").rglob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    for cell in code_cells(path):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.nightly
def test_attention_and_parity(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mpl.use("Agg")
    monkeypatch.setenv("CHECKPOINT", str(checkpoint.path))
    (path,) = (path for path in NOTEBOOKS if path.stem == "attention_and_parity")
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(path)):
        program = compile("".join(cell["source"]), f"{path.name}, code cell {number}", "exec")
        exec(program, names)
    assert capsys.readouterr().out.count("difference to PyTorch") == 2
