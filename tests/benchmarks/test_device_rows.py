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
    with pytest.raises(SystemExit, match="not translated as its engines do"):
        rows.replay(tmp_path, corpus, PROFILES, SearchOptions(beam_size=4), rows.Setting())


def test_the_table(rows: ModuleType) -> None:
    from results_tables import render_device_rows

    found = {"batch_tokens": 512, "workers": 1, "steps": {"1": 8, "64": 1000}, "gaps": 70,
             "rows_in_use": [0.2, 0.1, 0.3], "gap_microseconds": [900.0, 1.0, 2.0],
             "worker_microseconds": [212.0, 1.0, 2.0],
             "caller_microseconds": [28.0, 1.0, 2.0]}  # fmt: skip
    report = {
        "date": "2026-11-25", "machine": {"cores": 2, "cpu": "a processor", "instructions": []},
        "versions": {}, "results": {"old": found, "new": {**found, "steps": {"64": 504}}},
        "settings": {"lines": 9, "source": "a.en", "target_tokens": 99, "pieces": 50,
                     "profiles": "1x256,64x256", "beam_size": 4},
    }  # fmt: skip
    *_, old, new = render_device_rows(report).splitlines()
    assert old == "| old | 512 | 1 | 1,008 | 20.0 % | 1.00 | 70 | 0.9 ms | 212 us | 28 us |"
    assert new.startswith("| new | 512 | 1 | 504 | 20.0 % | 2.00 |")
