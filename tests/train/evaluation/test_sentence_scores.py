"""Sentence-level scores of all pairs of texts, compared with sacrebleu."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import sacrebleu

from translate_trt.train.evaluation import sentence_scores
from translate_trt.train.evaluation.sentence_scores import (
    chrf_of_sums,
    chrf_statistics,
    pairwise_bleu,
    pairwise_chrf,
)

SPACES = " \u2009\u3000\t\u0085"


def random_texts(seed: int, groups: int) -> Iterator[list[str]]:
    """Yield groups of texts of few or many symbols, of which some are empty or blank."""
    rng = random.Random(seed)
    for _ in range(groups):
        symbols = rng.choice(["a ", "ab ", "abcdefgh  ", "aäßé漢字🙂e\u0301\ud800" + SPACES])
        sizes = (0, 1, 2, 3, 5, 9, 40)
        yield ["".join(rng.choices(symbols, k=rng.choice(sizes))) for _ in range(rng.randint(1, 6))]


@pytest.mark.parametrize("block", [1, 1 << 22])  # columns of one n-gram, or of all
def test_all_pairs_have_the_scores_of_sacrebleu(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentence_scores, "_BLOCK", block)
    chrf = sacrebleu.CHRF()
    bleu = sacrebleu.BLEU(effective_order=True, tokenize="none")
    for texts in random_texts(1, 25):
        expected = [[chrf.sentence_score(one, [other]).score for other in texts] for one in texts]
        assert pairwise_chrf(texts).tolist() == expected
        expected = [[bleu.sentence_score(one, [other]).score for other in texts] for one in texts]
        found = pairwise_bleu([text.split() for text in texts])
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_no_texts() -> None:
    assert pairwise_chrf([]).shape == pairwise_bleu([]).shape == (0, 0)


def test_statistics_add_up_to_the_score_of_a_corpus() -> None:
    lines = [line for line in random_texts(2, 200) if len(line) > 3]
    texts, *references = ([line[place] for line in lines] for place in range(4))
    sums = sum(
        chrf_statistics(text, right) for text, *right in zip(texts, *references, strict=True)
    )
    assert isinstance(sums, np.ndarray)
    assert chrf_of_sums(sums) == sacrebleu.CHRF().corpus_score(texts, references).score
