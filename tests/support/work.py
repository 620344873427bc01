"""Functions that other processes import by name, without torch."""

from __future__ import annotations

import os
import sys
import time

from translate_trt.train.worker_processes import lines_from_parent


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
    """Print the process id after the first line, and continue after the last one."""
    for line in lines_from_parent():
        print(os.getpid(), len(line), file=sys.stderr, flush=True)
    time.sleep(600)
