"""Plots of growth (SVG), from the JSON of benchmarks/scaling.py."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from report import RESULTS

PLOT_DIRECTORY = RESULTS.parent.parent / "docs" / "plots"

#: Of each plot: the growth it shows, its axes, and what a point's height is.
PLOTS: dict[str, tuple[str, str, str]] = {
    "throughput-batch": ("batch", "sentences in the batch", "target tokens/s"),
    "latency-length": ("length", "source tokens", "ms per sentence"),
    "throughput-threads": ("threads", "threads", "target tokens/s"),
    "memory-batch": ("batch", "sentences in the batch", "peak memory, MiB"),
    "memory-length": ("length", "source tokens", "peak memory, MiB"),
}


def height(unit: str, point: dict[str, Any], seconds: float) -> float:
    """What a plot shows of a point that took that long."""
    if unit.startswith("peak"):
        return float(point["memory"]) / 2**20
    return sum(point["tokens"]) / seconds if "/s" in unit else 1e3 * seconds


def plot(report: dict[str, Any], directory: Path) -> None:
    """One SVG for each of PLOTS."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = report["date"]  # the same file from the same numbers
    directory.mkdir(parents=True, exist_ok=True)
    for name, (growth, across, up) in PLOTS.items():
        figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
        for label, points in report["samples"][growth].items():
            numbers = [int(number) for number in points]
            values = [
                height(up, point, statistics.median(point["seconds"])) for point in points.values()
            ]
            (line,) = axes.plot(numbers, values, marker="o", markersize=3, label=label)
            if not up.startswith("peak"):
                limit = [height(up, point, point["least_seconds"]) for point in points.values()]
                axes.plot(numbers, limit, ":", color=line.get_color(), linewidth=1)
        axes.set(xlabel=across, ylabel=up)
        if growth != "length":
            axes.set_xscale("log", base=2)
        if "/s" in up:
            axes.set_yscale("log")
        axes.legend(fontsize="small")
        figure.savefig(directory / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)
