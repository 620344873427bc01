"""Signals that let the program tidy up: as wishes between two steps, or as exceptions."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """Turns Ctrl-C and SIGTERM into a wish that the training loop looks at between two steps.

    A second Ctrl-C interrupts at once; further SIGTERMs, which a cluster's scheduler may repeat,
    change nothing.

    Attributes:
        signal: the number of the first signal that came, or 0.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Within the block SIGTERM ends the program by SystemExit, as Ctrl-C does by KeyboardInterrupt.

    So temporary files are removed and other processes ended. The exit status is 143, what a shell
    reports of a program that SIGTERM ended. Further SIGTERMs change nothing. Only the main thread
    may use it.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
