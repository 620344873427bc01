from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.translations import Translate, assert_same

from translate_trt.runtime import Hypothesis, SearchOptions, Translator
from translate_trt.runtime.bundle.contract import unscored
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.search import beam_search


@pytest.fixture(scope="module")
def translator(compiled_bundle: Path) -> Translator:
    return Translator(compiled_bundle, threads=1)


@pytest.fixture(scope="session")
def as_pytorch(looping_bundle: Path, looping_model: Checkpoint) -> Translate:
    """Translate with `looping_bundle` what PyTorch's search translates alike."""
    translator, model = Translator(looping_bundle, threads=1), looping_model.load_model()

    def translate(
        sources: Sequence[Sequence[int]],
        options: SearchOptions,
        prefixes: Sequence[Sequence[int]] | None = None,
        constraints: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> list[list[Hypothesis]]:
        found = translator.translate_ids(sources, options, prefixes, constraints=constraints)
        forced = [[unscored(token) for token in one] for one in prefixes or [[]] * len(sources)]
        expected = beam_search(model, sources, options, forced, constraints=constraints)
        assert_same(found, expected)
        assert [[one.looped for one in line] for line in found] == [
            [one.looped for one in line] for line in expected
        ]
        return found

    return translate
