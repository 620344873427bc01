"""Skeleton of benchmarks: statistics, and reports."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest


def test_systems_are_compared_pair_by_pair() -> None:
    from harness import compared, shown

    samples = {"a": [1.0, 2.0, 4.0], "b": [2.0, 2.0, 2.0]}
    found = compared(samples, "b")
    assert found == {"a": [2.0, 1.0, 4.0], "b": [2.0, 2.0, 2.0], "b / a": [1.0, 0.5, 2.0]}
    assert shown(found["b / a"]) == "1.00 [0.50, 2.00]"


def test_systems_run_in_turn_after_a_warm_up() -> None:
    from harness import alternate

    order: list[str] = []
    found = alternate({one: lambda one=one: order.append(one) for one in "ab"}, 2)  # type: ignore[misc]
    assert order == ["a", "b"] * 3
    assert {name: len(runs) for name, runs in found.items()} == {"a": 2, "b": 2}


def test_a_report_has_machine_settings_and_rounded_figures(tmp_path: Path) -> None:
    from harness import Report, benchmark, option, run

    out = tmp_path / "report.json"
    results = {"seconds": {"ours": [1.23456789, 0.5, 2.0]}}

    @benchmark("sorting", option("--numbers", type=int, default=3), "source", rounds=2)
    def measure(given: Namespace) -> Report:
        return Report(results, {"numbers": given.numbers}, {"ours": [1.0, 2.0]})

    run(measure, ["--source", "text", "--out", out, "--name", "few", "--note", "A note."])
    report = json.loads(out.read_text())
    assert report["benchmark"] == "sorting-few"
    assert report["results"] == {"seconds": {"ours": [1.234568, 0.5, 2.0]}}
    assert report["settings"] == {
        "rounds": 2, "threads": report["machine"]["cores"], "note": "A note.", "numbers": 3,
    }  # fmt: skip
    assert 0 <= report["machine"]["busy_percent"] <= 100
    assert list(tmp_path.iterdir()) == [out]
    run(measure, ["--source", "text", "--out", out, "--samples"])
    assert json.loads((tmp_path / "report.samples.json").read_text()) == {"ours": [1.0, 2.0]}


def test_figures_are_ratios_to_the_first_system() -> None:
    from side_by_side import figures

    def samples(times: list[float], tokens: int) -> dict[str, Any]:
        rounds = [{"encode": 0.5, "translate": time, "decode": 0.5} for time in times]
        return {"rounds": rounds, "tokens": [tokens, 30], "memory": 1, "other_alone": 0}

    first, alone = samples([2.0, 4.0, 3.0], 60), [[0.1, 0.2], [0.2, 0.1]]
    found = figures(samples([4.0, 12.0, 6.0], 150), first, [[0.4, 0.4], [0.4, 0.4]], alone)
    assert found["first / this"] == [1.0, 1.0, 1.5]  # with twice as many tokens
    assert found["seconds_with_tokenization"] == [7.0, 5.0, 13.0]
    assert found["milliseconds"] == pytest.approx([400, 400, 400])
    assert found["this / first"] == pytest.approx([3, 2, 4])
