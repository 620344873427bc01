"""Continuous batching of lines submitted by any thread."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from translate_trt.runtime.arguments import token_ids
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.line_translation import check_attention
from translate_trt.runtime.native_service import CoreService
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.preparation import align
from translate_trt.runtime.reference_service import PlainService
from translate_trt.runtime.results import Statistics, Translation
from translate_trt.runtime.service_line import ServiceLine
from translate_trt.runtime.text.documents import SplitText
from translate_trt.runtime.text.glossary import Glossary
from translate_trt.runtime.translator import Translator


class TranslationService:
    """Translate submitted lines with continuous batching.

    A new line joins a running batch as soon as that has capacity, or starts a batch if a worker is
    idle. Results equal those of `Translator.translate`. Close the service, or use it in a `with`
    statement.

    Lines of one beam size and of similar length share batches, whatever their other options. The
    batches of a worker take turns after each step, with equal time for each request. Without
    libtranslate_trt, lines are translated one by one.
    """

    def __init__(
        self,
        translator: Translator,
        *,
        capacity: int | None = None,
    ) -> None:
        """Start a service on the translator's workers.

        Args:
            translator: A loaded bundle; other threads may use it at the same time.
            capacity: Maximum number of unfinished lines; `submit` blocks while that many are in
                the service. None means no limit.

        Raises:
            OptionError: The capacity is less than 1.
        """
        if capacity is not None and capacity < 1:
            raise OptionError(f"capacity is {capacity}; it must be at least 1.")
        self._translator = translator
        self._service: CoreService | PlainService = (
            PlainService(translator, capacity)
            if translator.core is None
            else CoreService(translator, capacity)
        )

    def submit(
        self,
        source: str | Sequence[int],
        options: SearchOptions | None = None,
        target_prefix: str | Sequence[int] = "",
        *,
        request: int | None = None,
        score: bool = False,
        split_sentences: bool | str = False,
        constraints: Sequence[str] | Sequence[Sequence[int]] = (),
        terminology: Glossary | None = None,
        alignments: bool = False,
    ) -> Future[Translation]:
        """Submit one line of text, or its tokens.

        Args:
            source: Text of any length, or source token ids without the end symbol.
            options: Search options; None uses the bundle's defaults.
            target_prefix: Text or target token ids that the translation must begin with.
            request: Number from `new_request`. Lines of one request share its scheduling turns;
                None gives the line turns of its own.
            score: The target prefix is a whole translation, which is scored
                (`Translator.score`).
            split_sentences: Translate the sentences of a text one by one (`Translator.translate`).
            constraints: Phrases that the translation must have, as text or target token ids.
            terminology: Glossary (`Translator.translate`); `Glossary.terms` finds the terms of the
                line in its translation.
            alignments: Align the words of a text with those of its translations
                (`Translator.translate`).

        Returns:
            A future of the translation. It can be cancelled until the line is finished; without
            libtranslate_trt, until a worker has started the line. Its callbacks run in a worker
            thread: they must be short and must not call `submit` on a service with a capacity;
            exceptions they raise are logged. `exception()` is a `BackendError` if the backend
            failed on this line or a worker has ended.

        Raises:
            InputError: A token is outside the vocabulary, or the line exceeds the bundle's limit.
            OptionError: The bundle was not compiled for an option, or its value is out of range.
            TranslateTrtError: The service is closed, has failed, or belongs to the process that
                this process was forked from.
        """
        options = options or self._translator.default_options
        if score and split_sentences is not False:
            raise OptionError("a given translation is of a whole line; leave split_sentences out.")
        if len(constraints) and split_sentences is not False:
            raise OptionError("constraints belong to one sentence; leave split_sentences out.")
        if alignments and not isinstance(source, str):
            raise InputError("only text has words to align; leave alignments out.")
        if alignments:
            check_attention(self._translator.target)
        split = self._translator.split_line(source, options, split_sentences)
        given = self._phrases(constraints)
        texts = None
        if isinstance(source, str):
            self._translator.terms.check(terminology, alignments)
            if terminology is not None and split is None and not given and not alignments:
                split = self._translator.terms.split(source, options)
            texts = [source] if split is None else list(split.sentences)
        elif terminology is not None:
            raise InputError("only text has terms; leave terminology out.")
        phrases = [given] if split is None else [[] for _ in split.sentences]
        if terminology is not None and texts is not None:
            texts, required = self._translator.terms.apply(texts, terminology)
            found = map(self._translator.terms.phrase_tokens, required)
            phrases = [[*own, *more] for own, more in zip(phrases, found, strict=True)]
        searched = dataclasses.replace(options, return_attention=True) if alignments else options
        return self._service.submit(
            ServiceLine(
                source=source,
                options=searched,
                target_prefix=target_prefix,
                request=self.new_request() if request is None else request,
                score=score,
                texts=texts,
                constraints=phrases,
                join=self._joining(source, split, texts if alignments else None, options),
            )
        )

    def _joining(
        self,
        source: str | Sequence[int],
        split: SplitText | None,
        aligned: Sequence[str] | None,
        options: SearchOptions,
    ) -> Callable[[Sequence[Translation]], Translation]:
        """Return a function that joins the translations of the texts of a line.

        Args:
            source: The line.
            split: Its sentences, if it was split.
            aligned: The texts, if their words are to be aligned.
            options: Search options of the caller.
        """
        manifest, tokenizer = self._translator.manifest, self._translator.tokenizer

        def join(found: Sequence[Translation]) -> Translation:
            if aligned is not None:
                pairs = zip(aligned, found, strict=True)
                found = [align(manifest, tokenizer, text, one, options) for text, one in pairs]
            if split is None:
                return found[0]
            return split.join(found, None if aligned is None else str(source))

        return join

    def _phrases(self, constraints: Sequence[str] | Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the tokens of phrases that are given as text or tokens."""
        texts = [phrase for phrase in constraints if isinstance(phrase, str)]
        if isinstance(constraints, str) or len(texts) == len(constraints):
            return self._translator.terms.phrase_tokens(constraints)  # type: ignore[arg-type]
        return [token_ids("a constraint of the line", phrase) for phrase in constraints]

    def new_request(self) -> int:
        """Return a new request number, which groups lines for `submit` and `cancel`."""
        return self._service.new_request()

    def cancel(self, request: int) -> None:
        """Cancel the unfinished lines of a request.

        Without libtranslate_trt, lines that are already being translated are not cancelled.
        """
        self._service.cancel(request)

    @property
    def failed(self) -> bool:
        """True after a thread of the service has died; no more lines will be translated."""
        return self._service.failed

    def statistics(self) -> Statistics:
        """Return the current load and totals."""
        return self._service.statistics()

    def close(self, cancel_futures: bool = False) -> None:
        """Stop accepting lines and wait for those submitted.

        In a forked child of the process that created the service, this does nothing.

        Args:
            cancel_futures: Cancel unfinished lines instead of waiting for them.
        """
        self._service.close(cancel_futures)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(cancel_futures=kind is not None)
