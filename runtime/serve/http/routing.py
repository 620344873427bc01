"""Routes between languages: the bundles that a text passes through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from translate_trt.runtime.serve.http.http_error import HttpError
from translate_trt.runtime.serve.http.languages import language_name, match_code
from translate_trt.runtime.serve.http.served_bundle import ServedBundle


@dataclass(frozen=True)
class Hop:
    """A translation between two languages by one bundle; languages are public codes."""

    bundle: ServedBundle
    source: str
    target: str


@dataclass(frozen=True)
class Route:
    """One hop, two that meet in a pivot language, or none from a language to itself."""

    hops: tuple[Hop, ...]
    #: Arguments of usual requests (`ServerState.work`).
    works: dict[tuple[tuple[str, Any], ...], Any] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def model(self) -> str:
        """Names of the bundles, as in "de-en+en-fr"."""
        return "+".join(hop.bundle.name for hop in self.hops)


class Routes:
    """Routes through the loaded bundles. Immutable: a reload makes another.

    Args:
        bundles: The bundles; of several for one pair of languages the first has precedence.
        pivot: Public code of the preferred pivot language; empty for routes of one hop alone.
    """

    def __init__(self, bundles: Sequence[ServedBundle], pivot: str) -> None:
        self.bundles = tuple(bundles)
        self._pivot = pivot
        self._found: dict[tuple[str, str, str | None], Route | None] = {}

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """All source languages, sorted."""
        return tuple(sorted({code for one in self.bundles for code in one.languages.sources}))

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """All target languages, sorted."""
        return tuple(sorted({code for one in self.bundles for code in one.languages.targets}))

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """All languages, sorted."""
        return tuple(sorted({*self.sources, *self.targets}))

    def find(self, source: str, target: str, model: str | None = None) -> Route:
        """Return the route between two languages.

        Args:
            source: Source language as a client wrote it, or as `source_of` found it.
            target: Target language as a client wrote it.
            model: Name of the only bundle to use; None for any.

        Raises:
            HttpError: A language or a bundle is unknown, or no bundles join the languages.
        """
        codes = []
        for code, available in ((source, self.sources), (target, self.targets)):
            found = match_code(code, available) or match_code(code, self.languages)
            if found is None:
                raise HttpError(400, f"{code[:40]} is not supported")
            codes.append(found)
        if model is not None and all(model != one.name for one in self.bundles):
            names = ", ".join(one.name for one in self.bundles)
            raise HttpError(400, f"no model is called {model[:200]!r}; there are: {names}")
        key = (codes[0], codes[1], model)
        if key not in self._found:
            self._found[key] = self._search(*key)
        if (route := self._found[key]) is None:
            shown = [f"{language_name(code)} ({code})" for code in codes]
            by = "" if model is None else f" by {model}"
            raise HttpError(
                400, f"{shown[1]} is not available as a target language from {shown[0]}{by}"
            )
        return route

    def first_source(self, target: str, model: str | None = None) -> str:
        """Return the first language that a bundle translates into another; see `find`."""
        wanted = match_code(target, self.targets)
        for one in self.bundles:
            if wanted in one.languages.targets and model in (None, one.name):
                for source in one.languages.sources:
                    if source != wanted:
                        return source
        return target

    @cached_property
    def described(self) -> list[dict[str, Any]]:
        """Languages in the form of LibreTranslate's /languages; some are only targets."""
        return [
            {"code": code, "name": language_name(code), "targets": self._reachable(code)}
            for code in self.languages
        ]

    def _reachable(self, source: str) -> list[str]:
        others = (one for one in self.targets if one != source)
        return [one for one in others if self._search(source, one, None) is not None]

    def _search(self, source: str, target: str, model: str | None) -> Route | None:
        if source == target:
            return Route(())
        if (hop := self._hop(source, target, model)) is not None:
            return Route((hop,))
        if not self._pivot or model is not None:
            return None
        between = (set(self.sources) & set(self.targets)) - {source, target}
        for pivot in sorted(between, key=lambda code: (code != self._pivot, code)):
            first, second = self._hop(source, pivot), self._hop(pivot, target)
            if first is not None and second is not None:
                return Route((first, second))
        return None

    def _hop(self, source: str, target: str, model: str | None = None) -> Hop | None:
        for one in self.bundles:
            has = source in one.languages.sources and target in one.languages.targets
            if has and model in (None, one.name):
                return Hop(one, source, target)
        return None
