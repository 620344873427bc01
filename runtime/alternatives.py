"""Alternatives after a forced prefix: rule 12 of docs/beam-search.md.

The library does the same in runtime/cpp/src/core/alternatives.cc.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from translate_trt.runtime.bundle.contract import unscored
from translate_trt.runtime.constraints import Reading
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
    options = replace(
        sentence.options, alternatives=0, num_hypotheses=sentence.options.beam_size
    )  # all that `best_completion` ranks
    return [
        replace(
            sentence,
            prefix=[*sentence.prefix, unscored(one.tokens[-1])],
            options=options,
            alternative=one.token_log_probs[-1],
        )
        for one in kept
    ]


def best_completion(sentence: Sentence, found: Sequence[Hypothesis]) -> Sequence[Hypothesis]:
    """Select the best completion of an alternative, by the score of its free tokens.

    Args:
        sentence: A sentence that completes an alternative; others keep their hypotheses.
        found: Its hypotheses, best first.
    """
    if sentence.alternative is None:
        return found
    constraints = Reading(tuple(sentence.constraints))

    def rank(one: Hypothesis) -> tuple[bool, int]:
        return one.truncated, constraints.after(one.tokens).met

    equal = (one for one in found if rank(one) == rank(found[0]))
    return [max((_scored(sentence, one) for one in equal), key=lambda one: one.score)]


def _scored(sentence: Sentence, found: Hypothesis) -> Hypothesis:
    own, forced, log_probs = sentence.alternative, len(sentence.prefix), found.token_log_probs
    if own is None:
        return found
    free = log_probs[forced:]  # none if a loop was cut that began before them
    if len(log_probs) >= forced:
        log_probs = (*log_probs[: forced - 1], own, *free)
    score = own + sum(free) / sentence.options.penalty(max(1, len(free)))
    return replace(found, score=score, token_log_probs=log_probs)
