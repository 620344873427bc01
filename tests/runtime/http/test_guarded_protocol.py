"""The protocol of connections, with a transport whose client reads as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
import uvicorn
from uvicorn.server import ServerState

from translate_trt.runtime.serve.http.guarded_protocol import guarded_protocol

pytestmark = pytest.mark.anyio

ANSWER = b"x" * 1000


class Transport(asyncio.Transport):
    """Connection whose client has left so many bytes unread whenever it is looked at."""

    def __init__(self, left: Iterable[int] = ()) -> None:
        super().__init__()
        self._left: Iterator[int] = iter(left)
        self.written = b""
        self.closed, self.aborted, self.read = (asyncio.Event() for _ in range(3))

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        left = next(self._left, 0)
        if not left:
            self.read.set()
        return left

    def is_closing(self) -> bool:
        return self.closed.is_set() or self.aborted.is_set()

    def close(self) -> None:
        self.closed.set()

    def abort(self) -> None:
        self.aborted.set()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def answer(_scope: Any, _receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    headers = [(b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


def request(version: str, connection: str) -> bytes:
    return f"GET / HTTP/{version}\r\nHost: a\r\nConnection: {connection}\r\n\r\n".encode()


def connect(transport: Transport, head_seconds: float = 0.01) -> Any:
    config = uvicorn.Config(answer, ws="none", timeout_keep_alive=0, log_config=None)
    protocol = guarded_protocol(head_seconds)(config, ServerState(), {})
    protocol.connection_made(transport)
    return protocol


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_the_end_of_an_answer_that_nobody_reads(connection: str) -> None:
    transport = Transport(iter(lambda: 70, None))
    connect(transport).data_received(request("1.1", connection))
    await transport.aborted.wait()
    assert transport.written.endswith(ANSWER)


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_a_slow_client_gets_the_end_of_its_answer(connection: str) -> None:
    transport = Transport(range(20, -1, -1))
    connect(transport).data_received(request("1.1", connection))
    await transport.read.wait()
    await transport.closed.wait()
    assert not transport.aborted.is_set()


async def test_an_answer_is_paused_for_a_client_that_reads_slowly() -> None:
    transport = Transport([20, *range(30, -1, -1)])
    protocol = connect(transport)
    protocol.data_received(request("1.1", "close"))
    protocol.pause_writing()
    protocol.resume_writing()  # the answer is written, and more is left than before
    await transport.read.wait()
    await transport.closed.wait()
    assert not transport.aborted.is_set()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_the_version_of_a_request_with_an_offer(version: str) -> None:
    transport = Transport()
    protocol = connect(transport)
    protocol.data_received(request(version, "Upgrade\r\nUpgrade: h2c"))
    while not transport.written.endswith(ANSWER):
        await asyncio.sleep(0)
    assert protocol.scope["http_version"] == version
    assert protocol.scope["headers"] == [(b"host", b"a")]
    assert (b"connection: close" in transport.written.lower()) == (version == "1.0")


@pytest.mark.parametrize(
    "rest", [b"", b"GET / HTT", b"POST / HTTP/1.1\r\nHost: a\r\n"], ids=["none", "line", "head"]
)
async def test_many_requests_in_one_read(rest: bytes) -> None:
    count = 20
    whole = b"GET / HTTP/1.1\r\nHost: a\r\nCookie: " + b"x" * 4096 + b"\r\n\r\n"
    transport = Transport()
    connect(transport, 60).data_received(count * whole + rest)
    while transport.written.count(ANSWER) < count:
        assert not transport.is_closing()
        await asyncio.sleep(0)


async def test_nothing_is_written_after_a_refusal() -> None:
    transport = Transport()
    protocol = connect(transport)
    protocol.data_received(2 * request("1.1", "keep-alive") + b"GET / HTTP/1.1\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert transport.closed.is_set()
    refusal = transport.written
    await asyncio.gather(*protocol.tasks)
    assert transport.written == refusal


async def exchange(*pieces: bytes, head_seconds: float = 60) -> bytes:
    """Return what is written to a client that sends pieces, until its connection is closed."""
    transport = Transport()
    protocol = connect(transport, head_seconds)
    for piece in pieces:
        if not transport.is_closing():
            protocol.data_received(piece)
        await asyncio.sleep(0)
    await transport.closed.wait()
    return transport.written


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400),
        (b"\0\1\2\3\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 200_000, 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_heads(head: bytes, status: int) -> None:
    assert (await exchange(head)).startswith(b"HTTP/1.1 %d " % status)


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
LONG = b"X: " + b"y" * 1_000


@pytest.mark.parametrize(
    ("sent", "head_seconds"),
    [
        (b"GET / HTTP/1.1\r\nHost: a", 0.01),
        (CHUNKED + b"0\r\nX: y\r\n", 0.01),
        (CHUNKED + b"0\r\n" + (LONG + b"\r\n") * 1_000, 1e6),
        (CHUNKED + b"0\r\n" + LONG * 1_000, 1e6),
    ],
    ids=["head", "trailers", "many trailers", "a long trailer"],
)
async def test_what_is_slow_or_endless_is_closed(sent: bytes, head_seconds: float) -> None:
    pieces = (sent[begin : begin + 50_000] for begin in range(0, len(sent), 50_000))
    assert b"HTTP/1.1 4" not in await exchange(*pieces, head_seconds=head_seconds)


async def test_small_chunks_are_read_and_trailers_ignored() -> None:
    chunks, trailers = b"1\r\nx\r\n" * 100_000, b"0\r\nX: y\r\n\r\n"
    written = await exchange(CHUNKED + chunks + trailers, request("1.1", "close"))
    assert written.count(ANSWER) == 2

    protocol = connect(Transport(), 60)
    protocol.data_received(CHUNKED)
    before = [*protocol.scope["headers"]]
    protocol.data_received(trailers)
    assert protocol.scope["headers"] == before


async def test_offers_of_an_upgrade_are_ignored_wherever_the_data_is_cut() -> None:
    """Java's client and `curl --http2` offer HTTP/2 in each request."""
    body = b'{"q": "the cat"}'
    head = (
        b"POST / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    websocket = (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    sent = head + body + websocket + request("1.1", "close")

    for cut in (len(sent), 20, len(head) - 2, len(head), len(head) + 5, len(head + body)):
        written = await exchange(sent[:cut], sent[cut:])
        assert (written.count(b"HTTP/1.1 200 "), written.count(b"HTTP/1.1 4")) == (3, 0)
