"""The host's loop: what it feeds, what it fetches, when it stops, how it traces back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from translate_trt.runtime.contract import NEXT, GraphShape
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.search import Request, Trace, search_batch

SHAPE = GraphShape(decoder_layers=1, heads=1, key_size=2, value_size=2, attention=True)
END, START = 3, 2


class Tensor:
    """What the backend keeps; it remembers its name, so that fetching it can be told."""

    def __init__(self, name: str, value: NDArray[Any]) -> None:
        self.name, self.value = name, value


class RecordedBackend:
    """Plays back steps that are written down, one dictionary of outputs each."""

    def __init__(self, steps: list[dict[str, Any]]) -> None:
        self.steps = steps
        self.inputs: list[dict[str, NDArray[Any]]] = []
        self.fetched: set[str] = set()

    def encode(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        self.encoded = dict(inputs)
        return {spec.name: Tensor(spec.name, np.zeros(1)) for spec in SHAPE.encoder_outputs()}

    def step(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        assert set(inputs) == {spec.name for spec in SHAPE.step_inputs()}
        number = len(self.inputs)
        self.inputs.append({name: tensor.value for name, tensor in inputs.items()})
        outputs = {spec.name: np.zeros(1) for spec in SHAPE.step_outputs()}
        outputs |= {name: np.array(value) for name, value in self.steps[number].items()}
        return {name: Tensor(name, value) for name, value in outputs.items()}

    def to_device(self, value: NDArray[Any]) -> Tensor:
        return Tensor("from the host", value)

    def to_host(self, tensor: Tensor) -> NDArray[Any]:
        self.fetched.add(tensor.name)
        return tensor.value


def step(tokens: Any, parents: Any, log_probs: Any, done: Any, **more: Any) -> dict[str, Any]:
    return {
        NEXT + "tokens": tokens,
        "parents": parents,
        NEXT + "log_probs": log_probs,
        NEXT + "done": done,
        "attention": more.pop("attention", np.zeros((1, 2, 2), np.float32)),
        **{NEXT + name: value for name, value in more.items()},
    }


# One sentence, two beams. Beam 1 of step 1 came from beam 0, and "5 8 </s>" ended from it.
STEPS = [
    step([[5, 6]], [[0, 0]], [[-1.0, -2.0]], [False]),
    step([[7, 8]], [[1, 0]], [[-2.5, -3.0]], [False]),
    step(
        [[9, 9]],
        [[0, 1]],
        [[-5.0, -6.0]],
        [True],
        finished_scores=[[-3.5, -np.inf]],
        finished_lengths=[[3, 0]],
        finished_parents=[[1, 0]],
    ),
]


def request(max_length: int, prefix: tuple[int, ...] = (), **options: Any) -> Request:
    options = {"length_penalty": 0.0, "beam_size": 2, **options}
    search = SearchOptions(max_length=max_length, **options)
    return Request.of([[10]], [prefix], search, END)


def test_back_trace_and_token_log_probs() -> None:
    backend = RecordedBackend(STEPS)
    ((found,),) = search_batch(backend, SHAPE, request(9), START)
    assert found.tokens == (5, 8)
    assert found.score == -3.5
    assert found.token_log_probs == pytest.approx((-1.0, -2.0, -0.5))
    assert not found.truncated
    assert len(backend.inputs) == 3


def test_cut_off_hypotheses_fill_the_pool_in_order() -> None:
    backend = RecordedBackend(STEPS)
    (found,) = search_batch(backend, SHAPE, request(3, num_hypotheses=2), START)
    # The pool's one, then room for one live beam: 6 7 9 by its parents, at -5.
    assert [hypothesis.tokens for hypothesis in found] == [(5, 8), (6, 7, 9)]
    assert [hypothesis.truncated for hypothesis in found] == [False, True]
    assert found[1].score == -5.0
    assert found[1].token_log_probs == pytest.approx((-2.0, -0.5, -2.5))


def test_before_the_maximum_length_nothing_is_cut_off() -> None:
    (found,) = search_batch(RecordedBackend(STEPS), SHAPE, request(4, num_hypotheses=2), START)
    assert len(found) == 1


def with_pool(scores: list[float], **more: Any) -> RecordedBackend:
    """The same search, its pool at the end as given (all of it ended from beam 1 of step 2)."""
    pool = {"finished_scores": [scores], "finished_lengths": [[3, 3]], "finished_parents": [[1, 1]]}
    last = STEPS[-1] | {NEXT + name: value for name, value in (pool | more).items()}
    return RecordedBackend([*STEPS[:-1], last])


def test_what_is_cut_off_may_stand_before_what_ended() -> None:
    backend = with_pool([-5.5, -np.inf])
    (found,) = search_batch(backend, SHAPE, request(3, num_hypotheses=2), START)
    assert [(h.score, h.truncated) for h in found] == [(-5.0, True), (-5.5, False)]


def test_a_full_pool_has_no_room_for_what_is_cut_off() -> None:
    # Not even for something better.
    backend = with_pool([-8.0, -9.0])
    (found,) = search_batch(backend, SHAPE, request(3, num_hypotheses=2), START)
    assert [(h.score, h.truncated) for h in found] == [(-8.0, False), (-9.0, False)]


def test_dead_beams_are_no_hypotheses() -> None:
    backend = with_pool([-np.inf, -np.inf], log_probs=[[-5.0, -np.inf]])
    (found,) = search_batch(backend, SHAPE, request(3, num_hypotheses=2), START)
    assert [(h.score, h.truncated) for h in found] == [(-5.0, True)]


def test_a_sentence_is_cut_off_where_its_own_limit_was() -> None:
    # The first may have one token, the second three; the batch goes on for three steps.
    def two(values: dict[str, Any]) -> dict[str, Any]:
        return {name: np.repeat(np.asarray(value), 2, axis=0) for name, value in values.items()}

    steps = [two(values) for values in STEPS]
    for values, done in zip(steps, ([True, False], [True, False], [True, True]), strict=True):
        values[NEXT + "done"] = np.array(done)
    steps[-1][NEXT + "finished_scores"][0] = -np.inf
    made = Request.of([[10], [11]], [(), ()], SearchOptions(beam_size=2, length_penalty=0.0), END)
    made = dataclasses.replace(made, max_lengths=np.array([1, 3]))
    (first,), (second,) = search_batch(RecordedBackend(steps), SHAPE, made, START)
    assert (first.tokens, first.score, first.truncated) == ((5,), -1.0, True)
    assert (second.tokens, second.score, second.truncated) == ((5, 8), -3.5, False)


def test_forced_tokens_position_by_position() -> None:
    backend = RecordedBackend(STEPS)
    search_batch(backend, SHAPE, request(9, prefix=(5, 8)), START)
    assert [inputs["forced_tokens"].tolist() for inputs in backend.inputs] == [[5], [8], [-1]]


def test_what_a_step_gave_is_what_the_next_one_gets() -> None:
    backend = RecordedBackend(STEPS)
    search_batch(backend, SHAPE, request(9), START)
    assert backend.inputs[0]["tokens"].tolist() == [[START, START]]
    assert backend.inputs[1]["tokens"].tolist() == [[5, 6]]
    assert backend.inputs[2]["log_probs"].tolist() == [[-2.5, -3.0]]
    for inputs in backend.inputs:
        assert inputs["max_lengths"].tolist() == [9]
        assert float(inputs["length_penalty_beta"]) == 5.0


def test_caches_never_reach_the_host() -> None:
    backend = RecordedBackend(STEPS)
    search_batch(backend, SHAPE, request(3), START)
    assert backend.fetched == {
        "parents",
        *(NEXT + name for name in ("tokens", "log_probs", "done", "finished_scores",
                                   "finished_lengths", "finished_parents")),
    }  # fmt: skip


def test_attention_follows_the_beams() -> None:
    steps = [dict(values) for values in STEPS]
    for number, values in enumerate(steps):
        rows = [[number * 10 + beam, 0.0] for beam in range(2)]
        values["attention"] = np.array([rows], np.float32)
    options = {"return_attention": True}
    ((found,),) = search_batch(RecordedBackend(steps), SHAPE, request(9, **options), START)
    # 5 was chosen by beam 0 of step 0, 8 by beam 0 of step 1, the end by beam 1 of step 2.
    assert found.attention is not None
    assert found.attention[:, 0].tolist() == [0.0, 10.0, 21.0]


def test_path() -> None:
    trace = Trace(
        tokens=[np.array([[5, 6]]), np.array([[7, 8]])],
        parents=[np.array([[0, 0]]), np.array([[1, 0]])],
    )
    assert trace.path(0, 0, 2) == [(6, 0), (7, 1)]
    assert trace.path(0, 1, 2) == [(5, 0), (8, 0)]
    assert trace.path(0, 1, 0) == []


def test_requests_are_padded_and_closed() -> None:
    made = Request.of([[10, 11, 12], [13]], [(), ()], SearchOptions(), END)
    assert made.source.tolist() == [[10, 11, 12, END], [13, END, END, END]]
    assert made.source_lengths.tolist() == [4, 2]
    assert made.max_lengths.tolist() == [53, 51]
