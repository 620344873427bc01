"""Words of tags by attention: repairs by hand, and the best of all paths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from translate_trt.runtime.text.bracketings import NO_TAG, build_tree, is_tag
from translate_trt.runtime.text.tree_alignment import attention_to_words, one_tag_per_word


def reading(words: int, *places: int) -> NDArray[np.float32]:
    """Attention of labels that look at these words; `words` is the end symbol."""
    weights = np.full((len(places), words + 1), 1e-4, np.float32)
    weights[np.arange(len(places)), places] = 0.9
    return weights


@pytest.mark.parametrize(
    ("labels", "places", "words", "expected"),
    [
        # Without a fault.
        ("(S (NP NN )NP VB )S", (0, 0, 0, 1, 1, 2), "a b", "(S (NP (NN a)) (VB b))"),
        # No tag for b: before or after the bracket, as the bracket looks at b or at c.
        ("(S (NP NN )NP VB )S", (0, 0, 0, 1, 2, 3), "a b c", "(S (NP (NN a)) (XX b) (VB c))"),
        ("(S (NP NN )NP VB )S", (0, 0, 0, 2, 2, 3), "a b c", "(S (NP (NN a) (XX b)) (VB c))"),
        ("(S (NP NN )NP . )S", (0, 0, 0, 2, 2, 3), "a ( .", "(S (NP (NN a) (-LRB- -LRB-)) (. .))"),
        ("(S NN VB )S", (0, 1, 2, 3), "a b c", "(S (XX a) (NN b) (VB c))"),
        # The last word without a tag goes to the root, as without attention.
        ("(S (NP NN NN )NP )S", (0, 0, 0, 1, 2, 2), "a b c", "(S (NP (NN a) (NN b)) (XX c))"),
        # Two tags for a.
        ("(S NN NN VB )S", (0, 0, 0, 1, 2), "a b", "(S (NN a) (VB b))"),
        # One too many and one too few.
        ("(S NN NN VB )S", (0, 0, 0, 2, 3), "a b c", "(S (NN a) (XX b) (VB c))"),
        ("", (), "a b", "(TOP (XX a) (XX b))"),
        ("NN NN", (0, 1), "a", "(TOP (NN a))"),
    ],
)  # fmt: skip
def test_repair(labels: str, places: Sequence[int], words: str, expected: str) -> None:
    given = labels.split()
    tagged = one_tag_per_word(given[: len(places)], reading(len(words.split()), *places))
    assert build_tree(tagged, words.split()).text == expected
    if sum(map(is_tag, given)) == len(words.split()) and NO_TAG not in expected:
        assert tagged == given


def paths(labels: Sequence[str], weights: NDArray[np.float32]) -> Iterator[tuple[float, list[str]]]:
    """All ways to place the words, with the logarithms of their probabilities."""
    words = weights.shape[1] - 1

    def visit(
        label: int, word: int, score: float, found: list[str]
    ) -> Iterator[tuple[float, list[str]]]:
        if label == len(labels):
            yield score + (words - word) * math.log(0.02), found
            return
        if word < words:
            yield from visit(label, word + 1, score + math.log(0.02), [*found, NO_TAG])
        own = math.log(max(float(weights[label, word]), 1e-4))
        if not is_tag(labels[label]):
            yield from visit(label + 1, word, score + own, [*found, labels[label]])
            return
        yield from visit(label + 1, word, score + math.log(0.02), found)
        if word < words:
            yield from visit(label + 1, word + 1, score + own, [*found, labels[label]])

    yield from visit(0, 0, 0.0, [])


def test_the_path_is_the_most_probable_one() -> None:
    random = np.random.default_rng(3)
    for _ in range(150):
        count, words = random.integers(1, 6), random.integers(1, 5)
        labels = list(random.choice(["(S", ")S", "NN", "VB", "JJ"], count))
        weights = random.dirichlet([0.2] * (words + 1), count).astype(np.float32)
        scored = list(paths(labels, weights))
        best = max(score for score, _ in scored)
        found = one_tag_per_word(labels, weights)
        assert any(path == found and score > best - 1e-6 for score, path in scored)
        assert sum(map(is_tag, found)) <= words


def test_attention_is_summed_over_the_tokens_of_a_word() -> None:
    attention = np.array([[0.1, 0.2, 0.3, 0.15, 0.25]], np.float32)
    found = attention_to_words(attention, ["\u2581a", "\u2581b", "c", "\u2581d"])
    np.testing.assert_allclose(found, [[0.1, 0.5, 0.15, 0.25]], rtol=1e-6)
    assert attention_to_words(attention[:0], ["\u2581a", "\u2581b", "c", "d"]).shape == (0, 3)
