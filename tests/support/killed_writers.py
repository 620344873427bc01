"""Kill writing commands at each system call that changes a file, and check what remains.

    python -m support.killed_writers NAME DIRECTORY TOKENIZER  # in tests/

A writer is forked for each step, which is a call that creates, renames, syncs or removes something,
and ends itself by SIGKILL there. This process has one thread and does no more than fork and wait,
so that nothing can hang; what a command computes is left out where it takes time.
"""

from __future__ import annotations

import builtins
import io
import json
import math
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# As in tests/conftest.py: before torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

# Of each writer: at renames and right after them, where one output takes another's name, and at
# other steps, evenly spread.
MOST_AT_RENAMES, MOST_ELSEWHERE = 10, 8


_RENAMES = {"replace", "rename", "_exchange"}


class Writer(NamedTuple):
    """Command that writes an output.

    Attributes:
        write: makes its output in a directory, of a version: "old" or "new".
        version: says which version's output is there, after it has checked that it is whole.
    """

    write: Callable[[Path, str], None]
    version: Callable[[Path], str]


# ---- killing ----


def _instrument(kill_at: int | None) -> list[str]:
    """Record the steps of this process and end it at one of them; return the recorded names."""
    steps: list[str] = []

    def step(name: str) -> None:
        steps.append(name)
        if len(steps) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(module: Any, name: str) -> None:
        original = getattr(module, name)

        def call(*arguments: Any, **named: Any) -> Any:
            step(name)
            return original(*arguments, **named)

        setattr(module, name, call)

    for name in ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "fsync", "truncate"):
        before(os, name)
    from translate_trt.runtime.io import atomic_files as files

    before(files, "_exchange")
    open_file = io.open

    def opened(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        stream = open_file(file, mode, *arguments, **named)
        if set(mode) & set("wxa+"):
            step("open")  # the file is empty now
        return stream

    io.open = builtins.open = opened  # type: ignore[assignment]
    return steps


def _in_child(work: Callable[[], object], kill_at: int | None = None, steps: bool = False) -> Any:
    """Run `work` in a forked process; return its result or step names, or None if killed."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.close(reading)
            names = _instrument(kill_at) if steps or kill_at is not None else []
            result = work()
            os.write(writing, json.dumps(names if steps else result).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        answer = stream.read()
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    if os.waitstatus_to_exitcode(status) != 0:
        raise AssertionError(f"the process ended with status {status}")
    return json.loads(answer)


def _names(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*"))


def _choose(steps: Sequence[str]) -> list[int]:
    """Return the numbers of the steps to kill at, from 1: all near renames, and some others."""
    renames = {i for i, name in enumerate(steps, start=1) if name in _RENAMES}
    near = [number for number in range(1, len(steps) + 1) if {number, number - 1} & renames]
    others = [number for number in range(1, len(steps) + 1) if number not in near]
    return sorted({*_spread(near, MOST_AT_RENAMES), *_spread(others, MOST_ELSEWHERE)})


def _spread(numbers: Sequence[int], most: int) -> Sequence[int]:
    """Return at most `most` evenly spread numbers, including the last."""
    return numbers[:: -max(1, math.ceil(len(numbers) / most))]


def run(writer: Writer, directory: Path) -> dict[str, Any]:
    """Kill the writer at its steps and run it again; return what it left, by version.

    Raises:
        AssertionError: something else than whole old or whole new output.
    """
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: a fork could hang"
    old, new, work = directory / "old", directory / "new", directory / "work"
    for path, version in ((old, "old"), (new, "new")):
        path.mkdir()
        _in_child(lambda path=path, version=version: writer.write(path, version))
    shutil.copytree(old, work, symlinks=True)
    steps = _in_child(lambda: writer.write(work, "new"), steps=True)
    assert _names(work) == _names(new)
    chosen = _choose(steps)
    found = {"old": 0, "new": 0}
    for number, at in enumerate(chosen):
        shutil.rmtree(work)
        shutil.copytree(old, work, symlinks=True)
        assert _in_child(lambda: writer.write(work, "new"), kill_at=at) is None
        left = _in_child(lambda: writer.version(work))
        assert left in found, f"killed at step {at}: {left}"
        found[left] += 1
        if number % 3 == 0:
            _in_child(lambda: writer.write(work, "new"))
            again = _in_child(lambda: writer.version(work))
            assert again == "new", f"run again after a kill at step {at}: {again}"
            assert _names(work) == _names(new), f"killed at step {at}: {_names(work)}"
    assert found["old"], "nothing of the old output was ever left"
    return {"steps": len(steps), "killed": len(chosen), **found}


# ---- writers ----


def translate(tokenizer: Path) -> Writer:
    from translate_trt.runtime.cli.output import open_output

    def write(directory: Path, version: str) -> None:
        settings = {"version": version}
        with open_output(directory / "out.txt", force=True, settings=settings) as output:
            for number in range(3):
                output.write([f"{version} {number}"])
                output.note(number + 1, "")

    def version(directory: Path) -> str:
        lines = (directory / "out.txt").read_text().splitlines()
        assert len(lines) == 3
        (one,) = {line.split()[0] for line in lines}
        return one

    return Writer(write, version)


def directory(tokenizer: Path) -> Writer:
    """Writer of a directory of several files, as of bundles, checkpoints and repositories."""
    from translate_trt.runtime.io.atomic_files import new_directory
    from translate_trt.runtime.io.outputs import Kind

    names = ("manifest.json", "one/weights", "other/weights")
    kind = Kind("thing", "translate-trt make", lambda path: list(names))

    def write(directory: Path, version: str) -> None:
        with new_directory(directory / "thing", force=True, kind=kind) as work:
            for name in names:
                (work / name).parent.mkdir(exist_ok=True)
                (work / name).write_text(version)

    def version(directory: Path) -> str:
        (one,) = {(directory / "thing" / name).read_text() for name in names}
        return one

    return Writer(write, version)


WRITERS = {"translate": translate, "directory": directory}

if __name__ == "__main__":
    name, place, vocabulary = sys.argv[1:]
    print(json.dumps(run(WRITERS[name](Path(vocabulary)), Path(place))))
