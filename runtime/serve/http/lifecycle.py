"""Life of the server's process: listening, loading, reloading, draining."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import math
import signal
import socket
import struct
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn

from translate_trt.runtime.errors import OptionError, TranslateTrtError
from translate_trt.runtime.serve.http.app import create_app
from translate_trt.runtime.serve.http.guarded_protocol import guarded_protocol
from translate_trt.runtime.serve.http.http_settings import HttpSettings
from translate_trt.runtime.serve.http.served_bundle import BundleSource
from translate_trt.runtime.serve.http.server_state import ServerState

log = logging.getLogger("translate_trt")

_BACKLOG = 2048
# Waits in which the kernel's last connections are accepted, and requests on idle ones are read. A
# client whose new connection is ignored tries again after a second, when it is refused.
_LAST_READS, _READ_SECONDS = 50, 0.01
# Linux's option of sockets, and a program of the classic Berkeley Packet Filter: load the flags of
# a TCP header, and drop a packet that has SYN.
_SO_ATTACH_FILTER = 26
_DROP_SYN = ((0x30, 0, 0, 13), (0x45, 0, 1, 2), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


class HttpServer(uvicorn.Server):
    """Server that loads its bundles while it listens, and answers what it has received at the end.

    SIGTERM and SIGINT end it, a second SIGINT at once; SIGHUP reloads the bundles.

    Args:
        sources: Bundles to serve.
        settings: Settings of the server.
        on_ready: Called with the URL once the bundles are loaded.

    Attributes:
        failure: Error that kept a bundle from loading at the start.
        unfinished: Number of requests that the time to drain was too short for.
    """

    def __init__(
        self,
        sources: Sequence[BundleSource],
        settings: HttpSettings,
        on_ready: Callable[[str], None],
    ) -> None:
        self._settings, self._on_ready = settings, on_ready
        self.should_exit = False
        self.failure: TranslateTrtError | None = None
        self.unfinished = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._app = create_app(sources, settings, on_loading=self._begin)
        self._socket = _listen(settings.host, settings.port)
        proxies = settings.trusted_proxies
        super().__init__(
            uvicorn.Config(
                self._app, http=guarded_protocol(settings.body_timeout), ws="none",
                log_config=None, access_log=False, server_header=False,
                limit_concurrency=settings.max_connections, backlog=_BACKLOG,
                timeout_keep_alive=math.ceil(settings.keep_alive),
                timeout_graceful_shutdown=math.ceil(settings.drain_timeout),
                proxy_headers=proxies is not None, forwarded_allow_ips=proxies,
            )
        )  # fmt: skip

    @property
    def url(self) -> str:
        """URL of the server."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def serve_until_stopped(self) -> None:
        """Serve until a signal ends the process.

        Raises:
            TranslateTrtError: A bundle cannot be loaded.
        """
        self.run(sockets=[self._socket])
        if self.failure is not None:
            raise self.failure

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; a second SIGINT ends the process at once."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def main_loop(self) -> None:
        """Serve until a signal arrives, and for the delay before draining."""
        if hasattr(signal, "SIGHUP"):
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, lambda: self._run(self._reload()))
        await super().main_loop()
        self._state.draining = True
        log.info("draining")
        if self.failure is None and self._settings.drain_delay:
            await asyncio.sleep(self._settings.drain_delay)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer what was received, then free the bundles."""
        for task in self._tasks:
            task.cancel()
        _ignore_new_connections(self._socket)
        for _ in range(_LAST_READS):  # each looks for what has arrived, however busy the loop is
            await asyncio.sleep(_READ_SECONDS)
        drained = asyncio.create_task(self._count_unfinished())
        await super().shutdown(sockets)
        drained.cancel()
        if self.unfinished:
            log.error("%d requests were cancelled: raise drain_timeout", self.unfinished)

    @property
    def _state(self) -> ServerState:
        state: ServerState = self._app.state.server
        return state

    async def _count_unfinished(self) -> None:
        """Count the requests that `shutdown` is about to cancel."""
        await asyncio.sleep(math.ceil(self._settings.drain_timeout))
        self.unfinished = len(self.server_state.tasks)

    async def _begin(self, state: ServerState) -> None:
        self._run(self._load(state))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, state: ServerState) -> None:
        try:
            await state.load()
        except TranslateTrtError as error:
            self.failure = error
            self.should_exit = True
            return
        self._on_ready(self.url)
        if self._settings.watch_interval:
            self._run(self._watch(state))

    async def _reload(self) -> None:
        if self._state.bundles.loaded:
            await self._state.reload()

    async def _watch(self, state: ServerState) -> None:
        """Reload bundles whose manifest has changed; those that fail are tried again."""
        failed: set[int] = set()
        while True:
            await asyncio.sleep(self._settings.watch_interval)
            numbers = sorted(failed.union(state.bundles.changed()))
            if numbers:
                outcome = await state.reload(numbers)
                sources = state.bundles.sources
                failed = {one for one in numbers if outcome.get(sources[one].name) is not None}


def _ignore_new_connections(listening: socket.socket) -> None:
    """Let the kernel ignore new connections, except those that clients have begun to open.

    The kernel resets connections that were not accepted when the listening socket is closed.
    """
    if sys.platform != "linux":
        return
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in _DROP_SYN)
    kept = ctypes.create_string_buffer(program)
    attached = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(kept))
    with suppress(OSError):  # a kernel without such filters
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, attached)


def _listen(host: str, port: int) -> socket.socket:
    """Bind the listening socket.

    Raises:
        OptionError: The address is not one of this machine, or is in use.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, address = found[0][0], found[0][4]
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OptionError(
            f"host is {host!r} and port {port}: {error.strerror}; choose another --host or --port."
        ) from error
