"""HTTP/1.1 protocol of uvicorn with limits of a request's head and of what surrounds its body.

uvicorn has neither. It keeps trailers, the headers after a chunked body, without a limit; here they
are ignored. It waits without end for a client that reads no answer, takes the body of a request
that offers an upgrade, as Java's client offers HTTP/2, for another request (uvicorn issue 2722),
and does not answer a client that closes its side of the connection after its request.
"""

from __future__ import annotations

import asyncio
import math
import socket
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Request line and headers; browsers and proxies stay below 32 KiB.
_MOST_HEAD_BYTES = 64 << 10
_LARGE_HEAD = "The head of the request is too large."
# Bytes of framing per byte of a body: a chunk of one byte has five others.
_FRAMING = 8
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Seconds between looks at the connection of a client that sends no more.
_LOOK_SECONDS = 0.1
# Bytes that would end a header where its head is written again.
_STRAY = frozenset(b"\r\n\0")


class GuardedProtocol(HttpToolsProtocol):
    """Protocol that closes connections whose request heads are slow or large.

    The same holds for trailers, and for the framing of chunks that are mostly framing.

    Attributes:
        head_seconds: Seconds for the head of a request, or from the connection to the first head;
            the trailers, a pause before a body, and a client that reads nothing of an answer, may
            take twice as long.
    """

    head_seconds: float
    _timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None
    _answered: Any = None  # the request that is being answered; uvicorn knows the latest
    _write_paused = False
    _refusal = ""
    _in_head = True
    _complete = False
    _completed_in_read = False  # a message, in the data that is being parsed
    _head_bytes = _body_bytes = _framing_bytes = 0
    _body_received = 0  # of the latest message, in the data that is being parsed

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.parser = _Parser(self)
        self._start(self.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._stop_watching()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer the last request of a client that sends no more; return whether there is one.

        A client that has left looks the same, but its system resets the connection as soon as
        something is written. A final answer may have others before it (RFC 9110, section 15.2).
        """
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        if not self._answered.response_started and self.scope["http_version"] == "1.1":
            self.transport.write(_CONTINUE)
        self._watch_reset()
        return True

    def _watch_reset(self) -> None:
        if self.transport.is_closing():
            return
        connection = self.transport.get_extra_info("socket")
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._abort()
        else:
            asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._watch_reset)

    def _abort(self) -> None:
        """Close the connection at once, and cancel all that it asked for."""
        self._cancel()
        self.transport.abort()

    def _cancel(self) -> None:
        self.pipeline.clear()
        if self._answered is not None:  # uvicorn cancels the latest request alone
            self._answered.disconnected = True
            self._answered.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._body_received = 0
        self._completed_in_read = False
        super().data_received(data)
        # After a whole message the parser does not say where in the data the next one begins.
        counted = 0 if self._completed_in_read else len(data)
        if self._in_head:
            self._head_bytes += counted
            if self._head_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(_LARGE_HEAD)
        elif not self._complete:
            if not self._body_received:
                self._start(2 * self.head_seconds)  # a late body gets its answer before
            self._framing_bytes += max(0, counted - self._body_received)
            if self._framing_bytes > 2 * _MOST_HEAD_BYTES + _FRAMING * self._body_bytes:
                self.transport.close()  # the answer may have been sent

    def on_message_begin(self) -> None:
        if not self._write_paused:
            self._stop_watching()  # what is written now tells nothing of what is read
        self._in_head, self._complete = True, False
        self._head_bytes = self._body_bytes = self._framing_bytes = self._body_received = 0
        self._start(self.head_seconds)
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._body_received += len(body)
        self._stop()
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._complete = self._completed_in_read = True
        self._stop()
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        """Begin the request, unless its head is too large or has not one Host.

        Raises:
            httptools.HttpParserError: The head is wrong.
        """
        if self.parser.should_upgrade():
            return  # another parser gets the head without the offer
        size, hosts = len(self.url), 0
        for name, value in self.headers:
            size += len(name) + len(value)
            hosts += name == b"host"
        if size > _MOST_HEAD_BYTES:  # although it arrived at once
            self._refusal = _LARGE_HEAD
        elif hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            self._refusal = "The request needs one header Host."
        if self._refusal:
            raise httptools.HttpParserError(self._refusal)
        self._in_head = False
        self._stop()
        super().on_headers_complete()
        self.headers = []  # for trailers, which are ignored

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(self._refusal or msg)
        self._cancel()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._answered.response_complete:
            self._watch_reader()

    def shutdown(self) -> None:
        if not (self._in_head and self._timer):  # a request may be under way
            super().shutdown()

    def pause_writing(self) -> None:
        self._write_paused = True
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._stop_watching()
        super().resume_writing()
        if self._answered is None or self._answered.response_complete:
            self._watch_reader()  # until the client has read the end of the answer

    def _watch_reader(self, before: float = math.inf) -> None:
        """Close the connection of a client that reads nothing for a while.

        Nothing is written meanwhile, so that a smaller buffer means that the client reads.
        """
        self._stop_watching()
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self._abort()
        elif left:
            loop = asyncio.get_running_loop()
            self._read_timer = loop.call_later(2 * self.head_seconds, self._watch_reader, left)

    def _stop_watching(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _start(self, seconds: float) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def guarded_protocol(seconds: float) -> type[GuardedProtocol]:
    """Return the class of a protocol that gives a request's head as many seconds."""

    class Protocol(GuardedProtocol):
        head_seconds = seconds

    return Protocol


class _Parser(httptools.HttpRequestParser):
    """Parser of requests that ignores offers of an upgrade, as RFC 9110, section 7.8, allows.

    httptools parses no body after such an offer. A second parser gets the head without it.
    """

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol
        # As uvicorn: the answer to a pipelined request may close the connection.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def feed_data(self, data: Any) -> None:
        """Parse data.

        Raises:
            httptools.HttpParserError: The data is not HTTP/1.1, or it is the method CONNECT.
        """
        parser = self
        while True:
            try:
                httptools.HttpRequestParser.feed_data(parser, data)
                return
            except httptools.HttpParserUpgrade as offer:
                data = parser._head() + data[offer.args[0] :]
                self._protocol.parser = parser = _Parser(self._protocol)

    def _head(self) -> bytes:
        """Return the head of the request without the offer."""
        method, headers = self.get_method(), self._protocol.headers
        version = self.get_http_version().encode()
        if method == b"CONNECT" or any(_STRAY & {*value} for _, value in headers):
            raise httptools.HttpParserError("the server is no proxy, or a header has several lines")
        lines = [b"%s %s HTTP/%s" % (method, self._protocol.url, version)]
        for name, value in headers:
            if name == b"connection":
                kept = (word.strip() for word in value.split(b","))
                value = b", ".join(word for word in kept if word.lower() != b"upgrade")
            if name != b"upgrade" and value:
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n\r\n"
