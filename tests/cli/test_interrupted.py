"""Ctrl-C and SIGTERM while native code runs.

While SentencePiece, which hears no signal, trains a vocabulary; while workers translate.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="the training packages are needed")

PROGRAM = "from translate_trt.runtime.cli import main; main()"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Four files; of so many different words a unigram vocabulary takes 15 seconds and more."""
    directory = tmp_path_factory.mktemp("text")
    rng, names = random.Random(1), ["train.en", "train.de", "valid.en", "valid.de"]
    for name, count in zip(names, (4000, 4000, 3, 3), strict=True):
        lines = []
        for _ in range(count):
            digits = f"{rng.getrandbits(1600):0400x}"
            lines.append(" ".join(digits[begin : begin + 10] for begin in range(0, 400, 10)))
        (directory / name).write_text("\n".join(lines) + "\n")
    return [str(directory / name) for name in names]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command with temporary files in tmp_path/temporary, which it must remove."""
    (tmp_path / "temporary").mkdir()
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, program: str = PROGRAM) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", program, *arguments],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                env={**os.environ, "TMPDIR": str(tmp_path / "temporary"), "OMP_NUM_THREADS": "1"},
                # What a shell starts in the background ignores Ctrl-C, and so would its children.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def interrupt(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    """Send a signal while a vocabulary is trained; return exit status and stderr."""
    assert process.stderr is not None
    for line in process.stderr:
        if "training a vocabulary of" in line:
            break
    time.sleep(1.5)
    assert process.poll() is None
    if number == signal.SIGINT:  # a terminal sends it to all processes
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    # Its stderr ends with the last process that holds it. What it was doing would take longer.
    _, errors = process.communicate(timeout=90)
    return process.returncode, errors


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.nightly)],
)
def test_train_stops_at_once_and_leaves_the_run_in_out(
    text: list[str], tmp_path: Path, start: Callable[..., subprocess.Popen[str]],
    number: signal.Signals, status: int,
) -> None:  # fmt: skip
    out = tmp_path / "out"
    out.mkdir()
    before = '{"model": {}, "train": "the run before"}'
    (out / "run.json").write_text(before)
    process = start(
        "train", "--config", "tiny", "--train", *text[:2], "--valid", *text[2:],
        "--output", str(out), "--force", "--device", "cpu", "--threads", "1",
    )  # fmt: skip
    assert interrupt(process, number) == (status, "")
    assert [path.read_text() for path in out.iterdir()] == [before]
    assert list((tmp_path / "temporary").iterdir()) == []


# Says on stderr that workers have begun.
TRANSLATING = """
import sys, time
from translate_trt.runtime.native import core
from translate_trt.runtime.cli import main

submit, told = core.Core.submit, []

def submitting(core, *arguments):
    job = submit(core, *arguments)
    while not told and core.statistics().steps < 4:
        time.sleep(0.01)
    if not told:
        told.append(core)
        sys.stderr.write("workers are under way\\n")
        sys.stderr.flush()
    return job

core.Core.submit = submitting
main()
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_translate_stops_all_workers(
    compiled_bundle: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[str]],
    number: signal.Signals, status: int,
) -> None:  # fmt: skip
    chunk = 40
    (tmp_path / "in").write_text("the cat runs over the big green house.\n" * 20_000)
    (tmp_path / "to").mkdir()
    out = tmp_path / "to" / "out"
    # As many steps as there can be, for minutes.
    process = start(
        "translate", "--bundle", str(compiled_bundle), "--workers", "2", "--threads", "1",
        "--beam-size", "8", "--min-length", "60", "--max-length", "60", "--output", str(out),
        "--chunk-lines", str(chunk), str(tmp_path / "in"), program=TRANSLATING,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline() == "workers are under way\n"
    while not any(path.stat().st_size for path in out.parent.glob("out.*.partial")):
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.2)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=90)  # all of it would take minutes
    assert process.returncode == status
    (line,) = errors.splitlines()
    (partial,) = (tmp_path / "to").glob("*.partial")
    text = partial.read_text()
    lines = text.count("\n")
    assert text.endswith("\n")
    assert lines % chunk == 0
    assert f"first {lines} lines are in {partial}" in line
