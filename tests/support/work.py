"""Functions that other processes import by name, without torch."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from translate_trt.train.worker_processes import lines_from_parent

#: Variable with the file that `work_on` writes to.
SAID = "TRANSLATE_TRT_TEST_SAID"


def double(number: int) -> int:
    return 2 * number


def end_at_three(number: int) -> int:
    if number == 3:
        os._exit(1)
    return number


def add() -> None:
    print(sum(map(int, lines_from_parent())))


def refuse_the_second_line() -> None:
    lines = lines_from_parent()
    next(lines)
    print("not", next(lines).decode())
    sys.exit(3)


def work_on() -> None:
    """Say the process id after the first line, and continue after the last one.

    On standard error, or in the file that SAID names.
    """
    for line in lines_from_parent():
        said = f"{os.getpid()} {len(line)}\n"
        if path := os.environ.get(SAID):
            Path(path).write_text(said)
        else:
            print(said, end="", file=sys.stderr, flush=True)
    time.sleep(600)
