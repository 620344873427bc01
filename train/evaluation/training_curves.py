"""Training curves: loss, BLEU and chrF, learning rate and speed by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import StrMethodFormatter

from translate_trt.runtime.errors import InputError
from translate_trt.train.evaluation.pictures import Colour, colours, legend_columns, plain_axes
from translate_trt.train.trainer.metrics import METRICS, read_metrics, scalars

_WIDTH = 12.0  # inches


class Curve(NamedTuple):
    """Values of a metric by step."""

    steps: list[int]
    values: list[float]


@dataclass(frozen=True)
class Run:
    """Recorded metrics of a training run.

    Attributes:
        name: Name in the legend.
        curves: Curves by the names of `metrics.scalars`: `train/loss`, `validation/bleu`.
    """

    name: str
    curves: dict[str, Curve]


class _Line(NamedTuple):
    """Curve of a panel: its name, its label in the panel's legend, and its style."""

    curve: str
    label: str
    style: Literal["-", "--", ":", ""] = "-"
    marker: str = ""
    sign: int = 1


class _Panel(NamedTuple):
    title: str
    unit: str
    lines: tuple[_Line, ...]
    from_zero: bool = True
    number_format: str = ""  # tick labels of the y-axis; empty for matplotlib's default


# The training loss includes label smoothing, the validation loss does not. The training steps'
# negative log-likelihood, which is comparable with the validation loss, is therefore drawn too.
_PANELS = (
    _Panel(
        "loss",
        "nats per target token",
        (
            _Line("train/loss", "training, with label smoothing"),
            _Line("train/log_likelihood", "training, without it", ":", sign=-1),
            _Line("validation/loss", "validation, without it", "--", "."),
            _Line("averaged/loss", "averaged checkpoint", "", "*"),
        ),
        from_zero=False,
    ),
    _Panel(
        "validation BLEU and chrF",
        "score, greedy search",
        (
            _Line("validation/bleu", "BLEU", "--", "."),
            _Line("validation/chrf", "chrF", ":", "."),
            _Line("averaged/bleu", "BLEU, averaged checkpoint", "", "*"),
            _Line("averaged/chrf", "chrF, averaged checkpoint", "", "P"),
            _Line("validation/f1", "F1 of trees", "", "."),
            _Line("averaged/f1", "F1 of trees, averaged checkpoint", "", "X"),
        ),
    ),
    _Panel("learning rate", "learning rate", (_Line("train/learning_rate", "training"),)),
    _Panel(
        "speed",
        "target tokens per second",
        (_Line("train/target_tokens_per_second", "training"),),
        number_format="{x:,.0f}",
    ),
)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read the curves of runs, named by their directories, or by their paths if ambiguous.

    Raises:
        InputError: A run has no readable metrics.
    """
    names = [path.name or path.resolve().name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    return [Run(name, _read_curves(path)) for name, path in zip(names, paths, strict=True)]


def _read_curves(run: Path) -> dict[str, Curve]:
    if not (run / METRICS).is_file():
        raise InputError(
            f"{run} has no {METRICS}; give the --output directory of `translate-trt train`."
        )
    found: dict[str, Curve] = {}
    for entry in read_metrics(run):
        for name, value in scalars(entry):
            curve = found.setdefault(name, Curve([], []))
            curve.steps.append(entry["step"])
            curve.values.append(value)
    if not found:
        raise InputError(
            f"{run / METRICS} has no numbers yet; the first are written after --log-every steps."
        )
    return found


def draw_curves(runs: Sequence[Run]) -> Figure:
    """Draw four panels with the curves of all runs, each run in a colour of its own."""
    names = [run.name for run in runs]
    columns = legend_columns(names, _WIDTH)
    height = 8 + 0.25 * -(-len(runs) // columns)  # with the rows of the legend
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    of_run = colours(len(runs))
    grid = figure.subplots(2, 2, sharex=True)
    for axes, panel in zip(grid.flat, _PANELS, strict=True):
        _draw_panel(axes, panel, runs, of_run)
    for axes in grid[1]:
        axes.set_xlabel("step")
    handles = [Line2D([], [], color=colour) for colour in of_run]
    legend = figure.legend(handles, names, loc="outside upper center", ncols=columns, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)  # names may contain dollar signs
    return figure


def _draw_panel(axes: Axes, panel: _Panel, runs: Sequence[Run], of_run: Sequence[Colour]) -> None:
    axes.set_title(panel.title)
    axes.set_ylabel(panel.unit)
    plain_axes(axes)
    drawn = [line for line in panel.lines if any(line.curve in run.curves for run in runs)]
    for run, colour in zip(runs, of_run, strict=True):
        for line in drawn:
            if line.curve in run.curves:
                steps, values = run.curves[line.curve]
                # A single point is invisible without a marker.
                marker = line.marker or ("." if len(steps) == 1 else "")
                signed = [line.sign * value for value in values]
                axes.plot(steps, signed, color=colour, linestyle=line.style, marker=marker)
    if not drawn:
        axes.text(0.5, 0.5, "no numbers", transform=axes.transAxes, ha="center", color="gray")
    elif panel.from_zero:
        axes.set_ylim(bottom=0)
    if panel.number_format:
        axes.yaxis.set_major_formatter(StrMethodFormatter(panel.number_format))
    if len(panel.lines) > 1 and drawn:
        styles = [
            Line2D(
                [], [], color="black", linestyle=line.style, marker=line.marker, label=line.label
            )
            for line in drawn
        ]
        axes.legend(handles=styles, frameon=False)
