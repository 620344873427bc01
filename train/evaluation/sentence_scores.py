"""Sentence-level chrF and BLEU of all pairs of texts, equal to sacrebleu's `sentence_score`.

The k-th occurrence of an n-gram in a text is a feature that the text has or has not, so that the
clipped matches of all pairs are a matrix of features times its transpose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.text.sentences import is_unspaced

_CHRF_ORDER, _BLEU_ORDER = 6, 4
_BETA = 2
_BLOCK = 1 << 22  # elements of the matrix of features; 16 MB

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]")


def tokenization_of(texts: Iterable[str]) -> str:
    """Return sacrebleu's tokenization for BLEU of texts in the script of these, such as references.

    13a separates words at spaces. A sentence of a script without spaces is a single token, so BLEU
    is 0 for any translation. Chinese is tokenized by `zh`, as sacrebleu does where it knows the
    language, and other such scripts by `char`, which needs no dictionary.
    """
    text = "".join(texts)
    if text.isascii():
        return "13a"
    unspaced = "".join(filter(is_unspaced, text))
    if 2 * len(unspaced) <= sum(map(str.isalpha, text)):
        return "13a"
    han = len(_HAN.findall(unspaced))  # Japanese has about as much kana
    return "zh" if 10 * han > 9 * len(unspaced) else "char"


def pairwise_chrf(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return [N, N] scores of chrF2: of each row's text, with the column's text as reference."""
    totals, matches = _character_matches(texts)
    both = (totals[:, :, None] > 0) & (totals[:, None] > 0)
    return _chrf(totals[:, :, None] * both, totals[:, None], matches)


def chrf_statistics(text: str, references: Sequence[str]) -> NDArray[np.float64]:
    """Return [3, 6] statistics of chrF2: n-grams of the text and the reference, and matches.

    Those of a corpus are their sums. Of several references, the one with the best score counts.
    """
    totals, matches = _character_matches([text, *references])
    own, others = totals[:, :1], totals[:, 1:]
    found = np.stack(np.broadcast_arrays(own * (others > 0), others, matches[:, 0, 1:]))
    return np.asarray(found[:, :, int(np.argmax(_chrf(*found)))], np.float64)


def chrf_of_sums(statistics: NDArray[np.float64]) -> float:
    """Compute the chrF2 of a corpus from summed `chrf_statistics`."""
    return float(_chrf(*statistics))


def _character_matches(
    texts: Sequence[str],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    encoded = ["".join(text.split()).encode("utf-32-le", "surrogatepass") for text in texts]
    lengths = np.array([len(code) // 4 for code in encoded], np.int64)
    return _matches(np.frombuffer(b"".join(encoded), np.uint32), lengths, _CHRF_ORDER)


def _chrf(totals: Any, reference_totals: Any, matches: Any) -> NDArray[np.float64]:
    """Compute scores from [order, ...] numbers of n-grams; orders without any do not count."""
    orders = ((totals > 0) & (reference_totals > 0)).sum(axis=0)
    # Summed in the order of sacrebleu, for the same rounding.
    precision = sum(matches / np.maximum(totals, 1)) / np.maximum(orders, 1)
    recall = sum(matches / np.maximum(reference_totals, 1)) / np.maximum(orders, 1)
    weighted = _BETA**2 * precision + recall
    scores = (1 + _BETA**2) * precision * recall / np.where(weighted > 0, weighted, 1)
    return np.asarray(100 * scores)


def pairwise_bleu(texts: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Return [N, N] scores of BLEU with exponential smoothing and effective order.

    Args:
        texts: Tokens of each text.
    """
    ids: dict[str, int] = {}
    symbols = np.array([ids.setdefault(token, len(ids)) for text in texts for token in text], int)
    lengths = np.array([len(text) for text in texts], np.int64)
    totals, matches = _matches(symbols, lengths, _BLEU_ORDER)
    logarithms = np.zeros((len(texts), len(texts)))
    smoothing = np.ones_like(logarithms)
    for total, matched in zip(totals, matches, strict=True):
        smoothing = np.where(matched > 0, smoothing, 2 * smoothing)
        counts = np.where(matched > 0, matched, 1 / smoothing)
        logarithm = np.log(100 * counts / np.maximum(total, 1)[:, None])
        logarithms += np.where((total > 0)[:, None], logarithm, 0)
    size = np.maximum(lengths, 1)[:, None]
    brevity = np.exp(np.minimum(0, 1 - lengths / size))
    scores = brevity * np.exp(logarithms / np.minimum(size, _BLEU_ORDER))
    return np.where(matches[0] > 0, scores, 0)  # without a common token nothing else matches


def _matches(
    symbols: NDArray[np.generic], lengths: NDArray[np.int64], order: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return [order, N] numbers of n-grams, and [order, N, N] of those that two texts share.

    Args:
        symbols: Symbols of all texts, one text after the other.
        lengths: Number of symbols of each text.
        order: Largest n.
    """
    count = len(lengths)
    texts = np.repeat(np.arange(count), lengths)
    totals = np.maximum(lengths - np.arange(order)[:, None], 0)
    matches = np.zeros((order, count, count), np.float32)
    values, first = np.unique(symbols, return_inverse=True)
    grams, starts = first, np.arange(len(symbols))  # number and position of each n-gram
    for n in range(order):
        if n:
            whole = starts + n < len(symbols)
            whole[whole] = texts[starts[whole] + n] == texts[starts[whole]]
            grams, starts = grams[whole], starts[whole]
            grams = grams * len(values) + first[starts + n]
        if not starts.size:
            break
        by_gram = np.argsort(grams, kind="stable")  # and by text, since positions ascend
        sorted_grams, rows = grams[by_gram], texts[starts[by_gram]]
        new_gram = np.diff(sorted_grams, prepend=-1) != 0
        new_text = new_gram | (np.diff(rows, prepend=-1) != 0)
        places = np.arange(len(rows))
        gram_begin = np.maximum.accumulate(np.where(new_gram, places, 0))
        text_begin = np.maximum.accumulate(np.where(new_text, places, 0))
        features = gram_begin + places - text_begin  # unique for gram and occurrence
        width = max(1, _BLOCK // count)
        for begin in range(0, len(rows), width):
            block = (begin <= features) & (features < begin + width)
            has = np.zeros((count, min(width, len(rows) - begin)), np.float32)
            has[rows[block], features[block] - begin] = 1
            matches[n] += has @ has.T
        grams[by_gram] = np.cumsum(new_gram) - 1  # small numbers, which the next order multiplies
    return totals, matches
