"""Futures and process checks that both translation services share."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.results import Translation

log = logging.getLogger("translate_trt")


def resolve(future: Future[Translation], work: Callable[[], Translation]) -> None:
    """Resolve a future with what a call returns or raises, unless it was cancelled.

    What the future's callbacks raise is logged and ends nothing, nor does a logging handler that
    raises.
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
    except BaseException as error:  # of a callback
        with contextlib.suppress(BaseException):
            log.error("a callback of a translation raised %r", error)


def check_process(process: int) -> None:
    """Refuse what was made by another process.

    Raises:
        TranslateTrtError: this process was forked from the one that made the service.
    """
    if os.getpid() != process:
        raise TranslateTrtError(
            f"this translation service was made by process {process}, whose threads this "
            f"process ({os.getpid()}), forked from it, does not have. Make translator and "
            "service after the fork."
        )


def closed_error() -> TranslateTrtError:
    """Error for lines that are submitted to a closed service."""
    return TranslateTrtError("the translation service is closed; make another one.")
