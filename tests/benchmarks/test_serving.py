"""Statistics of a server's benchmark, and its choice of lines."""

from __future__ import annotations

import pytest


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
