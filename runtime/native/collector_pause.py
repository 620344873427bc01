"""Pause of the garbage collector during captures."""

from __future__ import annotations

import gc
import threading


class CollectorPause:
    """Pause of the garbage collector while any thread captures.

    The collector can run in every thread. In a capturing one it could free engines or tensors, and
    CUDA does not allow that: the capture would fail.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._captures = 0
        self._was_enabled = False

    def begin(self) -> None:
        """Pause the collector until each `begin` has had its `end`."""
        with self._lock:
            if self._captures == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._captures += 1

    def end(self) -> None:
        """See `begin`."""
        with self._lock:
            self._captures -= 1
            if self._captures == 0 and self._was_enabled:
                gc.enable()


#: The pause that all captures of this process share.
COLLECTOR = CollectorPause()
