"""The ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.serve.http import extensions, libretranslate, operations, page
from translate_trt.runtime.serve.http.http_error import HttpError, as_http_error
from translate_trt.runtime.serve.http.http_settings import HttpSettings
from translate_trt.runtime.serve.http.observing import Observing
from translate_trt.runtime.serve.http.served_bundle import BundleSource
from translate_trt.runtime.serve.http.server_state import ServerState, error_answer
from translate_trt.runtime.version import version

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

    def __init__(self, methods: Mapping[str, set[str]]) -> None:
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
) -> FastAPI:
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

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state: ServerState = app.state.server
        app.openapi()  # kept; in a request, it would hold up all others for a tenth of a second
        await (state.load() if on_loading is None else on_loading(state))
        try:
            yield
        finally:
            await state.close()

    app = FastAPI(
        title="translate-trt",
        version=version(),
        description="LibreTranslate's API on compiled Transformers, with extensions of our own.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's page loads its scripts from another host
        redoc_url=None,
    )
    state = app.state.server = ServerState(sources, settings)
    routers = [module.router for module in (libretranslate, extensions, operations)]
    for router in routers:
        app.include_router(router)
    if settings.page:
        routes = [one for router in routers for one in router.routes if isinstance(one, Route)]
        methods = {one.path: one.methods or set() for one in routes}
        app.mount("/", PageFiles(methods), name="page")

    @app.exception_handler(HttpError)
    async def refuse(request: Request, error: HttpError) -> Response:
        request.state.log["error"] = error.message
        return error_answer(error)

    @app.exception_handler(TranslateTrtError)
    async def report(request: Request, error: TranslateTrtError) -> Response:
        return await refuse(request, as_http_error(error))

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        return error_answer(HttpError(error.status_code, error.detail, error.headers))

    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
            expose_headers=["X-Request-ID", "Retry-After"],
        )  # fmt: skip
    app.add_middleware(Observing, metrics=state.metrics, draining=lambda: state.draining)
    return app
