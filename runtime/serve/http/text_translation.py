"""Translation of texts along a route, without a thread per request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.serve.http.routing import Hop, Route
from translate_trt.runtime.service import TranslationService
from translate_trt.runtime.text.documents import SplitText
from translate_trt.runtime.text.glossary import Glossary
from translate_trt.runtime.text.sentences import base_language

#: Characters whose text is handled in the thread of the event loop: some hundred microseconds of
#: work. More of them go to another thread.
SHORT = 1_000
_THREADS = 2


@dataclass(frozen=True)
class Work:
    """Arguments of the translation of texts.

    Attributes:
        route: Bundles to translate by.
        options: Search options of each hop.
        glossary: Phrases that the last translation must have.
        alignments: Align words.
        markup: "html" for texts with tags; None for plain text.
    """

    route: Route
    options: tuple[SearchOptions, ...]
    glossary: Glossary | None = None
    alignments: bool = False
    markup: str | None = None


class TextTranslation:
    """Translation of texts by the services of bundles, which callers keep loaded (`used`)."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenization")

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def translate(
        self, texts: Sequence[str], work: Work, names: Sequence[str]
    ) -> list[list[Translation]]:
        """Translate texts; a cancelled call cancels their sentences.

        Args:
            texts: Texts of one request.
            work: How to translate them.
            names: Their names in error messages.

        Returns:
            For each text its translation by each hop, the last of which is the result.

        Raises:
            TranslateTrtError: A text cannot be translated.
        """
        if not work.route.hops:
            return [[_unchanged(text)] for text in texts]
        found: list[list[Translation]] = [[] for _ in texts]
        given = list(texts)
        for hop, options in zip(work.route.hops, work.options, strict=True):
            last = hop is work.route.hops[-1]
            of_hop = work if last else replace(work, glossary=None)
            translations = await self._by_hop(hop, given, options, of_hop, names)
            for by_hops, one in zip(found, translations, strict=True):
                by_hops.append(one)
            given = [one.text for one in translations]
        return found

    async def stream(
        self, text: str, work: Work
    ) -> AsyncIterator[tuple[str, str, list[Translation]]]:
        """Translate the sentences of a text, in order.

        Yields:
            Text before the translation, the source sentence, and its translation by each hop; at
            the end the text after the last one, with an empty sentence.
        """
        if not work.route.hops:
            yield text, "", []
            return
        first, *rest = work.route.hops
        service = first.bundle.service
        others = replace(work, route=Route(tuple(rest)), options=work.options[1:])
        of_first = replace(work, glossary=None) if rest else work
        with _request(service) as request:
            split = _split(first, text, work.options[0])
            names = [f"sentence {number}" for number in range(1, len(split.sentences) + 1)]
            futures = await self._submitted(
                first, split.sentences, work.options[0], of_first, names, request
            )
            for before, sentence, future, name in zip(
                split.separators, split.sentences, futures, names, strict=False
            ):
                found = [await asyncio.wrap_future(future)]
                if rest:
                    (by_others,) = await self.translate([found[0].text], others, [name])
                    found += by_others
                yield before, sentence, found
        yield split.separators[-1], "", []

    async def alternatives(
        self, hop: Hop, sentence: str, prefix: str, work: Work, alignments: bool
    ) -> Translation:
        """Translate a sentence that must begin with a prefix."""
        service = hop.bundle.service
        with _request(service) as request:
            future = service.submit(
                sentence, work.options[0], prefix, request=request, terminology=work.glossary,
                alignments=alignments, name="the text",
            )  # fmt: skip
            return await asyncio.wrap_future(future)

    async def _by_hop(
        self,
        hop: Hop,
        texts: Sequence[str],
        options: SearchOptions,
        work: Work,
        names: Sequence[str],
    ) -> list[Translation]:
        with _request(hop.bundle.service) as request:
            futures = await self._submitted(hop, texts, options, work, names, request)
            return list(await asyncio.gather(*map(asyncio.wrap_future, futures)))

    async def _submitted(
        self,
        hop: Hop,
        texts: Sequence[str],
        options: SearchOptions,
        work: Work,
        names: Sequence[str],
        request: int,
    ) -> list[Future[Translation]]:
        """Submit texts, in another thread if they have many characters."""
        if sum(map(len, texts)) <= SHORT:
            return _submit(hop, texts, options, work, names, request)
        submitted = self._threads.submit(_submit, hop, texts, options, work, names, request)
        try:
            return await asyncio.shield(asyncio.wrap_future(submitted))
        except asyncio.CancelledError:
            if not submitted.cancel():
                # The thread may submit more lines after the caller has cancelled the request.
                submitted.add_done_callback(lambda _: hop.bundle.service.cancel(request))
            raise


@contextmanager
def _request(service: TranslationService) -> Iterator[int]:
    """Yield a new request number; cancel the request's lines if the block fails."""
    request = service.new_request()
    try:
        yield request
    except BaseException:
        service.cancel(request)
        raise


def _unchanged(text: str) -> Translation:
    return Translation((TextHypothesis(text, 0.0),))


def _submit(
    hop: Hop,
    texts: Sequence[str],
    options: SearchOptions,
    work: Work,
    names: Sequence[str],
    request: int,
) -> list[Future[Translation]]:
    """Submit texts as documents, whose line ends and white space stay."""
    submit, rules = hop.bundle.service.submit_document, _rules(hop)
    return [
        submit(
            text, options, request=request, split_sentences=rules, markup=work.markup,
            terminology=work.glossary, alignments=work.alignments, name=name,
        )
        for text, name in zip(texts, names, strict=True)
    ]  # fmt: skip


def _split(hop: Hop, text: str, options: SearchOptions) -> SplitText:
    splitter = hop.bundle.translator.splitter(_rules(hop), options)
    return splitter.split_document(text, options, unwrap=False)


def _rules(hop: Hop) -> str | bool:
    """Return the language whose rules split sentences; False for a code of no language."""
    language = base_language(hop.source)
    return False if language is None else language
