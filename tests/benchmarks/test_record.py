"""Table 3 from the reports of its runs."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from translate_trt.train.config import PRESETS, TABLE3, TrainConfig, apply


def write_run(
    directory: Path, row: str, seed: int, precision: str = "float32", steps: int = 2_000,
    torch: str = "2.11.0",
) -> Path:  # fmt: skip
    """Write the report of a run."""
    results = {
        "seed": seed, "perplexity": 7.0, "bleu": 29.0, "signature": "s",
        "tokenized_bleu": 30.0, "parameters": 7_500_000, "steps": steps,
    }  # fmt: skip
    report = {
        "benchmark": "table3-run",
        "date": f"2026-01-0{seed}",
        "machine": {"cores": 16, "cpu": "a processor", "instructions": ["avx2"]},
        "versions": {"torch": torch},
        "settings": {"preset": "miniature", "row": row, "device": "GPU", "precision": precision},
        "results": results,
    }
    path = directory / f"{row}-seed{seed}.json"
    path.write_text(json.dumps(report))
    return path


def test_runs_are_merged_in_the_order_of_the_paper(tmp_path: Path) -> None:
    from record import merge

    paths = [write_run(tmp_path, row, seed) for row in ("plain", *TABLE3) for seed in (3, 1, 2)]
    report = merge(paths, "A note.")
    assert list(report["results"]) == ["plain", *TABLE3]
    assert [run["seed"] for run in report["results"]["k16"]["runs"]] == [1, 2, 3]
    assert (report["benchmark"], report["date"]) == ("table3-miniature", "2026-01-03")
    assert report["settings"] == {
        "preset": "miniature", "devices": ["GPU"], "precision": "float32", "note": "A note.",
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes", [{"torch": "2.10.0"}, {"steps": 4_000}, {"precision": "bfloat16"}]
)
def test_runs_of_other_conditions_are_not_mixed(tmp_path: Path, changes: dict[str, Any]) -> None:
    from record import merge

    paths = [write_run(tmp_path, "plain", 1), write_run(tmp_path, "h1", 1, **changes)]
    with pytest.raises(SystemExit, match="precision"):
        merge(paths, "")
    with pytest.raises(SystemExit, match=r"scripts/table3\.sh"):
        merge([], "")


def test_recipes_have_equal_tokens_and_the_shares_of_speedrun() -> None:
    from record import RECIPE, RECIPES

    model, speedrun = PRESETS["tiny"].model, PRESETS["speedrun"].train
    known = {**vars(model), **vars(speedrun)}
    for changes in RECIPES.values():
        flags = {flag.replace("-", "_"): value for flag, value in (RECIPE | changes).items()}
        assert flags.keys() <= known.keys()
        train = apply(TrainConfig(), flags)
        assert train.steps * train.batch_tokens == RECIPE["steps"] * RECIPE["batch-tokens"]
        assert train.validate_every * 4 == train.steps
        shares = [
            Fraction(getattr(one, name), one.steps)
            for name in ("cooldown_steps", "checkpoint_every", "warmup_steps")
            for one in (train, speedrun)
            if name.replace("_", "-") not in changes or "steps" in changes
        ]
        assert shares[::2] == shares[1::2]
