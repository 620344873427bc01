"""LibreTranslate's API: texts, files, languages, and settings for pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from translate_trt.runtime.files.formats import FORMATS
from translate_trt.runtime.serve.http import detection
from translate_trt.runtime.serve.http.api_keys import ApiKey
from translate_trt.runtime.serve.http.api_schema import (
    TRANSLATING,
    answers,
    body_of,
    form_with_file,
)
from translate_trt.runtime.serve.http.file_job import open_file
from translate_trt.runtime.serve.http.file_store import file_answer
from translate_trt.runtime.serve.http.http_error import HttpError
from translate_trt.runtime.serve.http.hypotheses import describe_hypotheses
from translate_trt.runtime.serve.http.languages import language_name
from translate_trt.runtime.serve.http.messages import (
    DetectedLanguage,
    DetectQuery,
    ErrorAnswer,
    FileAnswer,
    FileQuery,
    Language,
    TranslateAnswer,
    TranslateQuery,
)
from translate_trt.runtime.serve.http.receiving import read_query, read_upload
from translate_trt.runtime.serve.http.routing import Route, Step
from translate_trt.runtime.serve.http.server_state import AUTO, ServerState, json_answer
from translate_trt.runtime.serve.http.text_translation import SHORT

router = APIRouter(tags=["LibreTranslate"])

# Milliseconds after which LibreTranslate's page asks for the translation of what a user types.
_FRONTEND_TIMEOUT = 500


@router.post(
    "/translate", openapi_extra=body_of(TranslateQuery), **answers(TranslateAnswer, *TRANSLATING)
)
async def translate(request: Request) -> Response:
    """Translate a text or an array of texts.

    Texts may have many lines; their line ends and white space stay. Fields beyond LibreTranslate's
    add the n best hypotheses, confidences and alignments.
    """
    begun = time.perf_counter()
    state: ServerState = request.app.state.server
    query = await read_query(request, state.settings, TranslateQuery)
    if query.alignments and query.format == "html":
        raise HttpError(
            400, "Invalid request: alignments are of words without tags; leave out one of "
            "alignments and format html"
        )  # fmt: skip
    key = state.identify(request, query.api_key)
    answer = await _answer(state, request, query, key)
    if "hypotheses" in answer:  # the fields that LibreTranslate's answer has not
        answer["seconds"] = round(time.perf_counter() - begun, 4)
    return json_answer(answer)


class _Part(NamedTuple):
    """Texts of one source language: their numbers, and what translates them."""

    numbers: list[int]
    route: Route
    steps: tuple[Step, ...]


async def _answer(
    state: ServerState, request: Request, query: TranslateQuery, key: ApiKey | None
) -> dict[str, Any]:
    shape: Callable[[list[Any]], Any]  # of each field of the answer
    if isinstance(query.q, str):
        texts, names, shape = [query.q], ["the text"], itemgetter(0)
    else:
        texts, shape = query.q, list
        names = [f"text {number}" for number in range(1, len(texts) + 1)]
    size = state.check_texts(texts, key, query)
    detected, sources = None, [query.source] * len(texts)
    if query.source == AUTO:
        detected = state.detect_each(query, texts, names)
        sources = [detection.source_of(one, query.target) for one in detected]
    count = max(query.num_hypotheses or 1, query.alternatives + 1)
    routes, parts = state.bundles.routes, dict[str, _Part]()
    for number, source in enumerate(sources):
        if source not in parts:
            route = routes.find(source, query.target, query.model)
            parts[source] = _Part([], route, route.steps(query, num_hypotheses=count))
        parts[source].numbers.append(number)
    models = [part.route.model for part in parts.values()]
    request.state.log.update(model=",".join(models), characters=size, texts=len(texts))
    found: list[Any] = [None] * len(texts)
    work = [([len(texts[n]) for n in part.numbers], part.steps) for part in parts.values()]
    async with state.translating(request, query, work):
        for numbers, _, steps in parts.values():
            translated = await state.translation.translate(
                [texts[number] for number in numbers], steps, [names[number] for number in numbers]
            )
            for number, by_steps in zip(numbers, translated, strict=True):
                found[number] = by_steps
        described = None
        named = query.num_hypotheses is not None
        if query.details or named or query.words or query.tokens or query.alignments:
            describe = partial(_described, query, [parts[one].route for one in sources], found)
            # Words and tokens of long texts take seconds, in which others must be answered.
            described = describe() if size <= SHORT else await asyncio.to_thread(describe)
    answer: dict[str, Any] = {"translatedText": shape([by_steps[-1].text for by_steps in found])}
    if detected is not None:
        answer["detectedLanguage"] = shape(detected)
    if query.alternatives:
        answer["alternatives"] = shape(
            [_others(by_steps[-1].hypotheses, query.alternatives) for by_steps in found]
        )
    if described is not None:
        answer["hypotheses"] = shape(described)
        answer["model"] = shape([parts[source].route.model for source in sources])
    return answer


def _described(query: TranslateQuery, routes: list[Route], found: list[Any]) -> list[Any]:
    """Describe the hypotheses of each text."""
    return [
        describe_hypotheses(query, route, by_hops)
        for route, by_hops in zip(routes, found, strict=True)
    ]


def _others(hypotheses: Any, count: int) -> list[str]:
    """Return other texts than the best one, each once."""
    best = hypotheses[0].text
    return list(dict.fromkeys(one.text for one in hypotheses[1:] if one.text != best))[:count]


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
        job = await open_file(state, request, query, key, upload)
        async with state.translating(request, query, job.parts):
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
    state: ServerState = request.app.state.server
    query = await read_query(request, state.settings, DetectQuery)
    key = state.identify(request, query.api_key)
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
