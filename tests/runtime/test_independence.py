"""Independence to the last bit of a sentence from its neighbours, where compiled kernels run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from support.translations import assert_independent, random_sources

from translate_trt.runtime import SearchOptions, Translator
from translate_trt.runtime.results import Hypothesis

pytestmark = pytest.mark.slow

SOURCES = random_sources(80, seed=11)
SEARCHES = [
    SearchOptions(num_hypotheses=4),
    SearchOptions(beam_size=1),
    # Many beams, of which few live on: slots are used up and rows are compacted.
    SearchOptions(beam_size=12, num_hypotheses=3, min_length=30, max_length=60),
]


def alone(bundle: Path, target: str, options: SearchOptions) -> list[list[Hypothesis]]:
    translator = Translator(bundle, target, threads=1, batch_tokens=1)
    return [translator.translate_ids([source], options)[0] for source in SOURCES]


@pytest.mark.parametrize("options", SEARCHES, ids=["beam 4", "greedy", "beam 12"])
@pytest.mark.parametrize("target", ["onnx-fp32", "onnx-int8"])
def test_neighbours_change_no_bit(
    compiled_kernels: str, compiled_bundle: Path, target: str, options: SearchOptions
) -> None:
    expected = alone(compiled_bundle, target, options)
    for seed, (batch_tokens, workers, threads) in enumerate(
        [(70, 1, 1), (70, 2, 1), (600, 1, 1), (600, 3, 1), (3000, 1, 2), (3000, 4, 1)]
    ):
        translator = Translator(
            compiled_bundle, target, threads=threads, workers=workers, batch_tokens=batch_tokens
        )
        assert_independent(
            expected, SOURCES, partial(translator.translate_ids, options=options), seed
        )
