"""Loading of a server's bundles, and their replacement while requests are in flight."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

from translate_trt.runtime.bundle.manifest import MANIFEST_NAME
from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.serve.http.http_error import busy
from translate_trt.runtime.serve.http.http_settings import HttpSettings
from translate_trt.runtime.serve.http.routing import Routes
from translate_trt.runtime.serve.http.served_bundle import (
    BundleSource,
    ServedBundle,
    bundle_languages,
    open_translator,
)
from translate_trt.runtime.text.languages import public_code


class LoadedBundles:
    """The bundles of a server. Belongs to one event loop.

    Attributes:
        sources: Locations of the bundles.
    """

    def __init__(self, sources: Sequence[BundleSource], settings: HttpSettings) -> None:
        self.sources, self._settings = tuple(sources), settings
        self._routes: Routes | None = None
        self._changing = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        self._stamps = [_stamp(one) for one in self.sources]

    @property
    def loaded(self) -> bool:
        """Whether the bundles are there."""
        return self._routes is not None

    @property
    def routes(self) -> Routes:
        """Routes through the bundles that are loaded now.

        Raises:
            HttpError: The bundles are not loaded yet, or no longer.
        """
        if self._routes is None:
            raise busy("the bundles are not loaded; send the request again", status=503)
        return self._routes

    async def load(self) -> None:
        """Load all bundles.

        Raises:
            TranslateTrtError: A bundle cannot be loaded.
        """
        bundles: list[ServedBundle] = []
        try:
            for source in self.sources:
                bundles.append(await self._open(source))
        except BaseException:
            for one in bundles:
                one.close()
            raise
        self._routes = self._joined(bundles)

    async def reload(self, only: Sequence[int] | None = None) -> dict[str, str | None]:
        """Load bundles again, one after the other, and replace each by its new version.

        Requests in flight finish with the version that they began with; a bundle that cannot be
        loaded keeps its former version.

        Args:
            only: Numbers of the bundles; None for all.

        Returns:
            The reason of its failure by the name of each bundle; None for those replaced.
        """
        outcome: dict[str, str | None] = {}
        async with self._changing:
            for number, source in enumerate(self.sources):
                if only is not None and number not in only:
                    continue
                try:
                    self._replace(number, await self._open(source))
                    outcome[source.name] = None
                except TranslateTrtError as error:
                    outcome[source.name] = str(error)
        return outcome

    def changed(self) -> list[int]:
        """Return the numbers of the bundles whose manifest has changed since the last call."""
        stamps = [_stamp(one) for one in self.sources]
        found = [
            number
            for number, (before, now) in enumerate(zip(self._stamps, stamps, strict=True))
            if now is not None and now != before
        ]
        self._stamps = [now or before for before, now in zip(self._stamps, stamps, strict=True)]
        return found

    async def close(self) -> None:
        """Free all bundles; requests in flight are cancelled."""
        bundles = () if self._routes is None else self._routes.bundles
        self._routes = None
        for one in bundles:
            await asyncio.to_thread(one.close)
        for task in self._retiring:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._retiring, return_exceptions=True)

    async def _open(self, source: BundleSource) -> ServedBundle:
        translator = await asyncio.to_thread(open_translator, source, self._settings)
        return ServedBundle(source, bundle_languages(source, translator.manifest), translator)

    def _joined(self, bundles: Sequence[ServedBundle]) -> Routes:
        pivot = public_code(self._settings.pivot) if self._settings.pivot else ""
        return Routes(bundles, pivot, self._settings.max_beam_size)

    def _replace(self, number: int, new: ServedBundle) -> None:
        bundles = list(self.routes.bundles)
        old, bundles[number] = bundles[number], new
        self._routes = self._joined(bundles)
        task = asyncio.create_task(old.retire())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


def _stamp(source: BundleSource) -> tuple[int, int, int] | None:
    """Return what changes when a manifest is replaced; None while there is none."""
    try:
        found = os.stat(source.path / MANIFEST_NAME)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
