"""Choice of settings and count of work in comparisons."""

from __future__ import annotations

import argparse
from pathlib import Path

from translate_trt.train.config import ModelConfig


def test_each_stage_starts_from_the_best_setting_of_the_last() -> None:
    from comparison import best_setting
    from systems import Setting

    asked = []

    def measure(setting: Setting) -> float:
        asked.append((setting.workers, setting.threads, setting.batch_tokens))
        return 10 * setting.workers - abs(setting.batch_tokens - 2048) / 1000

    stages = [
        [{"workers": 1, "threads": 2}, {"workers": 2, "threads": 1}],
        [{"batch_tokens": 1024}, {"batch_tokens": 2048}, {"batch_tokens": 4096}],
    ]
    best, trials = best_setting(Setting("ctranslate2"), stages, measure)
    assert asked == [(1, 2, 512), (2, 1, 512), (2, 1, 1024), (2, 1, 2048), (2, 1, 4096)]
    assert (best.workers, best.threads, best.batch_tokens) == (2, 1, 2048)
    assert [trial.figure for trial in trials] == [measure(trial.setting) for trial in trials]


def test_the_first_of_settings_within_noise_is_chosen() -> None:
    from comparison import best_setting
    from systems import Setting

    figures = {256: 90.0, 512: 98.0, 1024: 100.0}
    stages = [[{"batch_tokens": size} for size in figures]]
    best, trials = best_setting(
        Setting("ctranslate2"), stages, lambda setting: figures[setting.batch_tokens]
    )
    assert best.batch_tokens == 512
    assert [trial.figure for trial in trials] == list(figures.values())
    best, _ = best_setting(
        Setting("ctranslate2"), stages, lambda setting: -1 / figures[setting.batch_tokens]
    )
    assert best.batch_tokens == 512


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


def test_work_of_one_sentence_by_hand() -> None:
    from roofline import Peaks, work

    config = ModelConfig(
        vocabulary_size=10, d_model=4, d_ff=8, heads=2, encoder_layers=1, decoder_layers=2
    )
    found = work(config, "int8", [2], [1], beams=3, batch_tokens=100)
    encoder, cross = 4 * 16 + 2 * 32, 2 * 2 * 16
    decoder = 2 * (6 * 16 + 2 * 32) + 40
    assert found.matmuls == 2 * 3 * (encoder + cross) + 2 * 3 * 2 * decoder
    # Two steps look at 1 and 2 of their own positions and at 3 of the source each.
    assert found.attention == 2 * 8 * (1 * 9 + 2 * 3 * (3 + 6))
    caches = 4 * 8 * 2 * (3 * 3 + 2 * 3)
    assert found.bytes == encoder + cross + 2 * decoder + caches
    more = work(config, "fp32", [2], [1], beams=3, batch_tokens=100)
    assert more.bytes - caches == 4 * (found.bytes - caches)
    assert found.seconds("int8", Peaks(1e3, 1e9, 1e9)) > found.matmuls / 1e3
    assert found.seconds("int8", Peaks(1e9, 1e9, 10.0)) == found.bytes / 10


def test_a_recurrent_decoder_has_less_work() -> None:
    from roofline import work

    config = ModelConfig(
        vocabulary_size=10, d_model=4, d_ff=8, heads=2, encoder_layers=1, decoder_layers=2,
        decoder_mixer="ssru", decoder_d_ff=6,
    )  # fmt: skip
    found = work(config, "int8", [2], [1], beams=3, batch_tokens=100)
    encoder, cross = 4 * 16 + 2 * 32, 2 * 2 * 16
    decoder = 2 * (4 * 16 + 2 * 24) + 40
    assert found.matmuls == 2 * 3 * (encoder + cross) + 2 * 3 * 2 * decoder
    assert found.attention == 2 * 8 * (1 * 9 + 2 * 3 * 6)


def test_two_sentences_of_a_batch_read_the_weights_once() -> None:
    from roofline import work

    config = ModelConfig(
        vocabulary_size=10, d_model=4, d_ff=8, heads=2, encoder_layers=1, decoder_layers=2
    )
    alone = work(config, "int8", [2, 2], [3, 1], beams=3, batch_tokens=8)
    together = work(config, "int8", [2, 2], [3, 1], beams=3, batch_tokens=100)
    assert together.matmuls == alone.matmuls
    assert together.bytes < alone.bytes


def test_points_of_growth_are_cut_from_the_test_set() -> None:
    from scaling import BATCHES, LENGTHS, batch_points, length_points

    sources = [[number] * number for number in range(1, 30)]
    batches = batch_points(sources)
    assert [len(batches[size]) for size in BATCHES] == list(BATCHES)
    assert batches[4] == [[15] * 15, [14] * 14, [16] * 16, [13] * 13]
    lengths = length_points(sources)
    assert [[len(source) for source in lengths[length]] for length in LENGTHS] == [
        [length] for length in LENGTHS
    ]
