"""Translation of texts along a route, without a thread per request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from translate_trt.runtime.line_names import LineNames
from translate_trt.runtime.line_request import LineRequest
from translate_trt.runtime.native.core import plain_lines
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.serve.http.routing import Step
from translate_trt.runtime.service import TranslationService
from translate_trt.runtime.text.glossary import Entry, Glossary

#: Characters whose text is handled in the thread of the event loop: some hundred microseconds of
#: work. More of them go to another thread.
SHORT = 1_000
_THREADS = 2
# Translated phrases that a bundle keeps, and characters of such a pair.
_MOST_PHRASES, _MOST_PHRASE = 10_000, 200
# Ends of sentences, which models add to phrases.
_ENDS = " .!?\u3002"

_Submitted = TypeVar("_Submitted")


class TextTranslation:
    """Translation of texts by the services of bundles, which callers keep loaded (`used`)."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenization")

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def translate(
        self, texts: Sequence[str], steps: Sequence[Step], names: Sequence[str]
    ) -> list[list[Translation]]:
        """Translate texts; a cancelled call cancels their sentences.

        Args:
            texts: Texts of one request.
            steps: Steps of their route.
            names: Their names in error messages.

        Returns:
            For each text its translation by each step, the last of which is the result.

        Raises:
            TranslateTrtError: A text cannot be translated.
        """
        if not steps:
            return [[Translation((TextHypothesis(text, 0.0),))] for text in texts]
        by_steps = []
        steps = await self._resolved(texts, steps)
        for bundle, request in steps:
            request = replace(request, lines=texts, names=LineNames(names))
            by_steps.append(await self.lines(bundle.service, request))
            texts = [one.text for one in by_steps[-1]]
        return [list(of_text) for of_text in zip(*by_steps, strict=True)]

    async def lines(self, service: TranslationService, request: LineRequest) -> list[Translation]:
        """Translate the lines of a request; a cancelled call cancels them.

        Raises:
            TranslateTrtError: A line cannot be translated.
        """
        number = service.new_request()
        submit = partial(service.submit_request, request, request=number)
        size = sum(map(len, request.lines))
        return await asyncio.wrap_future(await self._submit(submit, size, service, number))

    async def stream(
        self, text: str, steps: Sequence[Step]
    ) -> AsyncIterator[tuple[str, str, list[Translation]]]:
        """Translate the sentences of a text, in order.

        Yields:
            Text before the translation, the source sentence, and its translation by each step; at
            the end the text after the last one, with an empty sentence.
        """
        if not steps:
            yield text, "", []
            return
        (bundle, request), *others = await self._resolved([text], steps)
        assert request.split is not None
        split = request.split(text)
        names = [f"sentence {number}" for number in range(1, len(split.sentences) + 1)]
        service, number = bundle.service, bundle.service.new_request()

        def submit() -> list[Future[list[Translation]]]:
            return [
                service.submit_request(
                    replace(request, lines=[sentence], names=LineNames([name])), request=number
                )
                for sentence, name in zip(split.sentences, names, strict=True)
            ]

        try:
            futures = await self._submit(submit, len(text), service, number)
            for before, sentence, future, name in zip(
                split.separators, split.sentences, futures, names, strict=False
            ):
                found = await asyncio.wrap_future(future)
                if others:
                    (by_others,) = await self.translate([found[0].text], others, [name])
                    found += by_others
                yield before, sentence, found
        except BaseException:
            service.cancel(number)
            raise
        yield split.separators[-1], "", []

    async def _resolved(self, texts: Sequence[str], steps: Sequence[Step]) -> Sequence[Step]:
        """Return steps with glossaries of their own languages.

        A term's phrase in the pivot language is the first model's translation of the term alone:
        the first glossary requires it, and the second translates it into the term's target phrase.

        Args:
            texts: The texts, of whose terms the phrases are found.
            steps: Steps of a route, which all have the glossary of the request.
        """
        if len(steps) < 2 or (glossary := steps[0].request.terminology) is None:
            return steps
        (bundle, request), *others = steps
        size = sum(map(len, texts))
        find = partial(_entries, texts, request.markup, glossary)
        entries = find() if size <= SHORT else await asyncio.to_thread(find)
        known = {one.source: bundle.phrases.get((request.options, one.source)) for one in entries}
        if missing := [source for source, phrase in known.items() if phrase is None]:
            alone = replace(
                request, lines=missing, names=LineNames(["a term"] * len(missing)), split=None,
                markup=None, whole=False, alignments=False, terminology=None,
            )  # fmt: skip
            for source, found in zip(missing, await self.lines(bundle.service, alone), strict=True):
                phrase = found.text.strip().rstrip(_ENDS) or source
                known[source] = phrase
                if len(source) + len(phrase) <= _MOST_PHRASE:
                    bundle.phrases[request.options, source] = phrase
                    if len(bundle.phrases) > _MOST_PHRASES:
                        del bundle.phrases[next(iter(bundle.phrases))]
        phrases = [(one, str(known[one.source])) for one in entries]
        first = [Entry(one.source, (phrase,)) for one, phrase in phrases]
        last = [Entry(phrase, one.targets) for one, phrase in phrases]
        return [
            Step(one.bundle, replace(one.request, terminology=Glossary(terms) if terms else None))
            for one, terms in zip((steps[0], *others), (first, last), strict=True)
        ]

    async def _submit(
        self,
        submit: Callable[[], _Submitted],
        size: int,
        service: TranslationService,
        number: int,
    ) -> _Submitted:
        """Submit texts, in another thread if they have many characters."""
        if size <= SHORT:
            return submit()
        submitted = self._threads.submit(submit)
        try:
            return await asyncio.shield(asyncio.wrap_future(submitted))
        except asyncio.CancelledError:
            if not submitted.cancel():
                # The thread may submit more lines after the caller has cancelled the request.
                submitted.add_done_callback(lambda _: service.cancel(number))
            raise


def _entries(texts: Sequence[str], markup: str | None, glossary: Glossary) -> list[Entry]:
    """Return the entries of a glossary that are in texts, each once."""
    lines = texts
    if markup not in (None, "text"):
        lines = [line for text in texts for line in plain_lines(text, markup)]
    found = {match.entry: None for line in lines for match in glossary.find(line)}
    return [*found]
