"""Health check that translates."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.serve.http.http_error import HttpError
from translate_trt.runtime.serve.http.loaded_bundles import LoadedBundles
from translate_trt.runtime.serve.http.served_bundle import WORD, ServedBundle


class HealthCheck:
    """Translation of a word by every bundle; checks at the same time share one translation.

    Args:
        bundles: The bundles.
        seconds: Time to translate in.
    """

    def __init__(self, bundles: LoadedBundles, seconds: float) -> None:
        self._bundles, self._seconds = bundles, seconds
        self._running: asyncio.Task[str | None] | None = None

    async def check(self) -> None:
        """Translate.

        Raises:
            HttpError: A bundle did not translate in time, or the bundles are not loaded.
        """
        _ = self._bundles.routes  # not loaded
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        reason = await asyncio.shield(self._running)
        if reason is not None:
            raise HttpError(503, reason)

    async def _run(self) -> str | None:
        """Return why a bundle is not healthy; None if all are."""
        bundles = self._bundles.routes.bundles
        with ExitStack() as stack:
            for bundle in bundles:  # all at first: a reload would free those that wait
                stack.enter_context(bundle.used())
            for bundle in bundles:
                if (reason := await self._try(bundle)) is not None:
                    return reason
        return None

    async def _try(self, bundle: ServedBundle) -> str | None:
        service = bundle.service
        options = bundle.languages.options(
            bundle.translator.default_options, *bundle.languages.first_pair
        )
        request = service.new_request()
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.wrap_future(service.submit(WORD, options, request=request))
        except TimeoutError:
            service.cancel(request)
            return f"{bundle.name} did not translate a word in {self._seconds:g} s"
        except TranslateTrtError as error:
            return f"{bundle.name} does not translate: {error}"
        return None
