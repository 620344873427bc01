"""Table and plot of a server, from the report of its benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def report() -> dict[str, Any]:
    from serving import RUNTIME, summarize

    def rounds(*seconds: float) -> list[dict[str, Any]]:
        return [{"seconds": one, "latencies": [0.01, 0.02, 0.03, 0.04]} for one in seconds]

    return {
        "date": "2026-01-01",
        "machine": {"cores": 2, "cpu": "a processor", "instructions": ["avx2"]},
        "versions": {"onnxruntime": "1.31.1"},
        "settings": {
            "target": "onnx-int8",
            "triton": "2.51.0",
            "source": "test.en",
            "note": "",
            "instances": 1,
            "rounds": 3,
        },
        "results": summarize(
            {
                "1": rounds(1.0, 2.0, 4.0),
                "64": rounds(0.5, 0.5, 0.5),
                RUNTIME: [{"seconds": 0.5, "lines": 10}] * 3,
            }
        ),
    }


def test_a_row_for_each_number_of_clients(report: dict[str, Any]) -> None:
    from render import SERVE
    from results_tables import render_serving

    text = render_serving(report)
    assert "| 1 | 2.0 [1.0, 4.0] | 25 | 40 | 40 | 12 |" in text
    assert "| 64 | 8.0 [8.0, 8.0] | 25 | 40 | 40 | 12 |" in text
    assert "Triton 2.51.0, onnx-int8" in text
    assert "medians of 3 rounds" in text
    assert "in one call: 20.0 sentences/s" in text
    assert "--source test.en`" in text
    assert "](plots/serving-clients.svg)" in text
    report["settings"]["instances"] = 2
    assert "--source test.en --instances 2`" in render_serving(report)
    assert "<!-- triton, made by benchmarks/render.py -->" in SERVE.read_text()


def test_the_plot_is_of_those_numbers(report: dict[str, Any], tmp_path: Path) -> None:
    from plots import plot_serving

    plot_serving(report, tmp_path / "a")
    plot_serving(report, tmp_path / "b")
    picture = (tmp_path / "a/serving-clients.svg").read_bytes()
    assert picture == (tmp_path / "b/serving-clients.svg").read_bytes()
    report["results"]["1"]["milliseconds"][2] = 5000.0
    plot_serving(report, tmp_path / "b")
    assert picture != (tmp_path / "b/serving-clients.svg").read_bytes()


def test_percentiles_are_of_the_requests_of_all_rounds() -> None:
    from serving import summarize

    rounds = [
        {"seconds": 1.0, "latencies": [0.1, 0.2, 0.3]},
        {"seconds": 1.0, "latencies": [0.4, 0.5]},
    ]
    found = summarize({"2": rounds})["2"]
    assert found["milliseconds"] == pytest.approx([300, 480, 496])
    assert found["requests"] == 5


def test_lines_come_from_all_over_the_text() -> None:
    from serving import evenly

    lines = [str(n) for n in range(10)]
    assert evenly(lines, 5) == ["0", "2", "4", "6", "8"]
    assert evenly(lines, 4) == ["0", "2", "4", "6"]
    assert evenly(lines, 23) == lines * 2 + lines[:3]


def test_text_travels_as_its_bytes() -> None:
    from serving import request

    (text,) = request("Grüße")["inputs"]["TEXT"]["data"]
    assert text.encode("latin-1").decode("utf-8") == "Grüße"
