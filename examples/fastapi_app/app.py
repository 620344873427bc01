"""An HTTP service around `TranslationService`.

BUNDLE=bundle/ uvicorn app:app --host 127.0.0.1 --port 8000
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from translate_trt.runtime import (
    BackendError,
    InputError,
    OptionError,
    TranslationService,
    Translator,
)

BUNDLE = os.environ.get("BUNDLE", "bundle")
TARGET = os.environ.get("TARGET")  # None: the bundle's first
CAPACITY = int(os.environ.get("CAPACITY", "256"))  # lines in the service; more are refused


class Query(BaseModel):
    """Lines to translate."""

    lines: list[str] = Field(min_length=1, max_length=64)
    beam_size: int | None = None
    timeout: float = Field(default=10.0, gt=0, le=60)  # seconds


class Answer(BaseModel):
    """Translations and scores in the order of the lines."""

    translations: list[str]
    scores: list[float]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the bundle before the first request; finish lines in flight before the process ends."""
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    translator = await asyncio.to_thread(Translator, BUNDLE, TARGET, workers=workers, threads=1)
    app.state.translator = translator
    app.state.service = TranslationService(translator)
    app.state.in_flight = 0
    yield
    await asyncio.to_thread(app.state.service.close)
    translator.close()


app = FastAPI(title="translate-trt", lifespan=lifespan)


@app.post("/translate")
async def translate(query: Query, request: Request) -> Answer:
    """Translate lines, which share batches with those of all other requests."""
    state = request.app.state
    service: TranslationService = state.service
    if state.in_flight + len(query.lines) > CAPACITY:
        raise HTTPException(429, "at capacity", headers={"Retry-After": "1"})
    options = state.translator.default_options
    number = service.new_request()  # its lines share turns, and can be cancelled together
    state.in_flight += len(query.lines)
    try:
        if query.beam_size is not None:
            options = dataclasses.replace(options, beam_size=query.beam_size)
        futures = [service.submit(line, options, request=number) for line in query.lines]
        waiting = asyncio.gather(*map(asyncio.wrap_future, futures))
        found = await asyncio.wait_for(waiting, query.timeout)
    except (InputError, OptionError) as error:
        service.cancel(number)
        raise HTTPException(422, str(error)) from error
    except TimeoutError as error:
        service.cancel(number)
        raise HTTPException(504, f"not translated within {query.timeout:g} s") from error
    except BackendError as error:
        service.cancel(number)
        raise HTTPException(500, str(error)) from error
    finally:
        state.in_flight -= len(query.lines)
    return Answer(translations=[t.text for t in found], scores=[t.score for t in found])


@app.get("/health")
async def health(request: Request) -> dict[str, int | str]:
    """Answer 200 while the service translates, 503 once one of its threads has died."""
    service: TranslationService = request.app.state.service
    if service.failed:
        raise HTTPException(503, "the service has failed; restart it")
    return {"status": "ok", **dataclasses.asdict(service.statistics())}
