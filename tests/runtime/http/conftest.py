"""A served bundle, asked in this process. Tests skip themselves without the extra serve."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.browser import running

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

    from translate_trt.runtime.serve.http.served_bundle import BundleSource

#: Settings of small servers.
SMALL: dict[str, Any] = {"workers": 1, "threads": 1, "target": "onnx-fp32"}


@pytest.fixture
def anyio_backend() -> str:
    """Run tests that are coroutines (mark `anyio`) in asyncio."""
    return "asyncio"


@pytest.fixture(scope="module")
def sources(compiled_bundle: Path) -> list[BundleSource]:
    """One bundle under three names, for three pairs of languages."""
    from translate_trt.runtime.serve.http.served_bundle import BundleSource

    pairs = [("en", "de"), ("de", "en"), ("en", "fr")]
    return [BundleSource(compiled_bundle, "-".join(pair), pair) for pair in pairs]


@pytest.fixture(scope="module")
def serve(sources: list[BundleSource]) -> Iterator[Callable[..., TestClient]]:
    """Start applications with other settings than the defaults."""
    from fastapi.testclient import TestClient

    from translate_trt.runtime.serve.http.app import create_app
    from translate_trt.runtime.serve.http.http_settings import HttpSettings

    with ExitStack() as stack:

        def start(**settings: Any) -> TestClient:
            app = create_app(sources, HttpSettings(**SMALL, **settings))
            return stack.enter_context(TestClient(app, raise_server_exceptions=False))

        yield start


@pytest.fixture(scope="module")
def serve_on_port(sources: list[BundleSource]) -> Iterator[Callable[..., str]]:
    """Start applications on ports of their own, and return their URLs."""
    from translate_trt.runtime.serve.http.app import create_app
    from translate_trt.runtime.serve.http.http_settings import HttpSettings

    with ExitStack() as stack:

        def start(directions: int = 3, **settings: Any) -> str:
            app = create_app(sources[:directions], HttpSettings(**SMALL, **settings))
            return stack.enter_context(running(app))

        yield start


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings of servers that require one of the keys "alice" and "bob"."""
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    hashes = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("alice", "bob")}
    tables = (f'[keys.{name}]\nsha256 = "{digest}"\n' for name, digest in hashes.items())
    path.write_text("".join(tables), encoding="utf-8")
    return {"api_keys": path, "require_api_key": True}


@pytest.fixture(scope="module")
def client(serve: Callable[..., TestClient]) -> TestClient:
    """A server with default limits."""
    return serve()
