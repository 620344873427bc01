"""Google's Cloud Translation API, version 2 ("Basic"): texts, languages and detection.

The client of `google-cloud-translate` works with the server's address as its `api_endpoint`. A key
is the parameter `key`, as for Google. Texts are HTML unless `format` is "text", as for Google, too.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from translate_trt.runtime.serve.http.api_keys import ApiKey
from translate_trt.runtime.serve.http.api_schema import TRANSLATING, answers, body_of
from translate_trt.runtime.serve.http.http_error import ApiKeyError, HttpError
from translate_trt.runtime.serve.http.messages import TranslateQuery
from translate_trt.runtime.serve.http.receiving import read_query
from translate_trt.runtime.serve.http.server_state import AUTO, ServerState, json_answer
from translate_trt.runtime.serve.http.text_answer import answer_texts
from translate_trt.runtime.text.languages import language_name

router = APIRouter(prefix="/language/translate/v2", tags=["Google"])

_STATUS = {
    400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED", 501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
_ERRORS = (400, 403, 408, 413, 415, 429, 501, 503)


class _KeyQuery(BaseModel):
    key: str | None = Field(default=None, max_length=512, description="API key")


class DetectionsQuery(_KeyQuery):
    """Texts whose languages are asked for, in Google's form."""

    REPEATED: ClassVar[str] = "q"

    q: str | list[str] = Field(description="Text or texts")


class TextsQuery(DetectionsQuery):
    """Texts in Google's form."""

    target: str = Field(description="Target language")
    source: str | None = Field(default=None, description="Source language [detected]")
    format: Literal["html", "text"] = Field(default="html", description="Format of the texts")


def refusal(error: HttpError) -> Response:
    """Return the answer for an error in Google's form."""
    code = 403 if isinstance(error, ApiKeyError) else error.status
    described = {
        "code": code,
        "message": error.message,
        "errors": [{"message": error.message, "domain": "global", "reason": "invalid"}],
        "status": _STATUS.get(code, "INTERNAL" if code >= 500 else "FAILED_PRECONDITION"),
    }
    return json_answer({"error": described}, code, error.headers)


@router.get("", **answers(dict[str, Any], *TRANSLATING))
@router.post("", openapi_extra=body_of(TextsQuery), **answers(dict[str, Any], *TRANSLATING))
async def translate(request: Request) -> Response:
    """Translate texts as Google does."""
    state: ServerState = request.app.state.server
    query = await read_query(request, state.settings, TextsQuery)
    key = _identify(state, request, query)
    texts = [query.q] if isinstance(query.q, str) else query.q
    source = query.source or AUTO
    of_texts = TranslateQuery(q=texts, source=source, target=query.target, format=query.format)
    answer = await answer_texts(state, request, of_texts, key)
    found = [{"translatedText": text} for text in answer["translatedText"]]
    for one, detected in zip(found, answer.get("detectedLanguage", ()), strict=False):
        one["detectedSourceLanguage"] = detected["language"]
    return json_answer({"data": {"translations": found}})


@router.get("/languages", **answers(dict[str, Any], *_ERRORS))
@router.post("/languages", **answers(dict[str, Any], *_ERRORS))
async def languages(request: Request) -> Response:
    """Return the languages, with their names in English."""
    state: ServerState = request.app.state.server
    _identify(state, request, await read_query(request, state.settings, _KeyQuery))
    codes = state.bundles.routes.languages
    found = [{"language": code, "name": language_name(code)} for code in codes]
    return json_answer({"data": {"languages": found}})


@router.get("/detect", **answers(dict[str, Any], *_ERRORS))
@router.post("/detect", openapi_extra=body_of(DetectionsQuery), **answers(dict[str, Any], *_ERRORS))
async def detect(request: Request) -> Response:
    """Return the most likely language of each text."""
    state: ServerState = request.app.state.server
    query = await read_query(request, state.settings, DetectionsQuery)
    key = _identify(state, request, query)
    texts = [query.q] if isinstance(query.q, str) else query.q
    state.check_texts(texts, key)
    found = []
    for text in texts:
        best = state.detect(text)[0]
        share = best["confidence"] / 100
        found.append([{"language": best["language"], "confidence": share, "isReliable": False}])
    return json_answer({"data": {"detections": found}})


def _identify(state: ServerState, request: Request, query: _KeyQuery) -> ApiKey | None:
    """Return the key of a request, which clients also send beside JSON or in a header."""
    given = query.key or request.query_params.get("key") or request.headers.get("x-goog-api-key")
    return state.identify(request, given)
