"""Graceful shutdown of a training on SIGINT, SIGTERM and SIGHUP."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Self


class StopRequest:
    """Records Ctrl-C, SIGTERM and SIGHUP, for the training loop to poll between two steps.

    A second Ctrl-C interrupts at once. Further signals of the other kinds, which cluster schedulers
    may repeat, are ignored, and so is SIGHUP if it already was, as under nohup.

    Attributes:
        signal: Number of the first signal received, or 0.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number
