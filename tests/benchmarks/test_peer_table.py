"""Rows of the comparison with Marian and CTranslate2, from models to the rendered table."""

from __future__ import annotations

import json
import re
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


def test_rows_use_known_systems_and_models() -> None:
    from comparison import WITH_SHORTLISTS
    from peer_models import MODELS
    from peer_table import EQUALITY, ROWS
    from systems import OURS, SYSTEMS

    for row in ROWS.values():
        assert len(row.entries) > 1
        assert row.entries[0].system == ("torch" if row.kind == EQUALITY else OURS)
        for entry in row.entries:
            assert entry.system in SYSTEMS
            assert entry.model in MODELS
            assert not entry.shortlist or entry.system in WITH_SHORTLISTS


def test_a_peer_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import peer_table

    monkeypatch.setattr(peer_table, "installed", lambda system: system != "marian")
    found = peer_table.available(peer_table.ROWS)
    assert "ssru-shortlist" not in found  # nothing is left to compare
    assert [entry.system for entry in found["base-4"].entries] == ["translate-trt", "ctranslate2"]
    systems = [entry.system for entry in found["twelve"].entries]
    assert systems == ["translate-trt", "translate-trt"]


def test_settings_are_shared_by_rows_that_ask_for_the_same() -> None:
    from peer_table import ROWS, key_of, tuned

    rows = [ROWS[name] for name in ("ssru-shortlist", "self-attention-ssru")]
    keys = [key_of(row, row.entries[1]) for row in rows]
    assert keys[0] == keys[1]
    known = {
        keys[0]: {
            "chosen": {
                "threads": 1, "batch_tokens": 2048, "weights": "intgemm8",
                "environment": [["CT2_USE_MKL", "1"]],
            }
        }
    }  # fmt: skip
    setting = tuned(rows[0], rows[0].entries[1], known, 2)
    assert (setting.workers, setting.batch_tokens, setting.weights) == (2, 2048, "intgemm8")
    assert setting.environment == (("CT2_USE_MKL", "1"),)
    assert key_of(ROWS["base-1-long"], ROWS["base-1-long"].entries[0]) != key_of(
        ROWS["base-1-short"], ROWS["base-1-short"].entries[0]
    )


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


@pytest.mark.slow
def test_rows_are_measured_and_rendered(
    tmp_path: Path, tokenizer_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import peer_table
    from performance_tables import render_peers

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
    text = render_peers(report)
    for row in ("base, beam 1, short lines", "base, beam 4", "base, beam 1, fp32"):
        assert f"| {row} |" in text
    assert re.search(r"\| \d+ \(\d+ %\) \|$", text, re.MULTILINE)
