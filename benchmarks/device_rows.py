"""Replay the decoding loop on a device that counts: steps, rows in use, and time of the host.

    python benchmarks/device_rows.py --source FILE --target FILE --tokenizer MODEL
        [--profiles 1x256,64x256] [--beam-size 4]

libtranslate_trt translates the source with engines whose translations are the lines of the target:
their encoder recognizes a sentence by its tokens, and their step returns its next token. Everything
but the model is real: tokenization, scheduling, buckets, admission of sentences, back-trace. A step
of a GPU takes about the same time however many rows of its bucket are in use, so the number of
steps says what a setting costs. Host times are CPU time of threads without the emulation of the
device: an upper bound of the loop's, which includes Python's callbacks and detokenization.
"""

from __future__ import annotations

import ctypes
import math
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from harness import parser, spread, write
from numpy.typing import NDArray

from translate_trt.export.contract import GraphLayout, make_contract
from translate_trt.export.engines.options import EngineOptions
from translate_trt.runtime import native
from translate_trt.runtime.backends.device import ALIGNMENT, Engines, Launch
from translate_trt.runtime.backends.engines import PACKAGES, Profile
from translate_trt.runtime.bundle.contract import NEXT
from translate_trt.runtime.bundle.manifest import (
    FORMAT_VERSION,
    Limits,
    Manifest,
    ModelDescription,
    TargetEntry,
    hash_file,
    write_manifest,
)
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.io.lines import read_parallel
from translate_trt.runtime.native.core import Core
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.config import END, PAD, START, UNKNOWN

TARGET = "tensorrt-fp32"
LAYERS = 6
MAX_SOURCE, MAX_TARGET = 256, 306  # the defaults of export


@dataclass(frozen=True)
class Corpus:
    """Sentences and their translations.

    Attributes:
        lines: Source lines, each of them once.
        translations: Their translations as text.
        tokens: Tokens of the translations, [sentences, tokens], padded with the end symbol.
        lengths: Numbers of these tokens, the end symbol included.
        numbers: Index of a sentence by its source tokens, the end symbol included.
    """

    lines: list[str]
    translations: list[str]
    tokens: NDArray[np.int64]
    lengths: NDArray[np.int64]
    numbers: dict[bytes, int]

    @classmethod
    def read(cls, source: Path, target: Path, tokenizer: Tokenizer) -> Corpus:
        """Read the lines that a bundle translates without splitting them; others are left out."""
        lines, chosen = [], []
        numbers: dict[bytes, int] = {}
        pairs = list(read_parallel(source, target))
        sources = tokenizer.encode_source_batch([line for line, _ in pairs])
        targets = tokenizer.encode_target_batch([line for _, line in pairs])
        for (line, _), one, other in zip(pairs, sources, targets, strict=True):
            key = _key([*one, END])
            if 0 < len(one) < MAX_SOURCE and len(other) < MAX_TARGET and key not in numbers:
                numbers[key] = len(lines)
                lines.append(line)
                chosen.append(other)
        lengths = np.array([len(tokens) + 1 for tokens in chosen])
        tokens = np.full((len(lines), lengths.max()), END)
        for row, translation in zip(tokens, chosen, strict=True):
            row[: len(translation)] = translation
        return cls(lines, tokenizer.decode_batch(chosen), tokens, lengths, numbers)


def _key(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, dtype=np.int64).tobytes()


@dataclass
class Counts:
    """Totals of all devices of a replay.

    Attributes:
        steps: Steps by number of rows.
        used: Rows of these steps whose sentences had not finished.
        gaps: Times at which the host had collected all steps before it enqueued others.
        gap_seconds: CPU time of the host in these gaps, during which a GPU has no steps to run.
        seconds: CPU time of the emulation.
    """

    steps: Counter[int] = field(default_factory=Counter)
    used: Counter[int] = field(default_factory=Counter)
    gaps: int = 0
    gap_seconds: float = 0.0
    seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)
    clock_seconds: float = 0.0  # of one measurement, which counts as emulation


@dataclass
class Done:
    """`Event` of a device that works at once: there is nothing to wait for."""

    device: CountingDevice
    of_results: bool

    def wait(self) -> None:
        if self.of_results:
            self.device.collected()


class CountingDevice:
    """`Device` in host memory that translates a corpus."""

    def __init__(self, corpus: Corpus, counts: Counts) -> None:
        self._corpus, self._counts = corpus, counts
        self._memory: list[NDArray[np.uint8]] = []
        self._views: dict[Any, NDArray[Any]] = {}
        self._captured: list[Callable[[], None]] | None = None
        self._copied_out = False  # since the last event
        self._rounds = 0  # whose results the host has not collected
        self._idle_since: float | None = None
        self._seconds = 0.0  # CPU time of the emulation

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begin = time.thread_time()
        yield
        seconds = time.thread_time() - begin + self._counts.clock_seconds
        self._seconds += seconds
        with self._counts.lock:
            self._counts.seconds += seconds

    def measure_clock(self, count: int = 20_000) -> float:
        """Return the CPU time that a measurement adds to what it measures."""
        begin = time.thread_time()
        for _ in range(count):
            with self._timed():
                pass
        return (time.thread_time() - begin - self._seconds) / count

    def collected(self) -> None:
        """Note that the host has the results of a round."""
        self._rounds -= 1
        if self._rounds == 0:
            self._idle_since = time.thread_time() - self._seconds

    def _resume(self) -> None:
        """Note that the host enqueues steps."""
        if self._idle_since is None:
            return
        gap = time.thread_time() - self._seconds - self._idle_since
        self._idle_since = None
        with self._counts.lock:
            self._counts.gaps += 1
            self._counts.gap_seconds += gap

    def _do(self, work: Callable[[], None]) -> None:
        if self._captured is not None:
            self._captured.append(work)
            return
        with self._timed():
            work()

    def activate(self) -> None:
        pass

    def allocate(self, size: int) -> int:
        self._memory.append(np.zeros(size + ALIGNMENT, dtype=np.uint8))
        return -(-self._memory[-1].ctypes.data // ALIGNMENT) * ALIGNMENT

    def pin(self, size: int) -> int:
        return self.allocate(size)

    def copy_in(self, target: int, source: int, size: int) -> None:
        self._do(lambda: _move(target, source, size))

    def copy_out(self, target: int, source: int, size: int) -> None:
        self._copied_out = True
        self._do(lambda: _move(target, source, size))

    def copy(
        self,
        target: int,
        source: int,
        width: int,
        height: int = 1,
        target_pitch: int = 0,
        source_pitch: int = 0,
    ) -> None:
        def work() -> None:
            for row in range(height):
                _move(target + row * target_pitch, source + row * source_pitch, width)

        self._do(work)

    def fill(self, target: int, value: int, size: int) -> None:
        self._do(lambda: _fill(target, value, size))

    def launch(self, work: Launch) -> None:
        if work.role == "step":
            self._resume()
        with self._timed():
            run = self._encoder(work) if work.role == "encoder" else self._step(work)
        self._do(run)

    def record(self) -> Done:
        event = Done(self, self._copied_out)
        self._rounds += self._copied_out
        self._copied_out = False
        return event

    def begin_capture(self) -> None:
        self._captured = []

    def end_capture(self) -> Callable[[], None]:
        assert self._captured is not None
        captured, self._captured = self._captured, None

        def replay() -> None:
            self._resume()
            with self._timed():
                for work in captured:
                    work()

        return replay

    def _at(self, address: int, dtype: Any, *shape: int) -> NDArray[Any]:
        """Return the array at an address."""
        key = (address, dtype, shape)
        if key not in self._views:
            size = math.prod(shape) * np.dtype(dtype).itemsize
            content = (ctypes.c_char * size).from_address(address)
            self._views[key] = np.frombuffer(content, dtype=dtype).reshape(shape)
        return self._views[key]

    def _encoder(self, work: Launch) -> Callable[[], None]:
        """Write the number of each sentence into its first padding bias."""
        rows, size = work.shapes["source_ids"]
        ids = self._at(work.addresses["source_ids"], np.int64, rows, size)
        lengths = self._at(work.addresses["source_lengths"], np.int64, rows)
        bias = self._at(work.addresses["source_bias"], np.float32, rows, size)

        def run() -> None:
            for row, length in enumerate(lengths):
                bias[row] = 0
                bias[row, 0] = self._corpus.numbers[_key(ids[row, :length])]

        return run

    def _step(self, work: Launch) -> Callable[[], None]:
        """Return the next token of each sentence as its best beam, and end it after the last."""
        rows, beams = work.shapes["tokens"]
        corpus = self._corpus
        types = {"done": np.bool_, "finished_scores": np.float32, "log_probs": np.float32}

        def state(name: str, *shape: int) -> tuple[NDArray[Any], NDArray[Any]]:
            dtype = types.get(name, np.int64)
            found = [self._at(work.addresses[one], dtype, *shape) for one in (name, NEXT + name)]
            return found[0], found[1]

        bias = self._at(
            work.addresses["source_bias"], np.float32, rows, work.shapes["source_bias"][3]
        )
        done, next_done = state("done", rows)
        positions, next_positions = state("positions", rows)
        scores, next_scores = state("finished_scores", rows, beams)
        lengths, next_lengths = state("finished_lengths", rows, beams)
        _, next_tokens = state("tokens", rows, beams)
        _, next_log_probs = state("log_probs", rows, beams)

        def run() -> None:
            live = np.flatnonzero(~done)
            numbers = bias[live, 0].astype(np.int64)
            places = positions[live]
            next_tokens[live] = corpus.tokens[numbers, places][:, None]
            next_log_probs[:] = -1
            next_positions[:], next_done[:] = positions, done
            next_positions[live] += 1
            next_scores[:], next_lengths[:] = scores, lengths
            ended = live[places + 1 >= corpus.lengths[numbers]]
            next_done[ended] = True
            next_scores[ended, 0] = -1
            next_lengths[ended, 0] = next_positions[ended]
            with self._counts.lock:
                self._counts.steps[rows] += 1
                self._counts.used[rows] += len(live)

        return run


def _move(target: int, source: int, size: int) -> None:
    ctypes.memmove(target, source, size)


def _fill(target: int, value: int, size: int) -> None:
    ctypes.memset(target, value, size)


def make_bundle(path: Path, tokenizer: Path, vocabulary_size: int, beams: int) -> None:
    """Write a bundle whose engines have the tensors of `base`, with one head of one column."""
    shutil.copyfile(tokenizer, path / "tokenizer.model")
    for role in ("encoder", "step"):
        (path / f"{role}.engine").touch()
    layout = GraphLayout(beams=beams, slots=beams * MAX_TARGET, marks=False)
    entry = TargetEntry(
        TARGET, PACKAGES[0], "fp32",
        {role: hash_file(path, f"{role}.engine") for role in ("encoder", "step")},
        make_contract(LAYERS, 1, 1, 1, layout=layout),
    )  # fmt: skip
    model = ModelDescription(
        encoder_layers=LAYERS, decoder_layers=LAYERS, heads=1, key_size=1, value_size=1,
        model_size=1, feed_forward_size=1, vocabulary_size=vocabulary_size, start_token=START,
        end_token=END, pad_token=PAD, unknown_token=UNKNOWN, parameters=1,
    )  # fmt: skip
    sides = dict.fromkeys(("source", "target"), hash_file(path, "tokenizer.model"))
    write_manifest(
        path,
        Manifest(
            FORMAT_VERSION, "benchmarks/device_rows.py", None, None, model,
            Limits(MAX_SOURCE, MAX_TARGET), Prompt(), {"beam_size": beams}, sides, {TARGET: entry},
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """Setting of a replay; None takes the default of engines.

    Attributes:
        batch_tokens: Source tokens per batch.
        workers: Number of batches at once.
        lines: Lines per call; None for all lines in one call.
    """

    batch_tokens: int | None = None
    workers: int | None = None
    lines: int | None = None


def replay(
    bundle: Path, corpus: Corpus, profiles: tuple[Profile, ...], options: SearchOptions,
    setting: Setting,
) -> dict[str, Any]:  # fmt: skip
    """Translate the corpus and return what was counted."""
    library = native.library()
    if library is None:
        raise SystemExit(f"{native.status()}; the loop is libtranslate_trt's")
    counts = Counts(clock_seconds=CountingDevice(corpus, Counts()).measure_clock())
    limits = Limits(MAX_SOURCE, MAX_TARGET)
    step = EngineOptions(profiles=profiles).step_profiles(limits, options.beam_size)
    engines = Engines(lambda: CountingDevice(corpus, counts), profiles, step)
    core = Core(
        library, bundle, TARGET, threads=1, workers=setting.workers,
        batch_tokens=setting.batch_tokens, engines=engines,
    )  # fmt: skip
    size = setting.lines or len(corpus.lines)
    begin, translations = time.thread_time(), []
    for first in range(0, len(corpus.lines), size):
        translations += core.submit(corpus.lines[first : first + size], options).result()
    caller = time.thread_time() - begin
    seconds = core.statistics().worker_seconds - counts.seconds
    if [one.text for one in translations] != corpus.translations:
        raise SystemExit("the loop has not translated as its engines do; this is a bug")
    rows = sum(batch * steps for batch, steps in counts.steps.items())
    core.close()
    return {
        "workers": core.workers,
        "batch_tokens": core.batch_tokens,
        "lines": size,
        "steps": {str(batch): steps for batch, steps in sorted(counts.steps.items())},
        "rows_in_use": sum(counts.used.values()) / rows,
        "gaps": counts.gaps,
        "gap_microseconds": 1e6 * counts.gap_seconds / counts.gaps,
        "worker_microseconds": 1e6 * seconds / len(corpus.lines),
        "caller_microseconds": 1e6 * caller / len(corpus.lines),
    }


def main() -> None:
    options = parser(__doc__)
    for name, text in (("source", "lines to translate"), ("target", "their translations")):
        options.add_argument(f"--{name}", type=Path, required=True, help=text)
    options.add_argument("--tokenizer", type=Path, required=True, help="SentencePiece model")
    options.add_argument("--profiles", default="1x256,64x256", help="as for export")
    options.add_argument("--beam-size", type=int, default=4)
    given = options.parse_args()
    tokenizer = Tokenizer(given.tokenizer, given.tokenizer)
    corpus = Corpus.read(given.source, given.target, tokenizer)
    profiles = tuple(
        Profile(*map(int, profile.split("x"))) for profile in given.profiles.split(",")
    )
    search = SearchOptions(beam_size=given.beam_size)
    settings = {
        "default of CPUs": Setting(512, 1),
        "one worker": Setting(None, 1),
        "default": Setting(),
        "default, calls of 1,024 lines": Setting(lines=1024),
        "default, calls of 256 lines": Setting(lines=256),
    }
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        make_bundle(Path(directory), given.tokenizer, tokenizer.vocabulary_size, given.beam_size)
        for name, setting in settings.items():
            rounds = [
                replay(Path(directory), corpus, profiles, search, setting)
                for _ in range(given.rounds)
            ]
            results[name] = {
                key: spread(one[key] for one in rounds) if isinstance(value, float) else value
                for key, value in rounds[-1].items()
            }
    described = {
        "lines": len(corpus.lines),
        "source": given.source.name,
        "target_tokens": int(corpus.lengths.sum()),
        "pieces": tokenizer.vocabulary_size,
        "profiles": given.profiles,
        "beam_size": given.beam_size,
    }
    print(write("device-rows", described, results, given))


if __name__ == "__main__":
    main()
