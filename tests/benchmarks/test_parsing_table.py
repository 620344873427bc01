"""The table of parsers from the reports of their runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def report_of(trees: int) -> dict[str, Any]:
    score = {
        "target": "onnx-int8", "beam_size": 4, "split": "valid", "sentences": 1000, "F1": 70.123,
        "F1 with gold tags": 69.5, "F1 up to 40 words": 72.0, "recall": 1.0, "precision": 2.0,
        "tags": 95.0, "lines with other words": 3, "repaired": 12, "malformed": 0,
        "signature": "evalb", "by_attention": True,
    }  # fmt: skip
    model = {"encoder_layers": 3, "decoder_layers": 2, "d_model": 256, "d_ff": 1024, "heads": 4}
    return {
        "benchmark": "parsing-craft-run",
        "date": "2026-01-01",
        "machine": {"cores": 2, "cpu": "a processor", "instructions": ["avx2"]},
        "versions": {"torch": "2.11.0"},
        "settings": {"device": "Some GPU"},
        "results": {
            "size": str(trees), "trees": trees - 1, "parameters": 5_000_000, "model": model,
            "train": {
                "steps": trees // 4, "batch_tokens": 4096, "guided_alignment": 0.5,
                "cooldown_steps": trees // 10,
            },
            "validations": [{"step": 10, "f1": 20.5}, {"step": 20, "f1": trees / 300}],
            "scores": [score, score | {"split": "test", "sentences": 2000, "by_attention": False}],
        },
    }  # fmt: skip


def test_parsers_are_in_the_order_of_their_trees(tmp_path: Path) -> None:
    from parsing import merge
    from parsing_table import render
    from plots import plot_parsers

    for trees in (22_000, 1_000):
        (tmp_path / f"{trees}.json").write_text(json.dumps(report_of(trees)))
    report = merge(tmp_path.glob("*.json"), "Trained on Some GPU.")
    text = render(report)
    assert "parsing_craft.sh TREEBANK OUT 1000 22000`" in text
    assert "Trained on Some GPU. 3+2 layers" in text
    assert "tokens per side, guided alignment with weight 0.5, learning rate to 0 over" in text
    assert "parameters; 250, 5,500 steps of up to 4,096" in text
    assert "the last 100, 2,200. Trained on CRAFT alone" in text
    assert "not comparable with the 91.3 of the paper" in text
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert len(rows) == 4
    assert rows[0].startswith("| 999 | `onnx-int8` | 4 | attention | dev | 70.12 | 69.50 | 72.00 |")
    assert rows[3].startswith("| 21,999 | `onnx-int8` | 4 | count | test |")
    assert rows[3].endswith("| 95.00 | 3 | 12 | 0 |")
    plot_parsers(report, tmp_path / "parsers.svg")
    drawn = (tmp_path / "parsers.svg").read_text()
    assert "21,999 trees" in drawn
    assert "999 trees" in drawn


def test_scores_are_kept_for_the_same_weights(tmp_path: Path) -> None:
    from parsing import kept_scores

    path = tmp_path / "scores.json"
    assert kept_scores(path, "a") == []
    path.write_text(json.dumps({"weights": "a", "scores": [{"F1": 50.0}]}))
    assert kept_scores(path, "a") == [{"F1": 50.0}]
    assert kept_scores(path, "b") == []
