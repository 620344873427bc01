"""A test that never ends fails by name, and the run goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.collection import TESTS

pytestmark = pytest.mark.slow

HANGING = """
import threading

def test_before(): pass
def test_hangs(): threading.Event().wait()
def test_after(): pass
"""


def test_a_test_that_hangs_fails_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(HANGING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "support.limits", "-p", "no:cacheprovider",
         "-n", "1", "--dist", "worksteal", "--test-limit", "15", str(tmp_path)],
        env={"PYTHONPATH": str(TESTS), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    # Printed at once, with where the test waited, and the stacks of all threads.
    at_once = done.stdout.partition("= FAILURES =")[0]
    assert "FAILED test_one.py::test_hangs (call" in at_once
    assert "took longer than 15 s (--test-limit)" in at_once
    assert "in wait" in done.stderr
