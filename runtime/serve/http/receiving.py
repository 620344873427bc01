"""Reading of requests within limits: JSON, both kinds of form, and query strings."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from python_multipart.multipart import parse_options_header
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.types import Message

from translate_trt.runtime.serve.http.http_error import HttpError
from translate_trt.runtime.serve.http.http_settings import HttpSettings
from translate_trt.runtime.serve.http.messages import TranslateQuery

_Query = TypeVar("_Query", bound=BaseModel)
_FORM = "application/x-www-form-urlencoded"
_MULTIPART = "multipart/form-data"
_GZIP = ("gzip", "x-gzip")
# Members of a gzip file (RFC 1952, section 2.2); 50,000 empty ones would take a second.
_MOST_MEMBERS = 100
_MOST_FIELDS = 10_000
_SHOWN = 3  # problems of a request that the answer names
# The rest of a refused body would otherwise be read first.
_CLOSE = {"Connection": "close"}


async def read_query(request: Request, settings: HttpSettings, kind: type[_Query]) -> _Query:
    """Read and check the fields of a request.

    Args:
        request: Request with JSON or a form. As in LibreTranslate, fields of a query string are
            added to those of a form, and suffice without a body.
        settings: Limits of the body's size and time.
        kind: Class of the query.

    Raises:
        HttpError: The body is too large or too slow, or is not such a query.
    """
    body = await read_body(request, settings)
    kind_of_body = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind_of_body not in (_FORM, _MULTIPART):
        fields = _read_json(body)
    else:
        fields = _read_pairs(request.scope["query_string"], kind)
        if kind_of_body == _FORM:
            fields |= _read_pairs(body, kind)
        elif kind_of_body == _MULTIPART:
            fields |= await _read_multipart(request, body, kind)
    # As in LibreTranslate, an empty field is a missing one; `prefix` may be empty by default.
    given = {name: value for name, value in fields.items() if value not in (None, "", [])}
    _check_counts(given, settings)
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise HttpError(400, f"Invalid request: {_problems(error)}") from error


def _check_counts(given: dict[str, Any], settings: HttpSettings) -> None:
    """Refuse too many texts or phrases, before validation makes an error for each wrong one."""
    texts, phrases = given.get("q"), given.get("terminology")
    if isinstance(texts, list) and len(texts) > (most := settings.max_texts):
        raise HttpError(413, f"Invalid request: {len(texts)} texts exceed the limit ({most})")
    if isinstance(phrases, dict) and len(phrases) > (most := settings.max_characters):
        raise HttpError(
            413, f"Invalid request: {len(phrases)} phrases exceed the text limit ({most})"
        )


async def read_body(request: Request, settings: HttpSettings) -> bytes:
    """Read the body of a request.

    Raises:
        HttpError: The body is larger or slower than the settings allow, or has a Content-Encoding
            other than gzip.
    """
    most = settings.max_body_bytes
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", *_GZIP):
        raise HttpError(
            415, f"Content-Encoding is {encoding[:40]!r}; encode the body by gzip or not at all",
            {"Accept-Encoding": "gzip", **_CLOSE},
        )  # fmt: skip
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most:
        raise _too_large(most)
    parts, size = [], 0
    try:
        async with asyncio.timeout(settings.body_timeout):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise _too_large(most)
                parts.append(part)
    except TimeoutError as error:
        raise HttpError(
            408, f"the body did not arrive within {settings.body_timeout:g} s", _CLOSE
        ) from error
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    return _decompressed(body, most) if body and encoding in _GZIP else body


def _decompressed(body: bytes, most: int) -> bytes:
    """Decompress a body, which may be a thousand times larger, up to a number of bytes."""
    parts, size = [], 0
    for _ in range(_MOST_MEMBERS):
        gzip = zlib.decompressobj(zlib.MAX_WBITS | 16)  # 16: with the header of gzip
        try:
            parts.append(gzip.decompress(body, most + 1 - size))
        except zlib.error as error:
            raise HttpError(400, f"invalid gzip body: {error}") from error
        size += len(parts[-1])
        if size > most:
            raise _too_large(most)
        if not gzip.eof:
            raise HttpError(400, "invalid gzip body: it is cut off")
        if not (body := gzip.unused_data):
            return b"".join(parts)
    raise HttpError(400, f"invalid gzip body: it has more than {_MOST_MEMBERS} members")


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"the body is larger than {most} bytes; send several requests", _CLOSE)


def _read_json(body: bytes) -> dict[str, Any]:
    try:
        found = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise HttpError(400, f"Invalid JSON format: {error}") from error
    if not isinstance(found, dict):
        raise HttpError(400, "Invalid JSON format: the body must be an object")
    return found


def _read_pairs(encoded: bytes, kind: type[BaseModel]) -> dict[str, Any]:
    """Read the fields of a URL-encoded form or a query string."""
    try:
        pairs = parse_qsl(
            encoded.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError as error:
        raise HttpError(400, f"Invalid form: {error}") from error
    return _fields(pairs, kind)


async def _read_multipart(request: Request, body: bytes, kind: type[BaseModel]) -> dict[str, Any]:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    _, parameters = parse_options_header(request.headers.get("content-type"))
    # Starlette decodes the fields by any codec of Python. That of punycode takes time that grows
    # with the square of the text's length.
    if parameters.get(b"charset", b"utf-8").lower() != b"utf-8":
        raise HttpError(400, "Invalid form: the charset must be utf-8")
    scope = {key: value for key, value in request.scope.items() if key != "state"}
    again = Request(scope, receive)
    try:
        form = await again.form(max_files=0, max_part_size=len(body) + 1)
    except (MultiPartException, HTTPException, UnicodeError) as error:
        reason = getattr(error, "message", None) or getattr(error, "detail", None) or str(error)
        raise HttpError(400, f"Invalid form: {reason}") from error
    return _fields([(name, value) for name, value in form.multi_items()
                    if isinstance(value, str)], kind)  # fmt: skip


def _fields(pairs: list[tuple[str, str]], kind: type[BaseModel]) -> dict[str, Any]:
    """Return the fields of a form; a field `q` that is repeated is an array."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name == "q" and name in fields and issubclass(kind, TranslateQuery):
            before = fields[name]
            fields[name] = [*before, value] if isinstance(before, list) else [before, value]
        elif name in kind.model_fields:
            fields.setdefault(name, value)
    return fields


def _part(part: int | str, field: int | str) -> str:
    """Return a part of an error's place; keys of objects are text of the client."""
    is_key = field in ("terminology", "options") and part != field
    return repr(str(part)[:40]) if is_key else str(part)


def _problems(error: ValidationError) -> str:
    """Return the first problems of a request, in LibreTranslate's words for a missing field."""
    found = []
    for one in error.errors(include_url=False, include_context=False, include_input=False):
        name = ".".join(_part(part, one["loc"][0]) for part in one["loc"])
        missing = one["type"] == "missing"
        found.append(f"missing {name} parameter" if missing else f"{name}: {one['msg']}")
    return "; ".join(found[:_SHOWN])
