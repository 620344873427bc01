"""HTTP/1.1 protocol of uvicorn with limits of a request's head, which uvicorn does not have."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Request line and headers; browsers and proxies stay below 32 KiB.
_MOST_HEAD_BYTES = 64 << 10


def guarded_protocol(head_seconds: float) -> type[HttpToolsProtocol]:
    """Return a protocol class that closes connections whose request heads are slow or large.

    Args:
        head_seconds: Seconds for the head of a request, or from the connection to the first head.
    """

    class GuardedProtocol(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _in_head = True
        _head_bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
                    self.send_400_response("The head of the request is too large.")

        def on_message_begin(self) -> None:
            self._in_head, self._head_bytes = True, 0
            self._start()
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._stop()
            super().on_headers_complete()

        def _start(self) -> None:
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(head_seconds, self.transport.close)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return GuardedProtocol
