"""Training curves: the figure has the values of metrics.jsonl."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from translate_trt.runtime.errors import InputError, OptionError, OutputError
from translate_trt.train.evaluation.pictures import FORMATS, check_picture, save_picture
from translate_trt.train.evaluation.training_curves import draw_curves, read_runs
from translate_trt.train.trainer.metrics import METRICS, read_metrics


def entries(first: float) -> list[dict[str, Any]]:
    """Metrics of a run, all different."""
    found: list[dict[str, Any]] = []
    for index in range(1, 5):
        step = 10 * index
        found.append(
            {
                "step": step,
                "epoch": 1,
                "loss": first - index,
                "log_likelihood": index - first + 0.5,
                "target_tokens_per_second": 1000.0 * first + step,
                "learning_rate": 1e-4 * first * index,
                "skipped_steps": 0,
            }
        )
        if index % 2 == 0:
            scores = {"loss": first - 0.1, "bleu": first + index, "chrf": 2 * first + index}
            found.append({"step": step, "validation": scores})
    scores = {"loss": first - 0.2, "bleu": first + 9, "chrf": 2 * first + 9}
    found.append({"step": 40, "averaged": scores})
    return found


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str, lines: list[dict[str, Any]]) -> Path:
        path = tmp_path / name
        path.mkdir(parents=True)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (path / METRICS).write_text(text, encoding="utf-8")
        return path

    return make


def points(axes: Axes) -> list[list[tuple[float, float]]]:
    return [[(x, y) for x, y in line.get_xydata().tolist()] for line in axes.get_lines()]


def panels(figure: Figure) -> dict[str, Axes]:
    return {axes.get_title(): axes for axes in figure.axes}


def test_the_curves_are_the_numbers_of_the_runs(make_run: Callable[..., Path]) -> None:
    paths = [make_run("one", entries(8.0)), make_run("two", entries(20.0))]
    figure = draw_curves(read_runs(paths))
    assert list(panels(figure)) == ["loss", "validation BLEU and chrF", "learning rate", "speed"]
    loss, bleu, rate, speed = (points(axes) for axes in figure.axes)
    for index, path in enumerate(paths):
        steps = [entry for entry in read_metrics(path) if "loss" in entry]
        checks = [entry for entry in read_metrics(path) if "validation" in entry]
        (last,) = (entry for entry in read_metrics(path) if "averaged" in entry)
        assert loss[4 * index : 4 * index + 4] == [
            [(entry["step"], entry["loss"]) for entry in steps],
            [(entry["step"], -entry["log_likelihood"]) for entry in steps],
            [(entry["step"], entry["validation"]["loss"]) for entry in checks],
            [(last["step"], last["averaged"]["loss"])],
        ]
        assert bleu[4 * index : 4 * index + 4] == [
            [(entry["step"], entry["validation"]["bleu"]) for entry in checks],
            [(entry["step"], entry["validation"]["chrf"]) for entry in checks],
            [(last["step"], last["averaged"]["bleu"])],
            [(last["step"], last["averaged"]["chrf"])],
        ]
        assert rate[index] == [(entry["step"], entry["learning_rate"]) for entry in steps]
        assert speed[index] == [
            (entry["step"], entry["target_tokens_per_second"]) for entry in steps
        ]
    assert [len(found) for found in (loss, bleu, rate, speed)] == [8, 8, 2, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "--output"),
        ("", "numbers yet"),
        ('{"step": 10, "loss": 1.0}\n{"step": 20, "loss": "low"}\n', "line 2 is damaged"),
    ],
)
def test_metrics_that_cannot_be_drawn(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / METRICS).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_runs([tmp_path])


def test_valid_paths_of_pictures(tmp_path: Path) -> None:
    (tmp_path / "there.png").write_bytes(b"old")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "run").mkdir()
    with pytest.raises(OptionError, match=r"must end in one of \.png, \.svg, \.pdf"):
        check_picture(tmp_path / "curves.jpeg", force=True)
    with pytest.raises(OutputError, match="--force"):
        check_picture(tmp_path / "there.png", force=False)
    with pytest.raises(OutputError, match="is a directory"):
        check_picture(tmp_path / "folder.png", force=True)
    with pytest.raises(OutputError, match="directory"):
        check_picture(tmp_path / "nowhere" / "curves.png", force=True)
    with pytest.raises(OutputError, match="picture"):
        check_picture(tmp_path / "there.png", force=True)
    with pytest.raises(OutputError, match="input"):
        check_picture(tmp_path / "run" / "curves.png", force=True, inputs=[tmp_path / "run"])
    for name in ("new.PNG", "new.svg", "new.pdf"):
        check_picture(tmp_path / name, force=False)
        save_picture(Figure(), tmp_path / name)
        check_picture(tmp_path / name, force=True)


@pytest.mark.parametrize("ending", FORMATS)
def test_the_same_figure_is_the_same_file(tmp_path: Path, ending: str) -> None:
    """A picture has neither dates nor random ids, so that a repository can keep it."""
    for name in ("one", "two"):
        figure = Figure()
        figure.subplots().plot([1, 2, 3])
        save_picture(figure, tmp_path / f"{name}{ending}")
    assert (tmp_path / f"one{ending}").read_bytes() == (tmp_path / f"two{ending}").read_bytes()
    assert b"<dc:date>" not in (tmp_path / f"one{ending}").read_bytes()
    assert b"CreationDate" not in (tmp_path / f"one{ending}").read_bytes()
