"""Optimizer steps: every sentence once per epoch, for any number of processes."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest

from translate_trt.train.config import TrainConfig
from translate_trt.train.data.batches import ParallelData, encode_parallel
from translate_trt.train.trainer.steps import Step, StepLoader, plan_epoch, share

CONFIG = TrainConfig(batch_tokens=100, micro_batch_tokens=30, seed=3)


@pytest.fixture(scope="module")
def data() -> ParallelData:
    """Data of 137 pairs; the first source token of each is its row number."""
    rng = random.Random(0)
    sources = [[row, *([9] * rng.randint(0, 11))] for row in range(137)]
    return encode_parallel(sources, [[8] * rng.randint(1, 12) for _ in sources], None)


def rows_of(step: Step) -> list[int]:
    return [int(row) for batch in step.batches for row in batch.source[:, 0]]


def test_a_steps_sentences_do_not_depend_on_the_processes(data: ParallelData) -> None:
    plan = plan_epoch(data, CONFIG, epoch=0)
    assert sorted(row for batches in plan for rows in batches for row in rows) == list(range(137))
    for batches in plan:
        whole = sorted(np.concatenate(batches))
        for size in (1, 2, 3, 7, 40, 64):
            shares = [rows for rank in range(size) for rows in share(batches, rank, size)]
            assert sorted(np.concatenate(shares)) == whole


def test_the_work_is_shared_evenly() -> None:
    batches = [np.arange(first, first + 10) for first in range(0, 80, 10)]
    for size in (1, 2, 4, 8, 16, 40, 80):
        counts = [sum(len(rows) for rows in share(batches, r, size)) for r in range(size)]
        assert counts == [80 // size] * size
    # Fewer sentences than processes: the last processes get no batch.
    assert [share([np.arange(3)], rank, 5) for rank in (3, 4)] == [[], []]
    # Parts have similar lengths: neighbours in a sorted batch go to different processes.
    assert [rows.tolist() for rows in share([np.arange(6)], 1, 2)] == [[1, 3, 5]]


def test_a_micro_batch_fits_and_a_step_takes_as_many_as_fit(data: ParallelData) -> None:
    for batch_tokens, micro, together, places in (
        (100, 30, 3, 30),
        (100, 100, 1, 100),
        (50, 100, 1, 50),
        (64, 20, 3, 20),
    ):
        config = dataclasses.replace(CONFIG, batch_tokens=batch_tokens, micro_batch_tokens=micro)
        plan = plan_epoch(data, config, epoch=0)
        assert {len(batches) for batches in plan[:-1]} == {together}
        assert 1 <= len(plan[-1]) <= together
        for rows in itertools.chain(*plan):
            batch = data.batch(rows)
            assert max(batch.source.numel(), batch.previous.numel()) <= places


def test_the_loader_iterates_over_epochs_endlessly(data: ParallelData) -> None:
    loader = StepLoader(data, CONFIG, rank=0, size=1, start=(0, 0))
    count = [len(plan_epoch(data, CONFIG, epoch)) for epoch in (0, 1)]
    steps = list(itertools.islice(loader, sum(count) + 1))
    loader.close()
    assert steps[0].next_position == (0, 1)
    assert [steps[i].next_position for i in (count[0] - 1, sum(count) - 1)] == [(1, 0), (2, 0)]
    for part in (steps[: count[0]], steps[count[0] : -1]):
        assert sorted(row for step in part for row in rows_of(step)) == list(range(137))
    for step in steps:
        assert step.target_tokens == sum(len(batch.targets) for batch in step.batches)


def test_the_loader_starts_at_a_given_position(data: ParallelData) -> None:
    whole = StepLoader(data, CONFIG, rank=0, size=1, start=(0, 0))
    steps = list(itertools.islice(whole, 40))
    whole.close()
    for begun in (1, 10, 30):
        rest = StepLoader(data, CONFIG, 0, 1, start=steps[begun - 1].next_position)
        found = list(itertools.islice(rest, 40 - begun))
        rest.close()
        assert [rows_of(step) for step in found] == [rows_of(step) for step in steps[begun:]]


def test_all_processes_know_the_whole_steps_tokens(data: ParallelData) -> None:
    found = []
    for rank in range(5):
        loader = StepLoader(data, CONFIG, rank, 5, start=(0, 0))
        found.append(list(itertools.islice(loader, 12)))
        loader.close()
    for steps in zip(*found, strict=True):
        assert len({step.target_tokens for step in steps}) == 1
        own = sum(len(batch.targets) for step in steps for batch in step.batches)
        assert own == steps[0].target_tokens


def test_an_error_in_the_thread_is_raised(data: ParallelData) -> None:
    broken = dataclasses.replace(data, target=None)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        next(iter(StepLoader(broken, CONFIG, 0, 1, start=(0, 0))))
