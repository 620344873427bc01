"""Alignments of words, compared with loops over tokens and words."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.text.alignment import AlignedSegment, Alignment, Span


def aligned(source: str, target: str, rows: list[list[float]]) -> Alignment:
    """Return an alignment of texts whose tokens end at each "|" and before each space."""

    def spans(text: str) -> tuple[str, tuple[Span, ...]]:
        tokens = [part for word in text.split(" ") for part in f" {word}".split("|")]
        tokens[0] = tokens[0][1:]
        ends = [len("".join(tokens[:count])) for count in range(len(tokens) + 1)]
        return "".join(tokens), tuple(pairwise(ends))

    (source, columns), (target, words) = spans(source), spans(target)
    weights = np.array(rows, np.float32)
    return Alignment(source, target, (AlignedSegment(columns, words, weights),))


def test_each_target_word_has_the_source_word_of_the_largest_weight() -> None:
    found = aligned("the cat", "die Katze", [[0.9, 0.1], [0.2, 0.3]])
    assert found.pairs() == [(0, 0), (1, 1)]
    assert found.pharaoh() == "0-0 1-1"
    assert aligned("a b", "x y", [[0.0, 0.1], [0.1, 0.0]]).pharaoh() == "0-1 1-0"


def test_many_segments() -> None:
    """Time does not grow with the square of the number of segments."""
    words = [(begin, begin + 1) for begin in range(0, 40_000, 2)]
    weights = np.eye(2, dtype=np.float32)
    segments = tuple(
        AlignedSegment(pair, pair, weights) for pair in zip(words[::2], words[1::2], strict=True)
    )
    text = "a " * len(words)
    assert Alignment(text, text, segments).pairs() == [(n, n) for n in range(len(words))]


def test_subwords_of_the_source_add_up_and_those_of_the_target_are_averaged() -> None:
    # The whole word "x|y" has 0.2 + 0.2 of "b|c" in the first row, and 0.3 of "a".
    assert aligned("a b|c", "x", [[0.3, 0.2, 0.2]]).pairs() == [(1, 0)]
    rows = [[0.9, 0.1], [0.0, 0.5], [0.0, 0.5]]
    assert aligned("a b", "x|y|z", rows).pairs() == [(1, 0)]
    assert aligned("a b", "x|y|z", rows).pairs(0.29) == [(0, 0), (1, 0)]
    assert aligned("a b", "x|y|z", rows).pairs(0.31) == [(1, 0)]


def test_a_threshold_selects_any_number_of_pairs() -> None:
    found = aligned("a b", "x y", [[0.5, 0.5], [0.1, 0.2]])
    assert found.pharaoh(0.5) == "0-0 1-0"
    assert found.pharaoh(0) == "0-0 0-1 1-0 1-1"
    assert found.pharaoh(1.0) == ""


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan"), True, "0.5"])
def test_a_threshold_is_a_number_from_0_to_1(threshold: float) -> None:
    with pytest.raises(OptionError, match="from 0 to 1"):
        aligned("a", "x", [[1.0]]).pairs(threshold)


def test_words_are_those_of_the_texts() -> None:
    found = Alignment(" the\u3000cat ", "die  Katze")
    assert found.source_words == ((1, 4), (5, 8))
    assert found.target_words == ((0, 3), (5, 10))
    assert found.pairs() == []
    assert Alignment("", "").pharaoh() == ""


def test_tokens_without_characters_belong_to_the_word_they_are_in_or_before() -> None:
    segment = AlignedSegment(
        ((0, 0), (0, 1), (1, 2), (3, 3), (3, 4)), ((0, 1),), np.eye(1, 5, 3, np.float32)
    )
    assert Alignment("ab c", "x", (segment,)).pairs() == [(1, 0)]
    segment = AlignedSegment(((0, 1), (1, 2)), ((0, 1), (1, 2)), np.eye(2, dtype=np.float32))
    assert Alignment("a ", "x ", (segment,)).pairs() == [(0, 0)]


def test_two_segments_may_share_a_word() -> None:
    one, other = (np.full((1, 1), weight, np.float32) for weight in (0.4, 0.6))
    segments = (
        AlignedSegment(((0, 1),), ((0, 1),), one), AlignedSegment(((2, 3),), ((1, 2),), other)
    )  # fmt: skip
    assert Alignment("a b", "xx", segments).pairs() == [(1, 0)]


WORDS = st.text(alphabet="ab ", max_size=12)


@given(source=WORDS, target=WORDS, data=st.data())
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_equal_to_loops_over_tokens(source: str, target: str, data: st.DataObject) -> None:
    def cut(text: str) -> list[Span]:
        ends = data.draw(st.sets(st.integers(0, len(text))))
        return list(pairwise(sorted({0, len(text)} | ends)))

    columns, rows = cut(source), cut(target)
    seed = data.draw(st.integers(0, 100))
    weights = np.random.default_rng(seed).random((len(rows), len(columns)), np.float32)
    found = Alignment(source, target, (AlignedSegment(tuple(columns), tuple(rows), weights),))
    expected = {}
    owners = [
        [words_of(span, words) for span in spans]
        for spans, words in ((columns, found.source_words), (rows, found.target_words))
    ]
    for index in range(len(found.target_words)):
        sums = dict.fromkeys(range(len(found.source_words)), 0.0)
        for row, of_row in enumerate(owners[1]):
            for column, of_column in enumerate(owners[0]):
                for word in of_column:
                    if index in of_row:
                        share = 1 / len(of_row) / len(of_column)
                        sums[word] += float(weights[row, column]) * share
        best = sorted(sums.values())[-2:]
        if len(best) == 2 and best[1] - best[0] < 1e-4:
            return  # a tie within rounding
        if sums and max(sums.values()) > 0:
            expected[index] = max(sums, key=lambda word: sums[word])
    assert found.pairs() == sorted((word, index) for index, word in expected.items())


def words_of(span: Span, words: tuple[Span, ...]) -> list[int]:
    """Return the words that a token overlaps, or else the one that follows or is the last."""
    overlapping = [n for n, (begin, end) in enumerate(words) if begin < span[1] and span[0] < end]
    following = [n for n, (_, end) in enumerate(words) if span[0] < end]
    return overlapping or following[:1] or [len(words) - 1][: len(words)]
