"""Routes for those who run the server: /health, /ready, /metrics, /admin/reload."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from translate_trt.runtime.serve.http.api_schema import answers
from translate_trt.runtime.serve.http.http_error import HttpError, busy
from translate_trt.runtime.serve.http.server_state import ServerState, json_answer

router = APIRouter(tags=["operations"])

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/health", **answers(dict[str, Any], 503))
async def health(request: Request) -> Response:
    """Translate a word with every bundle: 200 if all did in time."""
    state: ServerState = request.app.state.server
    await state.health.check()
    return json_answer({"status": "ok"})


@router.get("/ready", **answers(dict[str, Any], 503))
async def ready(request: Request) -> Response:
    """Return 200 while requests are welcome: the bundles are loaded, and no shutdown has begun."""
    state: ServerState = request.app.state.server
    if state.draining:
        raise busy("the server is shutting down", status=503)
    _ = state.bundles.routes  # not loaded
    return json_answer({"status": "ready"})


@router.get(
    "/metrics",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
               400: {"description": "A key is missing"},
               403: {"description": "The metrics are protected"},
               429: {"description": "Too many requests"}},
)  # fmt: skip
async def metrics(request: Request) -> Response:
    """Return metrics in Prometheus' text format."""
    state: ServerState = request.app.state.server
    if state.settings.protect_metrics:
        state.check_admin(request)
    return Response(state.metrics.render(), media_type=_METRICS_TYPE)


@router.post("/admin/reload", **answers(dict[str, Any], 400, 403, 429, 500, 503))
async def reload(request: Request) -> Response:
    """Load all bundles again; each is replaced once its new version translates.

    The header `Authorization: Bearer KEY` has the key of an administrator.
    """
    state: ServerState = request.app.state.server
    state.check_admin(request)
    _ = state.bundles.routes  # not loaded
    outcome = await asyncio.shield(state.reload())
    failed = {name: reason for name, reason in outcome.items() if reason is not None}
    if failed:
        kept = (f"{name} keeps its former version: {why}" for name, why in failed.items())
        raise HttpError(500, "; ".join(kept))
    return json_answer({"reloaded": list(outcome)})
