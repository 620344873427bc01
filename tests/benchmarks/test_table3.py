"""Table 3 from the reports of its runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from translate_trt.train.config import TABLE3


def run_of(row: str, seed: int, **changes: Any) -> dict[str, Any]:
    """Return the report of a run."""
    results = {
        "seed": seed, "perplexity": 7.0, "bleu": 29.0, "signature": "s",
        "tokenized_bleu": 30.0, "parameters": 7_500_000, "steps": 2_000,
    }  # fmt: skip
    return {
        "benchmark": "table3-run",
        "date": f"2026-01-0{seed}",
        "machine": {"cores": 16, "cpu": "a processor", "instructions": ["avx2"]},
        "versions": {"torch": "2.11.0"},
        "settings": {
            "preset": "miniature",
            "row": row,
            "device": "Some GPU",
            "precision": "float32",
        },
        "results": results,
    } | changes


def write_runs(directory: Path, *reports: dict[str, Any]) -> list[Path]:
    paths = []
    for report in reports:
        row, seed = report["settings"]["row"], report["results"]["seed"]
        paths.append(directory / f"{row}-seed{seed}.json")
        paths[-1].write_text(json.dumps(report))
    return paths


@pytest.fixture
def report(tmp_path: Path) -> dict[str, Any]:
    from table3 import merge

    runs = [run_of(row, seed) for row in ("plain", *TABLE3) for seed in (3, 1, 2)]
    merged: dict[str, Any] = merge(write_runs(tmp_path, *runs), "A note.")
    return merged


def test_runs_are_merged_in_the_order_of_the_paper(report: dict[str, Any]) -> None:
    assert list(report["results"]) == ["plain", *TABLE3]
    assert [run["seed"] for run in report["results"]["k16"]["runs"]] == [1, 2, 3]
    assert (report["benchmark"], report["date"]) == ("table3-miniature", "2026-01-03")
    assert report["settings"] == {
        "preset": "miniature", "devices": ["Some GPU"], "precision": "float32", "note": "A note.",
    }  # fmt: skip


def test_errors_of_differences_are_those_of_independent_samples() -> None:
    from table3_rows import error_of_differences

    # Deviations 1, -1 and 2, -2, 0: a variance of 10 / 3 with three degrees of freedom.
    expected = 2 * (10 / 3 * (1 / 2 + 1 / 3)) ** 0.5
    assert error_of_differences([[1.0, 3.0], [7.0, 3.0, 5.0]]) == pytest.approx(expected)


def test_runs_of_other_versions_precision_or_steps_are_not_mixed(tmp_path: Path) -> None:
    from table3 import merge

    longer = run_of("h1", 1)
    longer["results"]["steps"] *= 2
    coarser = run_of("h1", 1)
    coarser["settings"]["precision"] = "bfloat16"
    for other in (run_of("h1", 1, versions={"torch": "2.10.0"}), longer, coarser):
        paths = write_runs(tmp_path, run_of("plain", 1), other)
        with pytest.raises(SystemExit, match="precision"):
            merge(paths, "")
    with pytest.raises(SystemExit, match=r"scripts/table3\.sh"):
        merge([], "")
