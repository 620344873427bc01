"""The host's loop: who runs together, what steps are told, what is kept of them, the back-trace."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from translate_trt.runtime.backends import Pool, Sources, StepResult
from translate_trt.runtime.batching import SMALLEST_COST
from translate_trt.runtime.contract import FREE
from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.search import (
    Room,
    Search,
    Sentence,
    SentenceTrace,
    Trace,
    Waiting,
    hypotheses,
)

END, START = 3, 2


# ---- from a trace to hypotheses ----

# Two beams. Beam 1 of step 1 came from beam 0, and "5 8 </s>" ended from it.
TRACE = SentenceTrace(
    tokens=np.array([[5, 6], [7, 8], [9, 9]]),
    parents=np.array([[0, 0], [1, 0], [0, 1]]),
    log_probs=np.array([[-1.0, -2.0], [-2.5, -3.0], [-5.0, -6.0]], np.float32),
    attention=[],
)


def pool(scores: Sequence[float], **more: Any) -> Pool:
    """A pool that ended from beam 1 of step 2, if nothing else is said."""
    values = {"lengths": [3, 3], "parents": [1, 1], **more}
    lengths, parents = (np.array(values[name]) for name in ("lengths", "parents"))
    return Pool(np.array(scores, np.float32), lengths, parents)


ENDED = pool([-3.5, -np.inf], lengths=[3, 0], parents=[1, 0])


def found(
    max_length: int, ended: Pool = ENDED, trace: SentenceTrace = TRACE, **options: Any
) -> list[Hypothesis]:
    search = SearchOptions(
        **{"length_penalty": 0.0, "beam_size": 2, "max_length": max_length, **options}
    )
    return hypotheses(Sentence(0, [10]), trace, ended, search)


def test_back_trace_and_token_log_probs() -> None:
    (best,) = found(9)
    assert best.tokens == (5, 8)
    assert best.score == -3.5
    assert best.token_log_probs == pytest.approx((-1.0, -2.0, -0.5))
    assert not best.truncated
    assert best.attention is None


def test_the_log_prob_of_the_end_is_the_score_without_its_penalty() -> None:
    (best,) = found(9, length_penalty=1.0, length_penalty_form="length")
    assert best.score == -3.5
    assert best.token_log_probs == pytest.approx((-1.0, -2.0, -3.5 * 3 + 3.0))


def test_cut_off_hypotheses_fill_the_pool_in_order() -> None:
    both = found(3, num_hypotheses=2)
    # The pool's one, then room for one live beam: 6 7 9 by its parents, at -5.
    assert [hypothesis.tokens for hypothesis in both] == [(5, 8), (6, 7, 9)]
    assert [hypothesis.truncated for hypothesis in both] == [False, True]
    assert both[1].score == -5.0
    assert both[1].token_log_probs == pytest.approx((-2.0, -0.5, -2.5))


def test_before_the_maximum_length_nothing_is_cut_off() -> None:
    assert len(found(4, num_hypotheses=2)) == 1


def test_what_is_cut_off_may_stand_before_what_ended() -> None:
    both = found(3, pool([-5.5, -np.inf]), num_hypotheses=2)
    assert [(h.score, h.truncated) for h in both] == [(-5.0, True), (-5.5, False)]


def test_a_full_pool_has_no_room_for_what_is_cut_off() -> None:
    # Not even for something better.
    both = found(3, pool([-8.0, -9.0]), num_hypotheses=2)
    assert [(h.score, h.truncated) for h in both] == [(-8.0, False), (-9.0, False)]


def test_dead_beams_are_no_hypotheses() -> None:
    log_probs = TRACE.log_probs.copy()
    log_probs[-1, 1] = -np.inf
    trace = SentenceTrace(TRACE.tokens, TRACE.parents, log_probs, [])
    (only,) = found(3, pool([-np.inf, -np.inf]), trace, num_hypotheses=2)
    assert (only.score, only.truncated) == (-5.0, True)


@pytest.mark.parametrize("value", [np.nan, -np.inf], ids=["NaN", "minus infinity"])
def test_a_sentence_without_any_hypothesis_is_an_error(value: float) -> None:
    log_probs = np.full_like(TRACE.log_probs, value)
    trace = SentenceTrace(TRACE.tokens, TRACE.parents, log_probs, [])
    with pytest.raises(BackendError, match="no finite probabilities for a sentence of 1 source"):
        found(3, pool([value, value]), trace)


def test_a_sentence_is_cut_off_where_its_own_limit_is() -> None:
    # Its source has one token, so that it may have 51.
    steps = 51
    trace = SentenceTrace(
        np.full((steps, 2), 7),
        np.tile([0, 1], (steps, 1)),
        -np.arange(1, 2 * steps + 1, dtype=np.float32).reshape(steps, 2),
        [],
    )
    for source, truncated in ((1, [True, True]), (2, [])):
        options = SearchOptions(beam_size=2, num_hypotheses=2)
        nothing = pool([-np.inf, -np.inf])
        if not truncated:  # and nothing has ended
            with pytest.raises(BackendError):
                hypotheses(Sentence(0, [10] * source), trace, nothing, options)
            continue
        cut = hypotheses(Sentence(0, [10] * source), trace, nothing, options)
        assert [h.truncated for h in cut] == truncated


def test_attention_follows_the_beams_and_ends_with_the_source() -> None:
    attention = [
        np.array([[number * 10 + beam, 0.5, 7.0] for beam in range(2)], np.float32)
        for number in range(3)
    ]
    trace = SentenceTrace(TRACE.tokens, TRACE.parents, TRACE.log_probs, attention)
    (best,) = found(9, trace=trace, return_attention=True)
    # 5 was chosen by beam 0 of step 0, 8 by beam 0 of step 1, the end by beam 1 of step 2.
    assert best.attention is not None
    assert best.attention.tolist() == [[0.0, 0.5], [10.0, 0.5], [21.0, 0.5]]


def test_path() -> None:
    assert TRACE.path(0, 2) == [(6, 0), (7, 1)]
    assert TRACE.path(1, 2) == [(5, 0), (8, 0)]
    assert TRACE.path(1, 0) == []


# ---- what is kept of the steps ----


def result(
    tokens: Any, done: Any, attention: NDArray[np.float32] | None = None, **more: Any
) -> StepResult:
    """A step of N rows and K beams; each beam continues itself if nothing else is said."""
    tokens = np.array(tokens)
    parents = np.array(more.get("parents", np.tile(np.arange(tokens.shape[1]), (len(tokens), 1))))
    log_probs = np.array(more.get("log_probs", np.full(tokens.shape, -1.0)), np.float32)
    return StepResult(tokens, parents, log_probs, np.array(done), attention)


def test_a_trace_forgets_what_nobody_needs() -> None:
    trace = Trace()
    for number in range(5):
        trace.steps.append(result([[number, 0]], [False]))
    assert trace.end == 5
    trace.forget(3)
    assert (trace.first, trace.end, len(trace.steps)) == (3, 5, 2)
    assert trace.of(0, 3, 2).tokens[:, 0].tolist() == [3, 4]
    assert trace.of(0, 4, 1).tokens[:, 0].tolist() == [4]
    trace.forget(5)
    assert (trace.first, trace.end, trace.steps) == (5, 5, [])


# ---- the loop, over a batch that plays back what is written down ----


class RecordedBatch:
    """A `Batch` of written steps; what it was told is there to be read.

    Args:
        steps: a list of results for each call of `step`.
        placed: what each call of `update` returns.
        pools: of the sentences, in the order in which they are done.
    """

    def __init__(
        self,
        steps: Sequence[list[StepResult]],
        placed: Sequence[tuple[list[int], list[int]]],
        pools: Sequence[Pool] = (),
    ) -> None:
        self._steps, self._placed, self._pools = iter(steps), iter(placed), iter(pools)
        self.rows = 0
        self.forced: list[list[int] | None] = []
        self.updates: list[tuple[list[int], Sources | None]] = []

    def batch(self, options: SearchOptions, start_token: int) -> RecordedBatch:
        """It is the `Backend`, too."""
        assert start_token == START
        return self

    def room(self, longest: int) -> int | None:
        return None

    def drain(self) -> list[StepResult]:
        return []

    def update(self, keep: Sequence[int], new: Sources | None) -> tuple[list[int], list[int]]:
        self.updates.append((list(keep), new))
        kept, placed = next(self._placed)
        self.rows = max(self.rows if kept == list(keep) else 0, len(kept) + len(placed))
        return kept, placed

    def step(self, forced: NDArray[np.int64] | None) -> list[StepResult]:
        self.forced.append(None if forced is None else forced.tolist())
        return next(self._steps)

    def pool(self, row: int) -> Pool:
        return next(self._pools, after(1))


def after(tokens: int) -> Pool:
    """A pool of one hypothesis of so many tokens, the end symbol included, that beam 0 ended."""
    return pool([-1.0, -np.inf], lengths=[tokens, 0], parents=[0, 0])


def run(
    batch: RecordedBatch,
    sentences: Sequence[Sentence],
    batch_tokens: int = 10_000,
    stop: threading.Event | None = None,
    **options: Any,
) -> dict[int, list[Hypothesis]]:
    chosen = SearchOptions(**{"beam_size": 2, "length_penalty": 0.0, **options})
    search = Search(batch, chosen, batch_tokens, START, END)
    seen: dict[int, list[Hypothesis]] = {}

    def take(sentence: Sentence, found: list[Hypothesis]) -> None:
        assert sentence.index not in seen
        seen[sentence.index] = found

    search.run(Waiting(sentences), take, stop)
    return seen


def test_sources_are_closed_and_limited_each_by_itself() -> None:
    batch = RecordedBatch([[result([[9, 9]] * 2, [True, True])]], [([], [0, 1])])
    run(batch, [Sentence(0, [13]), Sentence(1, [10, 11, 12])])
    ((keep, new),) = batch.updates
    assert keep == []
    assert new is not None
    assert new.tokens == [[10, 11, 12, END], [13, END]]
    assert new.max_lengths == [53, 51]
    ids, lengths = new.padded()
    assert ids.tolist() == [[10, 11, 12, END], [13, END, END, END]]
    assert lengths.tolist() == [4, 2]


def test_forced_tokens_position_by_position() -> None:
    steps = [[result([[9, 9]] * 2, [False, False])] for _ in range(3)]
    steps.append([result([[9, 9]] * 2, [True, True])])
    batch = RecordedBatch(steps, [([], [0, 1])])
    run(batch, [Sentence(0, [10], [5, 8, 7]), Sentence(1, [10], [6])])
    # Of sentences of one length the later one is taken first.
    assert batch.forced == [[6, 5], [FREE, 8], [FREE, 7], None]


def test_several_steps_at_once() -> None:
    # The second sentence is done in the middle of them.
    steps = [
        [
            result([[5, 6], [4, 4]], [False, False]),
            result([[7, 8], [9, 9]], [False, True], parents=[[1, 0], [0, 1]]),
            result([[9, 9], [1, 1]], [False, True]),
        ],
        [result([[9, 9], [1, 1]], [True, True])],
    ]
    batch = RecordedBatch(steps, [([], [0, 1]), ([0], [])], [ENDED, ENDED])
    seen = run(batch, [Sentence(1, [10]), Sentence(0, [10, 11])])
    assert seen[0][0].tokens == (5, 8)
    assert seen[1][0].tokens == (4, 9)


def test_rows_that_move_take_their_steps_with_them() -> None:
    # Two of four rows are done after the first step, so that the others close up.
    one = [result([[10, 0], [20, 0], [30, 0], [40, 0]], [True, False, True, False])]
    two = [result([[21, 0], [41, 0]], [False, False])]
    three = [result([[22, 0], [42, 0]], [True, True])]
    pools = [after(2), after(2), after(3), after(4)]
    batch = RecordedBatch([one, two, three], [([], [0, 1, 2, 3]), ([0, 1], [])], pools)
    seen = run(batch, [Sentence(index, [10] * (9 - index)) for index in range(4)])
    assert batch.updates[1] == ([1, 3], None)
    tokens = {index: best.tokens for index, (best,) in seen.items()}
    assert tokens == {0: (10,), 2: (30,), 1: (20, 21), 3: (40, 41, 42)}


def test_places_are_filled_while_others_go_on() -> None:
    # Places for two: whoever is done gives way to the next, which begins at its own first step.
    results = [
        result([[10, 0], [20, 0]], [True, False]),
        result([[30, 0], [21, 0]], [False, False]),
        result([[31, 0], [22, 0]], [True, True]),
    ]
    pools = [after(1), after(4), after(3)]  # row 1, which stayed, before row 0
    batch = RecordedBatch([[one] for one in results], [([], [0, 1]), ([1], [0])], pools)
    sentences = [Sentence(index, [10] * 8, [70 + index] * 2) for index in range(3)]
    seen = run(batch, sentences, batch_tokens=2 * 9)
    assert [keep for keep, _ in batch.updates] == [[], [1]]
    assert {index: best.tokens for index, (best,) in seen.items()} == {
        2: (), 0: (30, 31), 1: (20, 21, 22),
    }  # fmt: skip
    # The third one's prefix begins when it does.
    assert batch.forced == [[72, 71], [70, 71], [70, FREE]]


def test_attention_of_different_widths_is_cut_to_the_sentence() -> None:
    def looked(rows: int, width: int, value: float) -> NDArray[np.float32]:
        return np.full((rows, 2, width), value, np.float32)

    results = [
        result([[10, 0], [20, 0]], [True, False], looked(2, 16, 1.0)),
        result([[21, 0]], [True], looked(1, 8, 2.0)),
    ]
    batch = RecordedBatch([[x] for x in results], [([], [0, 1]), ([0], [])], [after(1), after(2)])
    seen = run(batch, [Sentence(0, [10] * 12), Sentence(1, [10] * 4)], return_attention=True)
    first, second = seen[0][0].attention, seen[1][0].attention
    assert first is not None
    assert second is not None
    assert first.shape == (1, 13)
    assert second.tolist() == [[1.0] * 5, [2.0] * 5]


def test_a_stop_ends_the_search_before_the_next_step() -> None:
    stop = threading.Event()
    batch = RecordedBatch([[result([[9, 9]], [False])]], [([], [0])])
    step = batch.step

    def stopping(forced: NDArray[np.int64] | None) -> list[StepResult]:
        stop.set()
        return step(forced)

    batch.step = stopping  # type: ignore[method-assign]
    assert run(batch, [Sentence(0, [10])], stop=stop) == {}
    assert len(batch.forced) == 1


def test_what_a_worker_had_when_it_failed() -> None:
    batch = RecordedBatch([[result([[9, 9]] * 3, [True, False, False])]], [([], [0, 1, 2])])
    search = Search(batch, SearchOptions(beam_size=2), 30, START, END)
    waiting = Waiting([Sentence(index, [10] * (8 - index)) for index in range(5)])
    done: list[int] = []
    # There is no second step, and no second update either: whichever comes first fails.
    with pytest.raises(StopIteration):
        search.run(waiting, lambda sentence, _: done.append(sentence.index))
    left = sorted(sentence.index for sentence in search.unfinished())
    waits = [sentence.index for sentence in waiting.take(Room(10_000))]
    assert done == [0]
    assert sorted(done + left + waits) == list(range(5))


# ---- who runs together ----


def sentences_of(lengths: Sequence[int]) -> list[Sentence]:
    """Of those lengths, the end symbol included."""
    return [Sentence(index, [10] * (length - 1)) for index, length in enumerate(lengths)]


def taken(waiting: Waiting, batch_tokens: int, **more: int) -> list[int]:
    return [len(one.tokens) + 1 for one in waiting.take(Room(batch_tokens, **more))]


def test_the_longest_come_first_and_fit() -> None:
    waiting = Waiting(sentences_of([9, 20, 12, 30, 10, 11]))
    assert taken(waiting, 60) == [30, 20]
    assert taken(waiting, 60) == [12, 11, 10, 9]
    assert taken(waiting, 60) == []


def test_a_sentence_too_long_for_a_batch_runs_alone() -> None:
    waiting = Waiting(sentences_of([50, 40, 9]))
    assert taken(waiting, 20) == [50]
    # Not beside others, though.
    assert taken(waiting, 20, beside=1, longest=50) == []
    assert taken(waiting, 20) == [40]


def test_short_sentences_cost_as_much_as_their_steps() -> None:
    waiting = Waiting(sentences_of([2] * 100))
    assert len(taken(waiting, 10 * SMALLEST_COST)) == 10


def test_whoever_comes_beside_others_is_padded_like_them() -> None:
    waiting = Waiting(sentences_of([10] * 20))
    # Four of 30 tokens in a batch of 240 leave room for four more, though 10 tokens are short.
    assert taken(waiting, 240, beside=4, longest=30) == [10] * 4
    # One that was given back may be longer than those that run: then they are padded.
    waiting = Waiting([])
    waiting.give_back(sentences_of([60, 60]))
    assert taken(waiting, 240, beside=3, longest=30) == [60]


def test_workers_share_what_is_left() -> None:
    waiting = Waiting(sentences_of([9] * 10), workers=4)
    # Each takes a fourth of what is left and what it has, rounded up.
    assert [len(taken(waiting, 10_000)) for _ in range(4)] == [3, 2, 2, 1]
    assert len(taken(waiting, 10_000, beside=1, longest=9)) == 0
    assert len(taken(waiting, 10_000)) == 1
    assert len(taken(waiting, 10_000)) == 1


def test_a_worker_never_waits_in_vain_while_somebody_waits() -> None:
    rng = random.Random(5)
    for _ in range(200):
        workers, lengths = rng.randint(1, 6), [rng.randint(2, 60) for _ in range(rng.randint(1, 9))]
        waiting, rounds = Waiting(sentences_of(lengths), workers), 0
        seen: list[int] = []
        while some := waiting.take(Room(rng.randint(1, 100))):
            seen += [sentence.index for sentence in some]
            rounds += 1
        assert sorted(seen) == list(range(len(lengths)))


def test_what_is_given_back_waits_in_order() -> None:
    waiting = Waiting(sentences_of([30, 20, 10]))
    first = waiting.take(Room(30))
    waiting.give_back(first)
    assert taken(waiting, 10_000) == [30, 20, 10]


def test_many_threads_take_each_sentence_once() -> None:
    waiting = Waiting(sentences_of([9] * 3000), workers=8)
    seen: list[list[int]] = [[] for _ in range(8)]

    def work(own: list[int]) -> None:
        while some := waiting.take(Room(9 * 3)):
            own += [sentence.index for sentence in some]

    threads = [threading.Thread(target=work, args=(own,)) for own in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(index for own in seen for index in own) == list(range(3000))
