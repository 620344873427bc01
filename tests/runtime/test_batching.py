from __future__ import annotations

import random

from translate_trt.runtime.batching import SMALLEST_COST, length_sorted_batches


def test_every_sentence_once_within_budget_longest_first() -> None:
    rng = random.Random(0)
    lengths = [rng.randint(1, 60) for _ in range(500)]
    batches = length_sorted_batches(lengths, 256)
    flat = [index for batch in batches for index in batch]
    assert sorted(flat) == list(range(500))
    ordered = [lengths[index] for index in flat]
    assert ordered == sorted(lengths, reverse=True)
    for batch in batches:
        assert max(lengths[index] for index in batch) * len(batch) <= 256
    assert len(batches) < 1.2 * sum(max(n, SMALLEST_COST) for n in lengths) / 256


def test_equal_lengths_keep_their_order() -> None:
    assert length_sorted_batches([9, 9, 9, 9], 18) == [[0, 1], [2, 3]]


def test_a_sentence_over_the_budget_is_alone() -> None:
    assert length_sorted_batches([300, 5, 5], 100) == [[0], [1, 2]]


def test_very_short_ones_do_not_pile_up() -> None:
    batches = length_sorted_batches([1] * 100, 80)
    assert max(map(len, batches)) == 80 // SMALLEST_COST
