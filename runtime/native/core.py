"""A bundle loaded by libtranslate_trt, its jobs and their results."""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import logging
import os
import re
import weakref
from collections.abc import Sequence
from ctypes import byref, c_int32, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from translate_trt.runtime import kernels
from translate_trt.runtime.backends import NO_ONNXRUNTIME
from translate_trt.runtime.backends.device import Engines
from translate_trt.runtime.errors import (
    BackendError,
    BundleError,
    CapacityError,
    InputError,
    OptionError,
    TranslateTrtError,
)
from translate_trt.runtime.line_names import NUMBERED, LineNames
from translate_trt.runtime.line_search import LineSearch
from translate_trt.runtime.native import abi, open_library
from translate_trt.runtime.native.device_functions import DeviceFunctions
from translate_trt.runtime.options import LENGTH_PENALTY_BETA, SearchOptions
from translate_trt.runtime.results import Hypothesis, TextHypothesis, Translation

log = logging.getLogger("translate_trt")

_LARGEST = 2**31 - 1  # of a field of tt_load_options

# Interval between returns to Python, which only then handles Ctrl-C.
_SECONDS_BETWEEN_SIGNALS = 0.1
_MOST_COMPLETIONS = 256

_SURROGATES = re.compile("[\ud800-\udfff]")


class JobEndedError(TranslateTrtError):
    """The job was cancelled, or its timeout expired."""


# Exception class by `tt_status`.
_ERRORS: dict[int, type[TranslateTrtError]] = {
    1: InputError, 2: OptionError, 3: BundleError, 4: BackendError, 5: BackendError,
    7: JobEndedError, 8: JobEndedError, 9: CapacityError,
}  # fmt: skip


class Job:
    """Job of the library. Not thread-safe except for `cancel`."""

    def __init__(self, core: Core, handle: c_void_p) -> None:
        self._core, self._handle = core, handle

    def __del__(self) -> None:
        self._core.free_job(self._handle)

    def cancel(self) -> None:
        """Cancel the unfinished sentences of the job."""
        self._core.check(self._core.calls.tt_job_cancel(self._handle))

    def wait(self) -> None:
        """Wait until the job has finished; cancel it if a signal handler raises."""
        finished = c_int32()
        try:
            while not finished.value:
                status = self._core.calls.tt_job_wait(
                    self._handle, _SECONDS_BETWEEN_SIGNALS, byref(finished)
                )
                self._core.check(status)
        except BaseException:
            self.cancel()
            raise

    def result(self) -> list[Translation]:
        """Wait for the job and return its translations. Call this once.

        Raises:
            TranslateTrtError: The job has failed.
        """
        self.wait()
        handle = c_void_p()
        self._core.check(self._core.calls.tt_job_result(self._handle, byref(handle)))
        try:
            return self._core.translations(handle)
        finally:
            self._core.calls.tt_result_free(handle)


# Cores are closed at exit: their threads must not run while the libraries they use are torn down.
_loaded: weakref.WeakSet[Core] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for core in list(_loaded):
        core.close()


@dataclass(frozen=True)
class Statistics:
    """Current load and totals of a core; see `tt_statistics` in the header."""

    pending: int
    running: int
    sentences: int
    source_tokens: int
    target_tokens: int
    steps: int
    rows: int
    worker_seconds: float
    graph_seconds: float


@dataclass(frozen=True)
class EngineMemory:
    """Memory that batches of an engine target need; see `tt_engine_memory` in the header."""

    device_bytes: int
    pinned_bytes: int
    workers: int
    batches: int


def engine_memory(path: Path, bundle: Path, target: str) -> EngineMemory:
    """Return the memory that batches of an engine target need, which takes no GPU.

    Args:
        path: Path of the library.
        bundle: Directory of the bundle.
        target: Name of the target.

    Raises:
        TranslateTrtError: The bundle is damaged, or the target has no engines.
    """
    calls, found = open_library(path), abi.EngineMemory()
    status = calls.tt_bundle_engine_memory(
        os.fsencode(bundle), target.encode(), byref(found), ctypes.sizeof(found)
    )
    _check(calls, status)
    return EngineMemory(found.device_bytes, found.pinned_bytes, found.workers, found.batches)


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
        self.check(self.calls.tt_load_options_default(byref(options), ctypes.sizeof(options)))
        options.target = target.encode()
        # The library lowers what the machine lacks; a larger integer would be cut to 32 bits first.
        options.threads = min(threads, _LARGEST)
        options.workers = min(workers or 0, _LARGEST)
        options.batch_tokens = min(batch_tokens or 0, _LARGEST)
        options.device = None if device is None else device.encode()
        options.check_hashes = check_hashes
        self._device_functions: DeviceFunctions | None = None
        if engines is None:
            options.onnxruntime = _onnxruntime()
        else:
            self._device_functions = DeviceFunctions(engines, self.calls.tt_device_fail)
            options.engines = ctypes.addressof(self._device_functions.engines)
        options.kernels = b"none" if kernels_here is None else os.fsencode(kernels_here)
        options.log = self._log
        self.check(
            self.calls.tt_translator_load(os.fsencode(bundle), byref(options), byref(self._handle))
        )
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
        self,
        lines: Sequence[str],
        options: SearchOptions,
        prefixes: Sequence[str] | Sequence[Sequence[int]] | None = None,
        *,
        names: LineNames = NUMBERED,
        caller: int = 0,
        completions: Completions | None = None,
        key: int = 0,
        score: bool = False,
        constraints: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> Job:
        """Submit lines of text.

        Args:
            lines: Texts to translate.
            options: Search options.
            prefixes: Text or tokens that each translation must begin with, one per line.
            names: Names of the lines in error messages.
            caller: Number shared by jobs that take scheduling turns together; 0 for none.
            completions: Queue that receives `key` once the job has finished.
            key: Positive number chosen by the caller.
            score: The prefixes are whole translations, which are scored.
            constraints: Tokens of the phrases that each translation must have, one list per line.

        Raises:
            TranslateTrtError: See `Translator.translate`.
        """
        forced = None if prefixes is None else _prefixes(prefixes)
        return self._submit(
            self.calls.tt_submit, _texts(lines), forced, options, names, caller, completions, key,
            score, constraints,
        )  # fmt: skip

    def search(
        self,
        search: LineSearch,
        *,
        caller: int = 0,
        completions: Completions | None = None,
        key: int = 0,
    ) -> Job:
        """Submit the lines of a search; see `submit` for the other arguments."""
        targets: Any = search.targets  # tokens if the lines are
        shared: dict[str, Any] = {
            "caller": caller, "completions": completions, "key": key, "score": search.score,
            "constraints": search.constraints, "names": search.names,
        }  # fmt: skip
        if search.tokens is None:
            return self.submit(search.lines, search.options, targets, **shared)
        return self.submit_ids(search.tokens, search.options, targets, **shared)

    def submit_ids(
        self,
        sources: Sequence[Sequence[int]],
        options: SearchOptions,
        prefixes: Sequence[Sequence[int]] | None = None,
        *,
        names: LineNames = NUMBERED,
        caller: int = 0,
        completions: Completions | None = None,
        key: int = 0,
        score: bool = False,
        constraints: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> Job:
        """Submit token sequences; see `submit` for the arguments."""
        forced = None if prefixes is None else _token_lists(prefixes)
        return self._submit(
            self.calls.tt_submit_ids, _token_lists(sources), forced, options, names, caller,
            completions, key, score, constraints,
        )  # fmt: skip

    def statistics(self) -> Statistics:
        """Return the current load, and the totals since the bundle was loaded."""
        found = abi.Statistics()
        self.check(
            self.calls.tt_translator_statistics(self._handle, byref(found), ctypes.sizeof(found))
        )
        names = [name for name, _ in abi.Statistics._fields_[1:]]
        return Statistics(**{name: getattr(found, name) for name in names})

    def check(self, status: int) -> None:
        """Raise the exception of a nonzero status, with the library's message."""
        _check(self.calls, status)

    def free_job(self, handle: c_void_p) -> None:
        """Free a job and cancel its unfinished sentences; later calls do nothing."""
        value, handle.value = handle.value, None
        self.calls.tt_job_free(value)

    def translations(self, result: c_void_p) -> list[Translation]:
        """Convert a result handle."""
        return [
            Translation(
                tuple(
                    self._text_hypothesis(result, line, rank)
                    for rank in range(self.calls.tt_result_hypotheses(result, line))
                )
            )
            for line in range(self.calls.tt_result_size(result))
        ]

    def _text_hypothesis(self, result: c_void_p, line: int, rank: int) -> TextHypothesis:
        text = self.calls.tt_result_text(result, line, rank)
        segments = range(self.calls.tt_result_pieces(result, line, rank))
        return TextHypothesis(
            ctypes.string_at(text.data, text.size).decode(),
            self.calls.tt_result_score(result, line, rank),
            tuple(self._hypothesis(result, line, rank, segment) for segment in segments),
        )

    def _hypothesis(self, result: c_void_p, *index: int) -> Hypothesis:
        calls = self.calls
        tokens = calls.tt_result_tokens(result, *index)
        log_probs = calls.tt_result_token_log_probs(result, *index)
        found = calls.tt_result_attention(result, *index)
        attention = None
        if found.rows:
            shape = (found.rows, found.columns)
            attention = np.ctypeslib.as_array(found.data, shape).copy()
        return Hypothesis(
            tuple(tokens.data[: tokens.size]) if tokens.size else (),
            calls.tt_result_piece_score(result, *index),
            tuple(log_probs.data[: log_probs.size]) if log_probs.size else (),
            bool(calls.tt_result_truncated(result, *index)),
            attention,
            bool(calls.tt_result_looped(result, *index)),
        )

    def _submit(
        self, call: Any, sources: Any, prefixes: Any, options: SearchOptions, names: LineNames,
        caller: int, completions: Completions | None, key: int, score: bool,
        constraints: Sequence[Sequence[Sequence[int]]] | None,
    ) -> Job:  # fmt: skip
        search, submit, handle = _options(options), abi.SubmitOptions(), c_void_p()
        submit.struct_size = ctypes.sizeof(submit)
        submit.options = ctypes.pointer(search)
        submit.caller, submit.first_line, submit.score = caller, names.first, score
        submit.translate_all = True  # `LineTranslator` returns lines that are not translatable
        if names.given is not None or names.noun != LineNames.noun:
            submit.line_names = _texts([names[index] for index in range(len(sources))])
        if completions is not None:
            submit.completions, submit.finished_context = completions.handle, key
        if call is self.calls.tt_submit and prefixes is not None and prefixes._type_ is abi.Tokens:
            submit.prefix_tokens, prefixes = prefixes, None
        if constraints is not None and any(constraints):
            submit.constraint_tokens = _token_lists([_flat(phrases) for phrases in constraints])
        try:
            status = call(
                self._handle, sources, len(sources), byref(submit), prefixes, byref(handle)
            )
            self.check(status)
            return Job(self, handle)
        except BaseException:  # such as Ctrl-C, as soon as the library has returned
            self.free_job(handle)
            raise


class Completions:
    """Completion queue: keys of finished jobs, for one thread that waits for any of them."""

    def __init__(self, core: Core) -> None:
        self._core, self.handle = core, c_void_p()
        core.check(core.calls.tt_completions_new(byref(self.handle)))
        self._keys = (c_void_p * _MOST_COMPLETIONS)()

    def wait(self) -> list[int]:
        """Wait until at least one job has finished and return the keys. For one thread only."""
        count = c_size_t()
        status = self._core.calls.tt_completions_wait(
            self.handle, -1.0, self._keys, _MOST_COMPLETIONS, byref(count)
        )
        self._core.check(status)
        return [int(key or 0) for key in self._keys[: count.value]]

    def add(self, key: int) -> None:
        """Add a key, which wakes up the waiting thread. Thread-safe."""
        self._core.check(self._core.calls.tt_completions_add(self.handle, key))

    def __del__(self) -> None:
        # The waiting thread holds a reference until it has received the keys of all jobs.
        self._core.calls.tt_completions_free(self.handle)


def _check(calls: ctypes.CDLL, status: int) -> None:
    if status:
        message = calls.tt_last_error().decode(errors="replace")
        raise _ERRORS.get(status, TranslateTrtError)(message)


def _texts(texts: Sequence[str]) -> ctypes.Array[abi.Text]:
    encoded = []
    for text in texts:
        try:
            encoded.append(text.encode())
        except UnicodeEncodeError:  # lone surrogates are not valid text
            encoded.append(_SURROGATES.sub(" ", text).encode())
    return (abi.Text * len(encoded))(*(abi.Text(one, len(one)) for one in encoded))


def _prefixes(
    prefixes: Sequence[str] | Sequence[Sequence[int]],
) -> ctypes.Array[abi.Text] | ctypes.Array[abi.Tokens]:
    texts = [one for one in prefixes if isinstance(one, str)]
    return _texts(texts) if len(texts) == len(prefixes) else _token_lists(prefixes)  # type: ignore[arg-type]


def _token_lists(lists: Sequence[Sequence[int]]) -> ctypes.Array[abi.Tokens]:
    # Larger numbers become -1, an invalid token; ctypes would silently keep their low 32 bits.
    arrays = [
        (c_int32 * len(tokens))(*(token if abs(token) < 2**31 else -1 for token in tokens))
        for tokens in lists
    ]
    return (abi.Tokens * len(arrays))(*(abi.Tokens(one, len(one)) for one in arrays))


def _flat(phrases: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens of phrases, with a -1 after each."""
    # No vocabulary has as many tokens as the last number: the library reports it.
    largest = 2**31 - 1
    return [
        token
        for phrase in phrases
        for token in (*(one if 0 <= one < largest else largest for one in phrase), -1)
    ]


def _options(options: SearchOptions) -> abi.Options:
    source, target = options.source_language, options.target_language
    return abi.Options(
        ctypes.sizeof(abi.Options),
        options.beam_size,
        options.length_penalty,
        tuple(LENGTH_PENALTY_BETA).index(options.length_penalty_form),
        options.early_stopping,
        options.max_length or 0,
        options.min_length,
        options.num_hypotheses,
        options.return_attention,
        None if source is None else source.encode(errors="replace"),
        None if target is None else target.encode(errors="replace"),
        options.loop_guard,
        options.alternatives,
        options.min_alternative_prob,
        options.repetition_penalty,
        options.no_repeat_ngram_size,
        None if options.suppress_sequences is None else options.suppress_sequences.encode(),
        options.disable_unk,
        options.sampling_top_k,
        options.sampling_top_p,
        options.sampling_temperature,
        options.seed,
        options.max_extra_length,
    )


def _onnxruntime() -> bytes:
    """Path of ONNX Runtime's shared library within its Python package.

    Raises:
        BackendError: The package is not installed or contains no shared library.
    """
    found = importlib.util.find_spec("onnxruntime")
    folders = [] if found is None else list(found.submodule_search_locations or [])
    libraries = [
        path for folder in folders for path in Path(folder, "capi").glob("libonnxruntime.so.*")
    ]
    if not libraries:
        raise BackendError(NO_ONNXRUNTIME)
    return os.fsencode(sorted(libraries)[0])
