"""Requests of many clients, one by one: arrays in, arrays out, nothing of Triton.

What a sentence needs is checked before anything is translated, so that a bad one costs its
neighbours nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event, Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.serve.triton import interface
from translate_trt.runtime.service import TranslationService
from translate_trt.runtime.translator import Translator

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Line:
    """A sentence and how to search; `source` is text or tokens."""

    source: str | tuple[int, ...]
    options: SearchOptions


@dataclass(frozen=True)
class Limits:
    """Limits of a request.

    Attributes:
        beam_size: of each sentence.
        characters: of each text.
        cost: of all sentences together, see `cost`.
    """

    beam_size: int
    characters: int
    cost: int


#: A token of a source is counted as so many characters.
_CHARACTERS_PER_TOKEN = 4


def cost(lines: Sequence[Line]) -> int:
    """Upper bound of a request's cost: characters, or MIN_LENGTH if larger, times the beam size."""
    total = 0
    for line in lines:
        per_token = 1 if isinstance(line.source, str) else _CHARACTERS_PER_TOKEN
        size = max(len(line.source) * per_token, line.options.min_length, 1)
        total += size * line.options.beam_size
    return total


# ---- requests ----


def read_lines(inputs: Mapping[str, Array], translator: Translator, limits: Limits) -> list[Line]:
    """The sentences of one request, checked.

    Args:
        inputs: those of `interface.INPUTS` that the request has, each with an axis of sentences.
        translator: will translate them.
        limits: of the server.

    Raises:
        InputError: there is neither text nor tokens, or both; or one that cannot be translated.
        OptionError: an option that is out of range, or that the bundle or server does not take.
    """
    text, tokens = interface.TEXT.name, interface.TOKENS.name
    if (text in inputs) == (tokens in inputs):
        found = f"both {text} and" if text in inputs else f"neither {text} nor"
        raise InputError(f"the request has {found} {tokens}; send one of them.")
    if text in inputs:
        texts = inputs[text].reshape(-1)
        sources: list[Any] = [_text(row, one, limits) for row, one in enumerate(texts)]
    else:
        sources = [_tokens(row) for row in inputs[tokens]]
    lines = [
        Line(source, _options(inputs, row, translator.default_options))
        for row, source in enumerate(sources)
    ]
    longest = translator.manifest.limits.max_target_length
    for row, line in enumerate(lines):
        if line.options.min_length > longest:
            raise OptionError(
                f"min_length {line.options.min_length} is more than the {longest} tokens of the "
                "longest translation that this bundle was exported for; ask for less."
            )
        if line.options.beam_size > limits.beam_size:
            raise OptionError(
                f"beam_size {line.options.beam_size} is more than the {limits.beam_size} that "
                "this server takes; ask for fewer, or make the model repository with a larger "
                "--max-beam-size."
            )
        source = None if isinstance(line.source, str) else line.source
        translator.check(line.options, source, f"sentence {row}")
    _check_cost(lines, limits)
    return lines


def _check_cost(lines: Sequence[Line], limits: Limits) -> None:
    found = cost(lines)
    if found <= limits.cost:
        return
    # What fits if the most expensive sentence stands for all.
    fitting = limits.cost // max(cost([line]) for line in lines)
    if fitting:
        instead = f"send at most {fitting} of them in a request"
    elif len(lines) > 1:
        instead = "send shorter texts, one in a request, or ask for a smaller beam_size"
    else:
        instead = "send a shorter text, or ask for a smaller beam_size"
    raise InputError(
        f"the request costs {found} (characters times beam_size, of {len(lines)} sentences), more "
        f"than the {limits.cost} that this server takes; {instead}."
    )


def _text(row: int, content: bytes | str, limits: Limits) -> str:
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"sentence {row} is not valid UTF-8 at byte {error.start}; encode it again."
        ) from error
    if len(text) > limits.characters:
        raise InputError(
            f"sentence {row} has {len(text)} characters, more than the {limits.characters} that "
            "this server takes; send its sentences one by one."
        )
    return text


def _tokens(row: Array) -> tuple[int, ...]:
    """A row's tokens without what it is filled up with at its end."""
    real = np.flatnonzero(row != interface.NO_TOKEN)
    return tuple(row[: real[-1] + 1].tolist()) if len(real) else ()


def _options(inputs: Mapping[str, Array], row: int, defaults: SearchOptions) -> SearchOptions:
    """The defaults, with what the request says of that sentence in their place."""
    given: dict[str, Any] = {}
    for name, tensor in interface.OPTIONS.items():
        if tensor.name in inputs:
            value = inputs[tensor.name].reshape(-1)[row]
            if tensor.data_type == "STRING":
                given[name] = value.decode("utf-8", "replace")
            else:
                given[name] = value.item()
    return dataclasses.replace(defaults, **given)


# ---- translating ----


class Answer:
    """Sentences of one request, which take turns as one in a service.

    Attributes:
        lines: what was asked for.
        cost: of them.
    """

    def __init__(self, lines: Sequence[Line], service: TranslationService) -> None:
        """Nothing is handed in before `send`.

        Args:
            lines: checked.
            service: translates each in a batch with others of its beam size.
        """
        self.lines, self.cost = lines, cost(lines)
        self._service, self._request = service, service.new_request()
        self._futures: list[Future[Translation]] = []
        self._error: Exception | None = None
        self._cancelled = Event()
        self._left, self._lock = len(lines), Lock()

    def send(self, call: Callable[[Answer], None]) -> None:
        """Hand the sentences in.

        Args:
            call: is given this answer by some thread once all sentences are done.
        """

        def done(_: object, count: int = 1) -> None:
            with self._lock:
                self._left -= count
                last = not self._left
            if last:
                call(self)

        if not self.lines:
            call(self)
        # Cutting a text into segments takes a while, during which no lock is held.
        for line in self.lines:
            if self._cancelled.is_set():
                break
            try:
                future = self._service.submit(line.source, line.options, request=self._request)
            except Exception as error:
                self._error = error
                break
            self._futures.append(future)
            future.add_done_callback(done)
            if self._cancelled.is_set():  # meanwhile
                self._service.cancel(self._request)
        if rest := len(self.lines) - len(self._futures):
            self.cancel()
            done(None, rest)

    def cancel(self) -> None:
        """Drop what no batch has taken yet."""
        self._cancelled.set()
        self._service.cancel(self._request)

    def result(self) -> list[Translation] | Exception | None:
        """Once it is done: the translations, or what went wrong first; None: it was cancelled."""
        if self._error is not None:
            return self._error
        if len(self._futures) < len(self.lines):
            return None
        translations = []
        for future in self._futures:
            error = None if future.cancelled() else future.exception()
            if future.cancelled() or (error is not None and self._cancelled.is_set()):
                return None
            if isinstance(error, Exception):
                return error
            translations.append(future.result())
        return translations


# ---- answers ----


def write_outputs(
    lines: Sequence[Line], translations: Sequence[Translation], wanted: Iterable[str]
) -> dict[str, Array]:
    """The outputs of one request that are asked for, by name."""
    width = max(line.options.num_hypotheses for line in lines)
    table = [one.hypotheses for one in translations]
    write: dict[str, Callable[[], Array]] = {
        interface.TRANSLATION.name: lambda: _filled(
            table, width, b"", np.object_, lambda one: one.text.encode("utf-8")
        ),
        interface.SCORE.name: lambda: _filled(
            table, width, interface.NO_SCORE, np.float64,
            lambda one: max(one.score, interface.NO_SCORE),
        ),
        interface.TRUNCATED.name: lambda: _filled(
            table, width, False, np.bool_, lambda one: one.truncated
        ),
        interface.TRANSLATION_TOKENS.name: lambda: _token_table(table, width),
        interface.COUNT.name: lambda: np.array([[len(best)] for best in table], np.int32),
    }  # fmt: skip
    return {name: write[name]() for name in wanted}


def _filled(
    table: Sequence[Sequence[TextHypothesis]],
    width: int,
    fill: object,
    kind: type[np.generic],
    value: Callable[[TextHypothesis], object],
) -> Array:
    """[sentences, width] of a value per hypothesis."""
    array = np.full((len(table), width), fill, kind)
    for row, best in enumerate(table):
        for column, one in enumerate(best):
            array[row, column] = value(one)
    return array


def _token_table(table: Sequence[Sequence[TextHypothesis]], width: int) -> Array:
    """[sentences, width, longest], the tokens of a line's segments one after the other."""
    tokens = [
        [[token for segment in one.segments for token in segment.tokens] for one in best]
        for best in table
    ]
    longest = max((len(one) for best in tokens for one in best), default=0)
    array = np.full((len(table), width, longest), interface.NO_TOKEN, np.int32)
    for row, best in enumerate(tokens):
        for column, one in enumerate(best):
            array[row, column, : len(one)] = one
    return array
