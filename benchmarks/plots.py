"""Plots of growth (SVG), from the JSON of benchmarks/scaling.py and benchmarks/serving.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from harness import RESULTS
from serving import RUNTIME

PLOT_DIRECTORY = RESULTS.parent.parent / "docs" / "plots"


class Plot(NamedTuple):
    """A plot: the growth that it shows, and its axes."""

    growth: str
    across: str
    up: str


PLOTS = {
    "throughput-batch": Plot("batch", "sentences in the batch", "target tokens/s"),
    "latency-length": Plot("length", "source tokens", "ms per sentence"),
    "throughput-threads": Plot("threads", "threads", "target tokens/s"),
    "memory-batch": Plot("batch", "sentences in the batch", "peak memory, MiB"),
    "memory-length": Plot("length", "source tokens", "peak memory, MiB"),
}


def height(unit: str, point: dict[str, Any], seconds: float) -> float:
    """What a plot shows of a point that took that long."""
    if unit.startswith("peak"):
        return float(point["memory"]) / 2**20
    return point["target_tokens"] / seconds if "/s" in unit else 1e3 * seconds


def pyplot(report: dict[str, Any], directory: Path) -> Any:
    """matplotlib's, for SVG files in the directory, which is made."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = report["date"]  # the same file from the same numbers
    directory.mkdir(parents=True, exist_ok=True)
    return plt


def plot_scaling(report: dict[str, Any], directory: Path) -> None:
    """One SVG for each of PLOTS."""
    plt = pyplot(report, directory)
    for name, (growth, across, up) in ((n, p) for n, p in PLOTS.items()):
        figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
        for label, points in report["results"][growth].items():
            numbers = [int(number) for number in points]
            values = [height(up, point, point["seconds"][0]) for point in points.values()]
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


def plot_serving(report: dict[str, Any], directory: Path) -> None:
    """Throughput and latency against the number of clients."""
    plt = pyplot(report, directory)
    results = dict(report["results"])
    alone = results.pop(RUNTIME)["sentences_per_second"][0]
    clients = [int(count) for count in results]
    figure, (speed, latency) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    speeds = [found["sentences_per_second"][0] for found in results.values()]
    speed.plot(clients, speeds, marker="o", markersize=3, label="server")
    speed.axhline(alone, linestyle=":", linewidth=1, color="black", label=RUNTIME)
    speed.set(ylabel="sentences/s", ylim=(0, None))
    found = [one["milliseconds"] for one in results.values()]
    for name, milliseconds in zip(("p50", "p95", "p99"), zip(*found, strict=True), strict=True):
        latency.plot(clients, milliseconds, marker="o", markersize=3, label=name)
    latency.set(ylabel="ms per request")
    latency.set_yscale("log", base=2)
    latency.yaxis.set_major_formatter("{x:g}")
    for axes in (speed, latency):
        axes.set(xlabel="clients")
        axes.set_xscale("log", base=2)
        axes.set_xticks(clients, list(map(str, clients)))
        axes.legend(fontsize="small")
    figure.savefig(directory / "serving-clients.svg", metadata={"Date": None})
    plt.close(figure)
