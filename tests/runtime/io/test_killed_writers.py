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
from support import killed_writers
from support.killed_writers import WRITERS

from translate_trt.train.checkpoint import Checkpoint

pytest.importorskip("torch", reason="the training packages are needed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked"),
]


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("translate", "export") else pytest.param(name, marks=pytest.mark.nightly)
        for name in WRITERS
    ],
)
def test_a_killed_command_leaves_the_old_output_or_the_new_one(
    name: str, tmp_path: Path, tokenizer_model: Path, checkpoint: Checkpoint, compiled_bundle: Path
) -> None:
    if name == "corpus":
        pytest.importorskip("pyarrow", reason="the packages of corpora are needed")
    arguments = [name, tmp_path, tokenizer_model, checkpoint.path, compiled_bundle]
    done = subprocess.run(
        [sys.executable, killed_writers.__file__, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["killed"] >= 4
    assert report["old"] + report["new"] == report["killed"]
