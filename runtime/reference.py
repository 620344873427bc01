"""Reference implementation of the beam search loop around the step graph.

Read it beside docs/beam-search.md, whose rule numbers it cites. Batches are static: their sentences
start together and no sentence joins later. Tests compare libtranslate_trt with this module, which
also translates where that library is not built.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import Event
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.alternatives import best_completion, completions, expansion
from translate_trt.runtime.batching import length_sorted_batches
from translate_trt.runtime.bundle.contract import FREE, MASKED, NEXT, Contract, request_values
from translate_trt.runtime.constraints import Phrase, Reading, different_tokens, request_constraints
from translate_trt.runtime.loops import CHECK_STEPS, LoopGuard
from translate_trt.runtime.marks import BANNED, marks_of, request_marks
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis, check_found
from translate_trt.runtime.sampling import noise_of, request_noise

Arrays = dict[str, NDArray[Any]]

_BATCH_TOKENS = 512  # default, as that of libtranslate_trt for ONNX Runtime
_POLL_SECONDS = 0.1  # interval at which the main thread can handle Ctrl-C


class Graphs(Protocol):
    """Encoder and step graph of a target on host arrays. Thread-safe."""

    def encode(self, inputs: Arrays) -> Arrays:
        """Run the encoder and return its outputs by name."""

    def step(self, inputs: Arrays) -> Arrays:
        """Run one step and return its outputs by name; it may update the caches in place."""


@dataclass(frozen=True)
class Sentence:
    """A sentence to translate.

    Attributes:
        tokens: Source tokens without the end symbol; not empty.
        prefix: Values of `forced_tokens` (see the contract) for the first steps.
        options: Search options; all sentences of a batch share the beam size.
        suppressed: Token sequences that the translation does not have (`suppressed_of`).
        constraints: Phrases that the translation must have, none of them empty.
        alternative: Log-probability of the last token of the prefix, if this is the completion of
            an alternative (rule 12).
    """

    tokens: Sequence[int]
    prefix: Sequence[int]
    options: SearchOptions
    suppressed: Sequence[Sequence[int]] = ()
    constraints: Sequence[Phrase] = ()
    alternative: float | None = None

    @property
    def max_length(self) -> int:
        """Maximum number of generated tokens, the end symbol included."""
        return self.options.max_length_for(len(self.tokens))


@dataclass(frozen=True)
class Step:
    """Live beams of a batch after one step."""

    tokens: NDArray[np.int64]  # [N, K] last token of each beam
    parents: NDArray[np.int64]  # [N, K] beam of the previous step that each beam continues
    log_probs: NDArray[np.float32]  # [N, K] cumulative log-probability
    attention: NDArray[np.float32] | None  # [N, K, S] of the previous beams, if requested


class Batch:
    """Sentences that are translated together, one per row.

    Args:
        graphs: Graphs of the target.
        contract: Inputs and outputs of the graphs.
        sentences: At least one sentence; all have the same beam size.
        start_token: The decoder's start symbol.
        end_token: The end symbol.
        vocabulary_size: Number of tokens; only for draws from all of them.

    Attributes:
        history: All steps so far.
        lengths: [N] number of steps of each sentence until it was done.
    """

    def __init__(
        self, graphs: Graphs, contract: Contract, sentences: Sequence[Sentence],
        start_token: int, end_token: int, vocabulary_size: int = 0,
    ) -> None:  # fmt: skip
        self._graphs, self._contract, self._sentences = graphs, contract, sentences
        self._end_token, self._vocabulary_size = end_token, vocabulary_size
        self.history: list[Step] = []
        count, beams = len(sentences), sentences[0].options.beam_size
        self.lengths = np.zeros(count, dtype=np.int64)
        self._guards = {
            row: LoopGuard(one.tokens)
            for row, one in enumerate(sentences)
            if one.options.loop_guard
        }
        self._dropped: dict[int, list[_PoolEntry]] = {}  # by row, beams that looped
        self._inputs = graphs.encode(_padded([[*one.tokens, end_token] for one in sentences]))
        max_lengths = np.array([one.max_length for one in sentences], dtype=np.int64)
        marked_beams = beams if contract.marks else None
        options = [one.options for one in sentences]
        self._inputs |= request_values(options, max_lengths, marked_beams)
        # Rule 1: one live hypothesis per sentence.
        slots = _slot_capacity(beams) if contract.slots is None else contract.slots
        self._inputs |= contract.initial_state(count, beams, start_token, slots)

    @property
    def is_done(self) -> bool:
        """True once all sentences are done."""
        return bool(self._inputs["done"].all())

    def step(self) -> None:
        """Run one step (rules 2 to 6, in the graph) and record its live beams."""
        inputs, position = self._inputs, len(self.history)
        forced = ([*one.prefix, FREE][min(position, len(one.prefix))] for one in self._sentences)
        inputs["forced_tokens"] = np.fromiter(forced, dtype=np.int64)
        if self._contract.marks:
            readings = self._readings()
            inputs |= self._marks(readings) | self._noise() | self._constraints(readings)
        self.lengths += ~inputs["done"]
        outputs = self._graphs.step(inputs)
        for spec in self._contract.state:
            inputs[spec.name] = outputs[NEXT + spec.name]
        beams = (inputs["tokens"], outputs["parents"], inputs["log_probs"])
        wants_attention = any(one.options.return_attention for one in self._sentences)
        self.history.append(Step(*beams, outputs.get("attention") if wants_attention else None))
        if len(self.history) % CHECK_STEPS == 0:
            for row, guard in self._guards.items():
                if not inputs["done"][row]:
                    self._drop_loops(row, guard)
        full = outputs.get("full", np.False_) & ~inputs["done"]
        if full.any():
            self._grow(full)

    def _live_tokens(self, row: int) -> list[list[int]]:
        """Tokens of the live hypotheses of a sentence."""
        length = len(self.history)
        trace = _BackTrace(self._sentences[row], row, self.history)
        beams = range(self._sentences[row].options.beam_size if length else 1)
        return [[token for token, _ in trace.path(beam, length)] for beam in beams]

    def _readings(self) -> dict[int, list[Reading]]:
        """Read the constraints of rows where a beam has not met them (rule 15)."""
        readings = {}
        for row, one in enumerate(self._sentences):
            if not one.constraints or len(self.history) < len(one.prefix):
                continue
            start = Reading(tuple(one.constraints))
            found = [start.after(tokens) for tokens in self._live_tokens(row)]
            lives = self._inputs["log_probs"][row] > -np.inf
            if any(reading.open for reading, live in zip(found, lives, strict=False) if live):
                readings[row] = found
        return readings

    def _constraints(self, readings: dict[int, list[Reading]]) -> Arrays:
        tokens = {row: different_tokens(self._sentences[row].constraints) for row in readings}
        beams = self._sentences[0].options.beam_size
        return request_constraints(readings, tokens, len(self._sentences), beams)

    def _marks(self, readings: dict[int, list[Reading]]) -> Arrays:
        """Return the marked tokens of the next step (rule 13), none of rows with forced tokens.

        Beams with open constraints may not end (rule 15).
        """
        marks: dict[tuple[int, int], dict[int, float]] = {}
        for row, one in enumerate(self._sentences):
            if one.options.marks_tokens and len(self.history) >= len(one.prefix):
                for beam, tokens in enumerate(self._live_tokens(row)):
                    marks[row, beam] = marks_of(one.options, one.suppressed, tokens)
        for row, found in readings.items():
            for beam, reading in enumerate(found):
                if reading.open:
                    marks.setdefault((row, beam), {})[self._end_token] = BANNED
        return request_marks(marks, len(self._sentences), self._sentences[0].options.beam_size)

    def _noise(self) -> Arrays:
        """Return the noise of the next step (rule 14), none of rows with forced tokens."""
        position = len(self.history)
        noise = {
            row: noise_of(one.options, one.tokens, position, self._vocabulary_size)
            for row, one in enumerate(self._sentences)
            if one.options.samples and position >= len(one.prefix)
        }
        return request_noise(noise, len(self._sentences))

    def _drop_loops(self, row: int, guard: LoopGuard) -> None:
        """Drop live beams that leave the search; without others it is done (rule 11)."""
        sentence, length = self._sentences[row], len(self.history)
        if length <= max(len(sentence.prefix), sentence.options.min_length):
            return
        log_probs, tokens = self.history[-1].log_probs.copy(), self._live_tokens(row)
        live = np.flatnonzero(log_probs[row] > -np.inf)
        beams = [tokens[beam] for beam in live]
        leaving = live[guard.leaving(beams, len(sentence.prefix), bool(sentence.constraints))]
        if not leaving.size:
            return
        penalty = sentence.options.penalty(length)
        self._dropped.setdefault(row, []).extend(
            _PoolEntry(float(log_probs[row, beam]) / penalty, length, int(beam), True)
            for beam in leaving
            if guard.loop_length(tokens[beam])
        )
        log_probs[row, leaving] = -np.inf
        self._inputs["log_probs"] = log_probs
        self.history[-1] = replace(self.history[-1], log_probs=log_probs)
        self._inputs["done"] = self._inputs["done"].copy()
        self._inputs["done"][row] = leaving.size == live.size

    def hypotheses(self, row: int, source_end: bool = True) -> list[Hypothesis]:
        """Return the n best hypotheses of a sentence that is done (rule 7).

        Args:
            row: Row of the sentence.
            source_end: The attention has a column for the source's end symbol.

        Raises:
            BackendError: The pool is empty (`check_found`).
        """
        sentence = self._sentences[row]
        trace = _BackTrace(sentence, row, self.history[: self.lengths[row]])
        names = ("scores", "lengths", "parents", "truncated")
        pool = (self._inputs[f"finished_{name}"][row].tolist() for name in names)
        entries = [_PoolEntry(*entry) for entry in zip(*pool, strict=True) if entry[0] > -np.inf]
        entries += self._dropped.get(row, [])
        columns = len(sentence.tokens) + source_end
        count = sentence.options.num_hypotheses
        guard, constraints = self._guards.get(row), Reading(tuple(sentence.constraints))
        entries.sort(key=lambda entry: (entry.truncated, -entry.score))
        if guard is None and not constraints.open:
            entries = entries[:count]
        found = [trace.hypothesis(entry, columns) for entry in entries]
        if guard is not None:
            found = [without_loop(one, guard, sentence.options) for one in found]
        # Truncated hypotheses may lack constraints (rule 15).
        found.sort(key=lambda one: (-constraints.after(one.tokens).met, one.truncated, -one.score))
        return check_found(found[:count], len(sentence.tokens))

    def _grow(self, full: NDArray[np.bool_]) -> None:
        """Add cache slots; the full rows [N] write next to their lowest free slots."""
        inputs, beams = self._inputs, self._sentences[0].options.beam_size
        old = inputs["ancestry"].shape[2]
        added = _slot_capacity(old + beams) - old
        for spec in self._contract.caches:
            inputs[spec.name] = np.pad(inputs[spec.name], ((0, 0), (0, 0), (0, added), (0, 0)))
        width = ((0, 0), (0, 0), (0, added))
        inputs["ancestry"] = np.pad(inputs["ancestry"], width, constant_values=MASKED)
        inputs["slots"] = inputs["slots"].copy()
        for row in np.flatnonzero(full):
            free = np.flatnonzero((inputs["ancestry"][row] < 0).all(0))
            inputs["slots"][row] = free[:beams]


def _padded(sources: Sequence[Sequence[int]]) -> Arrays:
    """Pad token lists to the encoder's inputs; any valid token id serves as padding."""
    lengths = np.array([len(tokens) for tokens in sources], dtype=np.int64)
    ids = np.full((len(sources), int(lengths.max())), sources[0][-1], dtype=np.int64)
    for row, tokens in zip(ids, sources, strict=True):
        row[: len(tokens)] = tokens
    return {"source_ids": ids, "source_lengths": lengths}


def _slot_capacity(needed: int) -> int:
    """Round up to a multiple of 16, which suits the matmuls."""
    return -(-needed // 16) * 16


# ---- back-trace ----


@dataclass(frozen=True)
class _PoolEntry:
    """A finished hypothesis: live beam `parent` ended, or was cut off, after `length` tokens."""

    score: float
    length: int
    parent: int
    truncated: bool


@dataclass(frozen=True)
class _BackTrace:
    """The steps of one sentence, in row `row` of each."""

    sentence: Sentence
    row: int
    steps: Sequence[Step]

    def hypothesis(self, entry: _PoolEntry, columns: int) -> Hypothesis:
        """Trace a pool entry back to its tokens; its attention has `columns` columns."""
        # The end symbol of a hypothesis that is not truncated is not the token of any live beam.
        length = entry.length if entry.truncated else entry.length - 1
        path = self.path(entry.parent, length)
        beams = [parent for _, parent in path]  # beam that each token was chosen from
        cumulative = [0.0]
        for step, beam in enumerate([*beams[1:], entry.parent][:length]):
            cumulative.append(float(self.steps[step].log_probs[self.row, beam]))
        if not entry.truncated:
            beams.append(entry.parent)
            cumulative.append(entry.score * self.sentence.options.penalty(entry.length))
        attention: NDArray[np.float32] | None = None
        if self.sentence.options.return_attention:
            matrices = [one.attention[self.row] for one in self.steps if one.attention is not None]
            attention = np.stack([matrices[i][beam, :columns] for i, beam in enumerate(beams)])
        return Hypothesis(
            tokens=tuple(token for token, _ in path),
            score=entry.score,
            token_log_probs=tuple(after - before for before, after in pairwise(cumulative)),
            truncated=entry.truncated,
            attention=attention,
        )

    def path(self, beam: int, length: int) -> list[tuple[int, int]]:
        """Return (token, parent) of each of the first `length` steps that led to a live beam."""
        path: list[tuple[int, int]] = []
        for step in reversed(self.steps[:length]):
            parent = int(step.parents[self.row, beam])
            path.append((int(step.tokens[self.row, beam]), parent))
            beam = parent
        return path[::-1]


def without_loop(found: Hypothesis, guard: LoopGuard, options: SearchOptions) -> Hypothesis:
    """Cut a truncated hypothesis that ends in a loop after the first copy of its phrase."""
    repeated = guard.loop_length(found.tokens) if found.truncated else 0
    if not repeated:
        return found
    length = len(found.tokens) - repeated
    log_probs = found.token_log_probs[:length]
    return Hypothesis(
        found.tokens[:length], sum(log_probs) / options.penalty(length), log_probs, True,
        None if found.attention is None else found.attention[:length], looped=True,
    )  # fmt: skip


class Reference:
    """Translator of sentences in static batches. Thread-safe.

    Args:
        graphs: Graphs of the target.
        contract: Inputs and outputs of the graphs.
        start_token: The decoder's start symbol.
        end_token: The end symbol.
        source_end: The decoder attends to the source's end symbol.
        batch_tokens: Source tokens per batch (`length_sorted_batches`); None for the default.
        workers: Number of batches translated at once.
        vocabulary_size: Number of tokens; only for draws from all of them.

    Attributes:
        batch_tokens: Source tokens per batch, padding included.
        workers: Number of batches translated at once.
    """

    def __init__(
        self, graphs: Graphs, contract: Contract, start_token: int, end_token: int,
        source_end: bool = True, batch_tokens: int | None = None, workers: int = 1,
        vocabulary_size: int = 0,
    ) -> None:  # fmt: skip
        self._graphs, self._contract, self._source_end = graphs, contract, source_end
        self._vocabulary_size = vocabulary_size
        self._start_token, self._end_token = start_token, end_token
        self.batch_tokens = _BATCH_TOKENS if batch_tokens is None else batch_tokens
        self.workers = workers

    def translate(self, sentences: Sequence[Sentence]) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each sentence, or the best of each alternative.

        All sentences have one beam size.

        Raises:
            BackendError: The backend failed, or a search found no hypothesis.
        """
        asked = [one for one in sentences if one.options.alternatives]
        if not asked:
            return self._translate(sentences)
        expanded = [expansion(one, self._contract.beams) for one in asked]
        groups = map(completions, asked, expanded, self._translate(expanded))
        parts = [next(groups) if one.options.alternatives else [one] for one in sentences]
        found = iter(self._translate([one for part in parts for one in part]))
        return [
            [best for one in part for best in best_completion(one, next(found))] for part in parts
        ]

    def _translate(self, sentences: Sequence[Sentence]) -> list[list[Hypothesis]]:
        batches = length_sorted_batches([len(s.tokens) + 1 for s in sentences], self.batch_tokens)
        results: dict[int, list[Hypothesis]] = {}
        stop = Event()

        def run(indices: list[int]) -> None:
            try:
                found = self._translate_batch([sentences[index] for index in indices], stop)
            except BaseException:
                stop.set()  # before this thread takes another batch
                raise
            results.update(zip(indices, found, strict=False))

        # Batches run in a pool because only the main thread, between two calls, handles Ctrl-C.
        with ThreadPoolExecutor(self.workers, "translate") as pool:
            try:
                pending = {pool.submit(run, indices) for indices in batches}
                futures = list(pending)
                while pending and not stop.is_set():
                    pending = wait(pending, _POLL_SECONDS, FIRST_EXCEPTION).not_done
            finally:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
        for future in futures:
            if not future.cancelled():
                future.result()
        return [results[index] for index in range(len(sentences))]

    def _translate_batch(
        self, sentences: Sequence[Sentence], stop: Event
    ) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each sentence, or an empty list once `stop` is set."""
        if stop.is_set():
            return []
        batch = Batch(
            self._graphs, self._contract, sentences, self._start_token, self._end_token,
            self._vocabulary_size,
        )  # fmt: skip
        while not (batch.is_done or stop.is_set()):
            batch.step()
        rows = range(0 if stop.is_set() else len(sentences))
        return [batch.hypotheses(row, self._source_end) for row in rows]
