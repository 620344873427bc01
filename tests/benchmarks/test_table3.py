"""Table 3 from the reports of its runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from translate_trt.train.config import TABLE3

#: Tokenized BLEU of three seeds; the rows left out have the seeds of `plain`.
PLAIN = [30.0, 30.2, 30.4]
BLEU = {"h1": [29.0, 29.1, 29.9], "h32": [30.6, 30.8, 31.0], "h16": [31.0, 31.5, 32.0]}


def run_of(row: str, seed: int, **changes: Any) -> dict[str, Any]:
    """Return the report of a run."""
    bleu = BLEU.get(row, PLAIN)[seed - 1]
    results = {
        "seed": seed, "perplexity": 10.0 - bleu / 10, "bleu": bleu - 1, "signature": "s",
        "tokenized_bleu": bleu, "parameters": 7_500_000, "steps": 2_000,
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


def test_runs_of_an_earlier_table_are_added(report: dict[str, Any], tmp_path: Path) -> None:
    from results_tables import render_table3
    from table3 import merge

    earlier = tmp_path / "earlier" / "table3.json"
    earlier.parent.mkdir()
    for found in report["results"].values():
        del found["runs"][1:]  # the first seed
    earlier.write_text(json.dumps(report))
    machine = {"cores": 2, "cpu": "another", "instructions": ["avx512f"]}
    runs = [run_of(row, 2, machine=machine) for row in ("plain", *TABLE3)]
    later = tmp_path / "later"
    later.mkdir()
    paths = write_runs(later, *runs)
    merged = merge([*paths, earlier], "")
    assert [run["seed"] for run in merged["results"]["k16"]["runs"]] == [1, 2]
    text = render_table3(merged)
    assert "16 cores of a processor (avx2) and 2 cores of another (avx512f)" in text
    assert 'SEEDS="1 2" bash' in text
    assert "concluded" in text
    with pytest.raises(SystemExit, match="a run of plain is there twice"):
        merge([*paths, paths[0]], "")


def test_rows_beside_the_papers_and_conclusions(report: dict[str, Any]) -> None:
    from results_tables import render_table3

    text = render_table3(report)
    line = next(line for line in text.splitlines() if line.startswith("| A | h1 |"))
    assert "| heads 1 |" in line
    assert "| 29.33 [29.00, 29.90] | -0.87 | 7.50 | 5.29 | 24.9 | -0.9 |" in line
    assert "| B | k16 | key_size 2 |" in text
    assert "| C | n2 | encoder_layers 1, decoder_layers 1 |" in text
    assert 'SEEDS="1 2 3" bash scripts/table3.sh DATA OUT miniature plain h1 ' in text
    assert "3 of 18 rows differ from `plain` by more than 0.41 BLEU" in text
    assert "pooled over the rows; 21 % of it from `h16`" in text
    assert "same sign in 1 (`h1`) of these, the opposite sign in 1 (`h32`)," in text
    assert "and is 0.0 in 1 (`h16`)." in text


def test_seeds_that_only_the_base_model_has_are_named(report: dict[str, Any]) -> None:
    from results_tables import render_table3

    report["results"]["plain"]["runs"].append(run_of("plain", 1)["results"] | {"seed": 4})
    text = render_table3(report)
    assert 'SEEDS="1 2 3" bash' in text
    assert "in brackets; `plain` has 4 seeds." in text


def test_errors_of_differences_are_those_of_independent_samples() -> None:
    from table3_rows import error_of_differences

    # Deviations 1, -1 and 2, -2, 0: a variance of 10 / 3 with three degrees of freedom.
    expected = 2 * (10 / 3 * (1 / 2 + 1 / 3)) ** 0.5
    assert error_of_differences([[1.0, 3.0], [7.0, 3.0, 5.0]]) == pytest.approx(expected)


def test_the_plot_has_all_rows_and_is_the_same_every_time(
    report: dict[str, Any], tmp_path: Path
) -> None:
    from plots import plot_table3

    for name in ("a.svg", "b.svg"):
        plot_table3(report, tmp_path / name)
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert all(f"({row.group}) {name}<" in text for name, row in TABLE3.items())
    assert text == (tmp_path / "b.svg").read_text(encoding="utf-8")


def test_without_all_rows_and_seeds_nothing_is_concluded(report: dict[str, Any]) -> None:
    from results_tables import render_table3

    report["results"]["learned"]["runs"].pop()
    report["results"]["learned"]["runs"].pop()
    assert "concluded" not in render_table3(report)
    del report["results"]["learned"]
    assert "concluded" not in render_table3(report)


def test_runs_of_other_versions_precision_or_steps_are_not_mixed(tmp_path: Path) -> None:
    from table3 import merge

    longer = run_of("h1", 1)
    longer["results"]["steps"] *= 2
    coarser = run_of("h1", 1)
    coarser["settings"]["precision"] = "bfloat16"
    for other in (run_of("h1", 1, versions={"torch": "2.10.0"}), longer, coarser):
        paths = write_runs(tmp_path, run_of("plain", 1), other)
        with pytest.raises(SystemExit, match="differ in preset, precision, steps or versions"):
            merge(paths, "")
    with pytest.raises(SystemExit, match=r"scripts/table3\.sh"):
        merge([], "")
