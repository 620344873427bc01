"""Limits, keys, deadlines, and requests of careless or hostile clients."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import logging
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from translate_trt.runtime import BackendError
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.line_request import LineRequest
from translate_trt.runtime.options import SearchOptions

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
from fastapi.testclient import TestClient

from translate_trt.runtime.serve.http.api_keys import ApiKeys
from translate_trt.runtime.serve.http.http_error import HttpError
from translate_trt.runtime.serve.http.http_settings import HttpSettings
from translate_trt.runtime.serve.http.rate_limit import RateLimit, client_name
from translate_trt.runtime.serve.http.routing import Step
from translate_trt.runtime.serve.http.server_state import request_cost

pytestmark = pytest.mark.slow

QUERY = {"q": "the cat", "source": "en", "target": "de"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def small(serve: Callable[..., TestClient]) -> TestClient:
    """A server with small limits."""
    return serve(
        max_characters=40, max_texts=3, max_body_bytes=4096, max_beam_size=5, max_requests=1
    )


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        (QUERY | {"q": "x" * 41}, 413, "request (41) exceeds text limit (40)"),
        (QUERY | {"q": ["x" * 20] * 3}, 413, "request (60) exceeds text limit (40)"),
        (QUERY | {"q": ["x"] * 4}, 413, "(3)"),
        (QUERY | {"options": {"beam_size": 6}}, 400, "beams"),
        (QUERY | {"alternatives": 5}, 400, "beams"),
        (QUERY | {"alternatives": 10**400}, 400, "beams"),
        (QUERY | {"options": {"beam_size": "4"}}, 400, "beam_size"),
        (QUERY | {"options": {"beam_size": 1e400}}, 400, "beam_size is inf"),
        (QUERY | {"options": {"max_length": 10**9}}, 400, "max_length"),
        (QUERY | {"options": {"no_such": 1}}, 400, "no option 'no_such'"),
        (QUERY | {"options": {"target_language": "x"}}, 400, "no option"),
        (QUERY | {"timeout": 0}, 400, "timeout"),
        (QUERY | {"terminology": {"": "x"}}, 400, "blank phrase"),
        (QUERY | {"q": "x" * 5000}, 413, "larger"),
        (QUERY | {"q": [1] * 4}, 413, "(3)"),
        (QUERY | {"q": [1, 2, 3]}, 400, "q.list"),
        (QUERY | {"options": {"length_penalty": 10**400}}, 400, "length_penalty"),
        (QUERY | {"options": {"suppress_sequences": "1 " * 30}}, 413, "options (60) exceeds text"),
        (QUERY | {"terminology": {"a": "x" * 40}}, 413, "terminology (41) exceeds text limit (40)"),
        (QUERY | {"terminology": {str(n): 1 for n in range(41)}}, 413, "phrases"),
    ],
)
def test_requests_beyond_a_limit_are_refused(
    small: TestClient, query: dict[str, Any], status: int, message: str
) -> None:
    content = json.dumps(query).replace("Infinity", "1e400")
    answer = small.post("/translate", content=content, headers=JSON)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]
    assert small.post("/translate", json=QUERY).status_code == 200


def test_texts_of_several_languages_are_one_request(small: TestClient) -> None:
    pytest.importorskip("py3langid", reason="the extra detect is not installed")
    query = QUERY | {"q": ["the cat", "12"], "source": "auto"}
    answer = small.post("/translate", json=query)  # the server takes one request at a time
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"3", b'"text"', b"{", b"\xff\xfe", b'{"q": "\xff"}', b'{"q": NaN}',
        b'{"q": "\\ud800", "source": "en", "target": "de"}', b"[" * 4000, b'{"q":' * 800,
        b'{"q": {"a": 1}, "source": "en", "target": "de"}', b"\x00" * 50, bytes(range(256)),
    ],
    ids=lambda body: ascii(body[:20]),
)  # fmt: skip
def test_bodies_that_are_no_query_are_refused(small: TestClient, body: bytes) -> None:
    for headers in (JSON, {}, {"Content-Type": b"\xff"}):
        for path in ("/translate", "/detect", "/alternatives", "/translate/stream"):
            answer = small.post(path, content=body, headers=headers)  # type: ignore[arg-type]
            assert answer.status_code == 400, answer.text
            assert isinstance(answer.json()["error"], str)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert small.post("/translate", content=body, headers=form).status_code == 400
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
        answer = small.post("/translate", content=body, headers={"Content-Type": kind})
        assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("charset", ["punycode", "utf-7", "undefined", "latin-1"])
def test_forms_are_in_utf_8(small: TestClient, charset: str) -> None:
    for path in ("/translate", "/detect", "/alternatives", "/translate/stream"):
        body = b'--x\r\nContent-Disposition: form-data; name="q-"\r\n\r\ne28haaaa\r\n--x--\r\n'
        headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
        answer = small.post(path, content=body, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"] == "Invalid form: the charset must be utf-8"
    headers = {"Content-Type": "multipart/form-data; boundary=x; charset=UTF-8"}
    fields = {**QUERY, "q": "the cat"}.items()
    parts = (f'--x\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields)
    content = f"{''.join(parts)}--x--\r\n"
    assert small.post("/translate", content=content, headers=headers).status_code == 200


def test_the_log_has_no_text_of_a_client() -> None:
    from translate_trt.runtime.serve.http.http_error import HttpError

    quoted = "Entry(source='Konto \\'123', targets=(\" ' \",)) has a blank phrase; the user's fault"
    assert HttpError(400, quoted).logged == (
        "Entry(source='...', targets=('...',)) has a blank phrase; the user's fault"
    )
    assert len(HttpError(400, "x" * 10_000).logged) == 300
    for open_quote in ("'", '"'):  # in time that does not grow with the square of the length
        assert HttpError(400, f"a {open_quote}" + "\\'" * 500_000).logged == "a '...'"
        assert len(HttpError(400, f" {open_quote}" * 500_000).logged) == 300


def test_the_place_of_an_error_has_no_text_of_a_client(small: TestClient) -> None:
    answer = small.post("/translate", json=QUERY | {"terminology": {"Konto 123": 1}})
    assert "terminology.'Konto 123': Input should be" in answer.json()["error"]


def test_the_cost_of_a_request_bounds_its_tokens_and_searches() -> None:
    def cost(sizes: list[int], markup: str | None = None, **options: int) -> int:
        request = LineRequest((), SearchOptions(beam_size=4, **options), markup=markup)
        return request_cost([(sizes, [Step(mock.Mock(), request)])])

    assert cost([10, 3]) == 4 * 13
    assert cost([10, 3], "html") == 2 * 4 * 13
    assert cost([1] * 1_000, min_length=512) == 4 * 512_000
    assert cost([10], min_length=512) == 4 * 512 * 5  # five sentences of a character and a space
    assert cost([10], alternatives=3) == 10 * (4 * 3 + 3)
    assert cost([]) == 1


def test_a_body_without_a_length_is_limited_while_it_is_read(small: TestClient) -> None:
    parts = (b" " * 1000 for _ in range(20))
    answer = small.post("/translate", content=parts, headers=JSON)
    assert answer.status_code == 413
    assert answer.headers["Connection"] == "close"


def test_bodies_of_gzip_are_limited_by_their_whole_size(small: TestClient) -> None:
    whole = gzip.compress(json.dumps(QUERY).encode())
    bomb = gzip.compress(b" " * 10_000_000, 9)[:3000]
    spaces = gzip.compress(b" " * 1000)
    for body, encoding, status in (
        (whole, "gzip", 200), (whole, "GZIP", 200), (whole, "br", 415), (whole, "gzip, gzip", 415),
        (whole[:-1], "gzip", 400), (whole + b"x", "gzip", 400), (b"{}", "gzip", 400),
        (gzip.compress(b" " * 5000), "gzip", 413), (bomb, "gzip", 413),
        (spaces * 3 + whole, "gzip", 200), (spaces * 5, "gzip", 413),
        (gzip.compress(b"") * 101, "gzip", 400), (whole + whole[:-1], "gzip", 400),
    ):  # fmt: skip
        headers = {**JSON, "Content-Encoding": encoding}
        assert small.post("/translate", content=body, headers=headers).status_code == status
    headers = {"Content-Encoding": "gzip"}
    assert small.post("/translate", params=QUERY, headers=headers).status_code == 200
    assert small.post("/translate", json=QUERY).status_code == 200


def test_a_file_is_no_text(small: TestClient) -> None:
    answer = small.post("/translate", files={"q": ("name", b"the cat")}, data={"source": "en"})
    assert answer.status_code == 400


def test_control_characters_are_translated_like_any_others(client: TestClient) -> None:
    for text in ("\0", "a\0b", "\x1b[31m", "\u2028", "\ufeff", "\U0010ffff", "\r", "a\rb\x85c"):
        answer = client.post("/translate", json=QUERY | {"q": text})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "given", ["", "a b", "a\tb", "x" * 129, 'a"b', "{}", "\u00e9", "a;b", "<script>"]
)
def test_request_ids_are_sane_or_replaced(client: TestClient, given: str) -> None:
    answer = client.get("/ready", headers={"X-Request-ID": given.encode("latin-1")})
    assert answer.headers["X-Request-ID"] != given
    kept = client.get("/ready", headers={"X-Request-ID": "Root=1-67891233:ab/c"})
    assert kept.headers["X-Request-ID"] == "Root=1-67891233:ab/c"


def test_unknown_paths_and_methods(client: TestClient) -> None:
    for path in ("/no/such", "/__init__.py", "/../app.py", "/%2e%2e/app.py", "/docs%00"):
        answer = client.get(path)
        assert answer.status_code == 404, path
        assert "error" in answer.json()
    assert client.get("/translate").status_code == 405
    assert client.get("/").headers["Content-Security-Policy"].startswith("default-src 'none'")


class Waiting:
    """A service whose texts are never translated."""

    def __init__(self, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
        routes = client.app.state.server.bundles.routes  # type: ignore[attr-defined]
        service = routes.bundles[0].service
        self.futures: list[Future[Any]] = []

        def submit(*_: object, **__: object) -> Future[Any]:
            self.futures.append(Future())
            return self.futures[-1]

        monkeypatch.setattr(service, "submit_request", submit)


@pytest.mark.parametrize("path", ["/translate", "/alternatives", "/translate/stream"])
def test_a_late_request_is_cancelled(
    small: TestClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    with monkeypatch.context() as patch:
        waiting = Waiting(small, patch)
        late = small.post(path, json=QUERY | {"timeout": 0.01})
    assert late.status_code == 504, late.text
    assert waiting.futures
    assert all(one.cancelled() for one in waiting.futures)
    assert small.post(path, json=QUERY).status_code == 200


def test_failures_are_errors_of_the_server(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = client.app.state.server.bundles.routes.bundles[0].service  # type: ignore[attr-defined]
    for error, status in ((BackendError("no memory"), 500), (RuntimeError("secret"), 500)):

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(service, "submit_request", fail)
            answer = client.post("/translate", json=QUERY)
        assert answer.status_code == status
        assert "secret" not in answer.text
        assert "error" in answer.json()
    assert client.post("/translate", json=QUERY).status_code == 200


async def ask(
    client: TestClient, query: dict[str, Any], leave: asyncio.Event | None = None
) -> int | None:
    """Send a request to the application; return its status."""
    received = iter([{"type": "http.request", "body": json.dumps(query).encode()}])
    status: list[int] = []

    async def receive() -> dict[str, Any]:
        for message in received:
            return message
        await (leave or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            status.append(message["status"])

    scope = {
        "type": "http", "method": "POST", "path": "/translate", "raw_path": b"/translate",
        "query_string": b"", "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1), "server": ("test", 80), "scheme": "http", "root_path": "",
        "http_version": "1.1", "asgi": {"version": "3.0"},
    }  # fmt: skip
    await client.app(scope, receive, send)
    return status[0] if status else None


@pytest.mark.anyio
async def test_a_client_that_leaves_cancels_its_lines_and_others_are_refused_meanwhile(
    small: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(small, monkeypatch)
    leave = asyncio.Event()
    first = asyncio.create_task(ask(small, QUERY, leave))
    while not waiting.futures:
        await asyncio.sleep(0)
    assert await ask(small, QUERY) == 429
    leave.set()
    assert await first is None
    assert waiting.futures[0].cancelled()
    metrics = small.get("/metrics").text
    assert 'requests_total{outcome="cancelled",route="/translate"} 1.0' in metrics
    assert 'requests_total{outcome="busy",route="/translate"} 1.0' in metrics


# ---- keys and rates ----


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture(scope="module")
def keyed(serve: Callable[..., TestClient], tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(
        f'[keys.alice]\nsha256 = "{digest("a-key")}"\nmax_characters = 10\n'
        f'[keys.bob]\nsha256 = "{digest("b-key")}"\nrequests_per_minute = 2\n'
        f'[keys.root]\nsha256 = "{digest("r-key")}"\nadmin = true\n'
    )
    return serve(api_keys=path, require_api_key=True, protect_metrics=True)


def test_keys_are_required_checked_and_have_limits(keyed: TestClient) -> None:
    def status(key: str | None, text: str = "a") -> int:
        return keyed.post("/translate", json=QUERY | {"q": text, "api_key": key}).status_code

    assert status(None) == 400
    assert status("wrong") == 403
    assert status("a-key") == 200
    assert status("a-key", "x" * 11) == 413
    assert [status("b-key") for _ in range(3)] == [200, 200, 429]
    for scheme in ("Bearer", "bearer"):
        bearer = {"Authorization": f"{scheme} a-key"}
        assert keyed.post("/translate", json=QUERY, headers=bearer).status_code == 200
    assert keyed.post("/detect", json={"q": "a"}).status_code == 400
    settings = keyed.get("/frontend/settings").json()
    assert settings["apiKeys"] is settings["keyRequired"] is True


def test_fields_of_a_query_string_are_read_and_not_logged(
    keyed: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    with caplog.at_level(logging.INFO, "translate_trt.requests"):
        for path in ("/translate", "/alternatives", "/translate/stream"):
            answer = keyed.post(path, params=QUERY | {"api_key": "r-key"})
            assert answer.status_code == 200, answer.text
        assert keyed.post("/detect", params={"q": "a", "api_key": "r-key"}).status_code == 200
        mixed = keyed.post("/translate?api_key=r-key", data=QUERY, headers=form)
        assert mixed.status_code == 200
        # As in LibreTranslate, an object has all fields of its request.
        assert keyed.post("/translate?api_key=r-key", json=QUERY).status_code == 400
    records = [str(vars(one)) for one in caplog.records]
    assert len(records) == 6
    assert not [one for one in records if "r-key" in one]


def test_unknown_keys_are_limited_like_requests_without_one(
    serve: Callable[..., TestClient], keyed: TestClient
) -> None:
    path = keyed.app.state.server.settings.api_keys  # type: ignore[attr-defined]
    limited = serve(api_keys=path, requests_per_minute=3)

    def status(key: str) -> int:
        return limited.post("/detect", json={"q": "a", "api_key": key}).status_code

    assert [status(f"guess {number}") for number in range(4)] == [403, 403, 403, 429]
    assert status("r-key") == 200


def test_administrators_reload_and_read_metrics(keyed: TestClient) -> None:
    for method, path in (("POST", "/admin/reload"), ("GET", "/metrics")):
        assert keyed.request(method, path).status_code == 400
        for key, status in (("x", 403), ("a-key", 403), ("r-key", 200)):
            headers = {"Authorization": f"Bearer {key}"}
            answer = keyed.request(method, path, headers=headers)
            assert answer.status_code == status, answer.text
    assert 'translate_trt_reloads_total{outcome="success"} 3.0' in answer.text


def test_without_keys_there_are_no_administrators(client: TestClient) -> None:
    assert client.post("/admin/reload").status_code == 403


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x", "no TOML file"),
        ("[other]", "other tables"),
        ("[keys.a]\nsha256 = 'short'", "hash"),
        (f"[keys.a]\nsha256 = '{digest('a')}'\nlimit = 3", "unknown field limit"),
        (f"[keys.a]\nsha256 = '{digest('a')}'\nmax_characters = true", "max_characters"),
        (f"[keys.a]\nsha256 = '{digest('a')}'\nadmin = 1", "admin"),
    ],
)
def test_wrong_key_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        ApiKeys.read(path)
    with pytest.raises(InputError, match="cannot be read"):
        ApiKeys.read(tmp_path / "missing")


def test_a_bucket_holds_the_requests_of_a_minute() -> None:
    now = [0.0]
    rates = RateLimit(lambda: now[0])
    for _ in range(6):
        rates.take("a", 6)
    with pytest.raises(HttpError, match="6 per 1 minute") as refused:
        rates.take("a", 6)
    assert refused.value.headers == {"Retry-After": "10"}
    rates.take("b", 6)
    now[0] = 10.0
    rates.take("a", 6)
    for client in range(30_000):
        rates.take(str(client), 6)
    assert len(rates._buckets) <= 10_000


def test_addresses_of_one_host_are_one_client() -> None:
    assert client_name("::ffff:10.1.2.3") == client_name("10.1.2.3") == "10.1.2.3"
    assert client_name("2001:db8::1") == client_name("2001:db8::2:3%eth0") == "2001:db8::/64"
    assert client_name("testclient") == "testclient"
    assert len(client_name("x" * 60_000)) == 64


# ---- pages of other origins ----


def test_pages_of_a_named_origin_alone_may_use_the_server(serve: Callable[..., TestClient]) -> None:
    page, other = {"Origin": "https://example.com"}, {"Origin": "https://example.org"}
    wish = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type, authorization, x-request-id",
    }
    allowed = "Access-Control-Allow-Origin"
    crossed = serve(cors_origins=("https://example.com",))
    asked = crossed.options("/translate", headers=page | wish)
    assert (asked.status_code, asked.headers[allowed]) == (200, page["Origin"])
    assert crossed.options("/translate", headers=other | wish).status_code == 400
    # Errors, too, are readable for the page.
    for query, status in ((QUERY, 200), ({}, 400)):
        answer = crossed.post("/translate", json=query, headers=page)
        assert (answer.status_code, answer.headers[allowed]) == (status, page["Origin"])
        assert "x-request-id" in answer.headers["Access-Control-Expose-Headers"].lower()
        assert allowed not in crossed.post("/translate", json=query, headers=other).headers
    everyone = serve(cors_origins=("*",))
    assert everyone.post("/translate", json=QUERY, headers=other).headers[allowed] == "*"


def test_without_named_origins_no_page_of_another_may_use_the_server(client: TestClient) -> None:
    headers = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}
    assert client.options("/translate", headers=headers).status_code == 405
    answer = client.post("/translate", json=QUERY, headers=headers)
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", -1), ("port", 65536), ("max_texts", 0), ("timeout", 0.0), ("timeout", float("nan")),
     ("drain_delay", -1.0), ("requests_per_minute", -1), ("require_api_key", True),
     ("protect_metrics", True), ("workers", 0), ("trusted_proxies", ""),
     ("trusted_proxies", "10.0.0.300"), ("trusted_proxies", "10.0.0.1/8"),
     ("trusted_proxies", "proxy.local"), ("cors_origins", ("example.com",)),
     ("cors_origins", ("https://example.com/",)), ("cors_origins", ("https://a.com/page",))],
)  # fmt: skip
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=name):
        HttpSettings(**{name: value})
