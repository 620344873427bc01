"""Alternatives after a forced prefix: rule 12 of docs/beam-search.md.

The library does the same in runtime/cpp/src/core/alternatives.cc.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis

if TYPE_CHECKING:
    from translate_trt.runtime.reference import Sentence


class _OneStep(SearchOptions):
    """Options of an expansion, where the minimum length forbids the end symbol in the last step."""

    def __post_init__(self) -> None:
        """Allow a minimum length beyond the maximum."""


def expansion(sentence: Sentence, beams: int | None) -> Sentence:
    """Return the search of one step after the prefix of a sentence with alternatives.

    Its n best hypotheses end in the most likely next tokens.

    Args:
        sentence: A sentence with alternatives.
        beams: Fixed beam size of the target; None if it is dynamic.
    """
    count, length = sentence.options.alternatives, len(sentence.prefix) + 1
    changed = {
        "beam_size": count if beams is None else beams,
        "num_hypotheses": count,
        "length_penalty": 0.0,
        "early_stopping": False,
        "return_attention": False,
        "loop_guard": False,
        "max_length": length,
        "min_length": length + 1,
        "alternatives": 0,
    }
    options = _OneStep(**(vars(sentence.options) | changed))
    return replace(sentence, options=options, constraints=())


def completions(
    sentence: Sentence, expanded: Sentence, found: Sequence[Hypothesis]
) -> list[Sentence]:
    """Return the sentences that complete the tokens which an expansion has found.

    Args:
        sentence: The sentence with alternatives.
        expanded: Its `expansion`.
        found: The hypotheses of the expansion.

    Returns:
        Sentences, those of the most likely tokens first; at least one, and at most as many as there
        are alternatives.
    """
    least = sentence.options.min_alternative_prob
    kept = [
        one
        for rank, one in enumerate(found)
        if not rank or math.exp(one.token_log_probs[-1]) >= least
    ]
    # The token is forced with its own log-probability, unlike the prefix.
    return [replace(sentence, prefix=[*sentence.prefix, one.tokens[-1]]) for one in kept]
