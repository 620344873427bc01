"""Requests of many clients, translated together: arrays in, arrays out, nothing of Triton.

What a sentence needs is checked before anything is translated, so that a bad one costs its
neighbours nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.errors import InputError, OptionError, TranslateTrtError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.serve.triton import interface
from translate_trt.runtime.translator import Translator

log = logging.getLogger("translate_trt")

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


def translate(
    translator: Translator,
    requests: Mapping[int, Sequence[Line]],
    is_wanted: Callable[[int], bool],
) -> dict[int, list[Translation] | Exception]:
    """Translate the sentences of several requests, those of equal options together.

    Args:
        translator: used by this thread and others.
        requests: by any number.
        is_wanted: False of a request that nobody waits for any more; asked again before each group.

    Returns:
        By the same numbers a translation of each sentence, or what went wrong with one of them. A
        request that is not wanted is left out.
    """
    groups: dict[tuple[bool, SearchOptions], list[tuple[int, int]]] = {}
    for number, lines in requests.items():
        for row, line in enumerate(lines):
            key = (isinstance(line.source, str), line.options)
            groups.setdefault(key, []).append((number, row))
    found: dict[tuple[int, int], Translation | Exception] = {}
    for members in groups.values():
        wanted = [member for member in members if is_wanted(member[0])]
        lines = [requests[number][row] for number, row in wanted]
        found.update(zip(wanted, _translate_group(translator, lines), strict=True))
    answers: dict[int, list[Translation] | Exception] = {}
    for number, lines in requests.items():
        results = [found.get((number, row)) for row in range(len(lines))]
        if None not in results:
            answers[number] = _translations_or_error(results)
    return answers


def _translations_or_error(results: Iterable[Any]) -> list[Translation] | Exception:
    translations = []
    for one in results:
        if isinstance(one, Exception):
            return one
        translations.append(one)
    return translations


def _translate_group(
    translator: Translator, lines: Sequence[Line]
) -> Sequence[Translation | Exception]:
    """Translations of lines of equal options; what fails together is tried one by one."""
    if not lines:
        return []
    try:
        return _translate_together(translator, lines)
    except Exception as error:  # a line's neighbours get their answers, whatever it was
        if not isinstance(error, TranslateTrtError):
            log.exception("%d sentences failed together", len(lines))
        if len(lines) == 1:
            return [error]
    return [one for line in lines for one in _translate_group(translator, [line])]


def _translate_together(translator: Translator, lines: Sequence[Line]) -> list[Translation]:
    options = lines[0].options
    texts = [line.source for line in lines if isinstance(line.source, str)]
    if texts:
        return translator.translate(texts, options)
    tokens = [line.source for line in lines if not isinstance(line.source, str)]
    found = translator.translate_ids(tokens, options)
    decoded = iter(
        translator.tokenizer.decode_batch([one.tokens for best in found for one in best])
    )
    return [
        Translation(tuple(TextHypothesis(next(decoded), one.score, (one,)) for one in best))
        for best in found
    ]


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
