"""Length-sorted batching: completeness, budget, padding, dependence on seed and epoch."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections import Counter

import numpy as np
import pytest

from translate_trt.runtime.errors import InputError
from translate_trt.train.config import BANNED_BIAS, ModelConfig
from translate_trt.train.data.batches import (
    ParallelData,
    TokenArray,
    encode_parallel,
    epoch_batches,
    plan_batches,
)
from translate_trt.train.model import Transformer


def random_data(sentences: int, seed: int = 0) -> ParallelData:
    random = np.random.default_rng(seed)
    lengths = np.clip(random.lognormal(2.7, 0.5, sentences).astype(int), 1, 80)
    source = [random.integers(4, 100, n).tolist() for n in lengths]
    other = np.clip(lengths + random.integers(-3, 4, sentences), 1, None)
    target = [random.integers(4, 100, n).tolist() for n in other]
    return encode_parallel(source, target, 256)


def plainly_planned(
    source: np.ndarray, target: np.ndarray, batch_tokens: int, shuffle: np.random.Generator | None
) -> list[list[int]]:
    """Reference implementation of `plan_batches`, a row at a time."""
    order = np.arange(len(source))
    if shuffle is not None:
        order = shuffle.permutation(order)
    longer = np.maximum(source, target)
    difference = np.where(longer % 2, 1, -1) * (source - target)
    order = order[np.lexsort((difference[order], longer[order]))]
    batches: list[list[int]] = [[]]
    for row in order:
        if batches[-1] and longer[row] * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
        batches[-1].append(int(row))
    if shuffle is not None:
        batches = [batches[index] for index in shuffle.permutation(len(batches))]
    return batches


# Sort keys of up to 256 tokens have 16 bits; those of 70,000 tokens have 48 bits.
@pytest.mark.parametrize("longest", [1, 8, 256, 257, 70_000])
@pytest.mark.parametrize("seed", [None, 1])
def test_the_same_batches_as_a_plain_loop_makes(longest: int, seed: int | None) -> None:
    def generator() -> np.random.Generator | None:
        return None if seed is None else np.random.default_rng(seed)

    random = np.random.default_rng(longest)
    for rows in (0, 1, 2, 3, 500):
        source = random.integers(1, longest + 1, rows)
        for target in (source, random.integers(1, longest + 1, rows)):
            for batch_tokens in (1, 30, 300, 100_000):
                planned = plan_batches(source, target, batch_tokens, generator())
                assert {batch.dtype for batch in planned} == {np.dtype(np.int64)}
                expected = plainly_planned(source, target, batch_tokens, generator())
                assert [batch.tolist() for batch in planned] == expected


def test_a_function_of_seed_and_epoch() -> None:
    data = random_data(500)

    def plan(seed: int, epoch: int) -> list[list[int]]:
        return [rows.tolist() for rows in epoch_batches(data, 400, seed, epoch)]

    assert plan(1, 0) == plan(1, 0)
    assert plan(1, 0) != plan(1, 1)
    assert plan(1, 0) != plan(2, 0)
    # Batches have other sentences in the next epoch, not only another order.
    assert {frozenset(rows) for rows in plan(1, 0)} != {frozenset(rows) for rows in plan(1, 1)}


def test_padding_is_small() -> None:
    data = random_data(20_000)
    batches = [data.batch(rows) for rows in epoch_batches(data, 4096, 1, 0)]
    real = sum(int(batch.source_lengths.sum()) + len(batch.targets) for batch in batches)
    assert real == data.source.lengths.sum() + data.target.lengths.sum()
    assert 1 - real / sum(batch.padded_tokens for batch in batches) < 0.05


def test_a_batch_by_hand() -> None:
    data = encode_parallel([[10, 11], [12]], [[20], [21, 22, 23]], None)
    batch = data.batch(np.array([1, 0]))
    assert batch.source.tolist() == [[12, 3, 0], [10, 11, 3]]
    assert batch.source_lengths.tolist() == [2, 3]
    assert batch.previous.tolist() == [[2, 21, 22, 23], [2, 20, 3, 0]]
    assert batch.targets.tolist() == [21, 22, 23, 3, 20, 3]
    assert batch.target_index.tolist() == [0, 1, 2, 3, 4, 5]
    turned = data.batch(np.array([0, 1]))
    assert turned.previous.tolist() == [[2, 20, 3, 0], [2, 21, 22, 23]]
    assert turned.targets.tolist() == [20, 3, 21, 22, 23, 3]
    assert turned.target_index.tolist() == [0, 1, 4, 5, 6, 7]
    assert turned.padded_tokens == 6 + 8


def test_a_batch_for_a_model_without_source_ends_and_with_tokens_that_never_come() -> None:
    config = ModelConfig(40, 1, 1, 8, 8, 2, tied="none", output_bias=True, source_end=False)
    model = Transformer(config)
    assert model.output_bias is not None
    model.output_bias.data[[0, 22]] = BANNED_BIAS
    data = encode_parallel([[10, 11], [12]], [[20], [21, 22, 23]], None)
    batch = data.for_model(model).batch(np.array([1, 0]))
    assert batch.source.tolist() == [[12, 3], [10, 11]]
    assert batch.source_lengths.tolist() == [1, 2]
    assert batch.source_bias is not None
    assert (batch.source_bias[:, 0, 0] < 0).tolist() == [[False, True], [False, False]]
    assert batch.previous.tolist() == [[2, 21, 22, 23], [2, 20, 3, 0]]
    assert batch.targets.tolist() == [21, 23, 3, 20, 3]
    assert batch.target_index.tolist() == [0, 2, 3, 4, 5]
    assert data.count_targets(np.array([1, 0])) == 6
    assert data.for_model(model).count_targets(np.array([1, 0])) == 5
    assert data.for_model(model).fingerprint() == data.fingerprint()


def test_empty_and_long_pairs_are_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="translate_trt"):
        data = encode_parallel([[1], [], [1] * 9, [5]], [[1], [2], [3], [6]], 8)
    assert len(data) == 2
    assert "pairs" in caplog.text
    assert "longer" in caplog.text


def test_the_end_symbol_counts_towards_the_longest(caplog: pytest.LogCaptureFixture) -> None:
    assert len(encode_parallel([[5] * 7], [[5]], 8)) == 1
    assert not caplog.records
    with pytest.raises(InputError):
        encode_parallel([[5]], [[5] * 8], 8)


@pytest.mark.parametrize("pair", [([], []), ([5], []), ([5] * 8, [5])])
def test_nothing_left_is_an_error(pair: tuple[list[int], list[int]]) -> None:
    with pytest.raises(InputError, match="sentence pair"):
        encode_parallel([pair[0]], [pair[1]], 8)


def test_the_fingerprint_knows_every_token() -> None:
    def fingerprint(source: list[list[int]], target: list[list[int]]) -> int:
        return encode_parallel(source, target, None).fingerprint()

    pair = [[5, 6], [7]], [[8], [9, 10]]
    others = [
        ([[4, 6], [7]], pair[1]),
        ([[5, 4], [7]], pair[1]),
        ([[5, 6], [4]], pair[1]),
        (pair[0], [[4], [9, 10]]),
        (pair[0], [[8], [9, 4]]),
        ([[5], [6, 7]], pair[1]),  # the same tokens, cut elsewhere
        (pair[0][::-1], pair[1][::-1]),  # another order
        (pair[1], pair[0]),  # the other direction
        ([*pair[0], [5]], [*pair[1], [5]]),
    ]
    assert fingerprint(*pair) == fingerprint([[5, 6], [7]], [[8], [9, 10]])
    assert len({fingerprint(*other) for other in (pair, *others)}) == 1 + len(others)


def test_a_known_fingerprint_is_believed() -> None:
    data = encode_parallel([[5, 6]], [[7]], None)
    assert ParallelData(data.source, data.target, 17).fingerprint() == 17


@pytest.mark.parametrize("kind", [np.uint16, np.uint32])
def test_batches_do_not_depend_on_the_type_of_the_tokens(kind: type) -> None:
    data = encode_parallel([[10, 11], [12]], [[20], [21, 22, 65_535]], None)
    source, target = (
        TokenArray(side.tokens.astype(kind), side.offsets) for side in (data.source, data.target)
    )
    rows = np.array([1, 0])
    batch, other = data.batch(rows), ParallelData(source, target).batch(rows)
    assert batch.links is other.links is None
    for name in vars(batch).keys() - {"links", "link_shares", "packings"}:
        tensor = getattr(batch, name)
        assert getattr(other, name).dtype == tensor.dtype
        assert getattr(other, name).tolist() == tensor.tolist()


def test_weights_of_corpora() -> None:
    lengths = [[5] * 40, [7] * 8]
    sentences = [[row] * length for row, length in enumerate(itertools.chain(*lengths), start=4)]
    data = dataclasses.replace(encode_parallel(sentences, sentences, None), corpora=(40, 8))
    plain = epoch_batches(data, 60, 1, 0)
    assert sorted(np.concatenate(plain).tolist()) == list(range(48))

    epochs = [epoch_batches(data, 60, 1, epoch, (0.25, 2)) for epoch in (0, 0, 1)]
    counts = [Counter(np.concatenate(epoch).tolist()) for epoch in epochs]
    assert counts[0] == counts[1]
    for first, again in zip(*epochs[:2], strict=True):
        assert first.tolist() == again.tolist()
    for count in counts:
        assert {row: count[row] for row in range(40, 48)} == dict.fromkeys(range(40, 48), 2)
        drawn = [row for row in range(40) if count[row]]
        assert len(drawn) == 10
        assert {count[row] for row in drawn} == {1}
    assert counts[0] != counts[2]  # another quarter
    for epoch in epochs:
        for rows in epoch:
            assert len(rows) * int(data.source.lengths[rows].max()) <= 60
