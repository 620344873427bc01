"""Plan of a large corpus: figures by hand, and the table of docs/thousand-gpus.md."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from support.paths import ROOT


def test_a_plan_by_hand() -> None:
    import plan

    given = plan.Inputs(
        gpus=10,
        gpus_per_machine=5,
        sentences=36e6,
        sentences_per_second=100.0,
        shard_lines=1000,
        shard_spread=0.0,
        slow_share=0.0,
        machine_mtbf_hours=100.0,
        repair_hours=0.0,
        start_seconds=30.0,
        dollars_per_gpu_hour=2.0,
    )
    assert plan.shards(given) == 36_000
    assert plan.throughput(given) == 1000
    assert plan.failures(given) == pytest.approx(2 * 10 / 100)  # machines, hours, MTBF
    assert plan.lost_gpu_seconds(given) == pytest.approx(0.2 * 5 * (5 + 30))
    assert plan.tail_seconds(given) == 10
    assert plan.seconds(given) == pytest.approx(30 + 36_000 + 3.5 + 10)
    assert plan.dollars(given) == pytest.approx(10 * 36_043.5 / 3600 * 2)


def test_slow_gpus_and_failures_make_the_run_longer() -> None:
    from dataclasses import replace

    import plan

    given = plan.Inputs()
    assert plan.slowest(replace(given, gpus=1)) == 1
    assert plan.slowest(replace(given, slow_share=0.0)) == pytest.approx(
        1 + given.shard_spread * math.sqrt(2 * math.log(given.gpus))
    )
    worse = (
        {"slow_factor": 4.0}, {"slow_share": 0.1}, {"machine_mtbf_hours": 100.0},
        {"shard_lines": 10 * given.shard_lines}, {"sentences_per_second": 100.0},
    )  # fmt: skip
    for change in worse:
        assert plan.seconds(replace(given, **change)) > plan.seconds(given), change
    slow = replace(given, slow_factor=10.0)
    assert plan.tail_seconds_speculative(slow) < plan.tail_seconds(slow)


def test_the_page_shows_the_defaults() -> None:
    import plan

    page = (ROOT / "docs/thousand-gpus.md").read_text(encoding="utf-8")
    assert plan.text(plan.Inputs()) in page


def test_inputs_are_options() -> None:
    command = [sys.executable, ROOT / "benchmarks/plan.py", "--gpus", "16", "--sentences", "1e8"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "| `--gpus` | 16 | chosen |" in shown
    assert "| machines | GPUs / GPUs of a machine | 2 |" in shown
