"""Request ids, headers, logs and metrics of every request."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from translate_trt.runtime.serve.http.http_error import CLIENT_CLOSED
from translate_trt.runtime.serve.http.request_log import requests
from translate_trt.runtime.serve.http.server_state import ServerState

log = logging.getLogger("translate_trt")

# Ids of clients are logged and sent back, so they have no white space or control characters.
_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_OTHER = "other"  # route of the page and of unknown paths, which would be labels without number
_OUTCOMES = {
    408: "timeout", 413: "too_large", 429: "busy", CLIENT_CLOSED: "cancelled", 503: "unavailable",
    504: "timeout",
}  # fmt: skip
_FAILED = json.dumps({"error": "the server failed on this request; its log says why"}).encode()


class Observing:
    """ASGI middleware around the application.

    Args:
        app: The application.
        state: State of the server, whose metrics count the answers; connections end while it is
            draining.
        paths: Names of the routes by their endpoint.
    """

    def __init__(self, app: ASGIApp, state: ServerState, paths: Mapping[Any, str]) -> None:
        self._app, self._state, self._paths = app, state, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 0
        request_id = _request_id(scope)
        fields: dict[str, Any] = {}
        scope.setdefault("state", {})["log"] = fields

        async def send_observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.setdefault("headers", [])
                headers.append((b"x-request-id", request_id))
                headers.append((b"x-content-type-options", b"nosniff"))
                if self._state.draining:
                    headers.append((b"connection", b"close"))
            await send(message)

        metrics, tracing = self._state.metrics, self._state.tracing
        span = None if tracing is None else tracing.begin(scope)
        metrics.in_flight.inc()
        try:
            await self._app(scope, receive, send_observed)
        except ClientDisconnect:
            status = CLIENT_CLOSED
        except asyncio.CancelledError:
            status = CLIENT_CLOSED
            raise
        except Exception:
            log.exception("request %s failed", request_id.decode())
            if not status:
                failure = Response(_FAILED, 500, media_type="application/json")
                await failure(scope, receive, send_observed)
            status = 500
        finally:
            metrics.in_flight.dec()
            seconds = time.perf_counter() - begun
            route, outcome = self._paths.get(scope.get("endpoint"), _OTHER), _outcome(status)
            metrics.requests.labels(route, outcome).inc()
            metrics.seconds.labels(route).observe(seconds)
            if tracing is not None:
                tracing.end(span, scope["method"], route, status, fields)
            if requests.isEnabledFor(logging.INFO):
                client = scope.get("client") or ("",)
                fields = {
                    "request_id": request_id.decode(), "method": scope["method"], "route": route,
                    "status": status, "outcome": outcome, "client": client[0],
                    "milliseconds": round(1e3 * seconds, 2), **fields,
                }  # fmt: skip
                requests.info("request", extra={"fields": fields})


def _request_id(scope: Scope) -> bytes:
    """Return the id that the client gave, if it is sane, or a random one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _ID.fullmatch(value):
            return bytes(value)
    return secrets.token_hex(8).encode()


def _outcome(status: int) -> str:
    """Return the outcome of a request for logs and metrics."""
    if status < 400:
        return "success"
    return _OUTCOMES.get(status, "refused" if status < 500 else "failed")
