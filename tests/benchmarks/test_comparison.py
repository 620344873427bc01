"""Choice of settings and lines in comparisons."""

from __future__ import annotations

import argparse
from pathlib import Path


def test_all_lines_decide_among_the_best_of_some_lines() -> None:
    from comparison import best_setting
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
    from comparison import test_set

    for language in ("en", "de"):
        lines = "".join(f"{language} {number}\n" for number in range(10))
        (tmp_path / language).write_text(lines)
    given = argparse.Namespace(source=tmp_path / "en", reference=tmp_path / "de", lines=4)
    texts = test_set(given)
    assert texts.source == ["en 0", "en 2", "en 5", "en 7"]
    assert texts.reference == ["de 0", "de 2", "de 5", "de 7"]
    given.lines = 99
    assert len(test_set(given).source) == 10
