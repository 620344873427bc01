"""The loop over the step graph: run, keep (token, parent), look at `done`; then trace back.

The search itself (docs/beam-search.md) is in the graph. What is left to the host is which sentences
run together, and rule 6: hypotheses cut off at the maximum length fill what room is left in the
pool.

Sentences leave a batch once they are done, and waiting ones take their places, so that a long one
holds up nobody. Neither changes what is found: no operation mixes rows (rule 9).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Event, Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.backends import Backend, Batch, Pool, Sources, StepResult
from translate_trt.runtime.batching import SMALLEST_COST
from translate_trt.runtime.contract import FREE
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis, check_found

# Waiting sentences join a batch once there are places for them that are this share of it. Idle ones
# are closed up once they are more, which copies the batch and so is done less often.
JOIN = 0.1
_CLOSE_UP = 0.25
# A batch is made larger, which copies it, once its sentences are so short that so many times its
# rows fit.
_LARGER = 1.5


@dataclass(frozen=True)
class Sentence:
    """One to translate.

    Attributes:
        index: by which its result is told from others.
        tokens: without the end symbol; not empty.
        prefix: forced first tokens, as `forced_tokens` in the contract has them.
        options: its own; None: those of the search that takes it. Both have the same beam size.
    """

    index: int
    tokens: Sequence[int]
    prefix: Sequence[int] = ()
    options: SearchOptions | None = None


@dataclass(frozen=True)
class Room:
    """What a batch has room for.

    Attributes:
        batch_tokens: source tokens of a batch, padding and end symbols included and no sentence
            counted as less than SMALLEST_COST; a longer sentence runs alone.
        beside: sentences that are in the batch already.
        longest: tokens of the longest of them, the end symbol included.
        rows: that the batch has; so many are filled, unless _LARGER times as many fit.
        places: how many sentences a batch takes whose longest has so many tokens, if not any
            number (`Batch.room`).
    """

    batch_tokens: int
    beside: int = 0
    longest: int = 0
    rows: int = 0
    places: Callable[[int], int | None] = lambda _: None

    def more(self, tokens: int) -> int:
        """How many more sentences fit if the longest of them has so many tokens."""
        longest = max(self.longest, tokens)
        whole = max(self.batch_tokens // max(longest, SMALLEST_COST), 1)
        room = whole if whole >= self.rows * _LARGER else min(whole, max(self.rows, 1))
        most = self.places(longest)
        # The batch itself says what is wrong with one for which it has no place at all.
        room = room if most is None else min(room, most)
        return max(room - self.beside, 0 if self.beside else 1)


class Queue(Protocol):
    """Where a search takes its sentences from."""

    def should_join(self, room: Room, size: int) -> bool:
        """True if so many wait that it is worth interrupting the batch.

        Args:
            room: what there is room for.
            size: sentences that ran when any joined last; some have left since.
        """
        ...

    def take(self, room: Room) -> list[Sentence]:
        """Sentences for a batch; at least one if it is empty and any are there for it."""
        ...


class Waiting:
    """Sentences of a call that no batch has taken yet; several workers may take from it.

    Args:
        sentences: in any order.
        workers: that will take from it.
    """

    def __init__(self, sentences: Sequence[Sentence], workers: int = 1) -> None:
        self._sentences = sorted(sentences, key=lambda one: len(one.tokens))
        self._workers, self._lock = workers, Lock()

    def should_join(self, room: Room, size: int) -> bool:
        """See `Queue`."""
        return bool(self._sentences) and room.beside <= size * (1 - JOIN)

    def take(self, room: Room) -> list[Sentence]:
        """The longest that still fit."""
        with self._lock:
            first = len(self._sentences) - self._count(room)
            taken = self._sentences[first:][::-1]
            del self._sentences[first:]
            return taken

    def give_back(self, sentences: Sequence[Sentence]) -> None:
        """Let sentences wait again that were taken before."""
        with self._lock:
            self._sentences = sorted(
                [*self._sentences, *sentences], key=lambda one: len(one.tokens)
            )

    def _count(self, room: Room) -> int:
        if not self._sentences:
            return 0
        # What is left is shared out, so that no worker ends long before the others.
        fair = math.ceil((len(self._sentences) + room.beside) / self._workers) - room.beside
        count = min(room.more(len(self._sentences[-1].tokens) + 1), fair, len(self._sentences))
        return max(count, 0 if room.beside else 1)


@dataclass
class Trace:
    """What the host keeps of the steps, for the back-trace; columns are the rows of the batch.

    Attributes:
        first: number of the step that the lists begin with.
        steps: of each step since.
    """

    first: int = 0
    steps: list[StepResult] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Number of the step that comes next."""
        return self.first + len(self.steps)

    def forget(self, first: int) -> None:
        """Drop the steps before that one."""
        del self.steps[: first - self.first]
        self.first = first

    def of(self, row: int, begin: int, length: int) -> SentenceTrace:
        """The steps of one sentence, which began with that step."""
        steps = self.steps[begin - self.first :][:length]
        attention = [step.attention[row] for step in steps if step.attention is not None]
        return SentenceTrace(
            np.stack([step.tokens[row] for step in steps]),
            np.stack([step.parents[row] for step in steps]),
            np.stack([step.log_probs[row] for step in steps]),
            attention,
        )


@dataclass(frozen=True)
class SentenceTrace:
    """The steps of one sentence.

    Attributes:
        tokens: [T, K] token that each live beam was continued with.
        parents: [T, K] beam of the step before that it continues.
        log_probs: [T, K] cumulative log-probability of the live beams.
        attention: per step, [K, S] of the beams before selection, if asked for.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    attention: list[NDArray[np.float32]]

    def path(self, beam: int, length: int) -> list[tuple[int, int]]:
        """(token, parent) of each of the first `length` steps that led to live beam `beam`."""
        steps: list[tuple[int, int]] = []
        for step in reversed(range(length)):
            parent = int(self.parents[step, beam])
            steps.append((int(self.tokens[step, beam]), parent))
            beam = parent
        return steps[::-1]


@dataclass(frozen=True)
class Running:
    """A sentence in a batch, and the number of its first step."""

    sentence: Sentence
    begin: int


class Search:
    """One worker: a batch, the sentences in its rows and what their steps left behind.

    Args:
        backend: with both graphs loaded.
        options: of sentences that have none of their own; beam size and attention are those of all.
        batch_tokens: see `Room`.
        start_token: the decoder's start symbol.
        end_token: the end symbol.
        source_end: the decoder sees the source's end symbol.
    """

    def __init__(
        self, backend: Backend, options: SearchOptions, batch_tokens: int, start_token: int,
        end_token: int, source_end: bool = True,
    ) -> None:  # fmt: skip
        self._source_end = source_end
        self._options, self._batch_tokens, self._end_token = options, batch_tokens, end_token
        self._batch: Batch = backend.batch(options, start_token)
        self._rows: dict[int, Running] = {}  # not done yet
        self._taken: list[Sentence] = []  # on their way into rows
        self._size = 0  # rows that were running when places were last given
        self._trace = Trace()

    def run(
        self,
        waiting: Queue,
        found: Callable[[Sentence, list[Hypothesis]], None],
        stop: Event | None = None,
    ) -> None:
        """Translate until nobody waits and all are done.

        Args:
            waiting: where sentences come from.
            found: is given each sentence with its n best hypotheses, best first.
            stop: ends the search before the next step.
        """
        while not (stop is not None and stop.is_set()) and self.advance(waiting, found):
            pass

    def advance(self, waiting: Queue, found: Callable[[Sentence, list[Hypothesis]], None]) -> bool:
        """Take the next step of `run`; False: nobody waits and all are done."""
        if self._should_fill(waiting):
            self._take_in(self._batch.drain(), found)
            if not self._fill(waiting):
                return False
        self._take_in(self._batch.step(self._forced()), found)
        return True

    @property
    def sentences(self) -> list[Sentence]:
        """Sentences in the batch that have not finished."""
        return [running.sentence for running in self._rows.values()]

    def cancel(self) -> None:
        """Let a call of the backend that is under way end early; `run` may raise an error of it."""
        self._batch.cancel()

    def unfinished(self) -> list[Sentence]:
        """What this worker has taken and not found, should it have failed."""
        return [*(running.sentence for running in self._rows.values()), *self._taken]

    def _take_in(
        self, results: Sequence[StepResult], found: Callable[[Sentence, list[Hypothesis]], None]
    ) -> None:
        """Keep what steps found, and let go of the sentences that they end."""
        for result in results:
            self._trace.steps.append(result)
            for row in [row for row in self._rows if result.done[row]]:
                running = self._rows[row]
                found(running.sentence, self._finish(row, running))
                del self._rows[row]

    def _room(self) -> Room:
        longest = max((len(r.sentence.tokens) + 1 for r in self._rows.values()), default=0)
        return Room(
            self._batch_tokens, len(self._rows), longest, self._batch.rows, self._batch.room
        )

    def _should_fill(self, waiting: Queue) -> bool:
        if self._size - len(self._rows) >= self._size * _CLOSE_UP:
            return True
        return waiting.should_join(self._room(), self._size)

    def _fill(self, waiting: Queue) -> bool:
        """Give places to waiting sentences, or close idle ones up; False: there is none at all."""
        taken = self._taken = waiting.take(self._room())
        if not taken and not self._rows:
            return False
        self._size = len(self._rows) + len(taken)
        keep, before = sorted(self._rows), self._batch.rows
        kept, placed = self._batch.update(keep, self._sources(taken))
        self._trace.forget(min((r.begin for r in self._rows.values()), default=self._trace.end))
        if kept != keep or self._batch.rows != before:
            self._trace.steps = [
                _rearranged(step, keep, kept, self._batch.rows) for step in self._trace.steps
            ]
        self._rows = {new: self._rows[old] for old, new in zip(keep, kept, strict=True)}
        begin = self._trace.end
        self._rows |= {
            row: Running(sentence, begin) for row, sentence in zip(placed, taken, strict=True)
        }
        self._taken = []
        return True

    def _sources(self, sentences: Sequence[Sentence]) -> Sources | None:
        if not sentences:
            return None
        options = [sentence.options or self._options for sentence in sentences]
        return Sources(
            [[*sentence.tokens, self._end_token] for sentence in sentences],
            [
                own.max_length_for(len(sentence.tokens))
                for own, sentence in zip(options, sentences, strict=True)
            ],
            options,
        )

    def _forced(self) -> NDArray[np.int64] | None:
        """[N] the forced token of each row at its position, or none; None: all are free."""
        forced = {}
        for row, running in self._rows.items():
            position = self._trace.end - running.begin
            if position < len(running.sentence.prefix):
                forced[row] = running.sentence.prefix[position]
        if not forced:
            return None
        tokens = np.full(self._batch.rows, FREE, dtype=np.int64)
        tokens[list(forced)] = list(forced.values())
        return tokens

    def _finish(self, row: int, running: Running) -> list[Hypothesis]:
        steps = self._trace.end - running.begin
        trace = self._trace.of(row, running.begin, steps)
        pool, options = self._batch.pool(row), running.sentence.options or self._options
        return hypotheses(running.sentence, trace, pool, options, self._source_end)


def _rearranged(step: StepResult, old: Sequence[int], new: Sequence[int], size: int) -> StepResult:
    """A step's result with what was in the old rows in the new ones, of `size` altogether.

    Sentences that were not there yet have rows that nobody will ask this step for.
    """

    def moved(x: NDArray[Any]) -> NDArray[Any]:
        result = np.zeros((size, *x.shape[1:]), x.dtype)
        result[list(new)] = x[list(old)]
        return result

    return StepResult(
        tokens=moved(step.tokens),
        parents=moved(step.parents),
        log_probs=moved(step.log_probs),
        done=moved(step.done),
        attention=None if step.attention is None else moved(step.attention),
    )


# ---- from a trace to hypotheses ----


@dataclass(frozen=True)
class _Finished:
    """A place of the pool: live beam `parent` ended after `length` tokens, or was cut off there."""

    score: float
    length: int
    parent: int
    truncated: bool


def hypotheses(
    sentence: Sentence, trace: SentenceTrace, pool: Pool, options: SearchOptions,
    source_end: bool = True,
) -> list[Hypothesis]:  # fmt: skip
    """Rules 6 and 7: the n best of a sentence that is done.

    Args:
        sentence: the sentence.
        trace: of all its steps.
        pool: what it has finished with.
        options: of the search.
        source_end: attention has a column for the source's end symbol.

    Raises:
        BackendError: there is none (`check_found`).
    """
    entries = [
        _Finished(score, length, parent, truncated=False)
        for score, length, parent in zip(
            pool.scores.tolist(), pool.lengths.tolist(), pool.parents.tolist(), strict=True
        )
        if score > -np.inf
    ]
    if len(trace.tokens) >= options.max_length_for(len(sentence.tokens)):
        entries += _cut_off(options, trace, len(entries))
        entries.sort(key=lambda entry: -entry.score)
    best = entries[: options.num_hypotheses]
    columns = len(sentence.tokens) + source_end
    found = [_hypothesis(trace, options, entry, columns) for entry in best]
    return check_found(found, len(sentence.tokens))


def _penalty(options: SearchOptions, length: int) -> float:
    beta = options.length_penalty_beta
    return float(((beta + length) / (beta + 1)) ** options.length_penalty)


def _cut_off(options: SearchOptions, trace: SentenceTrace, finished: int) -> list[_Finished]:
    """Rule 6: live hypotheses for the room that is left in the pool."""
    room, steps = options.beam_size - finished, len(trace.tokens)
    log_probs: list[float] = trace.log_probs[-1].tolist()
    return [
        _Finished(log_prob / _penalty(options, steps), steps, beam, truncated=True)
        for beam, log_prob in enumerate(log_probs[:room])
        if log_prob > -np.inf
    ]


def _hypothesis(
    trace: SentenceTrace, options: SearchOptions, entry: _Finished, columns: int
) -> Hypothesis:
    """Trace one hypothesis back; its attention has that many columns."""
    traced = entry.length if entry.truncated else entry.length - 1  # the end symbol is in no beam
    path = trace.path(entry.parent, traced)
    beams = [parent for _, parent in path]  # that each token was chosen from
    cumulative = [0.0]
    for step, beam in enumerate([*beams[1:], entry.parent][:traced]):
        cumulative.append(float(trace.log_probs[step, beam]))
    if not entry.truncated:
        beams.append(entry.parent)
        cumulative.append(entry.score * _penalty(options, entry.length))
    attention: NDArray[Any] | None = None
    if options.return_attention:
        rows = [trace.attention[step][beam, :columns] for step, beam in enumerate(beams)]
        attention = np.stack(rows)
    return Hypothesis(
        tokens=tuple(token for token, _ in path),
        score=entry.score,
        token_log_probs=tuple(b - a for a, b in pairwise(cumulative)),
        truncated=entry.truncated,
        attention=attention,
    )
