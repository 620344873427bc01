"""HTTP/1.1 protocol of uvicorn with limits of a request's head and of what surrounds its body.

uvicorn has neither. It keeps trailers, the headers after a chunked body, without a limit; here they
are ignored.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Request line and headers; browsers and proxies stay below 32 KiB.
_MOST_HEAD_BYTES = 64 << 10
# Bytes of framing per byte of a body: a chunk of one byte has five others.
_FRAMING = 8


def guarded_protocol(head_seconds: float) -> type[HttpToolsProtocol]:
    """Return a protocol class that closes connections whose request heads are slow or large.

    The same holds for trailers, and for the framing of chunks that are mostly framing.

    Args:
        head_seconds: Seconds for the head of a request, or from the connection to the first head;
            the trailers, and a pause before a body, may take twice as long.
    """

    class GuardedProtocol(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _in_head = True
        _complete = False
        _head_bytes = _body_bytes = _framing_bytes = 0
        _body_received = 0  # in the data that is being parsed

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._body_received = 0
            super().data_received(data)
            if self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
                    self.send_400_response("The head of the request is too large.")
            elif not self._complete:
                if not self._body_received:
                    self._start(2 * head_seconds)  # a late body gets its answer before
                self._framing_bytes += len(data) - self._body_received
                if self._framing_bytes > 2 * _MOST_HEAD_BYTES + _FRAMING * self._body_bytes:
                    self.transport.close()  # the answer may have been sent

        def on_message_begin(self) -> None:
            self._in_head, self._complete = True, False
            self._head_bytes = self._body_bytes = self._framing_bytes = 0
            self._start()
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            if self._in_head:
                super().on_header(name, value)

        def on_body(self, body: bytes) -> None:
            self._body_bytes += len(body)
            self._body_received += len(body)
            self._stop()
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._complete = True
            self._stop()
            super().on_message_complete()

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._stop()
            super().on_headers_complete()

        def _start(self, seconds: float = head_seconds) -> None:
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(seconds, self.transport.close)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return GuardedProtocol
