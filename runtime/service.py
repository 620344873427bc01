"""Continuous batching of lines submitted by any thread."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from translate_trt.runtime.arguments import checked_texts, token_ids
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.line_names import LineNames
from translate_trt.runtime.line_search import Searches
from translate_trt.runtime.line_translation import LineRequest
from translate_trt.runtime.native_service import CoreService
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.reference_service import PlainService
from translate_trt.runtime.results import Statistics, Translation
from translate_trt.runtime.text.glossary import Glossary
from translate_trt.runtime.translator import Translator


class TranslationService:
    """Translate submitted lines with continuous batching.

    A new line joins a running batch as soon as that has capacity, or starts a batch if a worker is
    idle. Results equal those of `Translator.translate`. Close the service, or use it in a `with`
    statement.

    Lines of one beam size and of similar length share batches, whatever their other options. The
    batches of a worker take turns after each step, with equal time for each request, running or
    waiting. Without libtranslate_trt, lines are translated one by one.
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
                the service, except in callbacks. None means no limit.

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
        markup: str | None = None,
        translate_all: bool = False,
        name: str | None = None,
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
            terminology: Glossary (`Translator.translate`).
            alignments: Align the words of a text with those of its translations
                (`Translator.translate`).
            markup: Take tags or placeholders out of a text, and put them back
                (`Translator.translate`).
            translate_all: Let the model translate a text without letters or an address as well
                (`Translator.translate`).
            name: Name of the line in error messages, such as "sentence 3"; None: "line 1 of this
                call".

        Returns:
            A future of the translation. It can be cancelled until the line is finished; without
            libtranslate_trt, until a worker has started the line. Its callbacks run in the thread
            that resolves futures: they must be short and must not wait for another line;
            exceptions they raise are logged. `exception()` is a `BackendError` if the backend
            failed on this line or a worker has ended.

        Raises:
            InputError: A token is outside the vocabulary, or the line exceeds the bundle's limit.
            OptionError: The bundle was not compiled for an option, or its value is out of range.
            CapacityError: The service is full, and this is a callback, which cannot wait. A
                callback may submit one line in place of its own.
            TranslateTrtError: The service is closed, has failed, or belongs to the process that
                this process was forked from.
        """
        options = self._translator.checked(options, score)
        given = None if not len(constraints) else [self._phrases(constraints)]
        if isinstance(source, str):
            targets: Any = [target_prefix]
            if not isinstance(target_prefix, str):
                of_line = f"the target prefix of {name or 'the line'}"
                targets = [token_ids(of_line, target_prefix)]
            of_text = LineRequest(
                [source], options, targets if score or targets[0] else None, _names(name),
                score=score, alignments=alignments, split_sentences=split_sentences, markup=markup,
                terminology=terminology, constraints=given, translate_all=translate_all,
            )  # fmt: skip
            return self._submit(self._translator.lines.translate(of_text), request)
        for argument, value, what in (
            ("split_sentences", split_sentences is not False, "can be split into sentences"),
            ("alignments", alignments, "has words to align"),
            ("markup", markup is not None, "has markup"),
            ("terminology", terminology is not None, "has terms"),
        ):
            if value:
                raise InputError(f"only text {what}; leave {argument} out.")
        if isinstance(target_prefix, str):
            target_prefix = self._translator.tokenizer.encode_target(target_prefix)
        searches = self._translator.lines.translate_tokens(
            token_ids(name or "the line", source), options,
            token_ids(f"the target prefix of {name or 'the line'}", target_prefix), score,
            given[0] if given else (), LineNames([name or "the line"]),
        )  # fmt: skip
        return self._submit(searches, request)

    def submit_document(
        self,
        text: str,
        options: SearchOptions | None = None,
        *,
        request: int | None = None,
        split_sentences: bool | str = True,
        unwrap: bool = False,
        markup: str | None = None,
        terminology: Glossary | None = None,
        alignments: bool = False,
        name: str | None = None,
    ) -> Future[Translation]:
        """Submit a text of many lines, whose structure is kept.

        Its sentences, or the texts between its tags, share batches and scheduling turns. The
        document counts as one line.

        Args:
            text: A whole document (`Translator.translate_document`).
            options: Search options; None uses the bundle's defaults.
            request: See `submit`.
            split_sentences: See `Translator.translate_document`.
            unwrap: See `Translator.translate_document`.
            markup: See `Translator.translate_document`.
            terminology: Glossary (`Translator.translate`).
            alignments: See `Translator.translate_document`.
            name: Name of the text in error messages; None: "text 1 of this call".

        Returns:
            A future of the translation; see `submit`.

        Raises:
            InputError: The text is not a string or not well-formed XML.
            OptionError: The bundle was not compiled for an option, or its value is out of range.
            TranslateTrtError: See `submit`.
        """
        of_text = LineRequest(
            list(checked_texts("texts", "text", [text])), self._translator.checked(options),
            None, _names(name, "text"),
            split_sentences=split_sentences, markup=markup, terminology=terminology,
            alignments=alignments,
        )  # fmt: skip
        return self._submit(self._translator.lines.translate_documents(of_text, unwrap), request)

    def _submit(self, searches: Searches, request: int | None) -> Future[Translation]:
        return self._service.submit(searches, self.new_request() if request is None else request)

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


def _names(name: str | None, noun: str = "line") -> LineNames:
    return LineNames(None if name is None else [name], noun=noun)
