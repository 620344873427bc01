"""Plots of docs/plots (SVG), each from one report."""

from __future__ import annotations

import io
import itertools
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from derived import has_table3, table3_rows
from harness import ROOT

from translate_trt.train.evaluation.pictures import INK, PALETTE, plain_axes

DIRECTORY = ROOT / "docs/plots"
_FONTS = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
#: Inches between the labels of two lines that end at the same height.
_LINE_HEIGHT = 0.17

Report = Mapping[str, Any]
Lines = Mapping[str, Sequence[tuple[float, float]]]  # points by label

#: Plots of a scaling report by file: part of the report, title, quantities across and up.
SCALING = {
    "throughput-batch": ("batch", "Throughput by batch size: higher is better",
                         "sentences in the batch", "target tokens/s"),
    "latency-length": ("length", "Latency of one sentence by its length: lower is better",
                       "source tokens", "ms per sentence"),
    "throughput-threads": ("threads", "Throughput of a batch of 32 by threads: higher is better",
                           "threads", "target tokens/s"),
    "memory-batch": ("batch", "Peak memory by batch size: lower is better",
                     "sentences in the batch", "peak memory, MiB"),
    "memory-length": ("length", "Peak memory by the length of one sentence: lower is better",
                      "source tokens", "peak memory, MiB"),
}  # fmt: skip


def scaling(report: Report) -> None:
    """Draw one SVG for each of SCALING; dotted: the least time that the work can take."""

    def height(unit: str, point: Report, seconds: float) -> float:
        if unit.startswith("peak"):
            return float(point["memory"]) / 2**20
        return float(point["target_tokens"] / seconds if "/s" in unit else 1e3 * seconds)

    for name, (growth, title, across, up) in SCALING.items():
        figure = _figure(report, 6.6, 3.6)
        axes = figure.subplots()
        systems = report["results"][growth]
        numbers = [int(number) for number in next(iter(systems.values()))]
        ends = _draw_lines(axes, {
            label: [(n, height(up, point, point["seconds"][0]))
                    for n, point in zip(numbers, points.values(), strict=True)]
            for label, points in systems.items()
        })  # fmt: skip
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
        _save(figure, name)


#: Panels of a comparison: title, what is better, and the figure of a system.
PANELS: tuple[tuple[str, str, Callable[[Any], float]], ...] = (
    ("tokens per second", "higher", lambda one: one["target_tokens"] / one["seconds"][0]),
    ("one sentence, ms", "lower", lambda one: one["milliseconds"][0]),
    ("peak memory, MiB", "lower", lambda one: one["memory"] / 2**20),
    ("start, s", "lower", lambda one: one["start"][0]),
    ("installed, MB", "lower", lambda one: one["installed_bytes"] / 1e6),
)


def side_by_side(report: Report, path: Path | None = None) -> None:
    """Draw bars of every system, a panel for each figure; ours have a colour."""
    systems = report["results"]["systems"]
    labels = list(systems)
    colours = [PALETTE[0] if one.startswith("translate-trt") else f"{INK}88" for one in labels]
    figure = _figure(report, 11.5, 0.75 + 0.3 * len(labels))
    for axes, (title, better, height) in zip(
        figure.subplots(1, len(PANELS), sharey=True), PANELS, strict=True
    ):
        values = [height(one) for one in systems.values()]
        bars = axes.barh(labels, values, color=colours, height=0.68)
        texts = [f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}" for value in values]
        axes.bar_label(bars, texts, padding=3, color=INK, fontsize="small")
        axes.set_title(title, loc="left", fontsize="medium", color=INK, pad=16)
        axes.text(0, 1.02, f"{better} is better", transform=axes.transAxes, color=INK,
                  fontsize="x-small", va="bottom")  # fmt: skip
        _plain(axes)
        axes.set_xlim(0, 1.32 * max(values))
        axes.xaxis.set_visible(False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
    axes.invert_yaxis()  # of all panels: the first system is on top
    _save(figure, report["benchmark"], path)


def serving(report: Report) -> None:
    """Draw throughput and latency of a server against the number of clients."""
    results = dict(report["results"])
    alone = results.pop("runtime alone")["sentences_per_second"][0]
    clients = [int(count) for count in results]
    figure = _figure(report, 10, 3.6)
    speed, latency = figure.subplots(1, 2)
    speeds = [found["sentences_per_second"][0] for found in results.values()]
    ends = _draw_lines(speed, {"server": list(zip(clients, speeds, strict=True))})
    speed.axhline(alone, linestyle=":", linewidth=1.5, color=INK)
    speed.set(xlabel="clients", ylabel="sentences/s", ylim=(0, None))
    speed.set_title("Throughput of the server by clients", loc="left", fontsize="medium", color=INK)
    _doubling(speed, clients)
    _label_ends(speed, clients[-1], [*ends, (alone, "runtime, one call", INK)])
    found = zip(*(one["milliseconds"] for one in results.values()), strict=True)
    ends = _draw_lines(latency, {
        name: list(zip(clients, values, strict=True))
        for name, values in zip(("p50", "p95", "p99"), found, strict=True)
    })  # fmt: skip
    latency.set(xlabel="clients", ylabel="ms per request")
    latency.set_title("Latency of a request by clients", loc="left", fontsize="medium", color=INK)
    _doubling(latency, clients)
    _logarithmic(latency)
    _label_ends(latency, clients[-1], ends)
    _save(figure, "serving-clients")


def front(report: Report) -> None:
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
            grid[row], (("words_per_second", "words/s"), ("milliseconds", "ms per sentence")),
            strict=True,
        ):  # fmt: skip
            for (system, target), rows in targets.items():
                points = sorted((one[speed], one[quality]) for one in rows)
                colour = PALETTE[sizes.index(systems[system]["size"])]
                axes.plot(
                    *zip(*points, strict=True), color=colour, linewidth=1, markersize=5,
                    marker="o" if systems[system]["decoder"] == "ssru" else "s",
                    markerfacecolor=colour if target.endswith("shortlist") else "none",
                )  # fmt: skip
            _plain(axes)
            _logarithmic(axes, "x")
            if row == 1:
                axes.set_xlabel(unit)
        grid[row][0].set_ylabel(name)
    lines = [_line(color=colour, linewidth=2, label=size)
             for colour, size in zip(PALETTE, sizes, strict=False)]  # fmt: skip
    for marker, decoder in (("o", "SSRU"), ("s", "self-attention")):
        for face, ending in ((INK, ", shortlist"), ("none", "")):
            lines.append(_line(color=INK, linestyle="", marker=marker, label=decoder + ending,
                               markerfacecolor=face))  # fmt: skip
    _legend(figure, lines, 4)
    _save(figure, "front")


def table3(report: Report) -> None:
    """Draw the differences of Table 3's rows from base, ours beside the paper's."""
    if not has_table3(report):
        return
    plain, *rows = table3_rows(report)
    figure = _figure(report, 10, 5.6)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, ours, papers, label in (
        (panels[0], "tokenized", [row.papers_difference for row in rows], "tokenized BLEU: higher"),
        (panels[1], "loss", [row.papers_loss - plain.papers_loss for row in rows],
         "log-perplexity: lower"),
    ):  # fmt: skip
        base = statistics.mean(getattr(plain, ours))
        for height, row in enumerate(rows):
            values = [value - base for value in getattr(row, ours)]
            axes.plot([min(values), max(values)], [height] * 2, color=PALETTE[0], linewidth=1.5)
            axes.plot(statistics.mean(values), height, "o", color=PALETTE[0], markersize=5)
        axes.plot(papers, range(len(rows)), "D", color=PALETTE[1], markerfacecolor="none")
        _plain(axes)
        axes.axvline(0, color=INK, linewidth=1)
        axes.set(xlabel=f"difference from base in {label} is better", ylim=(len(rows) - 0.5, -0.5))
    panels[0].set_yticks(range(len(rows)), [f"({row.paper.group}) {row.name}" for row in rows])
    _legend(
        figure,
        [_line(color=PALETTE[0], marker="o", label="ours: mean and range of the seeds"),
         _line(color=PALETTE[1], linestyle="", marker="D", markerfacecolor="none",
               label="the paper's")],
    )  # fmt: skip
    _save(figure, report["benchmark"])


def parsers(report: Report) -> None:
    """Draw the F1 of greedy search on dev by steps of training, for each number of trees."""
    found = {f"{one['trees']:,} trees": one["validations"] for one in report["results"]["parsers"]}
    lines = {name: [(x["step"], x["f1"]) for x in points] for name, points in found.items()}
    _draw_curves(report, {"F1 with gold tags, dev": lines}, "steps", (0, 100))


def recipes(report: Report) -> None:
    """Draw loss and BLEU of validations by tokens of training, for each recipe."""
    panels: dict[str, dict[str, Any]] = {"loss": {}, "bleu": {}}
    for name, one in report["results"].items():
        batch = (report["settings"] | one["changes"])["batch-tokens"] / 1e6
        points = [point for point in one["validation"] if point["kind"] == "validation"]
        for metric, lines in panels.items():
            lines[name] = [(point["step"] * batch, point[metric]) for point in points]
    _draw_curves(report, panels, "million tokens of each side, padding included")


# ---- parts ----


def _draw_lines(axes: Any, lines: Lines) -> list[tuple[float, str, str]]:
    """Draw lines of points; return height, label and colour of their ends."""
    ends = []
    for (label, points), colour in zip(lines.items(), itertools.cycle(PALETTE), strict=False):
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3.5, color=colour)
        ends.append((points[-1][1], label, colour))
    return ends


def _draw_curves(report: Report, panels: Mapping[str, Lines], x: str, limits: Any = None) -> None:
    """Draw lines in a panel for each quantity, and save the figure."""
    figure = _figure(report, 7 * len(panels), 4)
    grid = figure.subplots(1, len(panels), squeeze=False)
    for axes, (up, lines) in zip(grid[0], panels.items(), strict=True):
        ends = _draw_lines(axes, lines)
        axes.set(xlabel=x, ylabel=up, ylim=limits)
        _label_ends(axes, max(axes.get_xlim()), ends)
    _save(figure, report["benchmark"])


def _figure(report: Report, width: float, height: float) -> Any:
    """Return an empty figure on a transparent background."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = report["date"]  # the same file from the same numbers
    mpl.rcParams["svg.fonttype"] = "none"
    return Figure(figsize=(width, height), layout="constrained", facecolor="none")


def _plain(axes: Any) -> None:
    plain_axes(axes, INK)
    axes.set_facecolor("none")


def _line(**style: Any) -> Any:
    """Return a sample of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **style)


def _legend(figure: Any, samples: Iterable[Any], columns: int = 3) -> None:
    figure.legend(
        handles=list(samples), loc="outside lower center", ncols=columns, frameon=False,
        labelcolor=INK, fontsize="small",
    )  # fmt: skip


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
    _plain(axes)
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


def _save(figure: Any, name: str, path: Path | None = None) -> None:
    """Write the figure, by default to DIRECTORY, with fonts of every browser and no date."""
    content = io.StringIO()
    figure.savefig(
        content, format="svg", metadata={"Date": None, "Creator": None}, transparent=True
    )
    text = re.sub(r"font-family: [^;\"]*", f"font-family: {_FONTS}", content.getvalue())
    (path or DIRECTORY / f"{name}.svg").write_text(text, encoding="utf-8")


#: Drawings by their name in tables.toml.
DRAWINGS: dict[str, Callable[[Report], None]] = {
    one.__name__: one for one in (scaling, side_by_side, serving, front, table3, parsers, recipes)
}
