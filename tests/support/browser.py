"""A headless Chromium, and the HTTP server that it opens."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

#: Programs that are tried, after the environment variable CHROMIUM.
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SECONDS = 60  # no test waits as long unless something is broken


def chromium() -> str:
    """Return the path of Chromium, or skip the test."""
    found = next(filter(None, map(shutil.which, (os.environ.get("CHROMIUM", ""), *PROGRAMS))), None)
    if found is None:
        pytest.skip("there is no Chromium: install it, or name its program with CHROMIUM")
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """Start a browser of playwright."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    # Chromium's own sandbox needs user namespaces, which containers and root rarely have.
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def running(app: Any) -> Iterator[str]:
    """Run an ASGI application in a thread of this process; return its URL."""
    import uvicorn

    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    server = Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(_SECONDS)
        (socket,) = server.servers[0].sockets
        yield f"http://127.0.0.1:{socket.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(_SECONDS)
