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
    Glossary,
    InputError,
    OptionError,
    TranslationService,
    Translator,
)
from translate_trt.runtime.text.glossary import Entry

BUNDLE = os.environ.get("BUNDLE", "bundle")
TARGET = os.environ.get("TARGET")  # None: the bundle's first
CAPACITY = int(os.environ.get("CAPACITY", "256"))  # searches in the service; more are refused


class Query(BaseModel):
    """Lines to translate.

    With `alternatives`, a line has a translation for each of the most likely tokens after its
    prefix: what a user may choose from at a position of an earlier translation. A `terminology`
    has the phrases that translations must use (docs/terminology.md).
    """

    lines: list[str] = Field(min_length=1, max_length=64)
    target_prefixes: list[str] | None = None  # text that each translation must begin with
    alternatives: int = Field(default=0, ge=0, le=16)
    beam_size: int | None = None
    terminology: dict[str, str] = Field(default_factory=dict, max_length=10_000)
    timeout: float = Field(default=10.0, gt=0, le=60)  # seconds


class Answer(BaseModel):
    """Translations and scores in the order of the lines, and all alternatives of each.

    With a terminology, `missing_terms` has the source phrases of each line whose target phrases the
    translation lacks.
    """

    translations: list[str]
    scores: list[float]
    alternatives: list[list[str]] | None = None
    missing_terms: list[list[str]] | None = None


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
    prefixes = query.target_prefixes or [""] * len(query.lines)
    if len(prefixes) != len(query.lines):
        raise HTTPException(422, f"{len(prefixes)} target_prefixes for {len(query.lines)} lines")
    size = len(query.lines) * (1 + query.alternatives)  # searches
    if state.in_flight + size > CAPACITY:
        raise HTTPException(429, "at capacity", headers={"Retry-After": "1"})
    options = dataclasses.replace(state.translator.default_options, alternatives=query.alternatives)
    glossary = None
    number = service.new_request()  # its lines share turns, and can be cancelled together
    state.in_flight += size
    try:
        if query.beam_size is not None:
            options = dataclasses.replace(options, beam_size=query.beam_size)
        if query.terminology:
            entries = (Entry(source, (target,)) for source, target in query.terminology.items())
            glossary = Glossary(entries)
        futures = [
            service.submit(line, options, prefix, request=number, terminology=glossary)
            for line, prefix in zip(query.lines, prefixes, strict=True)
        ]
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
        state.in_flight -= size
    return Answer(
        translations=[one.text for one in found],
        scores=[one.score for one in found],
        alternatives=[[best.text for best in one.hypotheses] for one in found]
        if query.alternatives
        else None,
        missing_terms=None
        if glossary is None
        else [
            [term.source for term in one.hypotheses[0].terms or () if not term.found]
            for one in found
        ],
    )


@app.get("/health")
async def health(request: Request) -> dict[str, int | str]:
    """Answer 200 while the service translates, 503 once one of its threads has died."""
    service: TranslationService = request.app.state.service
    if service.failed:
        raise HTTPException(503, "the service has failed; restart it")
    return {"status": "ok", **dataclasses.asdict(service.statistics())}
