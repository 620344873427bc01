"""Choice of settings and lines in comparisons, and their statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def test_all_lines_decide_among_the_best_of_some_lines() -> None:
    from speed import best_setting
    from systems import Setting

    on_some = {256: 80.0, 512: 90.0, 1024: 100.0, 2048: 97.0, 4096: 99.0}
    on_all = {512: 200.0, 1024: 60.0, 2048: 90.0, 4096: 70.0}  # 512 is not among the best three
    stages = [[{"batch_tokens": size} for size in on_some]]
    best, trials = best_setting(
        Setting("ctranslate2"),
        stages,
        lambda setting: on_some[setting.batch_tokens],
        lambda setting: on_all[setting.batch_tokens],
    )
    assert best.batch_tokens == 2048
    assert [(one.figure, one.final) for one in trials] == [
        *((figure, False) for figure in on_some.values()),
        *((on_all[size], True) for size in (1024, 2048, 4096)),
    ]
    best, trials = best_setting(
        Setting("ctranslate2"),
        [[{"batch_tokens": 512}, {"batch_tokens": 1024}]],
        lambda setting: {512: 100.0, 1024: 80.0}[setting.batch_tokens],
        lambda setting: 1.0,
    )
    assert best.batch_tokens == 512
    assert [one.final for one in trials] == [False, False, True]  # nothing else came near


def test_lines_are_spread_over_the_test_set(tmp_path: Path) -> None:
    from speed import TestSet

    for language in ("en", "de"):
        lines = "".join(f"{language} {number}\n" for number in range(10))
        (tmp_path / language).write_text(lines)
    texts = TestSet.read(tmp_path / "en", tmp_path / "de", 4)
    assert texts.source == ["en 0", "en 2", "en 5", "en 7"]
    assert texts.reference == ["de 0", "de 2", "de 5", "de 7"]
    assert len(TestSet.read(tmp_path / "en", tmp_path / "de", 99).source) == 10


def samples_of(times: list[float], precision: str = "int8") -> dict[str, Any]:
    """Return raw measurements of one system of a throughput comparison."""
    return {
        "setting": {"precision": precision},
        "rounds": [
            {"encode": 0.5, "translate": time, "decode": 0.5, "processor": 2 * time}
            for time in times
        ],
        "tokens": [60, 30],
        "ids": [[1, 2], [3]],
        "bleu": 20.0,
        "memory": {"peak": 300 * 2**20},
    }


def test_systems_are_compared_with_the_first_of_their_precision() -> None:
    from speed import throughputs

    systems = {
        "ours": samples_of([2.0, 4.0, 3.0]),
        "peer": samples_of([4.0, 12.0, 6.0]),
        "torch": samples_of([4.0, 12.0, 6.0], "fp32"),
    }
    systems["peer"]["ids"] = [[1, 2], [4]]
    found = throughputs({"systems": systems})
    assert found["peer"]["first / this"] == [2.0, 2.0, 3.0]
    assert found["torch"]["first / this"] == [1.0, 1.0, 1.0]
    assert found["peer"]["seconds"] == [6.0, 4.0, 12.0]
    assert found["peer"]["seconds_with_tokenization"] == [7.0, 5.0, 13.0]
    assert found["peer"]["equal"] == 1


def test_percentiles_are_of_all_sentences_and_rounds() -> None:
    from speed import PARTS, pair_ratios, percentiles

    rounds = [
        {"encode": [0.1] * 3, "translate": times, "decode": [0.1] * 3}
        for times in ([1.0, 2.0, 3.0], [5.0, 4.0, 1.0])
    ]
    assert percentiles({"rounds": rounds})[0] == pytest.approx(2500)
    assert percentiles({"rounds": rounds}, PARTS)[0] == pytest.approx(2700)
    slower = [{**one, "translate": [2 * time for time in one["translate"]]} for one in rounds]
    assert pair_ratios({"rounds": rounds}, {"rounds": slower}) == [2.0] * 6


def test_percentiles_of_a_server_are_of_the_requests_of_all_rounds() -> None:
    from serving import repeated, summarize

    rounds = [
        {"seconds": 1.0, "latencies": [0.1, 0.2, 0.3]},
        {"seconds": 1.0, "latencies": [0.4, 0.5]},
    ]
    found = summarize({"2": rounds})["2"]
    assert found["milliseconds"] == pytest.approx([300, 480, 496])
    assert found["requests"] == 5
    lines = [str(n) for n in range(10)]
    assert repeated(lines, 5) == ["0", "2", "4", "6", "8"]
    assert repeated(lines, 23) == lines * 2 + lines[:3]


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
