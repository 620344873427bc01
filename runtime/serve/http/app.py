"""The ASGI application."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.serve.http import (
    deepl_api,
    extensions,
    google_api,
    libretranslate,
    openai_api,
    operations,
    page,
)
from translate_trt.runtime.serve.http.http_error import HttpError, as_http_error
from translate_trt.runtime.serve.http.http_settings import HttpSettings
from translate_trt.runtime.serve.http.observing import Observing
from translate_trt.runtime.serve.http.served_bundle import BundleSource
from translate_trt.runtime.serve.http.server_state import (
    ServerState,
    error_answer,
    json_answer,
)
from translate_trt.runtime.version import version

# Further APIs by the name of their option, each with its routes and its form of errors.
_APIS: dict[str, ModuleType] = {"deepl": deepl_api, "google": google_api, "openai": openai_api}
# A parameter in the escaped path of a route.
_PARAMETER = re.compile(r"\\{(\w+)\\}")
# The page loads nothing from other hosts and runs no inline scripts.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class PageFiles(StaticFiles):
    """Static files of the web page, with a strict Content-Security-Policy.

    Args:
        methods: Methods of the API's routes, whose paths have no files.
    """

    def __init__(self, methods: Mapping[str, Collection[str]]) -> None:
        super().__init__(directory=Path(page.__file__).parent, html=True)
        self._methods = methods

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file of the page; the package's own source is none."""
        if (methods := self._methods.get(f"/{path}")) is not None:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(methods))})
        if path.endswith((".py", ".pyc")) or "__pycache__" in path:
            raise HTTPException(404)
        response = await super().get_response(path, scope)
        response.headers.update(_PAGE_HEADERS)
        return response


def create_app(
    sources: Sequence[BundleSource],
    settings: HttpSettings | None = None,
    *,
    on_loading: Callable[[ServerState], Awaitable[None]] | None = None,
) -> Starlette:
    """Create the application.

    Args:
        sources: Bundles to serve.
        settings: Settings; None for the defaults. Host, port, connections and draining belong to
            the process that runs the application.
        on_loading: Called at startup instead of loading the bundles before the first request.

    Returns:
        The application. `app.state.server` is its `ServerState`, once it has started.
    """
    settings = settings or HttpSettings()
    state = ServerState(sources, settings)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await (state.load() if on_loading is None else on_loading(state))
        try:
            yield
        finally:
            await state.close()

    apis = [_APIS[name] for name in dict.fromkeys(settings.apis)]
    refusals: dict[Any, Any] = {
        route.endpoint: one.refusal for one in apis for route in _described(one.router)
    }

    async def refuse(request: Request, error: HttpError) -> Response:
        request.state.log["error"] = error.logged
        answer: Response = refusals.get(request.scope.get("endpoint"), error_answer)(error)
        return answer

    async def report(request: Request, error: TranslateTrtError) -> Response:
        return await refuse(request, as_http_error(error))

    async def unknown(_: Request, error: HTTPException) -> Response:
        return error_answer(HttpError(error.status_code, error.detail, error.headers))

    handlers: dict[Any, Any] = {
        HttpError: refuse, TranslateTrtError: report, HTTPException: unknown
    }  # fmt: skip
    routes = _routes([one.router for one in apis], settings.page)
    paths = {one.endpoint: one.path for one in routes if isinstance(one, Route)}
    middleware = [Middleware(Observing, state=state, paths=paths)]
    if settings.cors_origins:
        cors = Middleware(
            CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
            expose_headers=["X-Request-ID", "Retry-After"],
        )  # fmt: skip
        middleware.append(cors)
    app = Starlette(
        routes=routes, lifespan=lifespan, middleware=middleware,
        exception_handlers=handlers,
    )  # fmt: skip
    app.state.server = state
    return app


def _described(router: APIRouter) -> list[APIRoute]:
    return [one for one in router.routes if isinstance(one, APIRoute)]


def _routes(apis: Sequence[APIRouter], page_wanted: bool) -> list[BaseRoute]:
    """Return the routes of the APIs, of their description, and of the page."""
    routers = [libretranslate.router, extensions.router, operations.router, *apis]
    described = [one for router in routers for one in _described(router)]
    description = get_openapi(
        title="translate-trt", version=version(), routes=described,
        description="LibreTranslate's API on compiled Transformers, with extensions of our own.",
    )  # fmt: skip

    async def openapi(_: Request) -> Response:
        return json_answer(description)

    # FastAPI describes the routes and does not call them: its handling of arguments, of which no
    # route has any, costs processor time in every request.
    api = [Route(one.path, one.endpoint, methods=one.methods) for one in described]
    for route in api:  # some clients join URLs with extra slashes
        pattern = _PARAMETER.sub(r"(?P<\1>[^/]+)", re.escape(route.path))
        route.path_regex = re.compile(f"/*{pattern}/*\\Z")
    # LibreTranslate's path beside ours.
    routes: list[BaseRoute] = [*api, *(Route(path, openapi) for path in ("/spec", "/openapi.json"))]
    if page_wanted:
        methods: dict[str, set[str]] = {}
        for one in api:
            methods.setdefault(one.path, set()).update(one.methods or ())
        routes.append(Mount("/", PageFiles(methods), name="page"))
    return routes
