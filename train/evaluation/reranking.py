"""Reranking of translations by expected utility: minimum Bayes risk (Kumar and Byrne 2004).

The expected utility of a translation is its mean similarity to the candidates of its line, which
are taken for references of given probabilities. It is high for what most of them agree on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from translate_trt.train.evaluation.comet_model import CometModel
from translate_trt.train.evaluation.sentence_scores import (
    pairwise_bleu,
    pairwise_chrf,
    tokenization_of,
)

#: Names of the metrics of `make_utility`.
METRICS = ("chrf", "bleu", "comet")


class Candidates(NamedTuple):
    """Candidate translations of a source, of which some may be equal, and their probabilities."""

    source: str
    texts: Sequence[str]
    probabilities: Sequence[float]


#: Function from lines to the utilities of their candidates.
Utility = Callable[[Sequence[Candidates]], list[list[float]]]


def probabilities_of(scores: Sequence[float]) -> list[float]:
    """Return the softmax of the scores of a search; equal ones if no score is finite."""
    top = max(scores, default=0.0)
    weights = np.exp(np.array(scores) - top) if np.isfinite(top) else np.ones(len(scores))
    return [float(one) for one in weights / weights.sum()]


def make_utility(metric: str, comet_model: str) -> Utility:
    """Make the function that computes expected utilities from 0 to 100; COMET's may exceed them.

    Args:
        metric: One of `METRICS`.
        comet_model: Name or path of the model, for comet. One that needs no references estimates
            the quality of each candidate from its source alone.

    Raises:
        OptionError, DownloadError: See `CometModel`.
    """
    if metric == "comet":
        model = CometModel(comet_model)
        return partial(_expected_comet if model.needs_references else _estimated, model)
    if metric == "chrf":
        return partial(_expected, pairwise_chrf)
    import sacrebleu

    def bleu(texts: Sequence[str]) -> NDArray[np.float64]:
        tokenize = sacrebleu.BLEU(tokenize=tokenization_of(texts)).tokenizer
        return pairwise_bleu([tokenize(text.rstrip()).split() for text in texts])

    return partial(_expected, bleu)


def _expected(
    similarity: Callable[[Sequence[str]], NDArray[np.float64]], lines: Sequence[Candidates]
) -> list[list[float]]:
    return [_means(line, similarity(list(dict.fromkeys(line.texts)))) for line in lines]


def _means(line: Candidates, similarity: NDArray[np.float64]) -> list[float]:
    """Return the mean similarity of each candidate to all.

    Args:
        line: Candidates.
        similarity: [distinct texts, distinct texts], in the order of their first occurrences.
    """
    found = dict.fromkeys(line.texts, 0.0)
    for text, probability in zip(line.texts, line.probabilities, strict=True):
        found[text] += probability
    means = dict(
        zip(found, (similarity @ np.fromiter(found.values(), float)).tolist(), strict=True)
    )
    return [means[text] for text in line.texts]


def _expected_comet(model: CometModel, lines: Sequence[Candidates]) -> list[list[float]]:
    distinct = [list(dict.fromkeys(line.texts)) for line in lines]
    scores = iter(
        model.scores([
            {"src": line.source, "mt": text, "ref": other}
            for line, texts in zip(lines, distinct, strict=True)
            for text, other in itertools.product(texts, repeat=2)
        ])
    )  # fmt: skip
    return [
        _means(
            line,
            np.array(list(itertools.islice(scores, len(texts) ** 2))).reshape(len(texts), -1),
        )
        for line, texts in zip(lines, distinct, strict=True)
    ]


def _estimated(model: CometModel, lines: Sequence[Candidates]) -> list[list[float]]:
    distinct = dict.fromkeys((line.source, text) for line in lines for text in line.texts)
    scores = model.scores([{"src": source, "mt": text} for source, text in distinct])
    found = dict(zip(distinct, scores, strict=True))
    return [[found[line.source, text] for text in line.texts] for line in lines]
