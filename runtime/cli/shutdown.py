"""Graceful shutdown on SIGTERM, SIGHUP and Ctrl-C."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from translate_trt.runtime.process import LOADING_CONTEXT

_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

# Schedulers repeat a signal. Later signals are another attempt to end a process that goes on.
_SECONDS_OF_REPEATS = 1.0


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and SIGHUP within the block, as Ctrl-C raises KeyboardInterrupt.

    Outputs are thereby closed, temporary files removed and child processes ended. The exit status
    is 128 + the signal's number, as a shell reports. Further signals of both kinds are ignored for
    a second, since schedulers repeat them. A signal that the parent has ignored, as nohup does,
    stays ignored. While a translator loads its libraries, signals are deferred. Only the main
    thread can install handlers; elsewhere this does nothing.
    """
    raised_at = -math.inf

    def leave(number: int, frame: FrameType | None) -> None:
        nonlocal raised_at
        now = time.monotonic()
        if now - raised_at > _SECONDS_OF_REPEATS:
            raised_at = now
            raise _exception_of(number)

    numbers = [
        number
        for number in _SIGNALS
        if signal.getsignal(number) not in (signal.SIG_IGN, None)  # None: of C code
    ]
    token = LOADING_CONTEXT.set(deferred_signals)
    try:
        with _handled(numbers, leave):
            yield
    finally:
        LOADING_CONTEXT.reset(token)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Raise the exceptions of SIGTERM, SIGHUP and Ctrl-C at the end of the block.

    Within the block a native library may call Python in this thread: an exception that a signal
    raised there would be dropped by ctypes. A signal that comes more than a second after the first
    raises at once too, because Python code of the block may take long.
    """
    first, first_at = 0, math.inf

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal first, first_at
        now = time.monotonic()
        if not first:
            first, first_at = number, now
        elif now - first_at > _SECONDS_OF_REPEATS:
            raise _exception_of(number)

    numbers = [
        number for number in (signal.SIGINT, *_SIGNALS) if callable(signal.getsignal(number))
    ]
    try:
        with _handled(numbers, note):
            yield
    finally:
        if first:
            raise _exception_of(first)


@contextmanager
def _handled(
    numbers: Sequence[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Install a handler of signals during the block, if this is the main thread."""
    previous = {}
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in previous.items():
            signal.signal(number, handler_before)


def _exception_of(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
