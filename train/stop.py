"""Signals as wishes: looked at between two steps, so that a checkpoint can be saved first."""

from __future__ import annotations

import signal
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
