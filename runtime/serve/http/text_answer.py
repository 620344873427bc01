"""Translation of the texts of a request, whatever the API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from starlette.requests import Request

from translate_trt.runtime.results import Translation
from translate_trt.runtime.serve.http import detection
from translate_trt.runtime.serve.http.api_keys import ApiKey
from translate_trt.runtime.serve.http.http_error import HttpError
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
    (answer,) = await _answers(state, request, [query], key)
    return answer


async def answer_targets(
    state: ServerState,
    request: Request,
    query: TranslateQuery,
    targets: Sequence[str],
    key: ApiKey | None,
) -> dict[str, Any]:
    """Translate the texts of a request into several languages; see `answer_texts`.

    Returns:
        Answers by target language.
    """
    codes = [*dict.fromkeys(targets)]
    if query.terminology and len(codes) > 1:
        raise HttpError(400, "Invalid request: terminology has phrases of one target language")
    queries = [query.model_copy(update={"target": code}) for code in codes]
    answers = await _answers(state, request, queries, key)
    return {"translations": dict(zip(codes, answers, strict=True))}


async def _answers(
    state: ServerState, request: Request, queries: Sequence[TranslateQuery], key: ApiKey | None
) -> list[dict[str, Any]]:
    """Answer queries that differ in the target language alone, as one request."""
    query = queries[0]
    shape: Callable[[list[Any]], Any]  # of each field of the answer
    if isinstance(query.q, str):
        texts, names, shape = [query.q], ["the text"], itemgetter(0)
    else:
        texts, shape = query.q, list
        names = [f"text {number}" for number in range(1, len(texts) + 1)]
    if (count := len(texts) * len(queries)) > (most := state.settings.max_texts):
        raise HttpError(413, f"Invalid request: {count} translations exceed the limit ({most})")
    size = state.check_texts(texts * len(queries), key, query)
    detected = state.detect_each(query, texts, names) if query.source == AUTO else None
    plans = [_parts(state, one, texts, detected) for one in queries]
    models = [part.route.model for parts in plans for part in parts.values()]
    request.state.log.update(model=",".join(models), characters=size, texts=count)
    work = [
        ([len(texts[number]) for number in part.numbers], part.steps)
        for parts in plans
        for part in parts.values()
    ]
    answers = []
    async with state.translating(request, query, work):
        for one, parts in zip(queries, plans, strict=True):
            found: list[Any] = [None] * len(texts)  # of each text: its route, and its translations
            for numbers, route, steps in parts.values():
                translated = await state.translation.translate(
                    [texts[number] for number in numbers], steps, [names[n] for n in numbers]
                )
                for number, by_steps in zip(numbers, translated, strict=True):
                    found[number] = route, by_steps
            answer = {"translatedText": shape([by_steps[-1].text for _, by_steps in found])}
            if detected is not None:
                answer["detectedLanguage"] = shape(detected)
            if one.alternatives:
                answer["alternatives"] = shape(
                    [_others(by_steps[-1].hypotheses, one.alternatives) for _, by_steps in found]
                )
            named = one.num_hypotheses is not None
            if one.details or named or one.words or one.tokens or one.alignments:
                describe = partial(_described, one, found)
                # Words and tokens of long texts take seconds, in which others must be answered.
                described = describe() if size <= SHORT else await asyncio.to_thread(describe)
                models = [route.model for route, _ in found]
                answer |= {"hypotheses": shape(described), "model": shape(models)}
            answers.append(answer)
    return answers


def _parts(
    state: ServerState,
    query: TranslateQuery,
    texts: Sequence[str],
    detected: Sequence[dict[str, Any]] | None,
) -> dict[str, _Part]:
    """Return the texts of each source language, and what translates them."""
    sources = [query.source] * len(texts)
    if detected is not None:
        sources = [detection.source_of(one, query.target) for one in detected]
    count = max(query.num_hypotheses or 1, query.alternatives + 1)
    parts = dict[str, _Part]()
    for number, source in enumerate(sources):
        if source not in parts:
            route = state.bundles.routes.find(source, query.target, query.model)
            parts[source] = _Part([], route, route.steps(query, num_hypotheses=count))
        parts[source].numbers.append(number)
    return parts


def _described(query: TranslateQuery, found: list[tuple[Route, list[Translation]]]) -> list[Any]:
    """Describe the hypotheses of each text."""
    return [describe_hypotheses(query, route, by_hops) for route, by_hops in found]


def _others(hypotheses: Any, count: int) -> list[str]:
    """Return other texts than the best one, each once."""
    best = hypotheses[0].text
    return list(dict.fromkeys(one.text for one in hypotheses[1:] if one.text != best))[:count]
