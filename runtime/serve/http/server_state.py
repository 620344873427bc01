"""State of a server that its routes share, and what every request passes on its way in."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any, TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.native.core import plain_lines
from translate_trt.runtime.results import Statistics
from translate_trt.runtime.serve.admission import Admission, search_cost
from translate_trt.runtime.serve.http import detection
from translate_trt.runtime.serve.http.api_keys import ApiKey, ApiKeys
from translate_trt.runtime.serve.http.deepl_store import DeepLStore
from translate_trt.runtime.serve.http.file_store import FileStore
from translate_trt.runtime.serve.http.health_check import HealthCheck
from translate_trt.runtime.serve.http.http_error import ApiKeyError, HttpError
from translate_trt.runtime.serve.http.http_metrics import HttpMetrics
from translate_trt.runtime.serve.http.http_settings import HttpSettings
from translate_trt.runtime.serve.http.loaded_bundles import LoadedBundles
from translate_trt.runtime.serve.http.messages import FileQuery, Query, TextQuery
from translate_trt.runtime.serve.http.rate_limit import RateLimit, client_name
from translate_trt.runtime.serve.http.routing import Step
from translate_trt.runtime.serve.http.served_bundle import BundleSource
from translate_trt.runtime.serve.http.text_translation import TextTranslation
from translate_trt.runtime.serve.http.tracing import start_tracing
from translate_trt.runtime.text.languages import language_name, match_code
from translate_trt.runtime.text.sentences import is_translatable

log = logging.getLogger("translate_trt")

#: Source language of texts whose language is to be detected.
AUTO = "auto"
# Words before a key in the header Authorization: of most APIs, and of DeepL's.
_SCHEMES = ("bearer", "deepl-auth-key")
# Shorter texts of an array have the language of all of them together.
_LONG_ENOUGH_TO_DETECT = 40
# No file has a larger share of the cost budget than one of as many.
_FILES_AT_ONCE = 4

#: Numbers of characters of texts, and the steps of their route.
Part: TypeAlias = tuple[Sequence[int], Sequence[Step]]


class ServerState:
    """State of a server. Belongs to one event loop.

    Attributes:
        settings: Settings of the server.
        bundles: The loaded bundles.
        metrics: Prometheus metrics.
        translation: Translation along routes.
        files: Translated files.
        deepl: What clients of DeepL's API keep here.
        tracing: Traces of requests; None if there are none.
        health: Check that every bundle translates.
        draining: True once the server is shutting down.
    """

    def __init__(self, sources: Sequence[BundleSource], settings: HttpSettings) -> None:
        self.settings = settings
        self.bundles = LoadedBundles(sources, settings)
        self.metrics = HttpMetrics(self.statistics)
        self.translation = TextTranslation()
        self.files = FileStore(settings.max_file_bytes, settings.timeout)
        self.deepl = DeepLStore()
        self.tracing = start_tracing()
        self.health = HealthCheck(self.bundles, settings.health_timeout)
        self.draining = False
        self._keys = ApiKeys(()) if settings.api_keys is None else ApiKeys.read(settings.api_keys)
        self._rates = RateLimit()
        self._admission = Admission(settings.max_requests, settings.max_cost)

    async def load(self) -> None:
        """Load the detector and the bundles, with which the server is ready.

        Raises:
            TranslateTrtError: A bundle cannot be loaded.
        """
        await asyncio.to_thread(detection.prepare)
        await self.bundles.load()

    async def reload(self, only: Sequence[int] | None = None) -> dict[str, str | None]:
        """Read the keys and load bundles again; see `LoadedBundles.reload`."""
        outcome: dict[str, str | None] = {}
        if self.settings.api_keys is not None and only is None:
            try:
                self._keys = ApiKeys.read(self.settings.api_keys)
            except InputError as error:
                outcome["api_keys"] = str(error)
        outcome |= await self.bundles.reload(only)
        for name, reason in outcome.items():
            self.metrics.reloads.labels("success" if reason is None else "failed").inc()
            if reason is None:
                log.info("reloaded %s", name)
            else:
                log.error("%s keeps its former version: %s", name, reason)
        return outcome

    async def close(self) -> None:
        """Free the bundles."""
        self.deepl.close()
        await self.bundles.close()
        self.translation.close()
        self.files.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    def statistics(self) -> Iterable[tuple[str, Statistics]]:
        """Return the name and the statistics of each loaded bundle."""
        if not self.bundles.loaded:
            return []
        return [(one.name, one.service.statistics()) for one in self.bundles.routes.bundles]

    def detect(self, text: str) -> list[dict[str, Any]]:
        """Return the languages of a text, the most likely first.

        Raises:
            HttpError: The server has no detector, or has not loaded its bundles.
        """
        return detection.detect(text, self.bundles.routes.sources)

    def detect_each(
        self, query: Query, texts: Sequence[str], names: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Return the most likely language of each text.

        Args:
            query: Request, which may have the texts' format; its terminology gives texts without
                letters a language, too.
            texts: The texts.
            names: Name of each text in error messages.

        Raises:
            HttpError: See `detect`; or the server does not know a text's language.
        """
        if isinstance(query, TextQuery) and query.format != "text":
            texts = ["\n".join(plain_lines(one, query.format)) for one in texts]
        together = self.detect("\n".join(texts))[0]
        found = [
            self.detect(one)[0]
            if len(one) > _LONG_ENOUGH_TO_DETECT or not is_translatable(one)
            else together
            for one in texts
        ]
        named = zip(names, found, strict=True)
        # Long texts first: short ones may have their language.
        for name, one in sorted(named, key=lambda pair: pair[1] is together):
            code = one["language"]
            if code == detection.UNDETERMINED:
                continue
            if match_code(code, self.bundles.routes.languages) is None:
                raise HttpError(
                    400, f"{code} is not supported ({name} was detected as "
                    f"{language_name(code)}); name the source language if this is wrong",
                )  # fmt: skip
        if query.terminology:
            code = together["language"]
            if code == detection.UNDETERMINED:
                code = self.bundles.routes.first_source(query.target, query.model)
            for one in found:
                if one["language"] == detection.UNDETERMINED:
                    one["language"] = code
        return found

    # ---- what every request passes ----

    def identify(self, request: Request, api_key: str | None = None) -> ApiKey | None:
        """Return the key of a request, and count the request.

        Args:
            request: The request, which may have the key in the header Authorization.
            api_key: Key in the request's body.

        Raises:
            HttpError: The key is missing or unknown, or its limit is exhausted.
        """
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if api_key is None and scheme.lower() in _SCHEMES:
            api_key = given.strip()
        if self.settings.api_keys is None:
            api_key = None  # as in LibreTranslate, a server without keys ignores them
        key = self._keys.find(api_key) if api_key else None
        limit = self.settings.requests_per_minute
        if key is not None and key.requests_per_minute is not None:
            limit = key.requests_per_minute
        if limit:
            address = request.client.host if request.client else ""
            self._rates.take(f"key {key.name}" if key else client_name(address), limit)
        if api_key and key is None:
            raise ApiKeyError(403, "Invalid API key")
        if key is None and self.settings.require_api_key:
            raise ApiKeyError(400, "Please contact the server operator to get an API key")
        request.state.log["key"] = None if key is None else key.name
        return key

    def check_admin(self, request: Request) -> None:
        """Refuse a request without the key of an administrator.

        Raises:
            HttpError: The key is missing, unknown, or another client's.
        """
        if self.settings.api_keys is None:
            raise HttpError(403, "this server has no administrators: start it with --api-keys")
        key = self.identify(request)
        if key is None or not key.admin:
            raise HttpError(403, "this needs the API key of an administrator")

    def check_texts(
        self, texts: Sequence[str], key: ApiKey | None, query: Query | None = None
    ) -> int:
        """Return the number of characters of a request's texts; see `check_size`."""
        size = sum(map(len, texts))
        self.check_size(size, key, query)
        return size

    def check_size(self, size: int, key: ApiKey | None, query: Query | None = None) -> None:
        """Refuse a request with too many characters.

        Args:
            size: Number of characters of its texts.
            key: Key of the request, which may have a limit of its own.
            query: Request whose terminology and options have the same limit each.

        Raises:
            HttpError: The request has too many characters.
        """
        most = most_text = self.settings.max_characters
        if isinstance(query, FileQuery):
            most_text = self.settings.max_file_characters
        if key is not None and key.max_characters is not None:
            most = most_text = key.max_characters
        counted = {"request": (size, most_text)}
        if query is not None:
            phrases = [*query.terminology.keys(), *query.terminology.values()]
            options = [one for one in query.options.values() if isinstance(one, str)]
            counted["terminology"] = sum(map(len, phrases)), most
            counted["options"] = sum(map(len, options)), most
        for name, (found, limit) in counted.items():
            if found > limit:
                raise HttpError(
                    413, f"Invalid request: {name} ({found}) exceeds text limit ({limit})"
                )

    @asynccontextmanager
    async def translating(
        self, request: Request | None, query: Query, parts: Sequence[Part]
    ) -> AsyncIterator[None]:
        """Count a request among those in flight, and keep its bundles loaded during the block.

        The block is cancelled when the client leaves, or when the time to answer is up. It is
        entered before the request waits for anything: a reload would free its bundles.

        Args:
            request: The request; None if its client does not wait for the translation.
            query: Its fields.
            parts: Its texts.

        Raises:
            BusyError: The server is at its capacity.
            HttpError: The time is up.
            ClientDisconnect: The client has closed the connection.
        """
        cost, most_seconds = request_cost(parts), self.settings.timeout
        if isinstance(query, FileQuery):
            # A page is one text, however long. Its sentences take turns with those of others.
            cost = min(cost, max(1, self.settings.max_cost // _FILES_AT_ONCE))
            most_seconds = self.settings.file_timeout
        seconds = min(query.timeout or most_seconds, most_seconds)
        self._admission.admit(cost)
        begun = time.perf_counter()
        try:
            with ExitStack() as stack:
                for _, steps in parts:
                    for step in steps:
                        stack.enter_context(step.bundle.used())
                async with _watched(request, seconds):
                    yield
        finally:
            self._admission.leave(cost)
            if request is not None:
                milliseconds = round(1e3 * (time.perf_counter() - begun), 2)
                request.state.log["translating_milliseconds"] = milliseconds


def request_cost(parts: Sequence[Part]) -> int:
    """Return the bound of a request's cost, from the numbers of characters of its texts.

    A sentence has at least two characters and at least `min_length` tokens.
    """
    total = 0
    for sizes, steps in parts:
        for number, (_, request) in enumerate(steps):
            # Before a pivot language, the terms in a text are translated by themselves first.
            terms = number == 0 and len(steps) > 1 and request.terminology is not None
            for size in sizes:
                tokens = max(size, request.options.min_length * ((size + 1) // 2))
                cost = search_cost(request.options, tokens, request.markup is not None)
                total += 2 * cost if terms else cost
    return max(1, total)


@asynccontextmanager
async def _watched(request: Request | None, seconds: float) -> AsyncIterator[None]:
    """Cancel the block when the client leaves or after some seconds.

    Raises:
        HttpError: The time is up.
        ClientDisconnect: The client has closed the connection.
    """
    task = asyncio.current_task()
    assert task is not None
    left = False

    async def watch() -> None:
        nonlocal left
        if request is None:
            return
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise HttpError(504, f"not translated within {seconds:g} s") from error
    except asyncio.CancelledError:
        if left:
            task.uncancel()
            raise ClientDisconnect from None
        raise
    finally:
        watcher.cancel()


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return an answer in JSON, with characters as UTF-8."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(body, status, headers, "application/json")


def error_answer(error: HttpError) -> Response:
    """Return the answer for an error."""
    return json_answer({"error": error.message}, error.status, error.headers)
