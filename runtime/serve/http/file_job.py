"""Translation of an uploaded file along a route."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import NamedTuple

from starlette.requests import Request

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.formats import FileFormat, format_of
from translate_trt.runtime.files.segments import FileText, ReadOptions, Segment
from translate_trt.runtime.files.translation import SegmentPlan, named_segment
from translate_trt.runtime.native.core import plain_lines
from translate_trt.runtime.serve.http import detection
from translate_trt.runtime.serve.http.api_keys import ApiKey
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
# Flags of the command line in messages.
_FLAG = re.compile(r" \(--[a-z-]+\)")


class FileJob(NamedTuple):
    """A file whose text is to be translated.

    Attributes:
        name: Name of its translation.
        format: Its format.
        text: Its text.
        plan: The texts to translate.
        steps: Steps of the route by kind of text.
    """

    name: str
    format: FileFormat
    text: FileText
    plan: SegmentPlan
    steps: Mapping[str, tuple[Step, ...]]

    @property
    def parts(self) -> list[Part]:
        """Sizes of the texts with their steps, for `ServerState.translating`."""
        texts = self.plan.texts
        return [([*map(len, texts[kind])], steps) for kind, steps in self.steps.items()]

    async def translate(self, state: ServerState) -> StoredFile:
        """Return the translated file.

        Raises:
            HttpError: The translation does not fit the format.
            TranslateTrtError: A text cannot be translated.
        """
        found = {}
        for kind, texts in self.plan.texts.items():
            by_steps = await state.translation.translate(
                [*texts], self.steps[kind], [*texts.values()]
            )
            found[kind] = [of_text[-1].text for of_text in by_steps]
        with _refusing():
            content = await state.files.run(partial(self._render, found))
        state.metrics.files.labels(self.format.name).inc()
        return StoredFile(self.name, content, self.format.media_type)

    def _render(self, found: Mapping[str, Sequence[str]]) -> bytes:
        return self.text.render([one.text for one in self.plan.finish(found)])


async def open_file(
    state: ServerState, request: Request, query: FileQuery, key: ApiKey | None, upload: Upload
) -> FileJob:
    """Find the text in an upload, and the steps that translate it.

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
    options = ReadOptions(
        None if query.source == AUTO else query.source, query.target,
        max_bytes=_UNPACKED + _UNPACKED_PER_BYTE * len(upload.content),
    )  # fmt: skip
    with _refusing():
        file_format = format_of(_NAME, path.suffix[:_MOST_SUFFIX])
        text, plan = await state.files.run(partial(_read, file_format, upload.content, options))
    size = state.check_texts([segment.text for segment in text.segments], key, query)
    source = query.source
    if source == AUTO:
        sample = await state.files.run(partial(_sample, text.segments))
        (detected,) = state.detect_each(query, [sample], [_NAME])
        source = detection.source_of(detected, query.target)
    route = state.bundles.routes.find(source, query.target, query.model)
    steps = {kind: route.segment_steps(query, kind) for kind in plan.texts}
    request.state.log.update(model=route.model, characters=size, format=file_format.name)
    stem = _UNSAFE.sub("_", path.stem)[:_MOST_STEM].strip(" .")
    suffix = file_format.output_suffix or path.suffix.lower()
    return FileJob(f"{stem}_{query.target}{suffix}", file_format, text, plan, steps)


def _read(
    file_format: FileFormat, content: bytes, options: ReadOptions
) -> tuple[FileText, SegmentPlan]:
    text = file_format.read(content, options)
    names = [named_segment(_NAME, segment) for segment in text.segments]
    return text, SegmentPlan(text.segments, names)


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


def _sample(segments: Sequence[Segment]) -> str:
    """Return text of the first segments that suffices to detect its language."""
    lines: list[str] = []
    for segment in segments:
        if sum(map(len, lines)) > detection.MOST_CHARACTERS:
            break
        is_text = segment.kind == "text"
        lines += [segment.text] if is_text else plain_lines(segment.text, segment.kind)
    return "\n".join(lines)
