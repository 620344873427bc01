"""Files read and rendered without a model."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

from translate_trt.runtime.files import ReadOptions, Segment, read_file_text

_TAG = re.compile(r"(<[^<>]*>|&#?\w+;)")


def capitals(segment: Segment) -> str:
    """Translate a segment into capitals, tags and references left as they are."""
    if segment.kind == "text":
        return segment.text.upper()
    return "".join(
        part if number % 2 else part.upper() for number, part in enumerate(_TAG.split(segment.text))
    )


def upper(value: Any) -> Any:
    """Return a value of JSON or YAML with its strings in capitals."""
    if isinstance(value, dict):
        return {key: upper(one) for key, one in value.items()}
    if isinstance(value, list):
        return [*map(upper, value)]
    return value.upper() if isinstance(value, str) else value


def texts(content: bytes, name: str, **options: Any) -> list[str]:
    """Return the texts of a file's segments."""
    found = read_file_text(content, name, ReadOptions(**options))
    return [segment.text for segment in found.segments]


def rendered(
    content: bytes,
    name: str,
    translate: Callable[[Segment], str] = lambda segment: segment.text,
    **options: Any,
) -> bytes:
    """Return a file with translated segments; with their own texts by default."""
    found = read_file_text(content, name, ReadOptions(**options))
    return found.render([translate(segment) for segment in found.segments])


def parts(content: bytes) -> dict[str, bytes]:
    """Return the parts of a packed file."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(contents: Mapping[str, str | bytes]) -> bytes:
    """Pack parts into a zip file; the first is stored without compression."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, (name, content) in enumerate(contents.items()):
            method = zipfile.ZIP_DEFLATED if number else zipfile.ZIP_STORED
            archive.writestr(name, content, compress_type=method)
    return file.getvalue()
