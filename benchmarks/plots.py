"""Plots (SVG), from reports of scaling, serving, front, table3, layer_complexity and parsing."""

from __future__ import annotations

import io
import itertools
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import RESULTS
from layer_growth import TABLE1, curve
from serving import RUNTIME
from table3_rows import TableRow, error_of_differences, table3_rows

from translate_trt.train.evaluation.pictures import INK, PALETTE, plain_axes

PLOT_DIRECTORY = RESULTS.parent.parent / "docs" / "plots"

_FONTS = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
#: Inches between the labels of two lines that end at the same height.
_LINE_HEIGHT = 0.17


class Plot(NamedTuple):
    """A plot of one growth.

    Attributes:
        growth: Part of the report.
        title: Title.
        across: Quantity on the x-axis.
        up: Quantity on the y-axis, with its unit.
    """

    growth: str
    title: str
    across: str
    up: str


PLOTS = {
    "throughput-batch": Plot(
        "batch", "Throughput by batch size: higher is better",
        "sentences in the batch", "target tokens/s",
    ),
    "latency-length": Plot(
        "length", "Latency of one sentence by its length: lower is better",
        "source tokens", "ms per sentence",
    ),
    "throughput-threads": Plot(
        "threads", "Throughput of a batch of 32 by threads: higher is better",
        "threads", "target tokens/s",
    ),
    "memory-batch": Plot(
        "batch", "Peak memory by batch size: lower is better",
        "sentences in the batch", "peak memory, MiB",
    ),
    "memory-length": Plot(
        "length", "Peak memory by the length of one sentence: lower is better",
        "source tokens", "peak memory, MiB",
    ),
}  # fmt: skip


def height(unit: str, point: dict[str, Any], seconds: float) -> float:
    """Return a point's value on the y-axis, if it took that long."""
    if unit.startswith("peak"):
        return float(point["memory"]) / 2**20
    return float(point["target_tokens"] / seconds if "/s" in unit else 1e3 * seconds)


def plot_scaling(report: dict[str, Any], directory: Path) -> None:
    """Draw one SVG for each of PLOTS; dotted: the least time that the work can take."""
    for name, (growth, title, across, up) in PLOTS.items():
        figure = _figure(report, 6.6, 3.6)
        axes = figure.subplots()
        systems = report["results"][growth]
        numbers = [int(number) for number in next(iter(systems.values()))]
        ends = []
        for (label, points), colour in zip(systems.items(), PALETTE, strict=False):
            values = [height(up, point, point["seconds"][0]) for point in points.values()]
            axes.plot(numbers, values, marker="o", markersize=3.5, color=colour)
            ends.append((values[-1], label, colour))
        if not up.startswith("peak"):
            first = next(iter(systems.values())).values()
            limit = [height(up, point, point["least_seconds"]) for point in first]
            axes.plot(numbers, limit, ":", color=INK, linewidth=1.5)
            ends.append((limit[-1], "limit of the processor", INK))
        axes.set(xlabel=across, ylabel=up)
        axes.set_title(title, loc="left", fontsize="medium", color=INK)
        if growth == "length":
            axes.set_xlim(left=0)
        else:
            _doubling(axes, numbers)
        if "/s" in up:
            _logarithmic(axes)
        else:
            axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
            axes.yaxis.set_major_formatter("{x:,.0f}")
        _label_ends(axes, numbers[-1], ends)
        _save(figure, directory / f"{name}.svg")


def plot_serving(report: dict[str, Any], directory: Path) -> None:
    """Draw throughput and latency of a server against the number of clients."""
    results = dict(report["results"])
    alone = results.pop(RUNTIME)["sentences_per_second"][0]
    clients = [int(count) for count in results]
    figure = _figure(report, 10, 3.6)
    speed, latency = figure.subplots(1, 2)
    speeds = [found["sentences_per_second"][0] for found in results.values()]
    speed.plot(clients, speeds, marker="o", markersize=3.5, color=PALETTE[0])
    speed.axhline(alone, linestyle=":", linewidth=1.5, color=INK)
    speed.set(ylabel="sentences/s", ylim=(0, None))
    speed.set_title("Throughput of the server by clients", loc="left", fontsize="medium", color=INK)
    ends = [(speeds[-1], "server", PALETTE[0]), (alone, "runtime, one call", INK)]
    _doubling(speed, clients)
    _label_ends(speed, clients[-1], ends)
    ends = []
    found = [one["milliseconds"] for one in results.values()]
    for name, values, colour in zip(
        ("p50", "p95", "p99"), zip(*found, strict=True), PALETTE, strict=False
    ):
        latency.plot(clients, values, marker="o", markersize=3.5, color=colour)
        ends.append((values[-1], name, colour))
    latency.set(ylabel="ms per request")
    latency.set_title("Latency of a request by clients", loc="left", fontsize="medium", color=INK)
    _doubling(latency, clients)
    _logarithmic(latency)
    _label_ends(latency, clients[-1], ends)
    for axes in (speed, latency):
        axes.set(xlabel="clients")
    _save(figure, directory / "serving-clients.svg")


def plot_front(report: dict[str, Any], path: Path) -> None:
    """Draw BLEU and chrF against throughput and latency of a teacher and its students.

    A line joins the beam sizes of a target. Colours are sizes; of the markers, circles are SSRU
    decoders and squares self-attention, and filled ones have a shortlist.
    """
    results = report["results"]
    systems = results["systems"]
    sizes = list(dict.fromkeys(one["size"] for one in systems.values()))
    targets: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in results["rows"]:
        targets.setdefault((one["system"], one["target"]), []).append(one)
    figure = _figure(report, 10, 7)
    grid = figure.subplots(2, 2, sharey="row")
    for row, (quality, name) in enumerate((("bleu", "BLEU"), ("chrf", "chrF"))):
        for axes, (speed, unit) in zip(
            grid[row],
            (("words_per_second", "words/s"), ("milliseconds", "ms per sentence")),
            strict=True,
        ):
            for (system, target), rows in targets.items():
                points = sorted((one[speed], one[quality]) for one in rows)
                colour = PALETTE[sizes.index(systems[system]["size"])]
                axes.plot(
                    *zip(*points, strict=True), color=colour, linewidth=1, markersize=5,
                    marker="o" if systems[system]["decoder"] == "ssru" else "s",
                    markerfacecolor=colour if target.endswith("shortlist") else "none",
                )  # fmt: skip
            plain_axes(axes, INK)
            axes.set_facecolor("none")
            _logarithmic(axes, "x")
            if row == 1:
                axes.set_xlabel(unit)
        grid[row][0].set_ylabel(name)
    figure.legend(
        handles=list(_legend(sizes)), loc="outside lower center", ncols=4, frameon=False,
        labelcolor=INK, fontsize="small",
    )  # fmt: skip
    _save(figure, path)


def _legend(sizes: Sequence[str]) -> Iterator[Any]:
    """Create the samples of the legend."""
    from matplotlib.lines import Line2D

    for colour, size in zip(PALETTE, sizes, strict=False):
        yield Line2D([], [], color=colour, linewidth=2, label=size)
    for marker, filled, label in (
        ("o", True, "SSRU, shortlist"), ("o", False, "SSRU"),
        ("s", True, "self-attention, shortlist"), ("s", False, "self-attention"),
    ):  # fmt: skip
        yield Line2D(
            [], [], color=INK, linestyle="", marker=marker, label=label,
            markerfacecolor=INK if filled else "none",
        )  # fmt: skip


def plot_table3(report: dict[str, Any], path: Path) -> None:
    """Draw the differences of Table 3's rows from base, ours beside the paper's."""
    plain, *rows = table3_rows(report)
    figure = _figure(report, 10, 5.6)
    bleu, perplexity = figure.subplots(1, 2, sharey=True)
    base = statistics.mean(plain.tokenized), statistics.mean(plain.perplexity)

    def difference(value: float) -> float:
        return value - base[0]

    def percent(value: float) -> float:
        return 100 * (value / base[1] - 1)

    for axes, scaled, ours, papers in (
        (bleu, difference, "tokenized", [row.papers_difference for row in rows]),
        (perplexity, percent, "perplexity",
         [100 * (row.papers_relative_perplexity - 1) for row in rows]),
    ):  # fmt: skip
        _draw_differences(axes, scaled, [plain, *rows], ours)
        axes.plot(papers, range(len(rows)), "D", color=PALETTE[1], markerfacecolor="none")
        plain_axes(axes, INK)
        axes.set_facecolor("none")
        axes.axvline(0, color=INK, linewidth=1)
    names = [f"({row.paper.group}) {row.name}" for row in rows]
    bleu.set(
        xlabel="tokenized BLEU minus that of base: higher is better", ylim=(len(rows) - 0.5, -0.5)
    )
    bleu.set_yticks(range(len(rows)), names)
    perplexity.set(xlabel="perplexity relative to that of base, %: lower is better")
    figure.legend(
        handles=list(_table3_legend()), loc="outside lower center", ncols=3, frameon=False,
        labelcolor=INK, fontsize="small",
    )  # fmt: skip
    _save(figure, path)


def _draw_differences(
    axes: Any, scaled: Callable[[float], float], rows: Sequence[TableRow], figure: str
) -> None:
    """Draw mean and range of the seeds for each row but the first, and shade the error."""
    values_of_rows = [list(map(scaled, getattr(row, figure))) for row in rows]
    error = error_of_differences(values_of_rows)
    axes.axvspan(-error, error, color=INK, alpha=0.2, linewidth=0)
    for height, values in enumerate(values_of_rows[1:]):
        axes.plot([min(values), max(values)], [height, height], color=PALETTE[0], linewidth=1.5)
        axes.plot(statistics.mean(values), height, "o", color=PALETTE[0], markersize=5)


def _table3_legend() -> Iterator[Any]:
    """Create the samples of the legend of `plot_table3`."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    yield Line2D([], [], color=PALETTE[0], marker="o", label="ours: mean and range of the seeds")
    yield Line2D(
        [], [], color=PALETTE[1], linestyle="", marker="D", markerfacecolor="none",
        label="the paper's",
    )  # fmt: skip
    yield Patch(color=INK, alpha=0.2, label="ours: two standard errors")


def plot_layers(report: dict[str, Any], path: Path) -> None:
    """Draw time and memory of layers by length and width; dotted: the orders of Table 1."""
    settings = report["settings"]
    figure = _figure(report, 10, 7)
    grid = figure.subplots(2, 2, sharex="col", sharey="row")
    for column, (growth, across) in enumerate(
        (
            ("length", f"n, positions (d = {settings['width']})"),
            ("width", f"d, columns (n = {settings['length']:,})"),
        )
    ):
        for row, (figures, unit) in enumerate((("seconds", 1e3), ("peak_bytes", 2**-20))):
            axes = grid[row][column]
            for (layer, order), colour in zip(TABLE1.items(), PALETTE, strict=False):
                values = curve(report, growth, layer, "training", figures)
                sizes, heights = list(values), [unit * value for value in values.values()]
                axes.plot(sizes, heights, marker="o", markersize=3.5, color=colour)
                if figures == "seconds":
                    power = order.length if growth == "length" else order.width
                    expected = [heights[-1] * (size / sizes[-1]) ** power for size in sizes]
                    axes.plot(sizes, expected, ":", color=colour, linewidth=1.2)
            plain_axes(axes, INK)
            axes.set_facecolor("none")
            _doubling(axes, sizes)
            if row == 1:
                axes.set_xlabel(across)
        for axes in grid[:, column]:
            axes.set_yscale("log")
    grid[0][0].set_ylabel("ms, forward and backward")
    grid[1][0].set_ylabel("peak memory, MiB")
    figure.legend(
        handles=list(_layers_legend()), loc="outside lower center", ncols=3, frameon=False,
        labelcolor=INK, fontsize="small",
    )  # fmt: skip
    _save(figure, path)


def plot_parsers(report: dict[str, Any], path: Path) -> None:
    """Draw the F1 of greedy search on dev by steps of training, for each number of trees."""
    figure = _figure(report, 7, 4)
    axes = figure.subplots()
    ends = []
    for parser, colour in zip(report["results"]["parsers"], PALETTE, strict=False):
        steps = [one["step"] for one in parser["validations"]]
        scores = [one["f1"] for one in parser["validations"]]
        axes.plot(steps, scores, marker="o", markersize=3.5, color=colour)
        ends.append((scores[-1], f"{parser['trees']:,} trees", colour))
    axes.set_ylim(0, 100)
    axes.set_xlabel("steps")
    axes.set_ylabel("F1 with gold tags, dev")
    _label_ends(axes, max(axes.get_xlim()), ends)
    _save(figure, path)


def _layers_legend() -> Iterator[Any]:
    """Create the samples of the legend of `plot_layers`."""
    from matplotlib.lines import Line2D

    for layer, colour in zip(TABLE1, PALETTE, strict=False):
        yield Line2D([], [], color=colour, marker="o", markersize=3.5, label=layer)
    yield Line2D([], [], color=INK, linestyle=":", label="order of growth in Table 1")


def _figure(report: dict[str, Any], width: float, height: float) -> Any:
    """Return an empty figure on a transparent background."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = report["date"]  # the same file from the same numbers
    mpl.rcParams["svg.fonttype"] = "none"
    return Figure(figsize=(width, height), layout="constrained", facecolor="none")


def _doubling(axes: Any, numbers: Sequence[float]) -> None:
    """Show on the x-axis these numbers, each twice the one before, at equal distances."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_ticks(numbers, [f"{number:,g}" for number in numbers])
    axes.xaxis.set_ticks([], minor=True)


def _logarithmic(axes: Any, name: str = "y") -> None:
    """Show an axis logarithmically, with plain round numbers: 10, 20, 50, 100 ..."""
    axes.set(**{f"{name}scale": "log"})
    low, high = getattr(axes, f"get_{name}lim")()
    found = (digit * 10.0**power for power in range(-1, 7) for digit in (1, 2, 5))
    numbers = [number for number in found if low <= number <= high]
    axis = getattr(axes, f"{name}axis")
    axis.set_ticks(numbers, [f"{number:,g}" for number in numbers])
    axis.set_ticks([], minor=True)


def _label_ends(axes: Any, x: float, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write the name of each line beside its last point, apart from the other names."""
    plain_axes(axes, INK)
    axes.set_facecolor("none")
    figure = axes.figure
    figure.draw_without_rendering()  # the layout decides how far apart the ends are
    inches = axes.get_window_extent().height / figure.dpi
    points = axes.transData.transform([(x, y) for y, _, _ in ends])
    heights = sorted(
        zip((points[:, 1] - axes.get_window_extent().y0) / figure.dpi, ends, strict=True)
    )
    offsets = [offset for offset, _ in heights]
    for _ in range(100):  # neighbours push each other apart
        for below, above in itertools.pairwise(range(len(offsets))):
            missing = max(0.0, _LINE_HEIGHT - (offsets[above] - offsets[below]))
            offsets[below] -= missing / 2
            offsets[above] += missing / 2
    for offset, (_, (_, label, colour)) in zip(offsets, heights, strict=True):
        axes.annotate(
            label, (1.02, offset / inches), xycoords="axes fraction", color=colour,
            va="center", fontsize="small", annotation_clip=False,
        )  # fmt: skip


def _save(figure: Any, path: Path) -> None:
    """Write the figure with fonts that every browser has, and without a date."""
    content = io.StringIO()
    figure.savefig(
        content, format="svg", metadata={"Date": None, "Creator": None}, transparent=True
    )
    text = re.sub(r"font-family: [^;\"]*", f"font-family: {_FONTS}", content.getvalue())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
