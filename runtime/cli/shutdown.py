"""Graceful shutdown on SIGTERM and SIGHUP."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and SIGHUP within the block, as Ctrl-C raises KeyboardInterrupt.

    Outputs are thereby closed, temporary files removed and child processes ended. The exit status
    is 128 + the signal's number, as a shell reports. Further signals of both kinds are ignored,
    since schedulers repeat them. A signal that the parent has ignored, as nohup does, stays
    ignored. Only the main thread can install handlers; elsewhere this does nothing.
    """
    previous = {
        number: handler
        for number in _SIGNALS
        if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)  # None: of C code
    }
    if threading.current_thread() is not threading.main_thread():
        previous = {}
    stopping = False

    def leave(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            raise SystemExit(128 + number)

    for number in previous:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
