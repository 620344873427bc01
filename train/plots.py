"""Pictures: the curves of a run, and where a model looks."""

from __future__ import annotations

import logging
import secrets
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from translate_trt.runtime.errors import InputError, OptionError, OutputError
from translate_trt.runtime.files import output_error
from translate_trt.train.metrics import METRICS, read_metrics

log = logging.getLogger("translate_trt")

# (title, label of the axis, where the numbers are in an entry).
PANELS: tuple[tuple[str, str, tuple[tuple[str, ...], ...]], ...] = (
    ("loss", "nats per token", (("loss",), ("validation", "loss"))),
    ("validation BLEU, greedy", "BLEU", (("validation", "bleu"),)),
    ("learning rate", "", (("learning_rate",),)),
    ("speed", "target tokens per second", (("target_tokens_per_second",),)),
)
FORMATS = (".png", ".pdf", ".svg")
# Of the words of a sentence, so that the pieces of a line can still be read.
MOST_PIECES = 60


def draw_curves(runs: Sequence[Path]) -> Figure:
    """Loss, BLEU, learning rate and speed of runs against their steps.

    The training loss is smoothed, since the target is; the validation loss is not, and lower. The
    last validation is that of the averaged checkpoints.

    Raises:
        InputError: a directory has no metrics.
    """
    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    for index, run in enumerate(runs):
        entries = read_metrics(run)
        if not entries:
            raise InputError(
                f"{run} has no {METRICS} with a step in it; give the --out directory of "
                "`translate-trt train`."
            )
        for panel, (title, label, keys) in zip(axes.flat, PANELS, strict=True):
            panel.set(title=title, xlabel="step", ylabel=label)
            panel.grid(visible=True, alpha=0.3)
            for key in keys:
                steps, values = curve(entries, key)
                measured_now_and_then = len(key) > 1
                kind = " (validation)" if measured_now_and_then and len(keys) > 1 else ""
                style = "o--" if measured_now_and_then else "-"
                panel.plot(steps, values, style, color=f"C{index}", label=f"{run.name}{kind}")
    for panel in axes.flat:
        panel.legend()
    return figure


def curve(entries: list[dict[str, Any]], key: tuple[str, ...]) -> tuple[list[int], list[float]]:
    """Steps and values of the entries that have that number; the average counts as validated."""
    steps, values = [], []
    for entry in entries:
        value: Any = {"validation": entry.get("averaged"), **entry}
        for name in key:
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            steps.append(entry["step"])
            values.append(float(value))
    return steps, values


def draw_lines(
    queries: Sequence[str], keys: Sequence[str], weights: NDArray[np.float32], title: str
) -> Figure:
    """Attention as in the paper's appendix: a line from each piece to those it looks at.

    Args:
        queries: T pieces, on the left.
        keys: S pieces, on the right.
        weights: [H, T, S]; a head has a colour, a weight is how solid its line is.
        title: above it.
    """
    rows = max(len(queries), len(keys))
    figure = Figure(figsize=(7, 1.2 + 0.28 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_title(title)
    axes.set(xlim=(-0.45, 1.45), ylim=(rows - 0.5, -0.5))
    axes.axis("off")
    for x, pieces, side in ((0.0, queries, "right"), (1.0, keys, "left")):
        for y, piece in enumerate(pieces):
            place = x - 0.02 if side == "right" else x + 0.02
            axes.text(place, y, piece, ha=side, va="center", parse_math=False)
    for head, (matrix, color) in enumerate(zip(weights, _colors(len(weights)), strict=True)):
        for (t, s), weight in np.ndenumerate(matrix):
            if weight >= 0.01:  # fainter ones cannot be seen
                axes.plot(
                    [0, 1], [t, s], color=color, alpha=float(weight), linewidth=2, gid=f"head{head}"
                )
    return figure


def draw_matrices(
    queries: Sequence[str], keys: Sequence[str], weights: NDArray[np.float32], title: str
) -> Figure:
    """The same as one heat map per head: queries downwards, keys to the right."""
    heads = len(weights)
    columns = min(4, heads)
    lines = -(-heads // columns)
    size = 1.5 + 0.22 * max(len(queries), len(keys))
    figure = Figure(figsize=(size * columns, size * lines + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    grid = figure.subplots(lines, columns, squeeze=False)
    for head, axes in enumerate(grid.flat):
        if head >= heads:
            axes.axis("off")
            continue
        _matrix(axes, queries, keys, weights[head])
        if heads > 1:
            axes.set_title(f"head {head + 1}")
    return figure


def _matrix(
    axes: Axes, queries: Sequence[str], keys: Sequence[str], matrix: NDArray[np.float32]
) -> None:
    axes.imshow(matrix, vmin=0, vmax=1, cmap="viridis")
    axes.set_xticks(range(len(keys)), keys, rotation=90, fontsize=8, parse_math=False)
    axes.set_yticks(range(len(queries)), queries, fontsize=8, parse_math=False)


def _colors(count: int) -> list[Any]:
    """As many colours as heads, told apart as well as they can be."""
    if count <= 10:
        return [f"C{index}" for index in range(count)]
    return [colormaps["hsv"](index / count) for index in range(count)]


def save_figure(figure: Figure, path: Path, force: bool = False) -> None:
    """Write the picture, whole or not at all, in the format of the file's ending.

    Raises:
        OptionError: an ending that is none of FORMATS.
        OutputError: the file exists and `force` is not given, or cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise OptionError(f"{path}: the file's ending says the format; {', '.join(FORMATS)}.")
    if path.exists() and not force:
        raise OutputError(f"{path} exists; choose another --out or add --force.")
    partial = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            figure.savefig(partial, dpi=150)
        if any("missing from font" in str(warning.message) for warning in caught):
            log.warning("the font lacks some characters of the text; they are drawn as boxes")
        partial.replace(path)
    except OSError as error:
        raise output_error(path, error) from error
    finally:
        partial.unlink(missing_ok=True)
