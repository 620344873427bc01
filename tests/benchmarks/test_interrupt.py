"""Ctrl-C is timed on a process that really was interrupted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT


def test_a_bundle(compiled_bundle: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "text", tmp_path / "out.json"
    text.write_text("a house and a dog\nthe dog is in the house\n")
    command = [
        sys.executable, ROOT / "benchmarks/interrupt.py", compiled_bundle, "--source", text,
        "--rounds", "2", "--out", out, "--target", "onnx-fp32",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    seconds = json.loads(out.read_text())["samples"]["seconds"]
    assert len(seconds) == 2
    assert all(one > 0 for one in seconds)


def test_what_ends_otherwise_is_an_error() -> None:
    from interrupt import seconds_to_end

    with pytest.raises(RuntimeError, match="it ended before it was interrupted"):
        seconds_to_end([sys.executable, "-c", ""], 1.0)
    program = "import signal, time; signal.signal(2, lambda *_: exit(3)); time.sleep(9)"
    with pytest.raises(RuntimeError, match="it ended with status 3"):
        seconds_to_end([sys.executable, "-c", program], 1.0)
