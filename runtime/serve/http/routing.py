"""Routes between languages: the bundles that a text passes through, and what each is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from translate_trt.runtime.files.translation import kind_arguments
from translate_trt.runtime.line_request import LineRequest
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.serve.http.http_error import HttpError
from translate_trt.runtime.serve.http.messages import Query, TextQuery
from translate_trt.runtime.serve.http.served_bundle import ServedBundle
from translate_trt.runtime.text.glossary import Entry, Glossary
from translate_trt.runtime.text.languages import language_name, match_code
from translate_trt.runtime.text.sentences import base_language
from translate_trt.runtime.translator import Translator

# Options that have fields of their own in the API, or none.
_OWN_FIELDS = frozenset(
    {"source_language", "target_language", "num_hypotheses", "alternatives",
     "min_alternative_prob", "return_attention"}
)  # fmt: skip
_OPTIONS = frozenset(field.name for field in dataclasses.fields(SearchOptions)) - _OWN_FIELDS
# Options whose memory grows with their number, limited by `max_beam_size`.
_COUNTS = ("beam_size", "num_hypotheses", "alternatives")
# Usual requests whose steps a route keeps: making and checking them takes half a millisecond.
_MOST_USUAL = 64


@dataclass(frozen=True)
class Hop:
    """A translation between two languages by one bundle; languages are public codes."""

    bundle: ServedBundle
    source: str
    target: str


class Step(NamedTuple):
    """A bundle and the request that it gets for texts, without lines and names yet."""

    bundle: ServedBundle
    request: LineRequest


class Route:
    """One hop, two that meet in a pivot language, or none from a language to itself.

    Attributes:
        hops: The hops, in order.
        model: Names of the bundles, as in "de-en+en-fr".
    """

    def __init__(self, hops: Sequence[Hop], max_beam_size: int) -> None:
        self.hops, self._max_beam_size = tuple(hops), max_beam_size
        self.model = "+".join(hop.bundle.name for hop in hops)
        self._usual: dict[tuple[Any, ...], tuple[Step, ...]] = {}

    def steps(self, query: TextQuery, document: bool = True, **search: Any) -> tuple[Step, ...]:
        """Return the steps that translate the texts of a request.

        Both steps of a route through a pivot language have the request's glossary, which
        `TextTranslation` resolves into one for each.

        Args:
            query: Fields of the request.
            document: Whether the texts are documents, whose structure stays.
            search: Search options of the last hop, beside those of the query.

        Raises:
            HttpError: An option is unknown or beyond the server's limits.
            TranslateTrtError: An option is out of range, or a bundle does not support it.
        """
        markup = None if query.format == "text" else query.format
        whole = document and markup != "xml"  # a fragment is no document

        def arguments(_: Translator) -> dict[str, Any]:
            return {"document": whole, "markup": markup, "alignments": query.alignments}

        if query.options or query.terminology:
            return self._steps(query, search, arguments)
        key = (query.format, query.alignments, document, *search.items())
        if (steps := self._usual.get(key)) is None:
            steps = self._steps(query, search, arguments)
            if len(self._usual) < _MOST_USUAL:
                self._usual[key] = steps
        return steps

    def segment_steps(self, query: Query, kind: str) -> tuple[Step, ...]:
        """Return the steps that translate segments of a file, all of one kind; see `steps`."""
        return self._steps(query, {}, partial(kind_arguments, kind=kind))

    def _steps(
        self,
        query: Query,
        search: dict[str, Any],
        arguments: Callable[[Translator], dict[str, Any]],
    ) -> tuple[Step, ...]:
        if unknown := set(query.options) - _OPTIONS:
            raise HttpError(400, f"Invalid request: there is no option {min(unknown)[:40]!r}")
        searches = [self._search(hop, query, search) for hop in self.hops]
        entries = [Entry(source, (target,)) for source, target in query.terminology.items()]
        steps = []
        for hop, options in zip(self.hops, searches, strict=True):
            translator = hop.bundle.translator
            given = arguments(translator)
            split = given["document"] or given["markup"] is not None
            request = translator.request(
                (), options, split_sentences=split and (base_language(hop.source) or False),
                terminology=Glossary(entries) if entries else None, **given,
            )  # fmt: skip
            translator.check_request(request)
            steps.append(Step(hop.bundle, request))
        return tuple(steps)

    def _search(self, hop: Hop, query: Query, search: dict[str, Any]) -> SearchOptions:
        """Return the search options of a hop, which are checked."""
        of_hop = search if hop is self.hops[-1] else {}
        translator = hop.bundle.translator
        base = hop.bundle.languages.options(translator.default_options, hop.source, hop.target)
        wanted = {**query.options, **of_hop}
        if "num_hypotheses" in of_hop and "beam_size" not in query.options:
            wanted["beam_size"] = max(base.beam_size, of_hop["num_hypotheses"])
        # Before any other check, so that huge counts get the server's limit as their reason.
        counts = (wanted.get(name, getattr(base, name)) for name in _COUNTS)
        if any(isinstance(n, int) and n > self._max_beam_size for n in counts):
            raise HttpError(
                400, f"Invalid request: more than {self._max_beam_size} beams or translations of "
                "a text",
            )  # fmt: skip
        return dataclasses.replace(base, **wanted)


class Routes:
    """Routes through the loaded bundles. Immutable: a reload makes another.

    Args:
        bundles: The bundles; of several for one pair of languages the first has precedence.
        pivot: Public code of the preferred pivot language; empty for routes of one hop alone.
        max_beam_size: Most beams, hypotheses and alternatives of a text.
    """

    def __init__(self, bundles: Sequence[ServedBundle], pivot: str, max_beam_size: int) -> None:
        self.bundles = tuple(bundles)
        self._pivot, self._max_beam_size = pivot, max_beam_size
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
            if code not in available:
                found = match_code(code, available) or match_code(code, self.languages)
                if found is None:
                    raise HttpError(400, f"{code[:40]} is not supported")
                code = found
            codes.append(code)
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
            return Route((), self._max_beam_size)
        if (hop := self._hop(source, target, model)) is not None:
            return Route((hop,), self._max_beam_size)
        if not self._pivot or model is not None:
            return None
        between = (set(self.sources) & set(self.targets)) - {source, target}
        for pivot in sorted(between, key=lambda code: (code != self._pivot, code)):
            first, second = self._hop(source, pivot), self._hop(pivot, target)
            if first is not None and second is not None:
                return Route((first, second), self._max_beam_size)
        return None

    def _hop(self, source: str, target: str, model: str | None = None) -> Hop | None:
        for one in self.bundles:
            has = source in one.languages.sources and target in one.languages.targets
            if has and model in (None, one.name):
                return Hop(one, source, target)
        return None
