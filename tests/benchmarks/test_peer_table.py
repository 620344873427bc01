"""Rows of the comparison with Marian and CTranslate2, from models to measurements."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import lively_model, save_model
from support.shortlists import random_table

from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import START


def save_models(directory: Path, tokenizer: Path) -> None:
    """Write a small `base`, its shortlist and text, as peer_models.py does."""
    pieces = Tokenizer(tokenizer, tokenizer).vocabulary_size
    model = lively_model(
        pieces, layer_norm_epsilon=1e-6, sinusoid="tensor2tensor", output_bias=True, d_model=64,
        d_ff=128,
    )  # fmt: skip
    with torch.no_grad():
        model.embedding.weight[START] = 0
    checkpoint = save_model(model, directory / "base", tokenizer)
    random_table(open_checkpoint(checkpoint)).save(directory / "shortlist-base.safetensors")
    lines = ["the dog runs", "a cat sleeps", " ".join(["dog"] * 12)]
    for name in ("short", "long"):
        for side in ("en", "de"):
            (directory / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.nightly
def test_rows_are_measured(
    tmp_path: Path, tokenizer_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import peer_table

    save_models(tmp_path, tokenizer_model)
    monkeypatch.setattr(peer_table, "BATCHES", (512,))
    monkeypatch.setattr(peer_table.kernels, "vnni_limit", lambda: 1e12)
    names = ("base-1-short", "base-4-sentence", "equality-base")
    rows = [argument for name in names for argument in ("--row", name)]
    out = tmp_path / "report.json"
    command = ["peer_table.py", "--models", str(tmp_path), *rows, "--rounds", "1", "--threads", "2"]
    monkeypatch.setattr(
        sys, "argv", [*command, "--lines", "3", "--sentences", "2", "--out", str(out)]
    )
    peer_table.main()
    report: dict[str, Any] = json.loads(out.read_text())
    assert set(report["results"]) == set(names)
    short = report["results"]["base-1-short"]["cores"]
    assert set(short) == {"1", "2"}
    labels = [label for label in short["2"] if label.startswith("translate-trt")]
    assert labels == ["translate-trt int8, beam 1, base"]
    for label, system in short["2"].items():
        assert system["setting"]["workers"] == 2, label
        assert system["processor_seconds"][0] > 0
        assert system["operations"] > 0
    known = json.loads((tmp_path / "work" / "settings.json").read_text())
    assert set(report["settings"]["trials"]) == set(known)
