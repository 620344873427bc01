"""LibreTranslate's API: texts, files, languages, and settings for pages."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from translate_trt.runtime.files.formats import FORMATS
from translate_trt.runtime.serve.http import detection
from translate_trt.runtime.serve.http.api_schema import (
    TRANSLATING,
    answers,
    body_of,
    form_with_file,
)
from translate_trt.runtime.serve.http.file_job import opened
from translate_trt.runtime.serve.http.file_store import file_answer
from translate_trt.runtime.serve.http.http_error import HttpError
from translate_trt.runtime.serve.http.messages import (
    DetectedLanguage,
    DetectQuery,
    ErrorAnswer,
    FileAnswer,
    FileQuery,
    Language,
    TargetsQuery,
    TranslateAnswer,
    TranslationsAnswer,
)
from translate_trt.runtime.serve.http.receiving import read_query, read_upload, receive
from translate_trt.runtime.serve.http.server_state import AUTO, ServerState, json_answer
from translate_trt.runtime.serve.http.text_answer import answer_targets, answer_texts
from translate_trt.runtime.text.languages import language_name

router = APIRouter(tags=["LibreTranslate"])

# Milliseconds after which LibreTranslate's page asks for the translation of what a user types.
_FRONTEND_TIMEOUT = 500


@router.post(
    "/translate",
    openapi_extra=body_of(TargetsQuery),
    **answers(TranslateAnswer | TranslationsAnswer, *TRANSLATING),
)
async def translate(request: Request) -> Response:
    """Translate a text or an array of texts, into one language or several.

    Texts may have many lines; their line ends and white space stay. Fields beyond LibreTranslate's
    add the n best hypotheses, confidences and alignments.
    """
    begun = time.perf_counter()
    state: ServerState = request.app.state.server
    query = await read_query(request, state.settings, TargetsQuery)
    if query.alignments and query.format != "text":
        raise HttpError(
            400, "Invalid request: alignments are of words without tags; leave out one of "
            f"alignments and format {query.format}"
        )  # fmt: skip
    key = state.identify(request, query.api_key)
    if isinstance(query.target, str):
        answer = await answer_texts(state, request, query, key)
    else:
        answer = await answer_targets(state, request, query, query.target, key)
    if {"hypotheses", "translations"} & answer.keys():  # an answer beyond LibreTranslate's
        answer["seconds"] = round(time.perf_counter() - begun, 4)
    return json_answer(answer)


@router.post(
    "/translate_file",
    openapi_extra=form_with_file(FileQuery),
    **answers(FileAnswer, *TRANSLATING),
)
async def translate_file(request: Request) -> Response:
    """Translate a file and keep its format; the answer says where to download it."""
    state: ServerState = request.app.state.server
    with state.files.receiving() as take:
        query, upload = await read_upload(request, state.settings, FileQuery, take)
        key = state.identify(request, query.api_key)
        async with (
            opened(state, request, query, key, upload) as job,
            state.translating(request, query, job.parts),
        ):
            name = state.files.add(await job.translate(state))
    return json_answer({"translatedFileUrl": f"{request.base_url}download_file/{quote(name)}"})


@router.get(
    "/download_file/{name}",
    responses={200: {"content": {"application/octet-stream": {}}},
               404: {"model": ErrorAnswer, "description": "There is no such file any longer"}},
)  # fmt: skip
async def download_file(request: Request) -> Response:
    """Return a translated file, as an attachment that browsers do not show."""
    state: ServerState = request.app.state.server
    file = state.files.find(request.path_params["name"])
    if file is None:
        raise HttpError(404, "there is no such file; files are kept for half an hour")
    return file_answer(file)


@router.post(
    "/detect",
    openapi_extra=body_of(DetectQuery),
    **answers(list[DetectedLanguage], 400, 403, 408, 413, 415, 429, 501, 503),
)
async def detect(request: Request) -> Response:
    """Detect the language of a text, preferably as one of the server's source languages."""
    state, query, key = await receive(request, DetectQuery)
    state.check_texts([query.q], key)
    return json_answer(state.detect(query.q))


@router.get("/languages", **answers(list[Language], 503))
async def languages(request: Request) -> Response:
    """Return the languages, each with those that it is translated into; some are only targets."""
    state: ServerState = request.app.state.server
    return json_answer(state.bundles.routes.described)


@router.get("/frontend/settings", responses={503: {"description": "Not loaded yet"}})
async def frontend_settings(request: Request) -> Response:
    """Return the settings that a page needs, in LibreTranslate's form."""
    state: ServerState = request.app.state.server
    settings, routes = state.settings, state.bundles.routes
    source = routes.sources[0]
    target = next((one for one in routes.targets if one != source), source)
    return json_answer(
        {
            "charLimit": settings.max_characters,
            "frontendTimeout": _FRONTEND_TIMEOUT,
            "apiKeys": settings.api_keys is not None,
            "keyRequired": settings.require_api_key,
            "suggestions": False,
            "filesTranslation": True,
            "supportedFilesFormat": sorted(FORMATS),
            "language": {
                "source": {"code": AUTO, "name": "Auto Detect"}
                if detection.available()
                else {"code": source, "name": language_name(source)},
                "target": {"code": target, "name": language_name(target)},
            },
        }
    )


@router.post("/suggest", **answers(dict[str, Any], 403))
async def suggest(request: Request) -> Response:
    """Refuse suggestions, which this server does not collect."""
    raise HttpError(403, "Suggestions are disabled on this server.")
