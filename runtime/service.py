"""Sentences one at a time, from any thread, in batches that never end: continuous batching."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.native_service import CoreService
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.reference_service import PlainService
from translate_trt.runtime.results import Statistics, Translation
from translate_trt.runtime.translator import Translator


class TranslationService:
    """Translates what threads submit, each line as soon as a batch has capacity for it.

    A line that comes joins the batch of a worker that is translating others; a lone one is begun at
    once. What is found is what `Translator.translate` finds. Close it, or use it in a `with`.

    Lines of one beam size and of like length share batches, whatever their other options; batches
    of a worker take turns, step by step, with equal time for each request in them. Where
    libtranslate_trt does not translate, lines are translated one by one.
    """

    def __init__(
        self,
        translator: Translator,
        *,
        capacity: int | None = None,
    ) -> None:
        """Translate with the translator's workers.

        Args:
            translator: of which other threads may make use meanwhile.
            capacity: lines from which on `submit` waits until one is done; None: it never waits,
                and memory is the bound.

        Raises:
            OptionError: a number is out of range.
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
    ) -> Future[Translation]:
        """Hand in a line of text, or the tokens of one.

        Args:
            source: text of any length, or source token ids without the end symbol.
            options: None takes the bundle's defaults.
            target_prefix: what the translation must begin with, as text or target token ids.
            request: of `new_request`: lines of one request share its turns; None: the line has
                turns of its own.

        Returns:
            Its translation. Until a batch has taken the line it can be cancelled. Callbacks of the
            future run in a worker's thread: they must be short, and not submit where there is a
            capacity; what they raise is logged. `exception()` is a `BackendError` if the backend
            failed with this very line, or a worker has ended.

        Raises:
            InputError: a token outside the vocabulary, or more tokens than the bundle allows.
            OptionError: an option this bundle was not compiled for, or out of its limits.
            TranslateTrtError: the service was closed, has failed, or was made by the process that
                this one was forked from.
        """
        return self._service.submit(
            source, options or self._translator.default_options, target_prefix, request
        )

    def new_request(self) -> int:
        """A number for lines that belong together."""
        return self._service.new_request()

    def cancel(self, request: int) -> None:
        """Cancel the lines of a request that have not been translated.

        Where libtranslate_trt does not translate, lines that have been begun go on.
        """
        self._service.cancel(request)

    @property
    def failed(self) -> bool:
        """True once a thread has ended before its time; there will be no more translations."""
        return self._service.failed

    def statistics(self) -> Statistics:
        """Current load, and totals since the start."""
        return self._service.statistics()

    def close(self, cancel_futures: bool = False) -> None:
        """Take no more lines, and wait until all are translated.

        In a process that was forked from the one that made the service, this does nothing.

        Args:
            cancel_futures: cancel those that are not translated yet.
        """
        self._service.close(cancel_futures)

    def __enter__(self) -> TranslationService:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(cancel_futures=kind is not None)
