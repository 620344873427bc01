"""Processes of files: their answers, their limits, and their end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.file_texts import packed

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files import ReadOptions
from translate_trt.runtime.files.worker import ReadTask

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
from translate_trt.runtime.serve.http.file_process import FileProcess
from translate_trt.runtime.serve.http.file_store import FileStore
from translate_trt.runtime.serve.http.http_error import HttpError

TASK = ReadTask("the file", ".txt", ReadOptions(), 1 << 30, 60)


@pytest.fixture
def started() -> Iterator[list[FileProcess]]:
    found: list[FileProcess] = []
    yield found
    for process in found:
        process.kill()
        process.close()


def test_a_file_is_read_and_rendered(started: list[FileProcess]) -> None:
    started.append(process := FileProcess(TASK))
    content = "é a.\n\né a.\n\n24\ud7ff".encode()
    assert process.read(content) == 13
    assert process.texts() == {"text": {"é a.": "the file, paragraph 1"}}
    assert process.render({"text": ["ü\ud7ff"]}) == content.replace(
        "é a.".encode(), b"\xc3\xbc\xed\x9f\xbf"
    )


def test_refusals_and_the_end_of_a_process(started: list[FileProcess]) -> None:
    started.append(refused := FileProcess(TASK))
    with pytest.raises(InputError, match="NUL"):
        refused.read(b"\0")
    started.append(ended := FileProcess(TASK))
    os.kill(ended._process.pid, signal.SIGINT)
    ended.read(b"x")
    os.kill(ended._process.pid, signal.SIGTERM)
    ended.texts()
    ended._process.kill()
    with pytest.raises(HttpError, match="log") as failed:
        ended.render({"text": ["y"]})
    assert failed.value.status == 500


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit memory")
def test_memory_is_limited(started: list[FileProcess]) -> None:
    xml = b"<p>" + b"<a/>" * (1 << 18) + b"</p>"
    document = packed({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": xml})
    started.append(process := FileProcess(TASK._replace(suffix=".odt", max_memory=1 << 26)))
    with pytest.raises(MemoryError):
        process.read(document)


def test_no_process_outlives_a_timeout_or_a_cancelled_request() -> None:
    async def use() -> None:
        pids = []
        late = FileStore(1, 1e-9)
        async with late.process("the file", ".txt", ReadOptions()) as process:
            pids.append(process._process.pid)
            with pytest.raises(HttpError) as refused:
                await late.run(lambda: process.read(b"x"))
        assert refused.value.status == 504
        late.close()
        store, entered = FileStore(1, 60), asyncio.Event()

        async def wait() -> None:
            async with store.process("the file", ".txt", ReadOptions()) as process:
                pids.append(process._process.pid)
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(wait())
        await entered.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        store.close()

    asyncio.run(use())
    assert not subprocess._active  # type: ignore[attr-defined]


@pytest.mark.anyio
async def test_the_number_of_processes_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("translate_trt.runtime.serve.http.file_store._MOST_PROCESSES", 0)
    with pytest.raises(HttpError) as refused:
        await FileStore(1, 60).process("the file", ".txt", ReadOptions()).__aenter__()
    assert refused.value.status == 429
