"""DeepL's API, version 2: texts, documents, glossaries, languages and usage.

Clients such as the package `deepl` work with the server's address as their `server_url`. Languages
are those of the server, in capitals; a region that no bundle has is left out, so that EN-GB is
English. Options without a meaning here are ignored; a formality that must be kept, several
glossaries and another format of a document are refused.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.serve.http import detection
from translate_trt.runtime.serve.http.api_keys import ApiKey
from translate_trt.runtime.serve.http.api_schema import (
    TRANSLATING,
    answers,
    body_of,
    form_with_file,
)
from translate_trt.runtime.serve.http.deepl_store import Document, StoredGlossary
from translate_trt.runtime.serve.http.file_job import FileJob, opened
from translate_trt.runtime.serve.http.file_store import file_answer
from translate_trt.runtime.serve.http.http_error import ApiKeyError, HttpError, as_http_error
from translate_trt.runtime.serve.http.messages import FileQuery, TranslateQuery
from translate_trt.runtime.serve.http.receiving import read_upload, receive
from translate_trt.runtime.serve.http.server_state import AUTO, ServerState, json_answer
from translate_trt.runtime.serve.http.text_answer import answer_texts
from translate_trt.runtime.text.languages import language_name

router = APIRouter(prefix="/v2", tags=["DeepL"])

# Targets that DeepL's clients choose, instead of the language without a region.
_VARIANTS = {"en": ("EN-GB", "EN-US"), "pt": ("PT-BR", "PT-PT")}
# DeepL's number for no limit.
_UNLIMITED = 10**12
# Seconds that an upload waits for its translation: clients look again after 5 s.
_WAIT = 1.0
_ERRORS = (400, 403, 408, 413, 415, 429, 503)


class _KeyQuery(BaseModel):
    KEY: ClassVar[str] = "auth_key"

    auth_key: str | None = Field(default=None, max_length=512, description="API key")


class _Languages(_KeyQuery):
    source_lang: str | None = Field(default=None, description="Source language [detected]")
    target_lang: str = Field(description="Target language")
    glossary_id: str | None = Field(default=None, description="Glossary to use")
    glossary_ids: str | list[str] | None = Field(default=None, description="Refused")
    formality: Literal["default", "prefer_more", "prefer_less"] = "default"


class TextsQuery(_Languages):
    """Texts in DeepL's form."""

    REPEATED: ClassVar[str] = "text"

    text: str | list[str] = Field(description="Text or texts")
    tag_handling: Literal["html", "xml"] | None = None


class DocumentQuery(_Languages):
    """A document in DeepL's form."""

    filename: str | None = Field(default=None, description="Name of the file, with its suffix")
    output_format: str | None = Field(default=None, description="Suffix that the answer must have")


class HandleQuery(_KeyQuery):
    """The key of a document."""

    document_key: str


class LanguagesQuery(_KeyQuery):
    """A question for languages."""

    type: Literal["source", "target"] = "source"


class GlossaryQuery(_KeyQuery):
    """A new glossary."""

    name: str
    source_lang: str
    target_lang: str
    entries: str
    entries_format: Literal["tsv", "csv"]


def refusal(error: HttpError) -> Response:
    """Return the answer for an error in DeepL's form."""
    status = 403 if isinstance(error, ApiKeyError) else error.status
    return json_answer({"message": error.message}, status, error.headers)


@router.post(
    "/translate", openapi_extra=body_of(TextsQuery), **answers(dict[str, Any], *TRANSLATING)
)
async def translate(request: Request) -> Response:
    """Translate texts as DeepL does."""
    state, query, key = await receive(request, TextsQuery)
    texts = [query.text] if isinstance(query.text, str) else query.text
    of_texts = TranslateQuery.model_validate(
        {"q": texts, "format": query.tag_handling or "text", **_fields(state, request, query, key)}
    )
    answer = await answer_texts(state, request, of_texts, key)
    state.deepl.characters[_name(key)] += sum(map(len, texts))
    sources = [of_texts.source.upper()] * len(texts)
    if of_texts.source == AUTO:
        found = answer["detectedLanguage"]
        sources = [detection.source_of(one, query.target_lang).upper() for one in found]
    return json_answer(
        {
            "translations": [
                {"detected_source_language": source, "text": text, "billed_characters": len(given)}
                for source, text, given in zip(
                    sources, answer["translatedText"], texts, strict=True
                )
            ]
        }
    )


@router.get("/languages", **answers(list[dict[str, Any]], *_ERRORS))
@router.post("/languages", **answers(list[dict[str, Any]], *_ERRORS))
async def languages(request: Request) -> Response:
    """Return the source or target languages in DeepL's form."""
    state, query, _ = await receive(request, LanguagesQuery)
    routes = state.bundles.routes
    codes: list[str] = [code.upper() for code in routes.sources]
    extra: dict[str, Any] = {}
    if query.type == "target":
        codes = [one for code in routes.targets for one in _VARIANTS.get(code, (code.upper(),))]
        extra = {"supports_formality": False}
    found = [{"language": code, "name": language_name(code), **extra} for code in codes]
    return json_answer(found)


@router.get("/usage", **answers(dict[str, Any], *_ERRORS))
@router.post("/usage", **answers(dict[str, Any], *_ERRORS))
async def usage(request: Request) -> Response:
    """Return the number of characters translated with a key since the server has started."""
    state, _, key = await receive(request, _KeyQuery)
    count = state.deepl.characters[_name(key)]
    return json_answer({"character_count": count, "character_limit": _UNLIMITED})


# ---- documents ----


@router.post(
    "/document",
    openapi_extra=form_with_file(DocumentQuery),
    **answers(dict[str, Any], *TRANSLATING),
)
async def document(request: Request) -> Response:
    """Begin to translate a document."""
    state: ServerState = request.app.state.server
    async with AsyncExitStack() as stack:
        take = stack.enter_context(state.files.receiving())
        query, upload = await read_upload(request, state.settings, DocumentQuery, take)
        key = state.identify(request, query.auth_key)
        if query.filename:
            upload = upload._replace(name=query.filename)
        of_file = FileQuery.model_validate(_fields(state, request, query, key))
        job = await stack.enter_async_context(opened(state, request, of_file, key, upload))
        suffixes = job.format.suffixes
        if job.format.output_suffix is not None:
            suffixes = (job.format.output_suffix,)
        if query.output_format and f".{query.output_format.lower()}" not in suffixes:
            raise HttpError(400, f"output_format: the translation of this file is {suffixes[0]}")
        work = _translate_document(state, of_file, job, stack.pop_all())
        task = asyncio.create_task(work)
    characters = request.state.log["characters"]
    await asyncio.wait({task}, timeout=_WAIT)
    if task.done() and (error := task.exception()) is not None:
        raise error
    state.deepl.characters[_name(key)] += characters
    number, secret = state.deepl.add_document(characters, task)
    return json_answer({"document_id": number, "document_key": secret})


async def _translate_document(
    state: ServerState, query: FileQuery, job: FileJob, upload: AsyncExitStack
) -> str:
    """Translate a document whose client does not wait; return its name in the file store."""
    async with upload, state.translating(None, query, job.parts):
        return state.files.add(await job.translate(state))


@router.post("/document/{number}", **answers(dict[str, Any], *_ERRORS))
async def document_status(request: Request) -> Response:
    """Return the state of a document."""
    _, number, found = await _document(request)
    if not found.task.done():
        status: dict[str, Any] = {"status": "translating", "seconds_remaining": 5}
    elif (error := found.task.exception()) is None:
        status = {"status": "done", "billed_characters": found.characters}
    else:
        if isinstance(error, TranslateTrtError):
            error = as_http_error(error)
        message = error.message if isinstance(error, HttpError) else "the translation failed"
        status = {"status": "error", "error_message": message}
    return json_answer({"document_id": number, **status})


@router.post(
    "/document/{number}/result",
    responses={200: {"content": {"application/octet-stream": {}}}},
)
async def document_result(request: Request) -> Response:
    """Return a translated document, which is then forgotten."""
    state, number, found = await _document(request)
    if not found.task.done():
        raise HttpError(503, "the document is not translated yet")
    if found.task.exception() is not None:
        raise HttpError(404, "the translation of the document failed")
    file = state.files.find(name := found.task.result())
    if file is None:
        raise HttpError(404, "the document has been forgotten")
    state.files.remove(name)
    state.deepl.remove_document(number)
    return file_answer(file)


async def _document(request: Request) -> tuple[ServerState, str, Document]:
    """Return the state of the server, and the id and the document that a request names."""
    state, query, _ = await receive(request, HandleQuery)
    number = request.path_params["number"]
    return state, number, state.deepl.document(number, query.document_key)


# ---- glossaries ----


@router.post(
    "/glossaries",
    openapi_extra=body_of(GlossaryQuery),
    **answers(dict[str, Any], *_ERRORS),
)
async def new_glossary(request: Request) -> Response:
    """Keep a glossary until the server ends."""
    state, query, key = await receive(request, GlossaryQuery)
    state.check_texts([query.entries], key)
    owner, entries = _owner(request, key), _entries(query)
    number = state.deepl.add_glossary(
        owner, query.name, query.source_lang, query.target_lang, entries
    )
    return json_answer(_describe(number, state.deepl.glossary(owner, number)), 201)


@router.get("/glossaries", **answers(dict[str, Any], *_ERRORS))
async def glossaries(request: Request) -> Response:
    """Return the client's glossaries."""
    state, _, key = await receive(request, _KeyQuery)
    found = state.deepl.glossaries(_owner(request, key))
    return json_answer({"glossaries": [_describe(*one) for one in found.items()]})


@router.get("/glossaries/{number}", **answers(dict[str, Any], *_ERRORS))
async def glossary(request: Request) -> Response:
    """Return a glossary without its entries."""
    state, _, key = await receive(request, _KeyQuery)
    number = request.path_params["number"]
    return json_answer(_describe(number, state.deepl.glossary(_owner(request, key), number)))


@router.get(
    "/glossaries/{number}/entries", responses={200: {"content": {"text/tab-separated-values": {}}}}
)
async def glossary_entries(request: Request) -> Response:
    """Return the entries of a glossary as tab-separated values."""
    state, _, key = await receive(request, _KeyQuery)
    found = state.deepl.glossary(_owner(request, key), request.path_params["number"])
    lines = "\n".join(f"{source}\t{target}" for source, target in found.entries.items())
    return Response(lines, media_type="text/tab-separated-values")


@router.delete("/glossaries/{number}", status_code=204)
async def delete_glossary(request: Request) -> Response:
    """Forget a glossary."""
    state, _, key = await receive(request, _KeyQuery)
    state.deepl.remove_glossary(_owner(request, key), request.path_params["number"])
    return Response(status_code=204)


@router.get("/glossary-language-pairs", **answers(dict[str, Any], *_ERRORS))
async def glossary_language_pairs(request: Request) -> Response:
    """Return the pairs of languages, all of which glossaries may have."""
    state, _, _ = await receive(request, _KeyQuery)
    found = [
        {"source_lang": one["code"], "target_lang": target}
        for one in state.bundles.routes.described
        for target in one["targets"]
    ]
    return json_answer({"supported_languages": found})


def _describe(number: str, glossary: StoredGlossary) -> dict[str, Any]:
    return {
        "glossary_id": number,
        "name": glossary.name,
        "ready": True,
        "source_lang": glossary.source.lower(),
        "target_lang": glossary.target.lower(),
        "creation_time": glossary.created,
        "entry_count": len(glossary.entries),
    }


def _entries(query: GlossaryQuery) -> dict[str, str]:
    """Return the entries of a new glossary.

    Raises:
        HttpError: There are none, or a line is wrong.
    """
    comma = query.entries_format == "csv"
    quoting: Any = csv.QUOTE_MINIMAL if comma else csv.QUOTE_NONE
    lines = io.StringIO(query.entries, newline="")
    entries: dict[str, str] = {}
    try:
        for number, row in enumerate(
            csv.reader(lines, delimiter="," if comma else "\t", quoting=quoting), 1
        ):
            if not row:
                continue
            pair = [one.strip() for one in row[:2]]
            if not all(pair) or len(pair) < 2 or pair[0] in entries:
                raise HttpError(
                    400, f"entries: line {number} is no pair of phrases, or repeats one"
                )
            entries[pair[0]] = pair[1]
    except csv.Error as error:
        raise HttpError(400, f"entries: {error}") from error
    if not entries:
        raise HttpError(400, "entries: there are none")
    return entries


# ---- what all of them share ----


def _name(key: ApiKey | None) -> str:
    return "" if key is None else key.name


def _owner(request: Request, key: ApiKey | None) -> str:
    """Return the owner of glossaries, by what the client sends even if the server has no keys."""
    given = request.headers.get("authorization", "") if key is None else key.sha256
    return hashlib.sha256(given.encode()).hexdigest()


def _fields(
    state: ServerState, request: Request, query: _Languages, key: ApiKey | None
) -> dict[str, Any]:
    """Return the fields of our own query.

    Raises:
        HttpError: There is no such glossary, its languages are others, or there are several.
    """
    if query.glossary_ids is not None:
        raise HttpError(400, "glossary_ids: a text has one glossary; name it by glossary_id")
    fields: dict[str, Any] = {"source": query.source_lang or AUTO, "target": query.target_lang}
    if query.glossary_id is not None:
        found = state.deepl.glossary(_owner(request, key), query.glossary_id)
        wanted = [_base(query.source_lang or ""), _base(query.target_lang)]
        if wanted != [_base(found.source), _base(found.target)]:
            raise HttpError(400, "the glossary is for other languages; source_lang must be given")
        fields["terminology"] = found.entries
    return fields


def _base(code: str) -> str:
    return code.lower().partition("-")[0]
