"""A batch in the host's memory: rows that come, go and move, caches that grow, slots used again.

The graphs are scripted (support/scripted.py): they tell every beam's past from the caches alone, so
that a slot lost on the way is an error, and what is found can be held against the reference.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from support.scripted import (
    END,
    START,
    Script,
    ScriptedBackend,
    ScriptedGraphs,
    ScriptedModel,
    attention_of,
    random_script,
    scripted_search,
)
from support.translations import assert_same

from translate_trt.runtime.backends import Sources, StepResult, host
from translate_trt.runtime.backends.host import HostBatch, zeros
from translate_trt.runtime.contract import FREE, GraphForm
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.search import Search, Sentence, SentenceTrace, Waiting, hypotheses
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search

BEAMS, LONGEST = 3, 14
SHARED = GraphForm()
STATIC = GraphForm(beams=BEAMS, slots=BEAMS * LONGEST)
OPTIONS = SearchOptions(
    beam_size=BEAMS, num_hypotheses=BEAMS, max_length=LONGEST, return_attention=True
)

FORMS: Any = pytest.mark.parametrize("form", [SHARED, STATIC], ids=["shared", "static"])


def scripts_of(count: int) -> list[Script]:
    return [random_script(seed, 19) for seed in range(count)]


def sentences_of(count: int, seed: int = 0) -> list[Sentence]:
    """Sentence i follows script i; sources of all lengths, prefixes of none to three tokens."""
    rng, made = random.Random(seed), []
    for index in range(count):
        source = [
            4 + index,
            *(rng.randrange(4, 19) for _ in range(rng.choice((0, 1, 3, 3, 5, 9, 9, 30)))),
        ]
        prefix = [rng.randrange(5, 19) for _ in range(rng.randrange(4))]
        made.append(Sentence(index, source, prefix))
    return made


def reference(
    scripts: Sequence[Script], sentences: Sequence[Sentence], options: SearchOptions
) -> list[list[Hypothesis]]:
    """Of PyTorch's search, which has no caches at all on scripts."""
    model = cast(Transformer, ScriptedModel(scripts))
    options = SearchOptions(
        **{name: getattr(options, name) for name in ("beam_size", "num_hypotheses", "max_length",
           "min_length", "length_penalty", "length_penalty_form", "early_stopping")}
    )  # fmt: skip
    sources, prefixes = [one.tokens for one in sentences], [one.prefix for one in sentences]
    return beam_search(model, sources, options, prefixes)


def assert_right(
    found: list[list[Hypothesis]], scripts: Sequence[Script], sentences: Sequence[Sentence]
) -> None:
    """Equal to the reference, and what was looked at is what belongs to these very hypotheses."""
    assert_same(found, reference(scripts, sentences, OPTIONS))
    for sentence, several in zip(sentences, found, strict=True):
        for hypothesis in several:
            tokens = hypothesis.tokens
            steps = range(len(hypothesis.token_log_probs))
            source = [*sentence.tokens, END]
            expected = [attention_of(source, tokens[:step]) for step in steps]
            np.testing.assert_array_equal(hypothesis.attention, expected)


@dataclass
class Row:
    """A sentence in a batch, and its part of the steps since it came."""

    sentence: Sentence
    steps: list[tuple[NDArray[Any], ...]] = field(default_factory=list)

    def add(self, result: StepResult, row: int) -> None:
        attention = result.attention
        parts = (result.tokens[row], result.parents[row], result.log_probs[row])
        self.steps.append((*parts, *(() if attention is None else (attention[row],))))

    def trace(self) -> SentenceTrace:
        tokens, parents, log_probs, *attention = zip(*self.steps, strict=True)
        arrays = [np.stack(values) for values in (tokens, parents, log_probs)]
        return SentenceTrace(*arrays, [matrix for several in attention for matrix in several])


class Driver:
    """Lets sentences into a batch and out of it, whenever a test wants."""

    def __init__(
        self, graphs: ScriptedGraphs, options: SearchOptions = OPTIONS, spare_slots: int = 0
    ) -> None:
        self.options = options
        self.batch = HostBatch(graphs, graphs.shape, options, START, spare_slots=spare_slots)
        self.rows: dict[int, Row] = {}
        self.found: dict[int, list[Hypothesis]] = {}

    def update(self, keep: Sequence[int], sentences: Sequence[Sentence]) -> None:
        new = None
        if sentences:
            new = Sources(
                [[*one.tokens, END] for one in sentences],
                [self.options.max_length_for(len(one.tokens)) for one in sentences],
            )
        kept, placed = self.batch.update(keep, new)
        assert len(set(kept) | set(placed)) == len(keep) + len(sentences)
        assert max([*kept, *placed], default=-1) < self.batch.rows
        self.rows = {place: self.rows[old] for old, place in zip(keep, kept, strict=True)}
        self.rows |= {place: Row(one) for place, one in zip(placed, sentences, strict=True)}

    def step(self) -> None:
        forced = np.full(self.batch.rows, FREE)
        for row, running in self.rows.items():
            place = len(running.steps)
            if place < len(running.sentence.prefix):
                forced[row] = running.sentence.prefix[place]
        (result,) = self.batch.step(forced if (forced != FREE).any() else None)
        idle = set(range(self.batch.rows)) - set(self.rows)
        assert all(result.done[row] for row in idle)
        for row, running in self.rows.items():
            if running.sentence.index in self.found:
                assert result.done[row]  # and stays so
                continue
            running.add(result, row)
            if result.done[row]:
                self.found[running.sentence.index] = self.finish(row)

    def finish(self, row: int) -> list[Hypothesis]:
        running = self.rows[row]
        return hypotheses(running.sentence, running.trace(), self.batch.pool(row), self.options)

    @property
    def undone(self) -> list[int]:
        return [row for row in sorted(self.rows) if self.rows[row].sentence.index not in self.found]

    def run(self) -> None:
        while self.undone:
            self.step()


# ---- rows that come, go and move ----


@FORMS
@pytest.mark.parametrize("seed", range(5))
def test_whoever_comes_and_goes_whenever(form: GraphForm, seed: int) -> None:
    rng, scripts = random.Random(seed), scripts_of(20)
    sentences = sentences_of(20, seed)
    graphs = ScriptedGraphs(scripts, form=form)
    driver, waiting = Driver(graphs), list(sentences)
    while waiting or driver.undone:
        if not driver.undone or rng.random() < 0.4:
            # Some of those that are done stay for a while, too.
            keep = [
                row for row in sorted(driver.rows) if row in driver.undone or rng.random() < 0.3
            ]
            count = rng.choice((0, 1, 1, 2, 4)) if keep else rng.randint(1, 4)
            taken, waiting = waiting[:count], waiting[count:]
            driver.update(keep, taken)
        if driver.rows:
            driver.step()
    found = [driver.found[index] for index in range(20)]
    assert_right(found, scripts, sentences)
    assert len({size[0] for size in graphs.sizes}) > 3
    assert len({size[1] for size in graphs.sizes}) > 1


@FORMS
@pytest.mark.parametrize("batch_tokens", [1, 40, 100, 400])
def test_the_loop_over_it_finds_what_the_reference_finds(
    form: GraphForm, batch_tokens: int
) -> None:
    scripts, sentences = scripts_of(24), sentences_of(24)
    graphs = ScriptedGraphs(scripts, form=form)
    sources, prefixes = [one.tokens for one in sentences], [one.prefix for one in sentences]
    found = scripted_search(graphs, OPTIONS, sources, prefixes, batch_tokens)
    assert_right(found, scripts, sentences)
    assert max(n * s for n, s, _ in graphs.sizes) <= max(batch_tokens, 32) + 7 * 24  # rounded up


def test_new_ones_take_the_places_of_those_that_leave() -> None:
    scripts = scripts_of(6)
    graphs = ScriptedGraphs(scripts)
    driver = Driver(graphs)
    sentences = [Sentence(index, [4 + index, *[9] * (10 - index)]) for index in range(6)]
    driver.update([], sentences[:4])
    driver.step()
    before = driver.rows
    driver.update([0, 3], sentences[4:])
    assert driver.batch.rows == 4
    assert driver.rows[0] is before[0]
    assert driver.rows[3] is before[3]
    assert {driver.rows[1].sentence.index, driver.rows[2].sentence.index} == {4, 5}
    assert graphs.encoded == [(4, 12), (2, 8)]  # as wide as they are themselves
    driver.run()
    kept = [0, 3, 4, 5]
    found = [driver.found[index] for index in kept]
    assert_right(found, scripts, [sentences[index] for index in kept])


def test_one_place_in_four_may_stay_idle() -> None:
    scripts = scripts_of(13)
    driver = Driver(ScriptedGraphs(scripts))
    sentences = [Sentence(index, [4 + index, *[9] * 7]) for index in range(13)]
    driver.update([], sentences[:8])
    driver.step()
    driver.update([0, 2, 3, 4, 6], sentences[8:9])
    assert sorted(driver.rows) == [0, 1, 2, 3, 4, 6]  # 5 and 7 are idle
    driver.step()
    driver.update([0, 1, 2, 3, 4, 6], sentences[9:11])
    assert sorted(driver.rows) == list(range(8))
    driver.step()
    driver.update([1, 2, 5, 6, 7], [])  # nobody comes: they are closed up
    assert driver.batch.rows == 5
    driver.update([0, 1], sentences[11:])  # a row in five may be idle, so this one is, too
    assert sorted(driver.rows) == [0, 1, 2, 3]
    assert driver.batch.rows == 5
    driver.run()
    asked = [sentences[index] for index in sorted(driver.found)]
    assert_right([driver.found[one.index] for one in asked], scripts, asked)


@pytest.mark.parametrize("width", [100, 104])  # copied into arrays for 104; written there at once
def test_long_sentences_are_encoded_a_few_at_a_time(width: int) -> None:
    scripts = scripts_of(6)
    graphs = ScriptedGraphs(scripts)
    driver = Driver(graphs)
    sentences = [Sentence(index, [4 + index, *[9] * (width - 2)]) for index in range(5)]
    sentences.append(Sentence(5, [9, *[4] * 10]))
    driver.update([], sentences)
    assert graphs.encoded == [(2, width), (2, width), (2, width)]
    driver.run()
    assert_right([driver.found[index] for index in range(6)], scripts, sentences)
    driver.update([0, 2, 5], sentences[:3])  # rows 1, 3 and 4
    assert graphs.encoded[3:] == [(2, width), (1, width)]


@pytest.mark.parametrize(
    ("keep", "new", "rows"),
    [
        ([1, 3], 0, 2),  # closed up
        ([1, 3], 1, 3),
        ([0, 1, 2, 3], 2, 6),
        ([2], 5, 6),
        ([], 3, 3),
    ],
)
def test_rows_move_where_places_do_not_match(keep: list[int], new: int, rows: int) -> None:
    scripts, sentences = scripts_of(12), sentences_of(12, seed=3)
    driver = Driver(ScriptedGraphs(scripts))
    driver.update([], sentences[:4])
    for _ in range(3):
        driver.step()
    left = [driver.rows[row].sentence for row in keep]
    driver.update(keep, sentences[4 : 4 + new])
    assert driver.batch.rows == rows
    assert [driver.rows[row].sentence for row in range(len(keep))] == left
    driver.run()
    ran = [*left, *sentences[4 : 4 + new]]
    assert_right([driver.found[one.index] for one in ran], scripts, ran)


def test_source_positions_grow_and_shrink_with_the_longest() -> None:
    scripts = scripts_of(6)
    graphs = ScriptedGraphs(scripts)
    driver = Driver(graphs)
    lengths = [3, 4, 40, 2, 3, 4]
    sentences = [Sentence(i, [4 + i, *[9] * (n - 1)]) for i, n in enumerate(lengths)]
    driver.update([], sentences[:2])
    driver.step()
    driver.update([0, 1], sentences[2:3])  # a long one comes
    driver.step()
    driver.update([0, 1], sentences[3:4])  # and goes
    driver.step()
    widths = [size[1] for size in graphs.sizes]
    assert widths[0] == widths[2] < widths[1]
    assert widths[1] >= 41
    driver.run()
    ran = [sentences[index] for index in (0, 1, 3)]
    assert_right([driver.found[one.index] for one in ran], scripts, ran)


def test_one_sentence_alone_has_no_padding() -> None:
    graphs = ScriptedGraphs(scripts_of(1))
    driver = Driver(graphs)
    driver.update([], [Sentence(0, [4, 9, 9])])
    driver.run()
    assert {size[:2] for size in graphs.sizes} == {(1, 4)}
    assert_right([driver.found[0]], graphs.scripts, [Sentence(0, [4, 9, 9])])


@FORMS
def test_a_batch_is_as_good_as_new_after_everybody_left(form: GraphForm) -> None:
    scripts, sentences = scripts_of(8), sentences_of(8, seed=1)
    driver = Driver(ScriptedGraphs(scripts, form=form))
    for begin in (0, 4):
        driver.update([], sentences[begin : begin + 4])
        driver.run()
    assert_right([driver.found[index] for index in range(8)], scripts, sentences)


def test_nobody_at_all() -> None:
    driver = Driver(ScriptedGraphs(scripts_of(1)))
    driver.update([], [])
    assert driver.batch.rows == 0
    driver.update([], [Sentence(0, [4])])
    driver.run()
    driver.update([], [])
    assert driver.batch.rows == 0


def test_what_a_step_left_is_not_touched_by_the_next() -> None:
    scripts, sentences = scripts_of(4), sentences_of(4)
    batch = Driver(ScriptedGraphs(scripts))
    batch.update([], sentences)
    (first,) = batch.batch.step(None)
    pool = batch.batch.pool(0)
    parts = [first.tokens, first.parents, first.log_probs, first.done, first.attention]
    parts += [pool.scores, pool.lengths, pool.parents]
    copies = [np.array(part) for part in parts]
    for _ in range(4):
        batch.batch.step(None)
    for part, copy in zip(parts, copies, strict=True):
        np.testing.assert_array_equal(part, copy)


def test_options_reach_every_row() -> None:
    options = SearchOptions(beam_size=2, min_length=3, max_length=5, length_penalty=2.0,
                            length_penalty_form="length", early_stopping=True)  # fmt: skip
    seen: list[dict[str, Any]] = []

    class Watched(ScriptedGraphs):
        def _step(self, inputs: Any, outputs: Any) -> None:
            seen.append({name: inputs[name].copy() for name in self.REQUEST})
            super()._step(inputs, outputs)

    batch = HostBatch(Watched(scripts_of(2)), Watched.SHAPE, options, START)
    batch.update([], Sources([[4, END], [5, 6, END]], [5, 4]))
    batch.step(np.array([7, FREE]))
    batch.step(None)
    assert seen[0]["forced_tokens"].tolist() == [7, FREE]
    assert seen[1]["forced_tokens"].tolist() == [FREE, FREE]
    assert seen[0]["min_lengths"].tolist() == [3, 3]
    assert seen[0]["max_lengths"].tolist() == [5, 4]
    assert seen[0]["length_penalty_alpha"].tolist() == [2.0, 2.0]
    assert seen[0]["length_penalty_beta"].tolist() == [0.0, 0.0]
    assert seen[0]["early_stopping"].tolist() == [True, True]


#: All that sentences of a batch may differ in.
MIXED = [
    SearchOptions(beam_size=BEAMS, length_penalty=alpha, length_penalty_form=form,
                  early_stopping=early, min_length=minimum, max_length=maximum,
                  num_hypotheses=count)
    for (alpha, form), early, (minimum, maximum), count in itertools.product(
        [(0.0, "gnmt"), (0.6, "gnmt"), (1.0, "length"), (3.0, "length")], [False, True],
        [(0, LONGEST), (5, 9)], [1, BEAMS],
    )
]  # fmt: skip


@FORMS
@pytest.mark.parametrize("batch_tokens", [40, 400])
def test_sentences_of_mixed_options_are_found_as_alone(form: GraphForm, batch_tokens: int) -> None:
    scripts = scripts_of(len(MIXED))
    random.Random(batch_tokens).shuffle(scripts)
    sentences = [
        dataclasses.replace(one, options=options)
        for one, options in zip(sentences_of(len(MIXED), seed=2), MIXED, strict=True)
    ]
    graphs = ScriptedGraphs(scripts, form=form)
    search = Search(ScriptedBackend(graphs), SearchOptions(BEAMS), batch_tokens, START, END)
    found: dict[int, list[Hypothesis]] = {}
    search.run(Waiting(sentences), lambda one, best: found.update({one.index: best}))
    assert max(n for n, _, _ in graphs.sizes) > 1
    for one, options in zip(sentences, MIXED, strict=True):
        graphs = ScriptedGraphs(scripts, form=form)
        alone = scripted_search(graphs, options, [one.tokens], [one.prefix])
        assert found[one.index] == alone[0]
        assert_same(alone, reference(scripts, [one], options))


# ---- caches that grow, slots that are used again ----


def apart(tokens: tuple[int, ...]) -> NDArray[np.float32]:
    """Every beam goes its own way from the first token on: nothing but that is shared."""
    # All else is far behind, and no two ways to it are equally far.
    logits = -60 - np.arange(19) / 100
    if not tokens:
        logits[5:17] = -np.arange(12) / 100
    else:
        logits[tokens[0]] = 0
        logits[4] = -6 - tokens[0] - len(tokens) * 0.4
        logits[END] = -20 - len(tokens) * 0.3
    result: NDArray[np.float32] = logits - np.log(np.exp(logits).sum())
    return result.astype(np.float32)


def test_a_cache_that_grows_under_rows_of_different_depths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = SearchOptions(beam_size=8, num_hypotheses=8, max_length=40, return_attention=True)
    # Some need eight slots a step, the others few.
    scripts = [apart if index % 3 == 0 else random_script(index, 19) for index in range(9)]
    sentences = [Sentence(index, [4 + index]) for index in range(9)]
    found, slots = {}, {}
    for first in (host._SLOT_STEP, 8 * 41):
        monkeypatch.setattr(host, "_SLOT_STEP", first)
        graphs = ScriptedGraphs(scripts)
        driver = Driver(graphs, options)
        driver.update([], sentences[:3])
        for begin in (3, 6):
            for _ in range(4):
                driver.step()
            # Grown by one that comes, moved by those that do.
            driver.update(sorted(driver.rows), sentences[begin : begin + 3])
        driver.run()
        found[first] = [driver.found[index] for index in range(9)]
        slots[first] = [size[2] for size in graphs.sizes]
    small, large = found
    assert_same(found[small], found[large])
    assert_same(found[small], reference(scripts, sentences, options))
    assert set(slots[large]) == {8 * 41}
    assert slots[small][0] == small
    assert len(set(slots[small])) > 3
    assert max(slots[small]) < 1.5 * 8 * 41


def test_slots_are_those_of_the_sentence_alone() -> None:
    """Sums over slots in another order have other bits."""
    options = SearchOptions(beam_size=4, num_hypotheses=4, min_length=28, max_length=30)

    def pasts(index: int, others: Sequence[int], spare: int) -> list[list[list[int]]]:
        """Of each step of sentence `index`, the tokens in each beam's past, in slots' order."""
        graphs = ScriptedGraphs(scripts)
        driver, found = Driver(graphs, options, spare), []
        driver.update([], [Sentence(index, [4 + index])])
        waiting = list(others)
        while True:
            driver.step()
            (row,) = (row for row, one in driver.rows.items() if one.sentence.index == index)
            if index in driver.found:
                return found
            state = driver.batch._now
            seen = state["ancestry"][row] == 0
            tokens = state["self_key_0"][row, 0, :, 0]
            found.append([tokens[slots].astype(int).tolist() for slots in seen])
            if waiting and len(found) % 3 == 0:
                # Some move, some come into places that are left.
                one = waiting.pop()
                stay = driver.undone if one % 2 else sorted(driver.rows)
                driver.update(stay, [Sentence(one, [4 + one])])

    scripts = [random_script(seed, 19) for seed in range(8)]
    for index in range(3):
        alone = pasts(index, [], 0)
        assert len(alone) >= 27
        for spare in (0, 8, 200):
            others = [other for other in range(8) if other != index]
            assert pasts(index, others, spare) == alone


def test_a_row_that_is_not_full_keeps_its_slots_when_the_cache_grows() -> None:
    options = SearchOptions(beam_size=4, max_length=30)
    driver = Driver(ScriptedGraphs([apart, random_script(1, 19)]), options)
    driver.update([], [Sentence(0, [4]), Sentence(1, [5])])
    batch = driver.batch
    grown = False
    while not grown:
        batch.step(None)
        grown = batch._now["ancestry"].shape[2] > host._SLOT_STEP
        assert batch._now["done"].tolist() == [False, False]
    assert batch._now["slots"][0].max() >= host._SLOT_STEP
    assert batch._now["slots"][1].max() < host._SLOT_STEP
    for row in range(2):  # where it writes is free, and nothing below is
        slots = batch._now["slots"][row]
        free = np.flatnonzero((batch._now["ancestry"][row] < 0).all(0))
        assert slots.tolist() == free[: len(slots)].tolist()


@pytest.mark.parametrize("beams", [4, 8])
def test_a_long_search_needs_few_slots(beams: int) -> None:
    steps = 120
    options = SearchOptions(
        beam_size=beams, num_hypotheses=beams, min_length=steps - 2, max_length=steps
    )
    scripts = [random_script(seed, 2 * beams + 3) for seed in range(3)]
    sentences = [Sentence(index, [4 + index]) for index in range(3)]
    graphs = ScriptedGraphs(scripts)
    found = scripted_search(graphs, options, [one.tokens for one in sentences])
    assert graphs.steps >= steps - 2
    assert max(size[2] for size in graphs.sizes) < 0.6 * beams * steps
    # A cache is never much larger than the most that one of its sentences needed.
    assert graphs.sizes[-1][2] <= max(graphs.used) + beams + host._SLOT_STEP
    assert_same(found, reference(scripts, sentences, options))


def test_spare_slots_are_less_to_copy() -> None:
    options = SearchOptions(beam_size=8, num_hypotheses=8, max_length=20)
    scripts = [apart, *(random_script(index, 19) for index in range(1, 3))]
    sentences = [Sentence(index, [4 + index]) for index in range(3)]
    sizes = {}
    for spare in (0, 64, 1000):
        graphs = ScriptedGraphs(scripts)
        driver = Driver(graphs, options, spare)
        driver.update([], sentences)
        driver.run()
        assert_same([driver.found[index] for index in range(3)],
                    reference(scripts, sentences, options))  # fmt: skip
        sizes[spare] = list(dict.fromkeys(size[2] for size in graphs.sizes))
    assert sizes[0][0] == host._SLOT_STEP
    assert sizes[64][0] == host._SLOT_STEP + 64
    assert len(sizes[0]) > len(sizes[64]) > len(sizes[1000]) == 1


def test_whoever_moves_takes_no_more_than_what_beams_have_a_past_in() -> None:
    options = SearchOptions(beam_size=8, max_length=60)
    graphs = ScriptedGraphs([apart, *scripts_of(2)])
    driver = Driver(graphs, options)
    # The first needs more and more; whoever stays after it has left does not.
    driver.update([], [Sentence(0, [4]), Sentence(1, [5]), Sentence(2, [6])])
    for _ in range(8):
        driver.step()
    before = graphs.sizes[-1][2]
    driver.update([row for row in driver.undone if row != 0], [])
    driver.step()
    assert graphs.sizes[-1][2] < before


def test_more_beams_than_first_slots() -> None:
    options = SearchOptions(beam_size=40, num_hypotheses=40, max_length=4)
    scripts = [random_script(seed, 90) for seed in range(2)]
    sentences = [Sentence(index, [4 + index]) for index in range(2)]
    graphs = ScriptedGraphs(scripts)
    found = scripted_search(graphs, options, [one.tokens for one in sentences])
    assert_same(found, reference(scripts, sentences, options))


@FORMS
def test_who_is_done_waits_for_a_neighbour_however_long(form: GraphForm) -> None:
    # The graphs refuse a position that a table of max_length has not.
    def ends_at_once(tokens: tuple[int, ...]) -> NDArray[np.float32]:
        logits = np.full(19, -9.0, np.float32)
        logits[END] = 0.0
        return logits

    def never_ends(tokens: tuple[int, ...]) -> NDArray[np.float32]:
        logits = np.full(19, -3.0, np.float32)
        logits[END] = -90.0
        return logits + np.arange(19, dtype=np.float32) / 64

    graphs = ScriptedGraphs([ends_at_once, never_ends], form=form)
    driver = Driver(graphs)
    driver.update([], [Sentence(0, [4]), Sentence(1, [5])])
    driver.run()
    assert graphs.steps == LONGEST
    for _ in range(3):
        driver.step()  # all are done; the rows are there still
    assert driver.found[1][0].truncated
    assert driver.found[0][0].tokens == ()


@pytest.mark.parametrize("columns", [3, 2**19])
def test_arrays_are_zeros_that_can_be_written(columns: int) -> None:
    array = zeros((2, columns), np.dtype(np.float32))
    assert array.shape == (2, columns)
    assert not array.any()
    array[1] = 7
    assert array.sum() == 7 * columns


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux for its pages")
def test_large_arrays_go_back_to_the_system() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    size = 2**26
    arrays = [zeros((size,), np.dtype(np.uint8)) for _ in range(3)]
    for array in arrays:
        array[:] = 1
    full = resident()
    del arrays[0], array
    assert full - resident() > size / 2
