"""Requests of many clients, one by one: arrays in, arrays out, nothing of Triton.

What a sentence needs is checked before anything is translated, so that a bad one costs its
neighbours nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
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
    """What a request may ask for."""

    beam_size: int
    characters: int


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
    for row, line in enumerate(lines):
        if line.options.beam_size > limits.beam_size:
            raise OptionError(
                f"beam_size {line.options.beam_size} is more than the {limits.beam_size} that "
                "this server takes; ask for fewer, or make the model repository with a larger "
                "--max-beam-size."
            )
        source = None if isinstance(line.source, str) else line.source
        translator.check(line.options, source, f"sentence {row}")
    return lines


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
    """Sentences of one request in a service.

    Attributes:
        lines: what was asked for.
    """

    def __init__(self, lines: Sequence[Line], service: TranslationService) -> None:
        """Hand the sentences in; waits while the service is full.

        Args:
            lines: checked.
            service: translates each in a batch with others of its beam size.
        """
        self.lines = lines
        self._futures = [service.submit(line.source, line.options) for line in lines]
        self._left, self._lock = len(lines), Lock()

    def call_when_done(self, call: Callable[[Answer], None]) -> None:
        """Let some thread call that with this answer, once all sentences are done."""

        def one_done(_: object) -> None:
            with self._lock:
                self._left -= 1
                last = not self._left
            if last:
                call(self)

        if not self._futures:
            call(self)
        for future in self._futures:
            future.add_done_callback(one_done)

    def begun(self) -> bool:
        """True if any sentence is being translated, or was."""
        return any(future.running() or future.done() for future in self._futures)

    def cancel(self) -> None:
        """Drop the sentences that no batch has taken yet."""
        for future in self._futures:
            future.cancel()

    def result(self) -> list[Translation] | Exception | None:
        """Once it is done: the translations, or what went wrong first; None: it was cancelled."""
        translations = []
        for future in self._futures:
            if future.cancelled():
                return None
            error = future.exception()
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
    """[sentences, width, longest], the tokens of a line's pieces one after the other."""
    tokens = [
        [[token for piece in one.pieces for token in piece.tokens] for one in best]
        for best in table
    ]
    longest = max((len(one) for best in tokens for one in best), default=0)
    array = np.full((len(table), width, longest), interface.NO_TOKEN, np.int32)
    for row, best in enumerate(tokens):
        for column, one in enumerate(best):
            array[row, column, : len(one)] = one
    return array
