"""Translation of the texts of a request, whatever the API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from starlette.requests import Request

from translate_trt.runtime.serve.http import detection
from translate_trt.runtime.serve.http.api_keys import ApiKey
from translate_trt.runtime.serve.http.hypotheses import describe_hypotheses
from translate_trt.runtime.serve.http.messages import TranslateQuery
from translate_trt.runtime.serve.http.routing import Route, Step
from translate_trt.runtime.serve.http.server_state import AUTO, ServerState
from translate_trt.runtime.serve.http.text_translation import SHORT


class _Part(NamedTuple):
    """Texts of one source language: their numbers, and what translates them."""

    numbers: list[int]
    route: Route
    steps: tuple[Step, ...]


async def answer_texts(
    state: ServerState, request: Request, query: TranslateQuery, key: ApiKey | None
) -> dict[str, Any]:
    """Translate the texts of a request.

    Args:
        state: State of the server.
        request: The request.
        query: Its fields.
        key: Its key.

    Returns:
        The answer in LibreTranslate's form; its fields are lists if `q` is one.

    Raises:
        HttpError: The request is beyond a limit, wrong, or late.
        TranslateTrtError: A text cannot be translated.
    """
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
