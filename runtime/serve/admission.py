"""Admission control: limits on the number and the cost of requests in an instance."""

from __future__ import annotations

from threading import Lock

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.options import SearchOptions


class BusyError(TranslateTrtError):
    """The instance is at its capacity; the client may send the request again later."""


def search_cost(options: SearchOptions, tokens: int, has_markup: bool) -> int:
    """Bound of the cost of translating a text: its tokens times the beams of all searches.

    Alternatives have a search each, and one that finds them; a text with markup may be searched for
    twice.

    Args:
        options: Search options of the text.
        tokens: Bound of its tokens, such as its characters.
        has_markup: Whether it has markup.
    """
    beams = max(options.beam_size, options.num_hypotheses)
    beams = beams * max(options.alternatives, 1) + options.alternatives
    return max(tokens, 1) * beams * (2 if has_markup else 1)


class Admission:
    """Admission policy of an instance.

    A request may use at most half of the remaining cost budget, so cheap requests are still
    admitted when expensive ones no longer are. An idle instance admits any request, which then
    counts as at most half of the budget.

    Args:
        requests: Maximum number of requests in the instance.
        cost: Budget for the total cost of the requests.
    """

    def __init__(self, requests: int, cost: int) -> None:
        # An expensive request counts as at most half of the budget.
        self._max_requests, self._cost, self._most = requests, cost, cost // 2
        self._lock = Lock()
        self._count, self._admitted = 0, 0

    @property
    def requests(self) -> int:
        """Number of requests in the instance."""
        return self._count

    def admit(self, cost: int) -> None:
        """Admit a request; the caller must call `leave` with the same cost.

        Raises:
            BusyError: The instance is at its capacity.
        """
        with self._lock:
            if self._count >= self._max_requests:
                raise BusyError(
                    f"this server is at its capacity of {self._count} requests; send the request "
                    "again later, or to another server."
                )
            if self._count and cost > (self._cost - self._admitted) // 2:
                raise BusyError(
                    f"this server is too busy for a request of cost {cost}; send it again later, "
                    "to another server, or with fewer sentences."
                )
            self._count += 1
            self._admitted += min(cost, self._most)

    def leave(self, cost: int) -> None:
        """Remove a request that has been answered and has no running sentences."""
        with self._lock:
            self._count -= 1
            self._admitted -= min(cost, self._most)
