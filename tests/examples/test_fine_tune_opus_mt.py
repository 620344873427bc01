"""examples/fine_tune_opus_mt on a tiny model with random weights."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.marian_models import save_random_marian
from support.paths import ROOT

from translate_trt.runtime import Translator

pytest.importorskip("transformers", reason="transformers, which makes the model, is not installed")

pytestmark = pytest.mark.slow
SCRIPT = ROOT / "examples/fine_tune_opus_mt/fine_tune.py"
WORDS = ["the", "cat", "dog", "house", "runs", "sleeps", "green", "river"]
QUICK = ["--steps", "6", "--checkpoint-every", "3", "--batch-tokens", "512", "--threads", "1"]
QUICK += ["--target-language", "deu"]


@pytest.mark.nightly
def test_from_a_model_directory_to_a_verified_bundle(tokenizer_model: Path, tmp_path: Path) -> None:
    save_random_marian(tmp_path / "opus", tokenizer_model, tokenizer_model)
    rng = random.Random(1)
    for part, count in (("train", 60), ("valid", 6)):
        lines = [" ".join(rng.choices(WORDS, k=rng.randint(2, 8))) for _ in range(count)]
        for language in ("en", "de"):
            text = "".join(f"{line}\n" for line in lines)
            (tmp_path / f"{part}.{language}").write_text(text, encoding="utf-8")
    command = [
        sys.executable, SCRIPT, "opus", "--languages", "en", "de", "--train", "train.en",
        "train.de", "--valid", "valid.en", "valid.de", "--output", "work", *QUICK,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    translator = Translator(tmp_path / "work/bundle", "onnx-int8", threads=1)
    assert translator.manifest.source_language == "en"
    assert translator.translate([">>deu<< the cat runs"])[0].hypotheses
    assert translator.target.parity is not None
