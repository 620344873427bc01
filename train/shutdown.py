"""Graceful shutdown on SIGINT and SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self


class StopRequest:
    """Records Ctrl-C and SIGTERM, for the training loop to poll between two steps.

    A second Ctrl-C interrupts at once. Further SIGTERMs, which cluster schedulers may repeat, are
    ignored.

    Attributes:
        signal: Number of the first signal received, or 0.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
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
    """Raise SystemExit on SIGTERM within the block, as Ctrl-C raises KeyboardInterrupt.

    Temporary files are thereby removed and child processes ended. The exit status is 143, as a
    shell reports for SIGTERM. Further SIGTERMs are ignored. For the main thread only.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
