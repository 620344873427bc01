"""Cost of search options: times are compared within each round."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


def test_times_are_compared_row_by_row_in_each_round() -> None:
    from search_options import FIRST_TOKEN, Run, summarize

    def runs(rows: int, *seconds: float) -> list[Run]:
        return [Run(one, 2 * one, steps=5, rows=rows, target_tokens=40) for one in seconds]

    samples = {
        FIRST_TOKEN: runs(10, 1.0, 1.0, 2.0),
        "first": runs(60, 2.0, 3.0, 6.0),
        "other": runs(110, 5.0, 5.0, 6.0),
    }
    found = summarize(samples, 10)
    assert list(found) == ["first", "other"]
    assert found["other"] == {
        "lines_per_second": [2.0, pytest.approx(10 / 6), 2.0],
        "steps": 5,
        "rows": 110,
        "target_tokens": 40,
        "seconds_of_row": [0.04, 0.04, 0.04],
        "this / first": [1.0, 0.5, 2.0],
        "this / first, processor": [1.0, 0.5, 2.0],
    }
    assert found["first"]["this / first"] == [1.0, 1.0, 1.0]
    assert summarize({}, 10) == {}
