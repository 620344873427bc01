"""Tables of speed and memory beside peers, from the JSON of the comparisons."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from plots import PLOTS
from tables import table, where

Report = dict[str, Any]

PARTS = ("encode", "translate", "decode")  # of a translation, each timed


def percentiles(samples: dict[str, Any], parts: Sequence[str] = ("translate",)) -> list[float]:
    """p50, p95 and p99 over all rounds and sentences, in ms; those parts added up."""
    sums = [
        1e3 * sum(times)
        for one in samples["rounds"]
        for times in zip(*(one[part] for part in parts), strict=True)
    ]
    return [float(value) for value in np.percentile(sums, (50, 95, 99))]


def pair_ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> list[float]:
    """theirs / ours of every sentence in every round, sorted."""
    return sorted(
        b / a
        for one, other in zip(ours["rounds"], theirs["rounds"], strict=True)
        for a, b in zip(one["translate"], other["translate"], strict=True)
    )


def by_precision(report: Report) -> dict[str, dict[str, Any]]:
    """Systems by precision, then by label; ours is the first of each."""
    found: dict[str, dict[str, Any]] = {}
    for label, system in report["samples"]["systems"].items():
        found.setdefault(system["setting"]["precision"], {})[label] = system
    return found


def model_of(report: Report) -> str:
    """The shape in a few words."""
    model = report["settings"]["model"]
    return (
        f"{model['encoder_layers']}+{model['decoder_layers']} layers, d_model {model['d_model']}, "
        f"d_ff {model['d_ff']}, {model['heads']} heads, vocabulary {model['vocabulary_size']:,}"
    )


def cores_of(setting: dict[str, Any]) -> str:
    """How a system uses the cores."""
    return f"{setting['workers']} x {setting['threads']}"


def ratio(values: Sequence[float], low: float = 0.0, high: float = 1.0) -> str:
    """Median and, in brackets, two quantiles (by default the extremes)."""
    ordered = sorted(values)
    ends = (ordered[round(share * (len(ordered) - 1))] for share in (low, high))
    return "{:.2f} [{:.2f}, {:.2f}]".format(statistics.median(ordered), *ends)


def seconds(system: dict[str, Any], parts: Sequence[str]) -> list[float]:
    """Of each round, those parts added up."""
    return [sum(one[part] for part in parts) for one in system["rounds"]]


def throughput_table(systems: dict[str, Any]) -> str:
    """Of the systems of one precision."""
    ours = next(iter(systems.values()))
    rows = []
    for label, system in systems.items():
        translating = seconds(system, ("translate",))
        tokens, middle = sum(system["tokens"]), statistics.median(translating)
        pairs = zip(seconds(ours, ("translate",)), translating, strict=True)
        scale = tokens / sum(ours["tokens"])  # speeds are per token
        rows.append(
            [
                label,
                f"{tokens / middle:.0f}",
                f"{len(system['tokens']) / middle:.1f}",
                f"{tokens / statistics.median(seconds(system, PARTS)):.0f}",
                f"{system['bleu']:.2f}",
                f"{system['memory']['peak'] / 2**20:,.0f} MiB",
                cores_of(system["setting"]),
                f"{100 * system['roofline']:.0f} %",
                ratio([theirs / one / scale for one, theirs in pairs]),
            ]
        )
    header = ["", "target tokens/s", "sentences/s", "tokens/s with tokenization", "BLEU"]
    header += ["memory, peak", "workers x threads", "of the limit", "first / this"]
    return table(header, rows)


def latency_table(systems: dict[str, Any]) -> str:
    """Of the systems of one precision."""
    ours = next(iter(systems.values()))
    rows = []
    for label, system in systems.items():
        rows.append(
            [
                label,
                *(f"{value:.0f}" for value in percentiles(system)),
                f"{percentiles(system, PARTS)[0]:.0f}",
                str(system["setting"]["threads"]),
                f"{100 * system['roofline']:.0f} %",
                ratio(pair_ratios(ours, system), 0.05, 0.95),
            ]
        )
    header = ["", "p50, ms", "p95", "p99", "p50 with tokenization", "threads", "of the limit"]
    return table([*header, "this / first"], rows)


def peaks_of(report: Report) -> str:
    """The machine's peaks."""
    peaks = report["samples"]["peaks"]
    return (
        f"Peaks in that run: {peaks['int8'] / 1e9:.0f} billion operations/s in 8 bits, "
        f"{peaks['fp32'] / 1e9:.0f} in fp32, {peaks['copy'] / 1e9:.1f} GB/s copied."
    )


def render_throughput(report: Report) -> str:
    """The page's table of whole test sets."""
    settings = report["settings"]
    tables = "\n".join(throughput_table(systems) for systems in by_precision(report).values())
    return (
        f"{where(report)} {settings['lines']:,} lines, {settings['cores']} cores, "
        f"{model_of(report)}. {peaks_of(report)}\n\n{tables}{across(report)}"
    )


def across(report: Report) -> str:
    """8 bits against peers that have none: what leaving such a peer is worth altogether."""
    systems = by_precision(report)
    ours = next(iter(systems.get("int8", {}).values()), None)
    rows = []
    for label, system in systems.get("fp32", {}).items():
        if ours is not None and label.startswith("torch"):
            pairs = zip(seconds(ours, ("translate",)), seconds(system, ("translate",)), strict=True)
            scale = sum(system["tokens"]) / sum(ours["tokens"])  # speeds are per token
            times = ratio([theirs / one / scale for one, theirs in pairs])
            rows.append([f"translate-trt int8 / {label}", times])
    return "\n" + table(["", "tokens/s, ratio"], rows) if rows else ""


def render_latency(report: Report) -> str:
    """The page's table of single sentences."""
    settings = report["settings"]
    tables = "\n".join(latency_table(systems) for systems in by_precision(report).values())
    return (
        f"{where(report)} {settings['lines']:,} sentences, {settings['rounds']} times each, up to "
        f"{settings['cores']} threads, {model_of(report)}. {peaks_of(report)}\n\n{tables}"
    )


def render_startup(report: Report) -> str:
    """The page's table of first translations."""
    rows = []
    for label, found in report["samples"].items():
        rows.append(
            [
                label,
                *(
                    f"{statistics.median(one[part] for one in found):.2f}"
                    for part in ("first translation", "load", "translate")
                ),
                f"{statistics.median(one['memory']['peak'] for one in found) / 2**20:,.0f} MiB",
            ]
        )
    header = ["", "to the first translation, s", "of which loading", "of which translating"]
    return f"{where(report)}\n\n" + table([*header, "memory, peak"], rows)


def growth_table(points: dict[str, Any], unit: str, show: Callable[[dict[str, Any]], str]) -> str:
    """A row per system, a column per point."""
    numbers = list(next(iter(points.values())))
    rows = [[label, *(show(one[number]) for number in numbers)] for label, one in points.items()]
    return table([unit, *numbers], rows)


def speed_of(point: dict[str, Any]) -> str:
    """Target tokens per second."""
    return f"{sum(point['tokens']) / statistics.median(point['seconds']):.0f}"


def render_scaling(report: Report) -> str:
    """The page's tables of growth; the plots stand beside them."""
    samples = report["samples"]
    pictures = "\n".join(
        f"![{up} by {across}](plots/{name}.svg)" for name, (_, across, up) in PLOTS.items()
    )
    return (
        f"{where(report)} {model_of(report)}. Dotted lines: the limit.\n\n{pictures}\n\n"
        + growth_table(samples["batch"], "tokens/s by sentences in the batch", speed_of)
        + "\n"
        + growth_table(
            samples["length"],
            "ms by source tokens",
            lambda point: f"{1e3 * statistics.median(point['seconds']):.0f}",
        )
        + "\n"
        + growth_table(samples["threads"], "tokens/s by threads", speed_of)
        + "\n"
        + growth_table(
            samples["batch"],
            "memory by sentences in the batch, MiB",
            lambda point: f"{point['memory'] / 2**20:.0f}",
        )
    )


def render_steady(report: Report) -> str:
    """The page's lines of a very long run."""
    memory, speed = (report["samples"][name] for name in ("resident_mib", "sentences_per_second"))
    half = len(speed) // 2
    rows = [
        ["after a tenth", f"{max(memory[1 : 1 + max(1, len(speed) // 10)]):.0f} MiB", ""],
        [
            "first half",
            f"{max(memory[1 : 1 + half]):.0f} MiB",
            f"{statistics.median(speed[:half]):.0f}",
        ],
        [
            "second half",
            f"{max(memory[1 + half :]):.0f} MiB",
            f"{statistics.median(speed[half:]):.0f}",
        ],
    ]
    settings = report["settings"]
    return (
        f"{where(report)} {settings['sentences']:,} sentences of up to {settings['longest']} "
        f"tokens, translations of up to {settings['max_length']}, {settings['workers']} worker.\n\n"
        + table(["", "memory at most", "sentences/s, median"], rows)
    )


def render_interrupt(report: Report) -> str:
    """The page's line of Ctrl-C."""
    seconds, settings = report["samples"]["seconds"], report["settings"]
    return (
        f"{where(report)} {len(seconds)} times, {settings['workers']} workers: "
        f"{statistics.median(seconds):.2f} s in the median, {max(seconds):.2f} s at most.\n"
    )


def render_readme(throughput: Report, latency: Report) -> str:
    """The README's table: both, the systems that are in both."""
    rows = []
    alone = latency["samples"]["systems"]
    for label, system in throughput["samples"]["systems"].items():
        tokens = sum(system["tokens"])
        speed = tokens / statistics.median(seconds(system, ("translate",)))
        times = percentiles(alone[label])[:2] if label in alone else []
        shown = [f"{one:.0f}" for one in times] or ["", ""]
        peak = f"{system['memory']['peak'] / 2**20:,.0f} MiB"
        rows.append([label, f"{speed:.0f}", f"{system['bleu']:.2f}", *shown, peak])
    header = ["", "target tokens/s", "BLEU", "one sentence: p50, ms", "p95", "memory, peak"]
    return (
        f"{where(throughput)} {throughput['settings']['lines']:,} lines, "
        f"{model_of(throughput)}; every system at its own best on "
        f"{throughput['settings']['cores']} cores, in turn, in one run "
        f"([docs/performance.md](docs/performance.md)).\n\n{table(header, rows)}"
    )


#: Reports by name, and what makes their part of docs/performance.md.
PARTS_OF_PAGE: dict[str, Callable[[Report], str]] = {
    "throughput": render_throughput,
    "throughput-no-tiles": render_throughput,
    "throughput-newstest": render_throughput,
    "throughput-torch": render_throughput,
    "throughput-shortlist": render_throughput,
    "throughput-vnni": render_throughput,
    "throughput-beam-1": render_throughput,
    "latency": render_latency,
    "latency-no-tiles": render_latency,
    "latency-newstest": render_latency,
    "latency-vnni": render_latency,
    "startup": render_startup,
    "scaling": render_scaling,
    "steady": render_steady,
    "interrupt": render_interrupt,
}
