"""The loop over the step graph: run, keep (token, parent), look at `done`; then trace back.

The search itself (docs/beam-search.md) is in the graph. What is left to the host is the start, the
end and rule 6: hypotheses cut off at the maximum length fill what room is left in the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.backends import Backend, Tensor
from translate_trt.runtime.contract import NEXT, GraphShape
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis

_FREE = -1  # no forced token


@dataclass(frozen=True)
class Request:
    """What is asked of one batch.

    Attributes:
        source: [N, S] token ids, each row closed by the end symbol, then padded.
        source_lengths: [N], the end symbol included.
        max_lengths: [N] generated tokens, the end symbol included.
        prefixes: forced first tokens of each sentence.
        options: how to search.
    """

    source: NDArray[np.int64]
    source_lengths: NDArray[np.int64]
    max_lengths: NDArray[np.int64]
    prefixes: Sequence[Sequence[int]]
    options: SearchOptions

    @classmethod
    def of(
        cls,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        options: SearchOptions,
        end_token: int,
    ) -> Request:
        """Pad token lists (without end symbol, none of them empty) into one batch."""
        lengths = np.array([len(source) + 1 for source in sources], dtype=np.int64)
        ids = np.full((len(sources), int(lengths.max())), end_token, dtype=np.int64)
        for row, source in zip(ids, sources, strict=True):
            row[: len(source)] = source
        limits = [options.max_length_for(len(source)) for source in sources]
        return cls(ids, lengths, np.array(limits, dtype=np.int64), prefixes, options)

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """The step inputs that stay the same at every step (`GraphShape.request`)."""
        options = self.options
        return {
            "min_lengths": np.full(len(self.source), options.min_length, dtype=np.int64),
            "max_lengths": self.max_lengths,
            "length_penalty_alpha": np.array(options.length_penalty, dtype=np.float32),
            "length_penalty_beta": np.array(options.length_penalty_beta, dtype=np.float32),
        }

    def forced_tokens(self, position: int) -> NDArray[np.int64]:
        """[N] the forced token of each sentence at this position, or none."""
        forced = (p[position] if position < len(p) else _FREE for p in self.prefixes)
        return np.fromiter(forced, dtype=np.int64, count=len(self.prefixes))


@dataclass
class Trace:
    """What the host keeps of each step, for the back-trace.

    Attributes:
        tokens: per step, [N, K] token that each live beam was continued with.
        parents: per step, [N, K] beam of the step before that it continues.
        log_probs: per step, [N, K] cumulative log-probability of the live beams.
        attention: per step, [N, K, S] of the beams before selection, if asked for.
    """

    tokens: list[NDArray[np.int64]] = field(default_factory=list)
    parents: list[NDArray[np.int64]] = field(default_factory=list)
    log_probs: list[NDArray[np.float32]] = field(default_factory=list)
    attention: list[NDArray[np.float32]] = field(default_factory=list)

    def path(self, sentence: int, beam: int, length: int) -> list[tuple[int, int]]:
        """(token, parent) of each of the first `length` steps that led to live beam `beam`."""
        steps: list[tuple[int, int]] = []
        for step in reversed(range(length)):
            parent = int(self.parents[step][sentence, beam])
            steps.append((int(self.tokens[step][sentence, beam]), parent))
            beam = parent
        return steps[::-1]


def search_batch(
    backend: Backend, shape: GraphShape, request: Request, start_token: int
) -> list[list[Hypothesis]]:
    """Translate one batch.

    Args:
        backend: with both graphs loaded.
        shape: of the graphs.
        request: the batch.
        start_token: the decoder's start symbol.

    Returns:
        For each sentence its n best hypotheses, best first.
    """
    encoded = backend.encode(
        {"source_ids": request.source, "source_lengths": request.source_lengths}
    )
    initial = shape.initial_state(len(request.source), request.options.beam_size, start_token)
    constant = {name: backend.to_device(value) for name, value in request.inputs().items()}
    state = {name: backend.to_device(value) for name, value in initial.items()}
    free = backend.to_device(np.full(len(request.source), _FREE, dtype=np.int64))
    longest_prefix = max(map(len, request.prefixes))
    trace = Trace()
    steps_taken = np.zeros(len(request.source), dtype=np.int64)
    done = np.zeros(len(request.source), dtype=bool)
    while not done.all():
        position = len(trace.tokens)
        forced = (
            backend.to_device(request.forced_tokens(position))
            if position < longest_prefix
            else free
        )
        outputs = backend.step({**encoded, **constant, "forced_tokens": forced, **state})
        state = {name: outputs[NEXT + name] for name in state}
        steps_taken[~done] += 1
        done = _record(backend, outputs, trace, request.options.return_attention)
    return _finalize(backend, request, trace, steps_taken, state)


def _record(
    backend: Backend, outputs: dict[str, Tensor], trace: Trace, attention: bool
) -> NDArray[np.bool_]:
    """Keep a step's part of the trace; returns `done`."""
    trace.tokens.append(backend.to_host(outputs["next_tokens"]))
    trace.parents.append(backend.to_host(outputs["parents"]))
    trace.log_probs.append(backend.to_host(outputs["next_log_probs"]))
    if attention:
        trace.attention.append(backend.to_host(outputs["attention"]))
    return backend.to_host(outputs["next_done"])


@dataclass(frozen=True)
class _Finished:
    """A place of the pool: live beam `parent` ended after `length` tokens, or was cut off there."""

    score: float
    length: int
    parent: int
    truncated: bool


def _finalize(
    backend: Backend,
    request: Request,
    trace: Trace,
    steps_taken: NDArray[np.int64],
    state: dict[str, Tensor],
) -> list[list[Hypothesis]]:
    """Rules 6 and 7 for every sentence of the batch."""
    pool = [
        backend.to_host(state[name]).tolist()
        for name in ("finished_scores", "finished_lengths", "finished_parents")
    ]
    results: list[list[Hypothesis]] = []
    for sentence, steps in enumerate(steps_taken.tolist()):
        entries = [
            _Finished(score, length, parent, truncated=False)
            for score, length, parent in zip(*(part[sentence] for part in pool), strict=True)
            if score > -np.inf
        ]
        if steps >= request.max_lengths[sentence]:
            entries += _cut_off(request.options, trace, sentence, steps, len(entries))
            entries.sort(key=lambda entry: -entry.score)
        results.append(
            [
                _hypothesis(request, trace, sentence, entry)
                for entry in entries[: request.options.num_hypotheses]
            ]
        )
    return results


def _penalty(options: SearchOptions, length: int) -> float:
    beta = options.length_penalty_beta
    return float(((beta + length) / (beta + 1)) ** options.length_penalty)


def _cut_off(
    options: SearchOptions, trace: Trace, sentence: int, steps: int, finished: int
) -> list[_Finished]:
    """Rule 6: live hypotheses for the room that is left in the pool."""
    room = options.beam_size - finished
    log_probs: list[float] = trace.log_probs[steps - 1][sentence].tolist()
    return [
        _Finished(log_prob / _penalty(options, steps), steps, beam, truncated=True)
        for beam, log_prob in enumerate(log_probs[:room])
        if log_prob > -np.inf
    ]


def _hypothesis(request: Request, trace: Trace, sentence: int, entry: _Finished) -> Hypothesis:
    """Trace one hypothesis back."""
    traced = entry.length if entry.truncated else entry.length - 1  # the end symbol is in no beam
    path = trace.path(sentence, entry.parent, traced)
    beams = [parent for _, parent in path]  # that each token was chosen from
    cumulative = [0.0]
    for step, beam in enumerate([*beams[1:], entry.parent][:traced]):
        cumulative.append(float(trace.log_probs[step][sentence, beam]))
    if not entry.truncated:
        beams.append(entry.parent)
        cumulative.append(entry.score * _penalty(request.options, entry.length))
    attention: NDArray[Any] | None = None
    if request.options.return_attention:
        width = int(request.source_lengths[sentence])
        rows = [trace.attention[step][sentence, beam, :width] for step, beam in enumerate(beams)]
        attention = np.stack(rows)
    return Hypothesis(
        tokens=tuple(token for token, _ in path),
        score=entry.score,
        token_log_probs=tuple(b - a for a, b in pairwise(cumulative)),
        truncated=entry.truncated,
        attention=attention,
    )
