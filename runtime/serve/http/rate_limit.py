"""Requests per minute of each client: a token bucket that holds a minute's requests."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from translate_trt.runtime.serve.http.http_error import busy

_MINUTE = 60.0
# Clients that are remembered; the one that was idle longest is forgotten first.
_MOST_CLIENTS = 10_000
_IPV6_HOST_BITS = 64  # a host has a network of this size for itself
_MOST_NAME = 64  # characters of a name that is no address, which a client may have chosen


class RateLimit:
    """Token buckets of clients.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # (tokens, time)

    def take(self, client: str, per_minute: int) -> None:
        """Count a request.

        Args:
            client: Name of the client.
            per_minute: Requests that the client may send in a minute; 0 for any number.

        Raises:
            HttpError: The client has sent as many already.
        """
        if not per_minute:
            return
        now = self._clock()
        tokens, before = self._buckets.pop(client, (float(per_minute), now))
        tokens = min(per_minute, tokens + (now - before) * per_minute / _MINUTE)
        allowed = tokens >= 1
        self._buckets[client] = (tokens - allowed, now)
        if len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        if not allowed:
            seconds = math.ceil((1 - tokens) * _MINUTE / per_minute)
            raise busy(
                f"Slowdown: {per_minute} per 1 minute; send the request again in {seconds} s",
                seconds,
            )


def client_name(address: str) -> str:
    """Return the name of a client without a key: its IPv4 address, or its IPv6 network."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # such as a Unix socket
        return address[:_MOST_NAME]
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, _IPV6_HOST_BITS), strict=False))
    return str(found)
