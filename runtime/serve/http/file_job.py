"""Translation of an uploaded file along a route."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import NamedTuple

from starlette.requests import Request

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.formats import FileFormat, format_of
from translate_trt.runtime.files.segments import ReadOptions
from translate_trt.runtime.native.core import plain_lines
from translate_trt.runtime.serve.http import detection
from translate_trt.runtime.serve.http.api_keys import ApiKey
from translate_trt.runtime.serve.http.file_process import FileProcess
from translate_trt.runtime.serve.http.file_store import StoredFile
from translate_trt.runtime.serve.http.http_error import HttpError
from translate_trt.runtime.serve.http.messages import FileQuery
from translate_trt.runtime.serve.http.receiving import Upload
from translate_trt.runtime.serve.http.routing import Step
from translate_trt.runtime.serve.http.server_state import AUTO, Part, ServerState

# Name in messages: that of the client would reach the log.
_NAME = "the file"
# Bytes of a packed file's parts, beside those per byte of the file: documents have a tenth of
# that, and a megabyte of parts takes seconds to read.
_UNPACKED, _UNPACKED_PER_BYTE = 4 << 20, 20
# Characters that no file system, shell or header gives a meaning of their own.
_UNSAFE = re.compile(r"[^\w .()+,=@~-]")
_MOST_STEM, _MOST_SUFFIX = 80, 16
# Characters that are translated together: enough for full batches.
_CHUNK = 1 << 16
# Flags of the command line in messages.
_FLAG = re.compile(r" \(--[a-z-]+\)")


class FileJob(NamedTuple):
    """A file whose text is to be translated.

    Attributes:
        name: Name of its translation.
        format: Its format.
        process: Process that has read it.
        texts: The texts to translate, as those of a `SegmentPlan`.
        steps: Steps of the route by kind of text.
    """

    name: str
    format: FileFormat
    process: FileProcess
    texts: Mapping[str, Mapping[str, str]]
    steps: Mapping[str, tuple[Step, ...]]

    @property
    def parts(self) -> list[Part]:
        """Sizes of the texts of the largest chunk of each kind, for `ServerState.translating`."""
        found: list[Part] = []
        for kind, steps in self.steps.items():
            sizes = ([*map(len, chunk)] for chunk in _chunks(self.texts[kind]))
            found.append((max(sizes, key=sum), steps))
        return found

    async def translate(self, state: ServerState) -> StoredFile:
        """Return the translated file, whose texts are translated chunk by chunk.

        Raises:
            HttpError: The translation does not fit the format.
            TranslateTrtError: A text cannot be translated.
        """
        found: dict[str, list[str]] = {}
        for kind, texts in self.texts.items():
            found[kind] = []
            for chunk in _chunks(texts):
                by_steps = await state.translation.translate(
                    chunk, self.steps[kind], [texts[text] for text in chunk]
                )
                found[kind] += [of_text[-1].text for of_text in by_steps]
        with _refusing():
            content = await state.files.run(partial(self.process.render, found))
        state.metrics.files.labels(self.format.name).inc()
        return StoredFile(self.name, content, self.format.media_type)


@asynccontextmanager
async def opened(
    state: ServerState, request: Request, query: FileQuery, key: ApiKey | None, upload: Upload
) -> AsyncIterator[FileJob]:
    """Find the text in an upload, and the steps that translate it; end its process at the end.

    Args:
        state: State of the server.
        request: The request.
        query: Its fields.
        key: Its key, whose limit of characters holds.
        upload: Its file.

    Raises:
        HttpError: The format is unknown, the file is damaged or has too many characters, or no
            bundles join the languages.
        TranslateTrtError: A bundle does not support what the query asks for.
    """
    path = PurePosixPath(upload.name.replace("\\", "/"))
    suffix = path.suffix[:_MOST_SUFFIX]
    options = ReadOptions(
        None if query.source == AUTO else query.source, query.target,
        max_bytes=_UNPACKED + _UNPACKED_PER_BYTE * len(upload.content),
    )  # fmt: skip
    with _refusing():
        file_format = format_of(_NAME, suffix)
    async with state.files.process(_NAME, suffix, options) as process:
        with _refusing():
            size = await state.files.run(partial(process.read, upload.content))
        state.check_size(size, key, query)
        texts = await state.files.run(process.texts)
        source = query.source
        if source == AUTO:
            sample = await state.files.run(partial(_sample, texts))
            (detected,) = state.detect_each(query, [sample], [_NAME])
            source = detection.source_of(detected, query.target)
        route = state.bundles.routes.find(source, query.target, query.model)
        steps = {kind: route.segment_steps(query, kind) for kind in texts}
        request.state.log.update(model=route.model, characters=size, format=file_format.name)
        stem = _UNSAFE.sub("_", path.stem)[:_MOST_STEM].strip(" .")
        suffix = file_format.output_suffix or path.suffix.lower()
        yield FileJob(f"{stem}_{query.target}{suffix}", file_format, process, texts, steps)


@contextmanager
def _refusing() -> Iterator[None]:
    """Refuse a file that cannot be read or written, with messages for users of an API."""
    try:
        yield
    except InputError as error:
        message = _FLAG.sub("", str(error)).removeprefix(f"{_NAME}: ")
        raise HttpError(400, f"Invalid request: {_NAME}: {message}") from error
    except MemoryError as error:
        raise HttpError(413, f"{_NAME} is too large for this server's memory") from error


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield texts in chunks of bounded size, or one longer text."""
    chunk: list[str] = []
    size = 0
    for text in texts:
        if chunk and size + len(text) > _CHUNK:
            yield chunk
            chunk, size = [], 0
        chunk.append(text)
        size += len(text)
    if chunk:
        yield chunk


def _sample(texts: Mapping[str, Iterable[str]]) -> str:
    """Return some of the texts, which suffice to detect their language."""
    lines: list[str] = []
    for kind, of_kind in texts.items():
        for text in of_kind:
            if sum(map(len, lines)) > detection.MOST_CHARACTERS:
                break
            lines += [text] if kind == "text" else plain_lines(text, kind)
    return "\n".join(lines)
