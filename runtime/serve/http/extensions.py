"""Our own API beside LibreTranslate's: /alternatives and /translate/stream."""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.line_names import LineNames
from translate_trt.runtime.results import TextHypothesis
from translate_trt.runtime.serve.http import detection
from translate_trt.runtime.serve.http.api_schema import TRANSLATING, answers, body_of
from translate_trt.runtime.serve.http.http_error import HttpError, as_http_error
from translate_trt.runtime.serve.http.hypotheses import describe_words
from translate_trt.runtime.serve.http.messages import (
    AlternativesAnswer,
    AlternativesQuery,
    StreamQuery,
)
from translate_trt.runtime.serve.http.receiving import receive
from translate_trt.runtime.serve.http.routing import Route, Step
from translate_trt.runtime.serve.http.server_state import (
    AUTO,
    ServerState,
    error_answer,
    json_answer,
)

router = APIRouter(tags=["translate-trt"])

# Proxies such as nginx would collect the events of a stream.
_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@router.post(
    "/alternatives",
    openapi_extra=body_of(AlternativesQuery),
    **answers(AlternativesAnswer, *TRANSLATING),
)
async def alternatives(request: Request) -> Response:
    """Return translations that begin with a prefix and differ in the next token.

    An interactive editor sends the text before the word that a user has clicked.
    """
    begun = time.perf_counter()
    state, query, key = await receive(request, AlternativesQuery)
    size = state.check_texts([query.q, query.prefix], key, query)
    if "\n" in query.q:
        raise HttpError(400, "Invalid request: alternatives are of one sentence without line ends")
    route, _ = find_route(state, query)
    if len(route.hops) != 1:
        # The prefix belongs to the last bundle, whose source would have to be translated first.
        raise HttpError(
            400, "Invalid request: alternatives need a model for this pair of languages"
        )
    wanted = {"alternatives": query.count, "min_alternative_prob": query.min_prob}
    steps = route.steps(query, document=False, num_hypotheses=1, **wanted)
    request.state.log.update(model=route.model, characters=size)
    ((bundle, of_text),) = steps
    prefix = [query.prefix] if query.prefix else None
    of_text = replace(of_text, lines=[query.q], targets=prefix, names=LineNames(["the text"]))
    async with state.translating(request, query, [([size], steps)]):
        (found,) = await state.translation.lines(bundle.service, of_text)
    return json_answer(
        {
            "alternatives": [
                {**_describe(one, query.prefix), **describe_words(query, route, [], one)}
                for one in found.hypotheses
            ],
            "model": route.model,
            "seconds": round(time.perf_counter() - begun, 4),
        }
    )


def _describe(found: TextHypothesis, prefix: str) -> dict[str, Any]:
    # Tokens of the prefix have log-probability 0, the next token its own.
    first = next((value for value in found.token_log_probs if value), 0.0)
    rest = found.text[len(prefix) :] if found.text.startswith(prefix) else found.text
    return {
        "text": found.text,
        "next": rest.split(maxsplit=1)[0] if rest.strip() else "",
        "score": found.score,
        "probability": round(math.exp(first), 6),
    }


@router.post(
    "/translate/stream",
    openapi_extra=body_of(StreamQuery),
    responses={
        200: {
            "description": "Server-sent events: `translation` for each sentence in order, then "
            "`done`; `error` instead if the translation fails",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **{status: one for status, one in answers(str, *TRANSLATING)["responses"].items()
           if status != 200},
    },
)  # fmt: skip
async def stream(request: Request) -> Response:
    """Translate a text and send each sentence as soon as it is translated.

    The events `translation` have `index`, `before` (text between the sentences), `source`, `text`
    and `score`, and `words` and `alignments` if asked for. All `before` and `text`, and `after` of
    the event `done`, make up the translation.
    """
    state, query, key = await receive(request, StreamQuery)
    size = state.check_texts([query.q], key, query)
    route, detected = find_route(state, query)
    steps = route.steps(query)
    request.state.log.update(model=route.model, characters=size)
    events = _events(state, query, route, steps, detected)
    return EventStream(request, state.translating(request, query, [([size], steps)]), events)


class EventStream(Response):
    """Answer of a stream: a refusal, or the events of the translation.

    Args:
        request: The request.
        translating: Context of the translation.
        events: Its events.
        refusal: Makes the answer for an error, whose body is also that of an event.
    """

    def __init__(
        self,
        request: Request,
        translating: AbstractAsyncContextManager[None],
        events: AsyncIterator[bytes],
        refusal: Callable[[HttpError], Response] = error_answer,
    ) -> None:
        super().__init__(headers=_STREAM_HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._request, self._translating, self._events = request, translating, events
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. The answer begins with the first one, so that errors have a status."""
        started = False
        try:
            async with self._translating:
                async for event in self._events:
                    if not started:
                        started = True
                        await send({"type": "http.response.start", "status": 200,
                                    "headers": self.raw_headers})  # fmt: skip
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        except (HttpError, TranslateTrtError) as error:
            wrong = error if isinstance(error, HttpError) else as_http_error(error)
            refused = self._refusal(wrong)
            if not started:
                await refused(scope, receive, send)
                return
            self._request.state.log["error"] = wrong.logged
            event = _event("error", {**json.loads(bytes(refused.body)), "status": wrong.status})
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _events(
    state: ServerState,
    query: StreamQuery,
    route: Route,
    steps: tuple[Step, ...],
    detected: dict[str, Any] | None,
) -> AsyncIterator[bytes]:
    begun = time.perf_counter()
    index = 0
    async for before, source, found in state.translation.stream(query.q, steps):
        if source:
            *others, last = (one.hypotheses[0] for one in found)
            fields = {"index": index, "before": before, "source": source, "text": last.text,
                      "score": last.score}  # fmt: skip
            fields |= describe_words(query, route, others, last)
            yield _event("translation", fields)
            index += 1
        else:
            seconds = round(time.perf_counter() - begun, 4)
            done = {"after": before, "sentences": index, "model": route.model,
                    "seconds": seconds}  # fmt: skip
            if detected is not None:
                done["detectedLanguage"] = detected
            yield _event("done", done)


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(fields, ensure_ascii=False)}\n\n".encode()


def find_route(
    state: ServerState, query: AlternativesQuery | StreamQuery
) -> tuple[Route, dict[str, Any] | None]:
    """Return the route of a request, and the language of its text if it was to be detected.

    Raises:
        HttpError: The languages are unknown, or no bundles join them.
    """
    source, detected = query.source, None
    if source == AUTO:
        (detected,) = state.detect_each(query, [query.q], ["the text"])
        source = detection.source_of(detected, query.target)
    return state.bundles.routes.find(source, query.target, query.model), detected
