"""Translation of files by the HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from support.file_texts import packed

from translate_trt.runtime import Translator
from translate_trt.runtime.files import FileTranslator, SegmentTranslator
from translate_trt.runtime.files.formats import format_of
from translate_trt.runtime.line_request import LineRequest

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
from fastapi.testclient import TestClient

from translate_trt.runtime.serve.http import file_job, file_store
from translate_trt.runtime.serve.http.file_store import FileStore, StoredFile
from translate_trt.runtime.serve.http.http_error import HttpError

PAIR = {"source": "en", "target": "de"}
TEXT = b"the cat runs.\n\na dog sleeps. 24\n"
HTML = b'<html><body class="a"><p>the <b>cat</b> runs.</p></body></html>'


def send(client: TestClient, content: bytes, name: str, **fields: str) -> Any:
    files = {"file": (name, content)}
    return client.post("/translate_file", data=PAIR | fields, files=files)


def download(client: TestClient, answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    url: str = answer.json()["translatedFileUrl"]
    assert url.startswith(str(client.base_url))
    return client.get(url)


@pytest.mark.parametrize("name", ["a.TXT", "a.b.html"])
def test_a_file_is_translated_as_by_the_command(
    client: TestClient, translator: Translator, name: str
) -> None:
    content = HTML if "html" in name else TEXT
    found = download(client, send(client, content, name))
    command = FileTranslator(SegmentTranslator(translator).translate)
    assert found.content == command.translate_content(content, name)
    stem, _, suffix = name.lower().rpartition(".")
    assert found.headers["Content-Type"] == f"text/{suffix.replace('txt', 'plain')}"
    given = f'attachment; filename="{stem}_de.{suffix}"'
    assert found.headers["Content-Disposition"] == given
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    counted = f'translate_trt_files_total{{format="{format_of(name).name}"}}'
    assert counted in client.get("/metrics").text


def test_files_pass_through_a_pivot_and_have_a_detected_language(client: TestClient) -> None:
    found = download(client, send(client, HTML, "a.html", source="de", target="fr"))
    assert found.content.startswith(b'<html><body class="a"><p>')
    named = download(client, send(client, TEXT, "a.txt")).content
    assert download(client, send(client, TEXT, "a.txt", source="auto")).content == named
    same = download(client, send(client, TEXT, "a.txt", target="en"))
    assert same.content == TEXT


def test_the_page_learns_the_formats(client: TestClient) -> None:
    found = client.get("/frontend/settings").json()
    assert found["filesTranslation"] is True
    assert {".txt", ".html"} <= {*found["supportedFilesFormat"]}
    assert client.get("/openapi.json").json()["paths"]["/translate_file"]


def test_names_are_safe(client: TestClient) -> None:
    for name in (
        "../../etc/x.txt",
        "C:\\x.txt",
        'a"\r\nX: y;\0.txt',
        "\u202eÜ.txt",
        "x" * 900 + ".txt",
    ):
        found = download(client, send(client, TEXT, name))
        assert found.content
        given = found.headers["Content-Disposition"].partition("=")[2]
        assert len(given) < 200
        assert not {*"\\/\r\n\0;"} & {*given}, given
    assert client.get("/download_file/x.txt").status_code == 404


@pytest.mark.parametrize(
    ("text", "name", "fields", "message"),
    [
        ("x", "a.exe", {}, "not translated"),
        ("x", "a", {}, "not translated"),
        ("x", ".txt", {}, "not translated"),
        ("x", "a.doc", {}, ".docx"),
        ("\0", "a.txt", {}, "the file: has NUL"),
        ("x", "a.txt", {"target": "xx"}, "supported"),
        ("x", "a.txt", {"source": ""}, "missing source"),
    ],
)
def test_wrong_files_are_refused(
    client: TestClient, text: str, name: str, fields: dict[str, str], message: str
) -> None:
    answer = send(client, text.encode(), name, **fields)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]
    assert "(--" not in answer.text


def test_forms_without_a_file_are_refused(client: TestClient) -> None:
    broken = {"Content-Type": "multipart/form-data; boundary=x"}
    requests: list[dict[str, Any]] = [
        {"json": PAIR}, {"data": PAIR}, {"data": PAIR, "files": {"other": ("a.txt", TEXT)}},
        {"content": b"--x\r\nnothing", "headers": broken},
    ]  # fmt: skip
    for one in requests:
        answer = client.post("/translate_file", **one)
        assert answer.status_code == 400, answer.text


def test_limits_of_files(serve: Callable[..., TestClient]) -> None:
    small = serve(
        max_file_bytes=2000, max_body_bytes=100, max_characters=20, max_file_characters=40,
        max_requests=1,
    )  # fmt: skip
    for content in (b"a " * 1000, b"a b " * 11):
        assert send(small, content, "a.txt").status_code == 413
    assert send(small, TEXT, "a.txt").status_code == 200
    assert small.post("/translate", json=PAIR | {"q": "x" * 100}).status_code == 413


def test_packed_files_do_not_grow_without_bound(client: TestClient) -> None:
    bomb = packed({"a": b"", "[Content_Types].xml": b" " * (8 << 20)})
    answer = send(client, bomb, "a.docx")
    assert answer.status_code == 400
    assert "bytes unpacked" in answer.json()["error"]


@pytest.mark.anyio
async def test_uploads_and_results_have_bounded_memory_and_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_store, "_SECONDS", 0.0)
    store = FileStore(10, 60)
    names = [store.add(StoredFile("a.txt", b"12345", "text/plain")) for _ in range(40)]
    assert len({*names}) == 40
    assert [store.find(name) is not None for name in names] == [False] * 8 + [True] * 32
    with store.receiving() as take:
        take(160)
        with pytest.raises(HttpError) as refused, store.receiving() as other:
            other(1)
        assert refused.value.status == 429
    with store.receiving() as take:
        take(160)
    while store.find(names[-1]) is not None:
        await asyncio.sleep(0)
    store.close()


def test_texts_are_answered_while_a_long_file_is_translated(
    serve: Callable[..., TestClient], translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_job, "_CHUNK", 1500)
    small = serve(max_cost=8000, timeout=600.0)
    state = small.app.state.server  # type: ignore[attr-defined]
    service = state.bundles.routes.bundles[0].service
    submit, begun, answered, chunks = service.submit_request, Event(), Event(), list[int]()

    def submit_after_the_text(lines: LineRequest, **named: Any) -> Any:
        if len(lines.lines) > 1:
            chunks.append(sum(map(len, lines.lines)))
            begun.set()
            answered.wait(60)
        return submit(lines, **named)

    monkeypatch.setattr(service, "submit_request", submit_after_the_text)
    content = b"\n\n".join(b"the cat sleeps %d." % number for number in range(200))
    with ThreadPoolExecutor(1) as pool:
        file = pool.submit(send, small, content, "a.txt")
        try:
            assert begun.wait(60), file.result(60).text
            text = small.post("/translate", json=PAIR | {"q": "the cat"})
        finally:
            answered.set()
        assert text.status_code == 200, text.text
        found = download(small, file.result())
    command = FileTranslator(SegmentTranslator(translator).translate)
    assert found.content == command.translate_content(content, "a.txt")
    assert len(chunks) == 3
    assert 1000 < max(chunks) <= 1500


def test_a_late_file_is_cancelled(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    service = client.app.state.server.bundles.routes.bundles[0].service  # type: ignore[attr-defined]
    line: Future[Any] = Future()
    monkeypatch.setattr(service, "submit_request", lambda *_, **__: line)
    assert send(client, TEXT, "a.txt", timeout="0.01").status_code == 504
    assert line.cancelled()
