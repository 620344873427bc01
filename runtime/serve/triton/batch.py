"""Conversion between Triton's arrays and translations, and asynchronous answers to requests.

All sentences are validated before translation starts, so an invalid request does not affect others.
An invalid sentence fails its request, unless the client asks for the errors of sentences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from operator import itemgetter
from threading import Event, Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.json_lines import WordsOf
from translate_trt.runtime.line_request import LineRequest
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.serve.admission import search_cost
from translate_trt.runtime.serve.triton import interface
from translate_trt.runtime.service import TranslationService
from translate_trt.runtime.text.glossary import Glossary
from translate_trt.runtime.translator import Translator

Array: TypeAlias = NDArray[Any]

#: Error that belongs to one sentence, and not to the request or the server.
SentenceError: TypeAlias = InputError | OptionError


@dataclass(frozen=True)
class Line:
    """A sentence of a request, or a document.

    Attributes:
        request: Its text or tokens, and what is asked of the translation.
        words: Whether to return the confidence of each word.
        returns_error: Whether an error of the sentence is returned beside the translations of
            others; otherwise the request fails with it.
        error: Error of a sentence that cannot be translated.
    """

    request: LineRequest
    words: bool = False
    returns_error: bool = False
    error: SentenceError | None = None


@dataclass(frozen=True)
class Limits:
    """Limits of a request.

    Attributes:
        beam_size: Maximum beam size of a sentence.
        characters: Maximum length of a text.
        cost: Maximum total cost of the sentences (see `cost`).
    """

    beam_size: int
    characters: int
    cost: int


#: Number of characters that a source token counts as.
_CHARACTERS_PER_TOKEN = 4


def cost(lines: Sequence[Line]) -> int:
    """Cost bound of a request: `search_cost` of its characters, or of MIN_LENGTH if larger."""
    total = 0
    for request in (line.request for line in lines):
        given = [*request.lines, *(request.targets or ()), *(request.tokens or ())]
        given += [phrase for phrases in request.constraints or () for phrase in phrases]
        texts = [one for one in given if isinstance(one, str)]
        tokens = [one for one in given if not isinstance(one, str)]
        size = sum(map(len, texts)) + _CHARACTERS_PER_TOKEN * sum(map(len, tokens))
        least = max(size, request.options.min_length)
        total += search_cost(request.options, least, request.markup is not None)
    return total


# ---- requests ----


def read_lines(inputs: Mapping[str, Array], translator: Translator, limits: Limits) -> list[Line]:
    """Read and validate the sentences of a request.

    Args:
        inputs: Tensors of the request, a subset of `interface.INPUTS`; the first axis is sentences.
        translator: Translator that will translate the sentences.
        limits: Limits of the server.

    Raises:
        InputError: The request has neither text nor tokens, has both, costs too much, or has an
            invalid sentence that does not return its error.
        OptionError: An option of such a sentence is out of range, or not supported by the bundle or
            the server.
    """
    text, tokens = interface.TEXT.name, interface.TOKENS.name
    if (text in inputs) == (tokens in inputs):
        found = f"both {text} and" if text in inputs else f"neither {text} nor"
        raise InputError(f"the request has {found} {tokens}; send one of them.")
    lines = []
    glossaries: dict[str, Glossary] = {}
    for row in range(len(inputs[text if text in inputs else tokens])):
        returns_error = _is_set(inputs, interface.RETURN_ERRORS, row)
        try:
            line = _read_line(inputs, row, translator, limits, glossaries)
        except (InputError, OptionError) as error:
            if not returns_error:
                raise
            line = Line(LineRequest([""], translator.default_options), error=error)
        lines.append(dataclasses.replace(line, returns_error=returns_error))
    _check_cost(lines, limits)
    return lines


def _read_line(
    inputs: Mapping[str, Array],
    row: int,
    translator: Translator,
    limits: Limits,
    glossaries: dict[str, Glossary],
) -> Line:
    """Read and validate a sentence; its glossary is added to those of others, by their text."""
    source: str | tuple[int, ...]
    if interface.TEXT.name in inputs:
        source = _text(f"sentence {row}", inputs[interface.TEXT.name].reshape(-1)[row], limits)
    else:
        source = _tokens(inputs[interface.TOKENS.name][row])

    def text(tensor: interface.Tensor, what: str) -> str:
        """Return an additional text of the sentence; empty unless it is given."""
        if tensor.name not in inputs:
            return ""
        content = inputs[tensor.name].reshape(-1)[row]
        return _text(f"{what} of sentence {row}", content, limits)

    terminology = text(interface.TERMINOLOGY, "the glossary")
    if terminology.strip() and terminology not in glossaries:
        name = f"the glossary of sentence {row}"
        glossaries[terminology] = Glossary.parse(terminology.split("\n"), name)
    constraints = text(interface.CONSTRAINTS, "the constraints").split("\t")
    options = _options(inputs, row, translator.default_options)
    _check_limits(options, translator, limits)
    request = translator.line_request(
        source,
        options,
        text(interface.TARGET_PREFIX, "the target prefix"),
        name=f"sentence {row}",
        score=_is_set(inputs, interface.SCORE_PREFIX, row),
        split_sentences=_is_set(inputs, interface.SPLIT_SENTENCES, row),
        document=_is_set(inputs, interface.DOCUMENT, row),
        constraints=[phrase for phrase in constraints if phrase.strip()],
        terminology=glossaries.get(terminology),
        alignments=_is_set(inputs, interface.RETURN_ALIGNMENTS, row),
        markup=text(interface.MARKUP, "the markup") or None,
        translate_all=_is_set(inputs, interface.TRANSLATE_ALL, row),
    )
    words = _is_set(inputs, interface.RETURN_WORDS, row)
    if words and (request.tokens is not None or request.markup is not None):
        raise InputError(
            f"sentence {row} is given as tokens or has markup, and only plain text has words; "
            f"leave {interface.RETURN_WORDS.name} out."
        )
    # The texts themselves are checked as they are submitted.
    translator.check_request(
        request
        if request.tokens is not None
        else dataclasses.replace(request, lines=(), targets=None, constraints=None)
    )
    return Line(request, words)


def _check_limits(options: SearchOptions, translator: Translator, limits: Limits) -> None:
    """Refuse options that are beyond the limits of the bundle or the server."""
    longest = translator.manifest.limits.max_target_length
    if options.min_length > longest:
        raise OptionError(
            f"min_length {options.min_length} is more than the {longest} tokens of the "
            "longest translation that this bundle was exported for; use a smaller value."
        )
    for name in ("beam_size", "alternatives"):
        if (value := getattr(options, name)) > limits.beam_size:
            raise OptionError(
                f"{name} {value} is more than this server's maximum of {limits.beam_size}; "
                "use a smaller one, or create the model repository with a larger "
                "--max-beam-size."
            )


def _check_cost(lines: Sequence[Line], limits: Limits) -> None:
    found = cost(lines)
    if found <= limits.cost:
        return
    # Number of sentences that fit if each costs as much as the most expensive one.
    fitting = limits.cost // max(cost([line]) for line in lines)
    if fitting:
        instead = f"send at most {fitting} of them in a request"
    elif len(lines) > 1:
        instead = "send shorter texts, one per request, or use a smaller beam_size"
    else:
        instead = "send a shorter text, or use a smaller beam_size"
    raise InputError(
        f"the request costs {found} (characters times beam_size of {len(lines)} sentences), more "
        f"than this server's maximum of {limits.cost}; {instead}."
    )


def _text(name: str, content: bytes | str, limits: Limits) -> str:
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not valid UTF-8 at byte {error.start}; encode it again."
        ) from error
    if len(text) > limits.characters:
        raise InputError(
            f"{name} has {len(text)} characters, more than this server's maximum of "
            f"{limits.characters}; send its sentences one by one."
        )
    return text


def _tokens(row: Array) -> tuple[int, ...]:
    """Return the tokens of a row without the padding at its end."""
    real = np.flatnonzero(row != interface.NO_TOKEN)
    return tuple(row[: real[-1] + 1].tolist()) if len(real) else ()


def _is_set(inputs: Mapping[str, Array], tensor: interface.Tensor, row: int) -> bool:
    """Return a flag of a sentence, which is off unless it is given."""
    return tensor.name in inputs and bool(inputs[tensor.name].reshape(-1)[row])


def _options(inputs: Mapping[str, Array], row: int, defaults: SearchOptions) -> SearchOptions:
    """Return the search options of a sentence: those of the request, otherwise the defaults."""
    requested: dict[str, Any] = {}
    for name, tensor in interface.OPTIONS.items():
        if tensor.name in inputs:
            value = inputs[tensor.name].reshape(-1)[row]
            if tensor.data_type == "STRING":
                requested[name] = value.decode("utf-8", "replace")
            else:
                requested[name] = value.item()
    return dataclasses.replace(defaults, **requested)


# ---- translating ----


class Answer:
    """Asynchronous answer to a request, whose sentences share scheduling turns in the service.

    Attributes:
        lines: Sentences of the request.
        cost: Cost of the request.
    """

    def __init__(self, lines: Sequence[Line], service: TranslationService) -> None:
        """Prepare an answer; `send` submits the sentences.

        Args:
            lines: Validated sentences.
            service: Service that translates the sentences.
        """
        self.lines, self.cost = lines, cost(lines)
        self._service, self._request = service, service.new_request()
        self._futures: list[Future[Translation]] = []
        self._error: Exception | None = None
        self._cancelled = Event()
        self._left, self._lock = len(lines), Lock()

    def send(self, call: Callable[[Answer], None]) -> None:
        """Submit the sentences.

        Args:
            call: Called with this answer, from any thread, once all sentences are done.
        """

        def done(_: object, count: int = 1) -> None:
            with self._lock:
                self._left -= count
                last = not self._left
            if last:
                call(self)

        if not self.lines:
            call(self)
        # No lock is held here, because splitting a text into segments takes time.
        for line in self.lines:
            if self._cancelled.is_set():
                break
            try:
                future = self._submit(line)
            except Exception as error:
                self._error = error
                break
            self._futures.append(future)
            future.add_done_callback(done)
            if self._cancelled.is_set():  # `cancel` may have missed this line
                self._service.cancel(self._request)
        if rest := len(self.lines) - len(self._futures):
            self.cancel()
            done(None, rest)

    def _submit(self, line: Line) -> Future[Translation]:
        try:
            if line.error is not None:
                raise line.error
            return self._service.submit_request(
                line.request, request=self._request, result=itemgetter(0)
            )
        except (InputError, OptionError) as error:
            if not line.returns_error:
                raise
            failed = Future[Translation]()
            failed.set_exception(error)
            return failed

    def cancel(self) -> None:
        """Cancel the unfinished sentences."""
        self._cancelled.set()
        self._service.cancel(self._request)

    def result(self) -> list[Translation | SentenceError] | Exception | None:
        """Return the results of the sentences of a finished answer, or the error it fails with.

        None if the answer was cancelled.
        """
        if self._error is not None:
            return self._error
        if len(self._futures) < len(self.lines):
            return None
        found: list[Translation | SentenceError] = []
        for line, future in zip(self.lines, self._futures, strict=True):
            error = None if future.cancelled() else future.exception()
            if future.cancelled() or (error is not None and self._cancelled.is_set()):
                return None
            if line.returns_error and isinstance(error, SentenceError):
                found.append(error)
            elif isinstance(error, Exception):
                return error
            else:
                found.append(future.result())
        return found


# ---- answers ----


def write_outputs(
    lines: Sequence[Line],
    found: Sequence[Translation | SentenceError],
    wanted: Collection[str],
    words: WordsOf,
) -> dict[str, Array]:
    """Create the requested output arrays by name.

    Args:
        lines: Sentences of the request.
        found: Their translations, or errors, which have no hypotheses.
        wanted: Names of the outputs.
        words: Returns the words of a hypothesis with their confidences.
    """
    width = max(line.request.options.result_count for line in lines)
    table = [one.hypotheses if isinstance(one, Translation) else () for one in found]
    # Padding, type and value of each hypothesis, of which tensors with two axes have several.
    values: dict[interface.Tensor, tuple[Any, Any, Callable[[Line, TextHypothesis], Any]]] = {
        interface.TRANSLATION: (b"", np.object_, lambda _, one: one.text.encode("utf-8")),
        interface.SCORE: (
            interface.NO_SCORE, np.float64, lambda _, one: max(one.score, interface.NO_SCORE)
        ),
        interface.TRUNCATED: (False, np.bool_, lambda _, one: one.truncated),
        interface.TRANSLATION_TOKENS: (
            interface.NO_TOKEN, np.int32,
            lambda _, one: [token for segment in one.segments for token in segment.tokens],
        ),
        interface.TOKEN_LOG_PROBS: (
            interface.NO_LOG_PROB, np.float32,
            lambda _, one: [max(value, interface.NO_SCORE) for value in one.token_log_probs],
        ),
        interface.ALIGNMENTS: (
            b"", np.object_,
            lambda _, one: b"" if one.alignment is None else one.alignment.pharaoh().encode(),
        ),
        interface.WORD_CONFIDENCES: (
            interface.NO_CONFIDENCE, np.float32,
            lambda line, one: [word.confidence for word in words(one)] if line.words else [],
        ),
    }  # fmt: skip
    outputs = {
        interface.COUNT.name: np.array([[len(best)] for best in table], np.int32),
        interface.ERROR.name: np.array(
            [[b"" if isinstance(one, Translation) else str(one).encode()] for one in found],
            np.object_,
        ),
    }
    for tensor, (fill, kind, value) in values.items():
        if tensor.name in wanted:
            rows = [
                [value(line, one) for one in best] for line, best in zip(lines, table, strict=True)
            ]
            outputs[tensor.name] = _filled(tensor, rows, width, fill, kind)
    return {name: outputs[name] for name in wanted}


def _filled(
    tensor: interface.Tensor, rows: Sequence[Sequence[Any]], width: int, fill: Any, kind: Any
) -> Array:
    """Create an array [sentences, width], or [sentences, width, longest] of several values."""
    has_several = len(tensor.shape) > 1
    longest = [max((len(one) for row in rows for one in row), default=0)] if has_several else []
    array = np.full((len(rows), width, *longest), fill, kind)
    for number, row in enumerate(rows):
        for column, one in enumerate(row):
            array[(number, column, slice(len(one))) if has_several else (number, column)] = one
    return array
