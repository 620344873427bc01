"""HTTP server on the loopback interface that can be made to misbehave."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Site:
    """Files by path ("/a/b"), how they are served, and the requests received.

    Attributes:
        files: content by path.
        cuts: of the coming answers, the bytes after which each is cut; then none is.
        statuses: the coming answers' codes instead of any content; then none.
        ranges: whether parts are served.
        etag: the version; None for none.
        announce: whether the length is told.
        requests: (path, value of the Range header) of each request.
    """

    files: dict[str, bytes]
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    ranges: bool = True
    etag: str | None = '"one"'
    announce: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


@contextmanager
def serve(files: dict[str, bytes]) -> Iterator[Site]:
    """Serve the files until the block ends."""
    site = Site(files)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, site)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as site.url:
        yield site


@contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """Answer requests on a free port until the block ends; yield the URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answer(handler: http.server.BaseHTTPRequestHandler, site: Site) -> None:
    wanted = handler.headers.get("Range")
    site.requests.append((handler.path, wanted))
    content = site.files.get(handler.path)
    if site.statuses or content is None:
        handler.send_error(site.statuses.pop(0) if site.statuses else 404)
        return
    same = handler.headers.get("If-Range") in (None, site.etag)
    begin = int(wanted[len("bytes=") : -1]) if wanted and site.ranges and same else None
    if begin is not None and begin >= len(content):
        handler.send_response(416)
        handler.send_header("Content-Range", f"bytes */{len(content)}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    handler.send_response(200 if begin is None else 206)
    if begin is not None:
        handler.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
    if site.etag:
        handler.send_header("ETag", site.etag)
    part = content[begin or 0 :]
    if site.announce:
        handler.send_header("Content-Length", str(len(part)))
    handler.end_headers()
    handler.wfile.write(part[: site.cuts.pop(0)] if site.cuts else part)
