"""SIGKILL at any step of a command that writes leaves the old output or the new one.

The steps and the commands are in support/killed_writers.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

pytest.importorskip("torch", reason="the training packages are needed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked"),
]


@pytest.mark.parametrize("name", ["translate", "directory"])
def test_a_killed_command_leaves_the_old_output_or_the_new_one(
    name: str, tmp_path: Path, tokenizer_model: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "support.killed_writers", name, tmp_path, tokenizer_model],
        cwd=ROOT / "tests", capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["killed"] >= 4
    assert report["old"] + report["new"] == report["killed"]
