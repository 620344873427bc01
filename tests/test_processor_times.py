"""Processor seconds are summed up by file, over processes of pytest-xdist and children."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.collection import TESTS

pytestmark = pytest.mark.slow

FILES = {
    "test_busy.py": """
import subprocess, sys, time
import pytest

BUSY = "import time\\nwhile time.process_time() < 1: pass"

@pytest.fixture(scope="module")
def busy():
    end = time.process_time() + 0.5
    while time.process_time() < end: pass

def test_child(busy): subprocess.run([sys.executable, "-c", BUSY], check=True)
""",
    "test_waiting.py": "import time\ndef test_waits(): time.sleep(1)\n",
    "test_idle.py": "def test_nothing(): pass\n",
}


@pytest.mark.parametrize("processes", ["0", "2"])
def test_files_are_in_order_of_their_processor_time(processes: str, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "support.processor_times", "-p",
         "no:cacheprovider", "-n", processes, "--dist", "worksteal", "--processor-times", "1"],
        env={"PYTHONPATH": str(TESTS), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert "3 passed" in done.stdout, done.stdout + done.stderr
    printed = done.stdout.partition("processor seconds")[2]
    rows = re.findall(r"^ +([0-9.]+)  (.+)$", printed, re.MULTILINE)
    assert [name for _, name in rows] == ["test_busy.py", "all files"]
    busy, everything = (float(seconds) for seconds, _ in rows)
    assert everything >= busy >= 1.4  # 0.5 s of the fixture and 1 s of the child
