"""A bundle loaded by libtranslate_trt, its jobs and their results."""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.util
import logging
import os
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from ctypes import byref, c_double, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime import kernels
from translate_trt.runtime.backends.device import Engines
from translate_trt.runtime.confidence import Word
from translate_trt.runtime.interface.search_options import OPTIONS, Option
from translate_trt.runtime.line_names import LineNames
from translate_trt.runtime.line_request import MARKUP, LineRequest
from translate_trt.runtime.native import abi, open_library, required_library
from translate_trt.runtime.native.device_functions import DeviceFunctions
from translate_trt.runtime.native.values import (
    as_texts,
    handle,
    phrase_texts,
    phrase_tokens,
    sized,
    text_of,
    token_lists,
)
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis, TextHypothesis, Translation
from translate_trt.runtime.text.alignment import AlignedSegment, Alignment
from translate_trt.runtime.text.documents import SplitText

log = logging.getLogger("translate_trt")

_LARGEST = 2**31 - 1  # of a field of tt_load_options

# Interval between returns to Python, which only then handles Ctrl-C.
_SECONDS_BETWEEN_SIGNALS = 0.1
_MOST_COMPLETIONS = 256

# Flags of tt_result_arrays.
_TRUNCATED, _LOOPED = 1, 2


class Job:
    """Job of the library. Not thread-safe except for `cancel`."""

    def __init__(self, core: Core) -> None:
        self._core, self.handle = core, c_void_p()  # which the core fills

    def __del__(self) -> None:
        self._core.calls.tt_job_free(self.handle)  # cancels its unfinished sentences

    def cancel(self) -> None:
        """Cancel the unfinished sentences of the job."""
        self._core.calls.tt_job_cancel(self.handle)

    def result(self) -> AbstractContextManager[c_void_p]:
        """Wait for the job and return its result, to be used in a `with` statement, once.

        A signal handler that raises meanwhile cancels the job.

        Raises:
            TranslateTrtError: The job has failed.
        """
        calls, finished = self._core.calls, c_int32()
        try:
            while not finished.value:
                calls.tt_job_wait(self.handle, _SECONDS_BETWEEN_SIGNALS, byref(finished))
        except BaseException:
            self.cancel()
            raise
        return handle(calls.tt_result_free, calls.tt_job_result, self.handle)


class LineJobs:
    """Jobs that translate the lines of a request, one after another: one, or two with markup.

    `submit` returns the next job, and `receive` takes its result; after the last, `translations`
    has the translations of the lines. For one thread at a time.
    """

    def __init__(self, core: Core, request: LineRequest) -> None:
        """Take the lines, and the tags out of texts with markup.

        Raises:
            TranslateTrtError: See `Translator.translate`.
        """
        self._core, self._request = core, request
        self._markup: Markup | None = None
        if request.markup is not None:
            self._markup = Markup(core.calls, request.lines, request.markup, request.whole,
                                  request.names)  # fmt: skip
        self.translations: list[Translation] = []
        self._left = True

    def submit(
        self, *, caller: int = 0, completions: Completions | None = None, key: int = 0
    ) -> Job | None:
        """Submit the next job; None if the lines are translated.

        Args:
            caller: Number shared by jobs that take scheduling turns together; 0 for none.
            completions: Queue that receives `key` once the job has finished.
            key: Positive number chosen by the caller.

        Raises:
            TranslateTrtError: See `Translator.translate`.
        """
        texts = None if self._markup is None else self._markup.lines()
        if texts is not None and not len(texts):
            assert self._markup is not None
            with self._markup.result() as result:
                self.translations = self._core.translations(result, self._request)
            self._left = False
        if not self._left:
            return None
        submit = submit_options(self._core.calls, self._request, self._markup, texts)
        submit.caller = caller
        if completions is not None:
            submit.completions, submit.finished_context = completions.handle, key
        return self._core.submit(self._request, submit, texts)

    def receive(self, job: Job) -> None:
        """Take the result of the job that was submitted last, and wait for it if necessary.

        Raises:
            TranslateTrtError: The job has failed.
        """
        with job.result() as result:
            if self._markup is None:
                self.translations = self._core.translations(result, self._request)
                self._left = False
            else:
                self._markup.receive(result)


# Cores are closed at exit: their threads must not run while the libraries they use are torn down.
_loaded: weakref.WeakSet[Core] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for core in list(_loaded):
        core.close()


def engine_memory(bundle: Path, target: str) -> abi.EngineMemory:
    """Return the memory that batches of an engine target need, which takes no GPU.

    Raises:
        TranslateTrtError: The bundle is damaged, the target has no engines, or there is no library.
    """
    calls, found = required_library("the memory of engines"), abi.EngineMemory()
    calls.tt_bundle_engine_memory(os.fsencode(bundle), target.encode(), *sized(found))
    return found


class Core:
    """A bundle loaded by libtranslate_trt. Thread-safe.

    Attributes:
        calls: Functions of the library.
        workers: Number of batches translated at once.
        batch_tokens: Source tokens per batch, padding included.
    """

    def __init__(
        self,
        path: Path,
        bundle: Path,
        target: str,
        *,
        threads: int,
        workers: int | None = None,
        batch_tokens: int | None = None,
        cache_mib: int = 0,
        device: str | None = None,
        check_hashes: bool = True,
        engines: Engines | None = None,
    ) -> None:
        """Check the bundle and load one of its targets.

        Args:
            path: Path of the library.
            bundle: Directory written by `translate-trt export`.
            target: Name of the target, such as "onnx-int8".
            threads: CPU threads per worker.
            workers: Number of batches translated at once; None for the library's default.
            batch_tokens: Source tokens per batch; None for the library's default.
            cache_mib: Memory for results of earlier sentences in MiB.
            device: "cpu", "cuda" or "cuda:1".
            check_hashes: Compare every file with its SHA-256 in the manifest.
            engines: Engines of a TensorRT target, or graphs of a torch target; None for ONNX
                targets.

        Raises:
            TranslateTrtError: See `Translator`.
        """
        self.calls = open_library(path)
        self._handle = c_void_p()
        level = [logging.INFO]  # of the library's messages; warnings once the bundle is loaded

        def tell(_: int | None, message: bytes) -> None:
            log.log(level[0], "%s", message.decode(errors="replace"))

        self._log = abi.LogFunction(tell)  # lives as long as the library may call it
        kernels_here = kernels.library()
        options = abi.LoadOptions()
        self.calls.tt_load_options_default(*sized(options))
        options.target = target.encode()
        # The library lowers what the machine lacks; a larger integer would be cut to 32 bits first.
        options.threads = min(threads, _LARGEST)
        options.workers = min(workers or 0, _LARGEST)
        options.batch_tokens = min(batch_tokens or 0, _LARGEST)
        options.cache_mib = min(cache_mib, _LARGEST)
        options.device = None if device is None else device.encode()
        options.check_hashes = check_hashes
        self._device_functions: DeviceFunctions | None = None
        if engines is None:
            options.onnxruntime = _onnxruntime()
        else:
            self._device_functions = DeviceFunctions(engines, self.calls)
            options.engines = ctypes.addressof(self._device_functions.engines)
        options.kernels = b"none" if kernels_here is None else os.fsencode(kernels_here)
        options.log = self._log
        self.calls.tt_translator_load(os.fsencode(bundle), byref(options), byref(self._handle))
        level[0] = logging.WARNING
        self.workers = int(self.calls.tt_translator_workers(self._handle))
        self.batch_tokens = int(self.calls.tt_translator_batch_tokens(self._handle))
        _loaded.add(self)

    def close(self) -> None:
        """Cancel unfinished jobs and free the memory."""
        handle, self._handle = self._handle, c_void_p()
        self.calls.tt_translator_free(handle)
        if self._device_functions is not None:
            self._device_functions.release()
            self._device_functions = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def submit(
        self, request: LineRequest, submit: abi.SubmitOptions, texts: Texts | None = None
    ) -> Job:
        """Submit the lines of a request.

        Args:
            request: The lines.
            submit: Options of the job, of `submit_options`.
            texts: Lines to submit instead; None: those of the request.

        Raises:
            TranslateTrtError: See `Translator.translate`.
        """
        call = self.calls.tt_submit if request.tokens is None else self.calls.tt_submit_ids
        job = Job(self)  # before the call, so that Ctrl-C after it frees what the library made
        call(self._handle, *_sources(request, submit, texts), byref(job.handle))
        return job

    def check_request(self, request: LineRequest) -> None:
        """Check the lines and options of a request without translating.

        Raises:
            TranslateTrtError: See `Translator.translate`.
        """
        call = self.calls.tt_check if request.tokens is None else self.calls.tt_check_ids
        markup: Markup | None = None
        texts: Texts | None = None
        if request.markup is not None:  # of no texts
            markup = Markup(self.calls, (), request.markup, request.whole, request.names)
            texts = ()
        submit = submit_options(self.calls, request, markup, texts)
        *sources, _, prefixes = _sources(request, submit, texts)
        call(self._handle, *sources, byref(submit), prefixes)

    def words(self, hypothesis: TextHypothesis) -> list[Word]:
        """Return the words of a translation with their confidences; see `Translator.words`."""
        segments = hypothesis.segments
        tokens = token_lists([one.tokens for one in segments])
        values = [(c_double * len(one.token_log_probs))(*one.token_log_probs) for one in segments]
        log_probs = (abi.LogProbs * len(values))(*[abi.LogProbs(one, len(one)) for one in values])
        calls = self.calls
        with handle(
            calls.tt_result_free, calls.tt_translator_words, self._handle, tokens, log_probs,
            len(segments),
        ) as result:  # fmt: skip
            found = (
                calls.tt_result_word(result, 0, 0, index)
                for index in range(calls.tt_result_words(result, 0, 0))
            )
            return [Word(text_of(one.text), one.log_prob, one.confidence) for one in found]

    def statistics(self) -> abi.Statistics:
        """Return the current load, and the totals since the bundle was loaded."""
        found = abi.Statistics()
        self.calls.tt_translator_statistics(self._handle, *sized(found))
        return found

    def translations(self, result: c_void_p, request: LineRequest) -> list[Translation]:
        """Convert a result to the translations of the lines of a request."""
        arrays = abi.ResultArrays()
        self.calls.tt_result_as_arrays(result, *sized(arrays))
        count, pieces = arrays.hypotheses, _pieces_of(arrays)
        scores, piece_ends = arrays.scores[:count], arrays.piece_ends[:count]
        text_ends = arrays.text_ends[:count]
        texts = ctypes.string_at(arrays.texts, text_ends[-1]) if count else b""
        has_more = (
            request.options.return_attention
            or request.alignments
            or request.terminology is not None
        )
        found, first, begin, text_begin = [], 0, 0, 0
        ends = zip(
            arrays.hypothesis_ends[: arrays.lines], arrays.sentences[: arrays.lines], strict=True
        )
        for line, (last, sentences) in enumerate(ends):
            hypotheses = []
            for index in range(first, last):
                end, text_end = piece_ends[index], text_ends[index]
                text = texts[text_begin:text_end].decode()
                one = TextHypothesis(text, scores[index], tuple(pieces[begin:end]))
                if has_more:
                    one = self._completed(result, request, line, index - first, one)
                hypotheses.append(one)
                begin, text_begin = end, text_end
            found.append(Translation(tuple(hypotheses), sentences))
            first = last
        return found

    def _completed(
        self, result: c_void_p, request: LineRequest, line: int, rank: int, one: TextHypothesis
    ) -> TextHypothesis:
        """Add attention, alignment and terms of a hypothesis, as far as they are requested."""
        calls, more = self.calls, dict[str, Any]()
        if request.options.return_attention:
            more["segments"] = tuple(
                replace(segment, attention=self._attention(result, line, rank, index))
                for index, segment in enumerate(one.segments)
            )
        if (glossary := request.terminology) is not None:
            count = calls.tt_result_terms(result, line, rank)
            terms = (calls.tt_result_term(result, line, rank, index) for index in range(count))
            more["terms"] = tuple(glossary.term(term) for term in terms)
        if request.alignments:
            aligned = calls.tt_result_segments(result, line, rank)
            segments = tuple(AlignedSegment.of(own) for own in aligned.data[: aligned.size])
            translation = text_of(aligned.translation)
            more["alignment"] = Alignment(request.lines[line], translation, segments)
        return replace(one, **more)

    def _attention(self, result: c_void_p, *index: int) -> NDArray[np.float32] | None:
        found = self.calls.tt_result_attention(result, *index)
        if not found.rows:
            return None
        shape = (found.rows, found.columns)
        return np.ctypeslib.as_array(found.data, shape).copy()


def submit_options(
    calls: ctypes.CDLL,
    request: LineRequest,
    markup: Markup | None = None,
    texts: Texts | None = None,
) -> abi.SubmitOptions:
    """Convert the options of a request.

    Args:
        calls: Functions of the library.
        request: The request.
        markup: Its texts with markup, if there are any.
        texts: Their lines, which are submitted.
    """
    submit = abi.SubmitOptions()
    calls.tt_submit_options_default(*sized(submit))
    submit.options = ctypes.pointer(_options(request.options))
    submit.first_line, submit.score = request.names.first, request.score
    submit.translate_all = request.translate_all
    submit.segments = request.alignments
    if request.terminology is not None:
        submit.terminology, submit.terms = request.terminology.handle, True
    names = request.names
    if markup is not None:
        submit.markup = markup.handle
    elif names.given is not None:
        submit.line_names = as_texts(names.given)
    elif names.noun != LineNames.noun:
        submit.line_names = as_texts([names[index] for index in range(len(request.lines))])
    if request.split is not None:
        lines = request.lines if texts is None else [text_of(text) for text in texts]
        submit.splits = _splits([request.split(line) for line in lines])
    if request.constraints is not None and any(request.constraints):
        given: Any = request.constraints
        if any(isinstance(phrase, str) for phrases in given for phrase in phrases):
            submit.constraints = as_texts([phrase_texts(phrases) for phrases in given])
        else:
            submit.constraint_tokens = token_lists([phrase_tokens(phrases) for phrases in given])
    return submit


def check_bundle(bundle: Path, target: str, request: LineRequest) -> None:
    """Check the options of a request without lines for a target that is not loaded.

    Raises:
        TranslateTrtError: The bundle is damaged, or was not compiled for an option.
    """
    calls = required_library("a corpus")
    submit = submit_options(calls, request)
    calls.tt_bundle_check(os.fsencode(bundle), target.encode(), byref(submit))


class Completions:
    """Completion queue: keys of finished jobs, for one thread that waits for any of them."""

    def __init__(self, core: Core) -> None:
        self._core, self.handle = core, c_void_p()
        core.calls.tt_completions_new(byref(self.handle))
        self._keys = (c_void_p * _MOST_COMPLETIONS)()

    def wait(self) -> list[int]:
        """Wait until at least one job has finished and return the keys. For one thread only."""
        count = c_size_t()
        self._core.calls.tt_completions_wait(
            self.handle, -1.0, self._keys, _MOST_COMPLETIONS, byref(count)
        )
        return [int(key or 0) for key in self._keys[: count.value]]

    def add(self, key: int) -> None:
        """Add a key, which wakes up the waiting thread. Thread-safe."""
        self._core.calls.tt_completions_add(self.handle, key)

    def __del__(self) -> None:
        # The waiting thread holds a reference until it has received the keys of all jobs.
        self._core.calls.tt_completions_free(self.handle)


#: Lines of texts with markup, which belong to the library.
Texts: TypeAlias = "Sequence[abi.TextFound]"


class Markup:
    """Texts with markup, and the plain lines to translate for them.

    Attributes:
        handle: The library's.
    """

    def __init__(
        self, calls: ctypes.CDLL, texts: Sequence[str], markup: str, whole: bool, names: LineNames
    ) -> None:
        """Take the tags out of texts.

        Args:
            calls: Functions of the library.
            texts: Documents, or fragments of them.
            markup: One of MARKUP.
            whole: Texts are documents.
            names: Names of the texts in error messages.

        Raises:
            InputError: A text is not well-formed XML.
        """
        self._calls, self.handle = calls, c_void_p()
        given = as_texts([names[index] for index in range(len(texts))])
        calls.tt_markup_new_named(
            as_texts(texts), given, len(texts), MARKUP.index(markup), whole, byref(self.handle)
        )

    def lines(self) -> Texts:
        """Return the lines to translate next; none once the texts are translated."""
        found = self._calls.tt_markup_lines(self.handle)
        lines: Texts = found.data[: found.size]
        return lines

    def receive(self, result: c_void_p) -> None:
        """Receive the translations of the lines."""
        self._calls.tt_markup_receive(self.handle, result)

    def result(self) -> AbstractContextManager[c_void_p]:
        """Yield the result of the texts, which is freed afterwards."""
        calls = self._calls
        return handle(calls.tt_result_free, calls.tt_markup_result, self.handle)

    def __del__(self) -> None:
        self._calls.tt_markup_free(self.handle)


def plain_lines(text: str, markup: str) -> list[str]:
    """Return the lines that are translated for a document with markup.

    Raises:
        InputError: The text is not well-formed XML.
        BackendError: libtranslate_trt is not built.
    """
    taken = Markup(required_library("markup"), [text], markup, True, LineNames(["the text"]))
    return [text_of(line) for line in taken.lines()]


def _sources(
    request: LineRequest, submit: abi.SubmitOptions, texts: Texts | None
) -> tuple[Any, int, Any, Any]:
    """Return sources, their number, the options and the prefixes of a call that submits them."""
    targets: Any = request.targets
    if request.tokens is not None:
        prefixes = None if targets is None else token_lists(targets)
        return token_lists(request.tokens), len(request.tokens), byref(submit), prefixes
    texts_of_targets = None
    if targets is not None:
        if all(isinstance(target, str) for target in targets):
            texts_of_targets = as_texts(targets)
        else:
            submit.prefix_tokens = token_lists(targets)
    if texts is None:
        return as_texts(request.lines), len(request.lines), byref(submit), texts_of_targets
    array = (abi.TextFound * len(texts))(*texts)  # of the same layout as tt_text as an argument
    lines = ctypes.cast(array, ctypes.POINTER(abi.Text))
    return lines, len(texts), byref(submit), texts_of_targets


def _splits(splits: Sequence[SplitText]) -> ctypes.Array[abi.Split]:
    """Convert splits; texts whose offsets are unknown have none."""
    converted = []
    for split in splits:
        count = len(split.sentences)
        offsets = (c_int64 * count)(*split.offsets) if len(split.offsets) == count else None
        converted.append(
            abi.Split(as_texts(split.sentences), as_texts(split.separators), offsets, count)
        )
    return (abi.Split * len(converted))(*converted)


def _pieces_of(arrays: abi.ResultArrays) -> list[Hypothesis]:
    """Return the pieces of all hypotheses."""
    count = arrays.pieces
    if not count:
        return []
    token_ends, log_prob_ends = arrays.token_ends[:count], arrays.log_prob_ends[:count]
    tokens, log_probs = arrays.tokens[: token_ends[-1]], arrays.log_probs[: log_prob_ends[-1]]
    found, first_token, first = [], 0, 0
    for token_end, end, score, flags in zip(
        token_ends, log_prob_ends, arrays.piece_scores[:count], arrays.flags[:count], strict=True
    ):
        found.append(
            Hypothesis(
                tuple(tokens[first_token:token_end]),
                score,
                tuple(log_probs[first:end]),
                bool(flags & _TRUNCATED),
                None,
                bool(flags & _LOOPED),
            )
        )
        first_token, first = token_end, end
    return found


@functools.lru_cache(maxsize=64)
def _options(options: SearchOptions) -> abi.Options:
    values = (_in_c(option, getattr(options, name)) for name, option in OPTIONS.items())
    return abi.Options(ctypes.sizeof(abi.Options), *values)


def _in_c(option: Option, value: Any) -> Any:
    """Convert the value of a search option."""
    if option.kind == "text":
        return None if value is None else value.encode(errors="replace")
    return option.choices.index(value) if option.choices else value or 0


def _onnxruntime() -> bytes | None:
    """Path of ONNX Runtime's shared library within its Python package, if that is installed."""
    found = importlib.util.find_spec("onnxruntime")
    folders = [] if found is None else list(found.submodule_search_locations or [])
    libraries = [
        path for folder in folders for path in Path(folder, "capi").glob("libonnxruntime.so.*")
    ]
    return os.fsencode(sorted(libraries)[0]) if libraries else None
