"""LibreTranslate's API: /translate, /detect, /languages, /frontend/settings, /suggest."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from translate_trt.runtime.serve.http import detection
from translate_trt.runtime.serve.http.api_schema import TRANSLATING, answers, body_of
from translate_trt.runtime.serve.http.http_error import HttpError
from translate_trt.runtime.serve.http.hypotheses import describe_hypotheses
from translate_trt.runtime.serve.http.languages import language_name
from translate_trt.runtime.serve.http.messages import (
    DetectedLanguage,
    DetectQuery,
    Language,
    TranslateAnswer,
    TranslateQuery,
)
from translate_trt.runtime.serve.http.receiving import read_query
from translate_trt.runtime.serve.http.routing import Route
from translate_trt.runtime.serve.http.server_state import (
    AUTO,
    ServerState,
    answering,
    json_answer,
)
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
    texts = query.texts
    size = state.check_texts(texts, key, query)
    answer = await _answer(state, request, query, texts, size)
    if query.hypotheses_wanted:
        answer["seconds"] = round(time.perf_counter() - begun, 4)
    return json_answer(answer)


async def _answer(
    state: ServerState, request: Request, query: TranslateQuery, texts: list[str], size: int
) -> dict[str, Any]:
    names = ["the text"]
    if isinstance(query.q, list):
        names = [f"text {number}" for number in range(1, len(texts) + 1)]
    detected = None
    sources = [query.source] * len(texts)
    if query.source == AUTO:
        detected = state.detect_each(query, texts, names)
        sources = [detection.source_of(one, query.target) for one in detected]
    count = max(query.num_hypotheses or 1, query.alternatives + 1)
    routes = state.bundles.routes
    works = {}
    for source in dict.fromkeys(sources):
        route = routes.find(source, query.target, query.model)
        work = state.work(query, route, num_hypotheses=count)
        if query.alignments or query.format == "html":
            markup = "html" if query.format == "html" else None
            work = replace(work, alignments=query.alignments, markup=markup)
        works[source] = work
    request.state.log.update(
        model=",".join(work.route.model for work in works.values()), characters=size,
        texts=len(texts),
    )  # fmt: skip
    found: list[Any] = [None] * len(texts)
    numbers = {
        source: [number for number, one in enumerate(sources) if one == source] for source in works
    }
    async with answering(request, state.deadline(query)):
        with ExitStack() as stack:
            for source, work in works.items():
                sizes = [len(texts[number]) for number in numbers[source]]
                stack.enter_context(state.admitted(sizes, work))
            for source, work in works.items():
                own = [texts[number] for number in numbers[source]]
                of_own = [names[number] for number in numbers[source]]
                translated = await state.translation.translate(own, work, of_own)
                for number, by_hops in zip(numbers[source], translated, strict=True):
                    found[number] = by_hops
        described = None
        if query.hypotheses_wanted:
            describe = partial(_described, query, [works[one].route for one in sources], found)
            # Words and tokens of long texts take seconds, in which others must be answered.
            described = describe() if size <= SHORT else await asyncio.to_thread(describe)
    shape = _of_array if isinstance(query.q, list) else _of_one
    answer: dict[str, Any] = {"translatedText": shape([by_hops[-1].text for by_hops in found])}
    if detected is not None:
        answer["detectedLanguage"] = shape(detected)
    if query.alternatives:
        answer["alternatives"] = shape(
            [_others(by_hops[-1].hypotheses, query.alternatives) for by_hops in found]
        )
    if described is not None:
        answer["hypotheses"] = shape(described)
        answer["model"] = shape([works[source].route.model for source in sources])
    return answer


def _described(query: TranslateQuery, routes: list[Route], found: list[Any]) -> list[Any]:
    """Describe the hypotheses of each text."""
    return [
        describe_hypotheses(query, route, by_hops)
        for route, by_hops in zip(routes, found, strict=True)
    ]


def _of_one(values: list[Any]) -> Any:
    return values[0]


def _of_array(values: list[Any]) -> Any:
    return values


def _others(hypotheses: Any, count: int) -> list[str]:
    """Return other texts than the best one, each once."""
    best = hypotheses[0].text
    return list(dict.fromkeys(one.text for one in hypotheses[1:] if one.text != best))[:count]


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
            "filesTranslation": False,
            "supportedFilesFormat": [],
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
