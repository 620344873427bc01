"""Admission control: limits on the requests in an instance and on the work in them."""

from __future__ import annotations

from threading import Lock

from translate_trt.runtime.errors import TranslateTrtError


class BusyError(TranslateTrtError):
    """An instance that has as much to do as it may; the same request may be sent again later."""


class Admission:
    """Counts the requests in an instance.

    A request may cost at most half of what is left, so that cheap requests get in where expensive
    ones no longer do.

    Args:
        requests: in the instance at most.
        cost: of all of them together, but for a request that is alone.
    """

    def __init__(self, requests: int, cost: int) -> None:
        self._most, self._cost = requests, cost
        self._lock = Lock()
        self._count, self._admitted = 0, 0

    @property
    def requests(self) -> int:
        """Number of admitted requests that have not left."""
        return self._count

    def admit(self, cost: int) -> None:
        """Let a request in, which `leave` has to be called for.

        Raises:
            BusyError: there is too much to do.
        """
        with self._lock:
            if self._count >= self._most:
                raise BusyError(
                    f"this server has {self._count} requests in work, as many as it takes; send "
                    "the request again later, or to another server."
                )
            if self._count and cost > (self._cost - self._admitted) // 2:
                raise BusyError(
                    f"this server has too much to do for a request that costs {cost}; send it "
                    "again later, to another server, or fewer sentences at once."
                )
            self._count += 1
            self._admitted += cost

    def leave(self, cost: int) -> None:
        """A request has been answered, and nothing of it runs any more."""
        with self._lock:
            self._count -= 1
            self._admitted -= cost
