"""Reading of requests within limits: JSON, both kinds of form, query strings, and files."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from python_multipart.multipart import FormParser, parse_options_header
from starlette.requests import Request

from translate_trt.runtime.serve.http.api_keys import ApiKey
from translate_trt.runtime.serve.http.http_error import HttpError
from translate_trt.runtime.serve.http.http_settings import HttpSettings
from translate_trt.runtime.serve.http.server_state import ServerState

_Query = TypeVar("_Query", bound=BaseModel)
_FORM = "application/x-www-form-urlencoded"
_MULTIPART = "multipart/form-data"
_GZIP = ("gzip", "x-gzip")
# Members of a gzip file (RFC 1952, section 2.2); 50,000 empty ones would take a second.
_MOST_MEMBERS = 100
_MOST_FIELDS = 10_000
_MOST_PARTS = 1_000  # of a form in parts, each of which takes a hundred times as long to read
_SHOWN = 3  # problems of a request that the answer names
# The rest of a refused body would otherwise be read first.
_CLOSE = {"Connection": "close"}


async def receive(
    request: Request, kind: type[_Query]
) -> tuple[ServerState, _Query, ApiKey | None]:
    """Read the fields of a request (`read_query`), and count it.

    Returns:
        State of the server, the fields, and the client's key, which is the field `kind.KEY`, or
        else `api_key`.

    Raises:
        HttpError: See `read_query` and `ServerState.identify`.
    """
    state: ServerState = request.app.state.server
    query = await read_query(request, state.settings, kind)
    key = getattr(query, getattr(kind, "KEY", "api_key"), None)
    return state, query, state.identify(request, key)


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
    body = await _read_body(request, settings.max_body_bytes, settings.body_timeout)
    kind_of_body = _kind_of_body(request)
    if body and kind_of_body not in (_FORM, _MULTIPART):
        fields = _read_json(body)
    else:
        fields = _read_pairs(request.scope["query_string"], kind)
        if kind_of_body == _FORM:
            fields |= _read_pairs(body, kind)
        elif kind_of_body == _MULTIPART:
            fields |= _fields(_read_multipart(request, body)[0], kind)
    return _validated(fields, settings, kind)


class Upload(NamedTuple):
    """A file of a form."""

    name: str
    content: bytes


async def read_upload(
    request: Request, settings: HttpSettings, kind: type[_Query], take: Callable[[int], None]
) -> tuple[_Query, Upload]:
    """Read a form with a file, its field `file`, and check the other fields.

    Args:
        request: The request.
        settings: Limits of the body's size and time.
        kind: Class of the query.
        take: Called with numbers of bytes before they are kept in memory.

    Raises:
        HttpError: The body is too large or too slow, or is not such a form.
    """
    body = await _read_body(request, settings.max_file_bytes, settings.timeout, take)
    pairs: list[tuple[str, str]] = []
    uploads: list[Upload] = []
    if _kind_of_body(request) == _MULTIPART:
        pairs, uploads = await asyncio.to_thread(_read_multipart, request, body)
    query = _validated(_fields(pairs, kind), settings, kind)
    if not uploads:
        raise HttpError(400, "Invalid request: missing file parameter")
    return query, uploads[0]


def _kind_of_body(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _validated(fields: dict[str, Any], settings: HttpSettings, kind: type[_Query]) -> _Query:
    # As in LibreTranslate, an empty field is a missing one; `prefix` may be empty by default.
    given = {name: value for name, value in fields.items() if value not in (None, "", [])}
    _check_counts(given, settings, kind)
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise HttpError(400, f"Invalid request: {_problems(error)}") from error


def _check_counts(given: dict[str, Any], settings: HttpSettings, kind: type[BaseModel]) -> None:
    """Refuse too many texts or phrases, before validation makes an error for each wrong one."""
    phrases = given.get("terminology")
    for name, what in ((_repeated(kind), "texts"), ("target", "languages")):
        values = given.get(name)
        if isinstance(values, list) and len(values) > (most := settings.max_texts):
            raise HttpError(413, f"Invalid request: {len(values)} {what} exceed the limit ({most})")
    if isinstance(phrases, dict) and len(phrases) > (most := settings.max_characters):
        raise HttpError(
            413, f"Invalid request: {len(phrases)} phrases exceed the text limit ({most})"
        )


async def _read_body(
    request: Request, most: int, seconds: float, take: Callable[[int], None] | None = None
) -> bytes:
    """Read the body of a request.

    Args:
        request: The request.
        most: Maximum size, measured while decompressing.
        seconds: Time to receive it in.
        take: Called with numbers of bytes before they are kept.

    Raises:
        HttpError: The body is too large or too slow, or has a Content-Encoding other than gzip.
    """
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
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise _too_large(most)
                if take is not None:
                    take(len(part))
                parts.append(part)
    except TimeoutError as error:
        raise HttpError(408, f"the body did not arrive within {seconds:g} s", _CLOSE) from error
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    if not body or encoding not in _GZIP:
        return body
    if take is not None:
        take(most)
    return await asyncio.to_thread(_decompressed, body, most)


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


def _read_multipart(request: Request, body: bytes) -> tuple[list[tuple[str, str]], list[Upload]]:
    """Read the fields of a form in parts, and its files, which are fields called `file`."""
    pairs: list[tuple[str, str]] = []
    uploads: list[Upload] = []

    def check_count() -> None:
        if len(pairs) + len(uploads) == _MOST_PARTS:
            raise HttpError(400, f"Invalid form: it has more than {_MOST_PARTS} parts")

    def add_field(field: Any) -> None:
        check_count()
        pairs.append((field.field_name.decode(), (field.value or b"").decode()))

    def add_file(file: Any) -> None:
        check_count()
        if file.field_name == b"file":
            name = (file.file_name or b"").decode(errors="replace")
            uploads.append(Upload(name, file.file_object.getvalue()))

    _, parameters = parse_options_header(request.headers.get("content-type"))
    # Clients that name another one would otherwise get an answer about other words than theirs.
    if parameters.get(b"charset", b"utf-8").lower() != b"utf-8":
        raise HttpError(400, "Invalid form: the charset must be utf-8")
    in_memory = {"MAX_MEMORY_FILE_SIZE": math.inf}
    try:
        parser = FormParser(
            _MULTIPART, add_field, add_file, boundary=parameters.get(b"boundary"), config=in_memory
        )
        parser.write(body)
        parser.finalize()
    except ValueError as error:  # of the parser, or of UTF-8
        raise HttpError(400, f"Invalid form: {error}") from error
    return pairs, uploads


def _fields(pairs: list[tuple[str, str]], kind: type[BaseModel]) -> dict[str, Any]:
    """Return the fields of a form; the texts of a query are an array if there are several."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name == _repeated(kind) and name in fields:
            before = fields[name]
            fields[name] = [*before, value] if isinstance(before, list) else [before, value]
        elif name in kind.model_fields:
            fields.setdefault(name, value)
    return fields


def _repeated(kind: type[BaseModel]) -> str:
    """Return the name of the field that has several texts; empty if there is none."""
    return getattr(kind, "REPEATED", "")


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
