"""Logger of TensorRT and TensorRT-RTX, for error messages and for the logs of builds."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from translate_trt.runtime.backends.packages import import_package

_ERRORS = ("INTERNAL_ERROR", "ERROR")
# Severities that the log of a build keeps, and the verbose message that it needs as well.
_KEPT = (*_ERRORS, "WARNING", "INFO")
_LAYERS = "Engine Layer Information"

# Both are bounded, because a process that serves for months has one logger, into which native
# background threads write, too.
_MAX_ERRORS, _MAX_LINES = 32, 4096


@functools.cache
def logger(package: str) -> Any:
    """Return the process-wide logger of a package.

    TensorRT keeps the first logger it receives and ignores all later ones; a build crashed after
    the first logger had been freed (tensorrt_rtx 1.7.1). This logger is therefore never freed.

    Returns:
        An ILogger with `start()`, `recording()` and `reasons()`. Thread-safe.
    """
    module: Any = import_package(package)

    class Logger(module.ILogger):  # type: ignore[misc]
        """Collector of the last errors, and of the messages of a build."""

        def __init__(self) -> None:
            module.ILogger.__init__(self)
            # Reentrant: the garbage collector may free TensorRT objects, which log, anywhere.
            self._lock = threading.RLock()
            self._errors: deque[tuple[int, str]] = deque(maxlen=_MAX_ERRORS)
            self._build: deque[str] | None = None

        def log(self, severity: Any, message: str) -> None:
            name = severity.name
            with self._lock:
                if name in _ERRORS and not is_noise(message):
                    self._errors.append((threading.get_ident(), message.strip()))
                if self._build is not None and (name in _KEPT or _LAYERS in message):
                    self._build.append(message)

        def start(self) -> None:
            """Forget the errors of the calling thread."""
            self._take(lambda thread: thread == threading.get_ident())

        @contextmanager
        def recording(self) -> Iterator[deque[str]]:
            """Record the messages of a build, without verbose ones on single layers.

            Builds must not overlap.
            """
            self.start()
            lines: deque[str] = deque(maxlen=_MAX_LINES)
            with self._lock:
                self._build = lines
            try:
                yield lines
            finally:
                with self._lock:
                    self._build = None

        def reasons(self, last: int = 3) -> str:
            """Return and forget the last errors of the calling thread, or else of all threads."""
            found = self._take(lambda thread: thread == threading.get_ident())
            found = found or self._take(lambda _: True)
            return " | ".join(dict.fromkeys(found[-last:])) or "(no reason given)"

        def _take(self, wanted: Callable[[int], bool]) -> list[str]:
            """Remove the errors of some threads, and return them."""
            with self._lock:
                lines = list(self._errors)
                kept = (line for line in lines if not wanted(line[0]))
                self._errors = deque(kept, maxlen=_MAX_ERRORS)
            return [text for thread, text in lines if wanted(thread)]

    return Logger()


def is_noise(message: str) -> bool:
    """Return True for messages that TensorRT adds to every error on a machine without a GPU."""
    return "Thread context has not been set" in message or "catchCudaError" in message
