"""The loop guard (rule 11): the definition of a loop, and the search."""

from __future__ import annotations

import dataclasses
import random
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray
from support.scripted import END, ScriptedModel
from support.translations import Translate, random_sources

from translate_trt.runtime import SearchOptions
from translate_trt.train.model import Transformer
from translate_trt.train.search import _repeated, beam_search

pytestmark = pytest.mark.slow

GUARD = SearchOptions(loop_guard=True, num_hypotheses=4)
SOURCES = random_sources(12, seed=6, longest=30)  # some beams of sentences loop before others


@pytest.mark.parametrize(
    ("tokens", "repeated"),
    [
        ([], 0),
        ([5] * 15, 0),
        ([5] * 16, 15),
        ([9, 8, *[5] * 20], 19),
        ([5, 6] * 7, 0),
        ([5, 6] * 8, 14),
        ([7, *[5, 6] * 8, 5], 15),
        ([*[5, 6] * 8, 9], 0),  # the loop has ended
        (list(range(10, 42)) * 3, 0),
        (list(range(10, 42)) * 4, 96),
        (list(range(10, 43)) * 5, 0),  # a phrase of 33 tokens
        ([1, 2, 3, 4] * 4, 12),
        ([1, 2, 3, 4] * 3 + [1, 2, 3], 0),
    ],
)
def test_what_a_loop_is(tokens: list[int], repeated: int) -> None:
    assert _repeated(tokens, [7, 8, 9]) == repeated


def test_a_source_with_repetitions_allows_twice_as_many() -> None:
    source = [7, *[8, 9] * 10, 7]
    assert _repeated([1, 2] * 19, source) == 0
    assert _repeated([1, 2] * 20, source) == 38
    assert _repeated([1] * 59, [7] * 30) == 0


def _repeats_or_ends(tokens: tuple[int, ...]) -> NDArray[np.float32]:
    """Prefer token 5; after the first 6, generate different tokens and end after 24."""
    if 6 not in tokens:
        likely = {5: 0.9, 6: 0.09 - len(tokens) / 1000}  # without ties
    else:
        likely = {END: 0.9} if len(tokens) >= 24 else {8 + len(tokens): 0.9}
    rest = (1 - sum(likely.values())) / (40 - len(likely))
    return np.log([likely.get(token, rest) for token in range(40)]).astype(np.float32)


@pytest.mark.parametrize("beams", [1, 4])
def test_the_search_goes_on_with_beams_that_do_not_loop(beams: int) -> None:
    options = SearchOptions(beam_size=beams, loop_guard=True)
    (found,) = beam_search(cast(Transformer, ScriptedModel([_repeats_or_ends])), [[4]], options)
    assert found[0].looped == (beams == 1)
    assert found[0].truncated == (beams == 1)


def _continues_or_leaves(tokens: tuple[int, ...]) -> NDArray[np.float32]:
    """Prefer to go on with 5 6 5 6; end two tokens after another one."""
    cycle = [5 + place % 2 for place in range(len(tokens) + 1)]
    if list(tokens) == cycle[:-1]:
        likely = {cycle[-1]: 0.8, 8 + len(tokens) % 30: 0.15}
    else:
        likely = {END: 0.9} if len(tokens) % 3 == 0 else {38 + len(tokens) % 2: 0.9}
    rest = (1 - sum(likely.values())) / (40 - len(likely))
    return np.log([likely.get(token, rest) for token in range(40)]).astype(np.float32)


def test_beams_that_leave_a_loop_of_the_prefix_live_on() -> None:
    options, prefix = SearchOptions(loop_guard=True), [5, 6] * 11
    (found,) = beam_search(
        cast(Transformer, ScriptedModel([_continues_or_leaves])), [[4]], options, [prefix]
    )
    assert found[0].tokens[: len(prefix)] == tuple(prefix)
    assert not found[0].truncated


@pytest.mark.parametrize(
    "options",
    [
        GUARD,
        dataclasses.replace(GUARD, beam_size=1, num_hypotheses=1),
        dataclasses.replace(GUARD, early_stopping=True, length_penalty=1.0),
        dataclasses.replace(GUARD, min_length=24, return_attention=True),
        dataclasses.replace(GUARD, max_length=20),
        dataclasses.replace(GUARD, loop_guard=False),
    ],
    ids=["beam 4", "greedy", "early", "long", "short", "off"],
)
def test_the_same_as_the_reference(as_pytorch: Translate, options: SearchOptions) -> None:
    found = as_pytorch(SOURCES, options)
    cut = [one for line in found for one in line if one.looped]
    assert bool(cut) == options.loop_guard
    assert all(one.truncated and len(one.token_log_probs) == len(one.tokens) for one in cut)


def test_loops_that_prefixes_begin(as_pytorch: Translate) -> None:
    """Phrases of all lengths, more and less often than needed, after sources that repeat or not."""
    rng, sources, prefixes = random.Random(3), list[list[int]](), list[list[int]]()
    for length in (1, *range(2, 35, 2)):
        phrase = [rng.randrange(4, 60) for _ in range(length)]
        prefixes.append([7, *phrase * 16][: rng.choice((17, 33, min(4 * length + 1, 85), 69))])
        source = [rng.randrange(4, 60) for _ in range(rng.randint(1, 9))]
        sources.append(source * rng.randint(1, 3))
    options = SearchOptions(beam_size=3, num_hypotheses=3, loop_guard=True, max_length=98)
    found = as_pytorch(sources, options, prefixes)
    assert len({one.looped for line in found for one in line}) == 2
