"""Choice of settings and lines in comparisons, and their statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from translate_trt.runtime.errors import InputError


def test_the_first_of_the_best_settings_is_chosen_stage_by_stage() -> None:
    from speed import best_setting
    from systems import Setting

    speeds = {(1, 256): 80.0, (2, 256): 81.0, (1, 512): 100.0, (1, 1024): 102.0, (1, 2048): 90.0}
    stages: list[list[dict[str, Any]]] = [
        [{"threads": 1}, {"threads": 2}],
        [{"batch_tokens": size} for size in (256, 512, 1024, 2048)],
    ]
    best, trials = best_setting(
        Setting("ctranslate2", batch_tokens=256),
        stages,
        lambda setting: speeds[setting.threads, setting.batch_tokens],
    )
    assert (best.threads, best.batch_tokens) == (1, 512)  # 3 % are noise
    assert list(trials.values()) == list(speeds.values())


def test_lines_with_words_are_spread_over_the_text(tmp_path: Path) -> None:
    from speed import Texts

    for language in ("en", "de", "fr"):
        lines = "".join(f"{language} {number}\n" for number in range(10))
        (tmp_path / language).write_text(f"{'' if language == 'en' else 'none'}\n{lines}")
    text, *references = (tmp_path / language for language in ("en", "de", "fr"))
    texts = Texts.read(text, references, 4)
    assert texts.source == ["en 0", "en 2", "en 5", "en 7"]
    assert texts.references == [[f"{one} {n}" for n in (0, 2, 5, 7)] for one in ("de", "fr")]
    assert len(Texts.read(text, [], 99).source) == 10
    (tmp_path / "empty").write_text("\n \n")
    for bad in ("empty", "missing"):
        with pytest.raises(InputError, match=bad):
            Texts.read(tmp_path / bad, [], 4)


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
