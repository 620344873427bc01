"""The search around the step graph in plain Python, to be read beside docs/beam-search.md.

Batches are static: all sentences start together, and none joins later. It is the oracle of the
tests of libtranslate_trt, and what translates where that is not built.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise
from threading import Event
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.batching import length_sorted_batches
from translate_trt.runtime.bundle.contract import FREE, MASKED, NEXT, Contract, request_values
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis, check_found

Arrays = dict[str, NDArray[Any]]

_POLL_SECONDS = 0.1  # between two looks for Ctrl-C


class Graphs(Protocol):
    """Both graphs of a target on arrays of the host; several threads may use them."""

    def encode(self, inputs: Arrays) -> Arrays:
        """Run the encoder; its outputs by name."""

    def step(self, inputs: Arrays) -> Arrays:
        """Run the step, which may write its caches in place; its outputs by name."""


@dataclass(frozen=True)
class Sentence:
    """One to translate.

    Attributes:
        tokens: without the end symbol; not empty.
        prefix: forced first tokens, as `forced_tokens` in the contract has them.
        options: its own; the beam size is that of its batch.
    """

    tokens: Sequence[int]
    prefix: Sequence[int]
    options: SearchOptions

    @property
    def max_length(self) -> int:
        """Generated tokens, the end symbol included, at which it is cut off."""
        return self.options.max_length_for(len(self.tokens))


@dataclass(frozen=True)
class Step:
    """Tokens, parents and log-probabilities of the live beams after a step."""

    tokens: NDArray[np.int64]  # [N, K] that each was continued with
    parents: NDArray[np.int64]  # [N, K] beam of the step before that each continues
    log_probs: NDArray[np.float32]  # [N, K] cumulative
    attention: NDArray[np.float32] | None  # [N, K, S] before selection, if the graph returns it


class Batch:
    """Sentences that are translated together, a row each.

    Args:
        graphs: of the target.
        contract: their inputs and outputs.
        sentences: of one beam size; at least one.
        start_token: the decoder's start symbol.
        end_token: the end symbol.

    Attributes:
        history: the steps so far.
        lengths: [N] steps that each sentence has taken; those after it was done do not count.
    """

    def __init__(
        self, graphs: Graphs, contract: Contract, sentences: Sequence[Sentence],
        start_token: int, end_token: int,
    ) -> None:  # fmt: skip
        self._graphs, self._contract, self._sentences = graphs, contract, sentences
        self.history: list[Step] = []
        count, beams = len(sentences), sentences[0].options.beam_size
        self.lengths = np.zeros(count, dtype=np.int64)
        self._inputs = graphs.encode(_sources([[*one.tokens, end_token] for one in sentences]))
        most = np.array([one.max_length for one in sentences], dtype=np.int64)
        self._inputs |= request_values([one.options for one in sentences], most)
        self._inputs |= contract.initial_state(count, beams, start_token, _slots(beams))

    @property
    def is_done(self) -> bool:
        """True once all sentences are done."""
        return bool(self._inputs["done"].all())

    def step(self) -> None:
        """Take a step; sentences that are done wait for the others (rule 5)."""
        inputs, position = self._inputs, len(self.history)
        forced = ([*one.prefix, FREE][min(position, len(one.prefix))] for one in self._sentences)
        inputs["forced_tokens"] = np.fromiter(forced, dtype=np.int64)
        self.lengths += ~inputs["done"]
        outputs = self._graphs.step(inputs)
        for spec in self._contract.state:
            inputs[spec.name] = outputs[NEXT + spec.name]
        found = (inputs["tokens"], outputs["parents"], inputs["log_probs"])
        is_wanted = any(one.options.return_attention for one in self._sentences)
        self.history.append(Step(*found, outputs.get("attention") if is_wanted else None))
        full = outputs.get("full", np.False_) & ~inputs["done"]
        if full.any():
            self._grow(full)

    def hypotheses(self, row: int, source_end: bool = True) -> list[Hypothesis]:
        """Rule 7: the n best of a sentence that is done.

        Args:
            row: of the sentence.
            source_end: attention has a column for the source's end symbol.

        Raises:
            BackendError: there is none (`check_found`).
        """
        sentence = self._sentences[row]
        trace = _Trace(sentence, row, self.history[: self.lengths[row]])
        names = ("scores", "lengths", "parents", "truncated")
        pool = (self._inputs[f"finished_{name}"][row].tolist() for name in names)
        entries = [_Entry(*values) for values in zip(*pool, strict=True) if values[0] > -np.inf]
        best = sorted(entries, key=lambda entry: -entry.score)[: sentence.options.num_hypotheses]
        columns = len(sentence.tokens) + source_end
        found = [trace.hypothesis(entry, columns) for entry in best]
        return check_found(found, len(sentence.tokens))

    def _grow(self, full: NDArray[np.bool_]) -> None:
        """More slots; rows [N] that are full go on in the lowest that are free."""
        inputs, beams = self._inputs, self._sentences[0].options.beam_size
        old = inputs["ancestry"].shape[2]
        more = _slots(old + beams) - old
        for spec in self._contract.caches:
            inputs[spec.name] = np.pad(inputs[spec.name], ((0, 0), (0, 0), (0, more), (0, 0)))
        hidden = ((0, 0), (0, 0), (0, more))
        inputs["ancestry"] = np.pad(inputs["ancestry"], hidden, constant_values=MASKED)
        inputs["slots"] = inputs["slots"].copy()
        for row in np.flatnonzero(full):
            free = np.flatnonzero((inputs["ancestry"][row] < 0).all(0))
            inputs["slots"][row] = free[:beams]


def _sources(tokens: Sequence[Sequence[int]]) -> Arrays:
    """The encoder's inputs; any valid id fills up a row."""
    lengths = np.array([len(row) for row in tokens], dtype=np.int64)
    ids = np.full((len(tokens), int(lengths.max())), tokens[0][-1], dtype=np.int64)
    for row, own in zip(ids, tokens, strict=True):
        row[: len(own)] = own
    return {"source_ids": ids, "source_lengths": lengths}


def _slots(needed: int) -> int:
    """A multiple, which suits the matrix products."""
    return -(-needed // 16) * 16


# ---- from the history to hypotheses ----


@dataclass(frozen=True)
class _Entry:
    """A place of the pool: live beam `parent` ended after `length` tokens, or was cut off there."""

    score: float
    length: int
    parent: int
    truncated: bool


@dataclass(frozen=True)
class _Trace:
    """The steps of a sentence, which is in that row of them."""

    sentence: Sentence
    row: int
    steps: Sequence[Step]

    def hypothesis(self, entry: _Entry, columns: int) -> Hypothesis:
        """Trace one back; its attention has that many columns."""
        length = entry.length if entry.truncated else entry.length - 1  # the end is in no beam
        path = self._path(entry.parent, length)
        beams = [parent for _, parent in path]  # that each token was chosen from
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
            token_log_probs=tuple(b - a for a, b in pairwise(cumulative)),
            truncated=entry.truncated,
            attention=attention,
        )

    def _path(self, beam: int, length: int) -> list[tuple[int, int]]:
        """(token, parent) of each of the first `length` steps that led to a live beam."""
        path: list[tuple[int, int]] = []
        for step in reversed(self.steps[:length]):
            parent = int(step.parents[self.row, beam])
            path.append((int(step.tokens[self.row, beam]), parent))
            beam = parent
        return path[::-1]


class Reference:
    """Translates sentences in static batches. Several threads may call it at once.

    Args:
        graphs: of the target.
        contract: their inputs and outputs.
        start_token: the decoder's start symbol.
        end_token: the end symbol.
        source_end: the decoder sees the source's end symbol.
        batch_tokens: source tokens of a batch (`length_sorted_batches`).
        workers: batches at once.
    """

    def __init__(
        self, graphs: Graphs, contract: Contract, start_token: int, end_token: int,
        source_end: bool = True, batch_tokens: int = 512, workers: int = 1,
    ) -> None:  # fmt: skip
        self._graphs, self._contract, self._source_end = graphs, contract, source_end
        self._start_token, self._end_token = start_token, end_token
        self._batch_tokens, self._workers = batch_tokens, workers

    def translate(self, sentences: Sequence[Sentence]) -> list[list[Hypothesis]]:
        """The n best of each sentence, best first; all have one beam size.

        Raises:
            BackendError: the backend failed, or found nothing for a sentence.
        """
        batches = length_sorted_batches([len(s.tokens) + 1 for s in sentences], self._batch_tokens)
        results: dict[int, list[Hypothesis]] = {}
        stop = Event()

        def run(indices: list[int]) -> None:
            try:
                found = self._translate([sentences[index] for index in indices], stop)
            except BaseException:
                stop.set()  # before this thread begins another batch
                raise
            results.update(zip(indices, found, strict=False))

        # In threads, since Ctrl-C is heard by the main thread alone, between two calls.
        with ThreadPoolExecutor(self._workers, "translate") as pool:
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

    def _translate(self, sentences: Sequence[Sentence], stop: Event) -> list[list[Hypothesis]]:
        """The n best of a batch; none once it is to stop."""
        if stop.is_set():
            return []
        batch = Batch(self._graphs, self._contract, sentences, self._start_token, self._end_token)
        while not (batch.is_done or stop.is_set()):
            batch.step()
        rows = range(0 if stop.is_set() else len(sentences))
        return [batch.hypotheses(row, self._source_end) for row in rows]
