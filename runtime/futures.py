"""Helpers shared by both implementations of `TranslationService`."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future

from translate_trt.runtime.errors import CapacityError, TranslateTrtError
from translate_trt.runtime.results import Translation

log = logging.getLogger("translate_trt")


def resolve(future: Future[Translation], work: Callable[[], Translation]) -> None:
    """Run a function and resolve a future with its result or exception, unless it was cancelled.

    Exceptions of the future's callbacks are logged; neither they nor a failing log handler
    propagate.
    """
    try:
        if not future.set_running_or_notify_cancel():
            return
        try:
            found = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(found)
    except BaseException as error:  # raised by a callback
        with contextlib.suppress(BaseException):
            log.error("a callback of a translation raised %r", error)


def check_process(process: int) -> None:
    """Refuse to use a service in a forked child process.

    Args:
        process: Id of the process that created the service.

    Raises:
        TranslateTrtError: This process is not the one that created the service.
    """
    if os.getpid() != process:
        raise TranslateTrtError(
            f"this translation service was made by process {process}, whose threads this "
            f"process ({os.getpid()}), forked from it, does not have. Make translator and "
            "service after the fork."
        )


def closed_error() -> TranslateTrtError:
    """Return the error for lines that are submitted to a closed service."""
    return TranslateTrtError("the translation service is closed; make another one.")


def full_error(capacity: int | None) -> CapacityError:
    """Return the error for lines that a callback submits to a full service."""
    return CapacityError(
        f"the translation service has reached its capacity of {capacity} lines, and a callback "
        "cannot wait for more, because callbacks run in the thread that frees it: submit one line "
        "per callback, or submit from another thread."
    )
