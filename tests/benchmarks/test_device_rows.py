"""Replays of the decoding loop on a device that counts."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from translate_trt.runtime import native
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer

WORDS = ["the", "cat", "runs", "over", "a", "tree", "dog", "house", "and", "sees"]
PROFILES = (Profile(1, 256), Profile(8, 256))


@pytest.fixture
def rows() -> ModuleType:
    if native.library() is None:
        pytest.skip(native.status())
    import device_rows

    return device_rows


@pytest.fixture
def corpus(rows: ModuleType, tokenizer_model: Path, tmp_path: Path) -> Any:
    draw = random.Random(7)
    for side in ("en", "de"):
        lines = (" ".join(draw.choices(WORDS, k=draw.randint(2, 12))) for _ in range(60))
        (tmp_path / f"text.{side}").write_text("\n".join([*lines, "the cat", ""]))
    tokenizer = Tokenizer(tokenizer_model, tokenizer_model)
    found = rows.Corpus.read(tmp_path / "text.en", tmp_path / "text.de", tokenizer)
    rows.make_bundle(tmp_path, tokenizer_model, tokenizer.vocabulary_size, 4)
    return found


def test_larger_batches_need_fewer_steps(rows: ModuleType, corpus: Any, tmp_path: Path) -> None:
    def replay(**given: int) -> Any:
        options = SearchOptions(beam_size=4)
        return rows.replay(tmp_path, corpus, PROFILES, options, rows.Setting(**given))

    # `replay` compares every translation with the corpus.
    small, default = replay(batch_tokens=64, workers=1), replay()
    assert (default["workers"], default["batch_tokens"]) == (2, 8 * 256)
    assert sum(default["steps"].values()) < sum(small["steps"].values())
    assert small["rows_in_use"] < default["rows_in_use"] <= 1
    assert default["gaps"] > 0


def test_a_wrong_translation_is_noticed(rows: ModuleType, corpus: Any, tmp_path: Path) -> None:
    corpus.translations[3] += "."
    with pytest.raises(SystemExit, match="translated"):
        rows.replay(tmp_path, corpus, PROFILES, SearchOptions(beam_size=4), rows.Setting())
