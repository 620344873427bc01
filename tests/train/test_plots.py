"""Pictures are tested by what is drawn in them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from translate_trt.runtime.errors import InputError, OptionError, OutputError
from translate_trt.train.plots import draw_curves, draw_lines, draw_matrices, save_figure

ENTRIES = [
    {"step": 10, "epoch": 1, "loss": 5.0, "learning_rate": 1e-4, "target_tokens_per_second": 100.0},
    {"step": 10, "validation": {"loss": 4.5, "bleu": 1.5}},
    {"step": 20, "epoch": 1, "loss": 4.0, "learning_rate": 2e-4, "target_tokens_per_second": 90.0},
    {"step": 20, "averaged": {"loss": 3.5, "bleu": 7.5}},
]


def write_run(path: Path, scale: float = 1.0) -> Path:
    path.mkdir()
    entries = [
        {**entry, "loss": entry["loss"] * scale} if "loss" in entry else entry for entry in ENTRIES
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_the_curves_are_the_runs_metrics(tmp_path: Path) -> None:
    figure = draw_curves([write_run(tmp_path / "one"), write_run(tmp_path / "other", 2.0)])
    drawn = {
        (axes.get_title(), line.get_label()): [tuple(p) for p in line.get_xydata().tolist()]
        for axes in figure.axes
        for line in axes.lines
    }
    assert drawn["loss", "one"] == [(10, 5.0), (20, 4.0)]
    assert drawn["loss", "other"] == [(10, 10.0), (20, 8.0)]
    assert drawn["loss", "one (validation)"] == [(10, 4.5), (20, 3.5)]
    assert drawn["validation BLEU, greedy", "one"] == [(10, 1.5), (20, 7.5)]
    assert drawn["learning rate", "one"] == [(10, 1e-4), (20, 2e-4)]
    assert drawn["speed", "other"] == [(10, 100.0), (20, 90.0)]
    assert len(drawn) == 2 * 5
    save_figure(figure, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("text", [None, "", '{"step": 1, "lo'])
def test_a_run_without_metrics_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(InputError, match=r"has no metrics\.jsonl with a step"):
        draw_curves([tmp_path])


def test_a_picture_is_not_replaced_unasked(tmp_path: Path) -> None:
    figure = draw_curves([write_run(tmp_path / "run")])
    path = tmp_path / "curves.svg"
    path.write_text("mine")
    with pytest.raises(OutputError, match="--force"):
        save_figure(figure, path)
    assert path.read_text() == "mine"
    save_figure(figure, path, force=True)
    assert "<svg" in path.read_text()
    with pytest.raises(OptionError, match=r"\.png, \.pdf, \.svg"):
        save_figure(figure, tmp_path / "curves.txt")
    with pytest.raises(OutputError, match="No such file"):
        save_figure(figure, tmp_path / "nowhere" / "curves.png")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curves.svg", "run"]


def test_lines_are_as_solid_as_weights() -> None:
    weights = np.array(
        [[[0.75, 0.25, 0.0], [0.005, 0.0, 0.995]], [[0, 1, 0], [0, 0, 1]]], np.float32
    )
    figure = draw_lines(["a", "b"], ["x", "y", "$z$"], weights, "title")
    (axes,) = figure.axes
    drawn = sorted(
        (line.get_gid(), *map(int, line.get_ydata()), round(float(line.get_alpha()), 3))
        for line in axes.lines
    )
    assert drawn == [
        ("head0", 0, 0, 0.75), ("head0", 0, 1, 0.25), ("head0", 1, 2, 0.995),
        ("head1", 0, 1, 1.0), ("head1", 1, 2, 1.0),
    ]  # fmt: skip
    assert len({line.get_color() for line in axes.lines}) == 2
    assert [text.get_text() for text in axes.texts] == ["a", "b", "x", "y", "$z$"]


def test_a_heat_map_per_head() -> None:
    weights = np.random.default_rng(0).random((5, 2, 3), np.float32)
    figure = draw_matrices(["a", "b"], ["x", "y", "z"], weights, "title")
    images = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert len(images) == 5
    for image, matrix in zip(images, weights, strict=True):
        np.testing.assert_array_equal(image, matrix)
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["x", "y", "z"]


def test_twenty_heads_have_twenty_colours() -> None:
    figure = draw_lines(["a"], ["x"], np.ones((20, 1, 1), np.float32), "title")
    assert len({line.get_color() for line in figure.axes[0].lines}) == 20


def test_characters_that_the_font_lacks_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    figure = draw_lines(["猫", "$"], ["\U0001f600"], np.ones((1, 2, 1), np.float32), "title")
    with caplog.at_level(logging.WARNING, logger="translate_trt"):
        save_figure(figure, tmp_path / "a.png")
    assert caplog.text.count("the font lacks some characters") == 1
    assert (tmp_path / "a.png").stat().st_size > 1000
