"""Words of the tags of a linearized tree, by the attention that wrote the tags.

A model that writes trees has to count: the n-th tag is that of the n-th word, and one tag too few
in a long sentence shifts all later words. Its cross-attention says more. A head of guided alignment
looks at the word that comes next, the first without a tag, while it writes a label
(docs/parsing.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.text.bracketings import NO_TAG, is_tag

# A word without a tag and a tag without a word cost as much as a label of this attention.
_GAP = log(0.02)

# Smaller weights count as this one, so that a single label cannot decide.
_SMALLEST = 1e-4


def attention_to_words(
    attention: NDArray[np.float32], pieces: Sequence[str]
) -> NDArray[np.float32]:
    """Sum the attention to the tokens of each word.

    Args:
        attention: [labels, tokens + 1] attention; the last column is the end symbol.
        pieces: Pieces of the source tokens, of which U+2581 marks the first of a word.

    Returns:
        [labels, words + 1]; the last column is the end symbol.
    """
    first = [index for index, piece in enumerate(pieces) if piece.startswith("\u2581")]
    return np.add.reduceat(attention, [*first, len(pieces)], axis=1)


def one_tag_per_word(labels: Sequence[str], weights: NDArray[np.float32]) -> list[str]:
    """Drop tags that belong to no word, and add `NO_TAG` where words have none.

    The result is the most probable monotone path through labels and words, found by dynamic
    programming. A tag takes the next word with the probability of the attention to it, and a
    bracket stands in front of that word; a tag without a word and a word without a tag have a fixed
    probability. Words without a tag after the last label are left to `build_tree`.

    Args:
        labels: The linearized tree, see `labels_of`.
        weights: [labels, words + 1] attention to the words and to the end symbol.
    """
    costs = np.log(np.maximum(weights, _SMALLEST)).astype(np.float64)
    words = costs.shape[1] - 1
    places = np.arange(words + 1)
    best = np.where(places == 0, 0.0, -np.inf)  # of paths that have passed so many words
    skipped_from, takes = [], []

    def skip() -> NDArray[np.float64]:
        """Let words pass without a tag, the fewest among equals."""
        relative = best - _GAP * places
        highest = np.maximum.accumulate(relative)
        skipped_from.append(np.maximum.accumulate(np.where(relative == highest, places, 0)))
        return highest + _GAP * places

    for label, cost in zip(labels, costs, strict=True):
        best = skip()
        if is_tag(label):
            taken = np.full(words + 1, -np.inf)
            taken[1:] = best[:-1] + cost[:-1]
            dropped = best + _GAP
            takes.append(taken >= dropped)
            best = np.maximum(taken, dropped)
        else:
            takes.append(np.zeros(words + 1, bool))
            best = best + cost
    skip()
    place = int(skipped_from.pop()[words])
    path = list[str]()
    for label, take, origin in zip(
        reversed(labels), reversed(takes), reversed(skipped_from), strict=True
    ):
        if take[place] or not is_tag(label):
            path.append(label)
        place -= bool(take[place])
        path += [NO_TAG] * (place - int(origin[place]))
        place = int(origin[place])
    return path[::-1]
