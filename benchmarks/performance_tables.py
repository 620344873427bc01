"""Tables of docs/performance.md and of the README: comparisons with peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plots import PLOTS
from tables import table, where

Report = dict[str, Any]


def by_precision(report: Report) -> dict[str, dict[str, Any]]:
    """Return systems by precision, then by label; ours is the first of each."""
    found: dict[str, dict[str, Any]] = {}
    for label, system in report["results"]["systems"].items():
        found.setdefault(system["setting"]["precision"], {})[label] = system
    return found


def model_of(report: Report) -> str:
    """Describe the model's shape in a few words."""
    model = report["settings"]["model"]
    return (
        f"{model['encoder_layers']}+{model['decoder_layers']} layers, d_model {model['d_model']}, "
        f"d_ff {model['d_ff']}, {model['heads']} heads, vocabulary {model['vocabulary_size']:,}"
    )


def peaks_of(report: Report) -> str:
    """Describe the machine's measured peaks."""
    peaks = report["results"]["peaks"]
    return (
        f"Peaks in that run: {peaks['int8'] / 1e9:.0f} billion operations/s in 8 bits, "
        f"{peaks['fp32'] / 1e9:.0f} in fp32, {peaks['copy'] / 1e9:.1f} GB/s copied."
    )


def ratio(values: list[float]) -> str:
    """Format a median with its extremes in brackets."""
    return "{:.2f} [{:.2f}, {:.2f}]".format(*values)


def mebibytes(count: float) -> str:
    """Format a number of bytes."""
    return f"{count / 2**20:,.0f} MiB"


def counted(number: int, noun: str) -> str:
    """Format a number of things."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def render_throughput(report: Report) -> str:
    """Render a whole test set: a table per precision, and int8 against peers without it."""
    settings = report["settings"]
    tables = "\n".join(throughput_table(systems) for systems in by_precision(report).values())
    across = [[name, ratio(found)] for name, found in report["results"]["int8 / fp32"].items()]
    return (
        f"{where(report)} {settings['lines']:,} lines, {settings['cores']} cores, "
        f"{model_of(report)}. {peaks_of(report)}\n\n{tables}"
    ) + ("\n" + table(["systems", "ratio of tokens/s"], across) if across else "")


def throughput_table(systems: dict[str, Any]) -> str:
    """Render the systems of one precision."""
    rows = []
    for label, system in systems.items():
        tokens, seconds = system["target_tokens"], system["seconds"][0]
        rows.append(
            [
                label,
                f"{tokens / seconds:.0f}",
                f"{system['sentences'] / seconds:.1f}",
                f"{tokens / system['seconds_with_tokenization'][0]:.0f}",
                f"{system['bleu']:.2f}",
                mebibytes(system["memory"]["peak"]),
                f"{system['setting']['workers']} x {system['setting']['threads']}",
                f"{100 * system['roofline']:.0f} %",
                ratio(system["first / this"]),
            ]
        )
    header = ["system", "target tokens/s", "sentences/s", "tokens/s with tokenization", "BLEU"]
    header += ["memory, peak", "workers x threads", "of the limit", "first row / this row"]
    return table(header, rows)


def render_latency(report: Report) -> str:
    """Render single sentences: a table per precision."""
    settings = report["settings"]
    tables = "\n".join(latency_table(systems) for systems in by_precision(report).values())
    return (
        f"{where(report)} {settings['lines']:,} sentences, {settings['rounds']} times each, up to "
        f"{settings['cores']} threads, {model_of(report)}. {peaks_of(report)}\n\n{tables}"
    )


def latency_table(systems: dict[str, Any]) -> str:
    """Render the systems of one precision."""
    rows = []
    for label, system in systems.items():
        rows.append(
            [
                label,
                *(f"{value:.0f}" for value in system["milliseconds"]),
                f"{system['milliseconds_with_tokenization'][0]:.0f}",
                str(system["setting"]["threads"]),
                f"{100 * system['roofline']:.0f} %",
                ratio(system["this / first"]),
            ]
        )
    header = ["system", "p50, ms", "p95, ms", "p99, ms", "p50 with tokenization, ms", "threads"]
    return table([*header, "of the limit", "this row / first row"], rows)


def render_peers(report: Report) -> str:
    """Render peer_table.py's report: throughput, single sentences, equal translations."""
    settings, results = report["settings"], report["results"]
    tables = [
        _throughput_of_peers(results, settings.get("vnni_limit")),
        _latency_of_peers(results),
        _equality_of_peers(results),
    ]
    return (
        f"{where(report)} {settings['lines']:,} lines and {settings['sentences']:,} single "
        f"sentences, {settings['rounds']} rounds in turn.\n\n" + "\n".join(filter(None, tables))
    )


def _throughput_of_peers(results: dict[str, Any], limit: float | None) -> str:
    rows = []
    for row in results.values():
        for cores, systems in row.get("cores", {}).items():
            for label, system in systems.items():
                tokens = system["target_tokens"]
                rows.append(
                    [
                        row["title"],
                        cores,
                        label,
                        system["setting"]["weights"],
                        f"{tokens / system['seconds'][0]:.0f}",
                        f"{tokens / system['processor_seconds'][0]:.0f}",
                        ratio(system["first / this"]),
                        ratio(system["first / this, processor"]),
                        f"{system['equal']} of {system['sentences']}",
                        f"{system['bleu']:.2f}",
                        _share(system, limit),
                    ]
                )
    header = ["row", "cores", "system, model", "weights", "tokens/s", "tokens/processor s"]
    header += ["first / this", "first / this, processor", "equal", "BLEU", "GOP/s of a core"]
    if not any(row[-1] for row in rows):  # a report of an older version
        header, rows = header[:-1], [row[:-1] for row in rows]
    return table(header, rows) if rows else ""


def _share(system: dict[str, Any], limit: float | None) -> str:
    """Format the operations per processor second and their share of the processor's limit."""
    if "operations" not in system:  # a report of an older version
        return ""
    speed = system["operations"] / system["processor_seconds"][0]
    shown = f"{speed / 1e9:.0f}"
    if limit is None or system["setting"]["precision"] != "int8":
        return shown
    return f"{shown} ({100 * speed / limit:.0f} %)"


def _latency_of_peers(results: dict[str, Any]) -> str:
    rows = [
        [
            row["title"],
            label,
            system["setting"]["weights"],
            str(system["setting"]["threads"]),
            *(f"{value:.1f}" for value in system["milliseconds"]),
            ratio(system["this / first"]),
        ]
        for row in results.values()
        if row["kind"] == "one sentence"
        for label, system in row["systems"].items()
    ]
    header = ["one sentence", "system, model", "weights", "threads", "p50, ms", "p95, ms"]
    return table([*header, "p99, ms", "this / first"], rows) if rows else ""


def _equality_of_peers(results: dict[str, Any]) -> str:
    rows = [
        [row["title"], label, f"{system['equal']} of {system['sentences']}"]
        for row in results.values()
        if row["kind"] == "equality"
        for label, system in row["systems"].items()
    ]
    return table(["the same weights", "system, model", "equal translations"], rows) if rows else ""


def render_startup(report: Report) -> str:
    """Render the time from the start of a process to its first translation."""
    rows = [
        [
            label,
            *(f"{found[part][0]:.2f}" for part in ("first translation", "load", "translate")),
            mebibytes(found["peak_memory"][0]),
        ]
        for label, found in report["results"].items()
    ]
    header = ["system", "to the first translation, s", "loading, s", "translating, s"]
    return f"{where(report)}\n\n" + table([*header, "memory, peak"], rows)


def growth_table(points: dict[str, Any], unit: str, show: Callable[[dict[str, Any]], str]) -> str:
    """Render a row per system and a column per point."""
    numbers = list(next(iter(points.values())))
    rows = [[label, *(show(one[number]) for number in numbers)] for label, one in points.items()]
    return table([unit, *numbers], rows)


def speed_of(point: dict[str, Any]) -> str:
    """Format target tokens per second."""
    return f"{point['target_tokens'] / point['seconds'][0]:.0f}"


def render_scaling(report: Report) -> str:
    """Render growth with the batch, the sentence and the threads: each plot above its table."""
    results = report["results"]

    def memory_of(point: dict[str, Any]) -> str:
        return f"{point['memory'] / 2**20:.0f}"

    def milliseconds_of(point: dict[str, Any]) -> str:
        return f"{1e3 * point['seconds'][0]:.0f}"

    tables = {
        "throughput-batch": ("target tokens/s by sentences in the batch", speed_of),
        "latency-length": ("ms per sentence by source tokens", milliseconds_of),
        "throughput-threads": ("target tokens/s by threads", speed_of),
        "memory-batch": ("peak memory, MiB, by sentences in the batch", memory_of),
        "memory-length": ("peak memory, MiB, by source tokens", memory_of),
    }
    parts = [f"{where(report)} {model_of(report)}. Dotted: the limit.\n"]
    for name, (unit, show) in tables.items():
        plot = PLOTS[name]
        picture = f"![{plot.up} by {plot.across}](plots/{name}.svg)\n\n"
        parts.append(picture + growth_table(results[plot.growth], unit, show))
    return "\n".join(parts)


def render_steady(report: Report) -> str:
    """Render memory and speed over a very long run."""
    results, settings = report["results"], report["settings"]
    rows = []
    for part, most in results["most_resident_mib"].items():
        speed = results["sentences_per_second"].get(part)
        rows.append([part, f"{most:.0f} MiB", "" if speed is None else f"{speed:.0f}"])
    return (
        f"{where(report)} {settings['sentences']:,} sentences of up to {settings['longest']} "
        f"tokens, translations of up to {settings['max_length']}, {settings['workers']} "
        "workers.\n\n"
        + table(["part of the run", "resident memory, peak", "sentences/s, median"], rows)
    )


def render_search_options(report: Report) -> str:
    """Render the cost of search options: a table per beam size."""
    settings, results = report["settings"], report["results"]
    model, lines = settings["model"], settings["lines"]
    header = ["lines/s", "rows per line", "us per row", "this row / first row", "in processor time"]
    tables = [
        table(
            [f"search with {counted(int(beam_size), 'beam')}", *header],
            [
                [
                    name,
                    f"{found['lines_per_second'][0]:.1f}",
                    f"{found['rows'] / lines:.1f}",
                    f"{1e6 * found['seconds_of_row'][0]:.0f}",
                    ratio(found["this / first"]),
                    ratio(found["this / first, processor"]),
                ]
                for name, found in searches.items()
            ],
        )
        for beam_size, searches in results["beams"].items()
        if searches
    ]
    limit = settings["max_length"]
    text = (
        f"{where(report)} {lines:,} lines of {settings['source']}, {settings['target']}, "
        f"{model['encoder_layers']}+{model['decoder_layers']} layers, "
        f"d_model {model['model_size']}, vocabulary {model['vocabulary_size']:,}"
        f"{f', at most {limit} tokens' if limit else ''}. One worker, "
        f"{counted(settings['threads'], 'thread')}; {counted(settings['rounds'], 'round')} in "
        "turn: medians, and in brackets the extremes.\n\n"
    )
    left_out = "".join(f"- {name}: {why}\n" for name, why in results["left_out"].items())
    return text + "\n".join(tables) + (f"\nLeft out:\n\n{left_out}" if left_out else "")


def render_readme(throughput: Report, latency: Report) -> str:
    """Render the README's table: speed from one report, latency from the other."""
    rows = []
    alone = latency["results"]["systems"]
    for label, system in throughput["results"]["systems"].items():
        speed = system["target_tokens"] / system["seconds"][0]
        times = alone[label]["milliseconds"][:2] if label in alone else []
        shown = [f"{one:.0f}" for one in times] or ["", ""]
        peak = mebibytes(system["memory"]["peak"])
        rows.append([label, f"{speed:.0f}", f"{system['bleu']:.2f}", *shown, peak])
    header = [
        "system",
        "target tokens/s",
        "BLEU",
        "one sentence: p50, ms",
        "p95, ms",
        "memory, peak",
    ]
    return (
        f"{where(throughput)} {throughput['settings']['lines']:,} lines, "
        f"{model_of(throughput)}; every system at its own best on "
        f"{throughput['settings']['cores']} cores, in turn, in one run "
        f"([docs/performance.md](docs/performance.md)).\n\n{table(header, rows)}"
    )


def render_first_translation(found: Report) -> str:
    """Render the README's sentence about the result of scripts/first_translation.py."""
    preparing = sum(found["steps"][name] for name in ("environment", "pip install"))
    return (
        "From `pip install` of the wheel in a new environment to the page translating in "
        f"{found['page by']}, it took {found['seconds']:.0f} s on {found['cores']} cores "
        f"({found['machine']}), of which {preparing:.0f} s went into the environment and into pip "
        "without a cache ([scripts/first_translation.py](scripts/first_translation.py)).\n"
    )


#: Part of docs/performance.md for each report, by the report's name.
PARTS_OF_PAGE: dict[str, Callable[[Report], str]] = {
    "throughput": render_throughput,
    "throughput-no-tiles": render_throughput,
    "throughput-newstest": render_throughput,
    "throughput-torch": render_throughput,
    "throughput-shortlist": render_throughput,
    "throughput-vnni": render_throughput,
    "throughput-beam-1": render_throughput,
    "throughput-avx2": render_throughput,
    "throughput-avx2-without": render_throughput,
    "throughput-avx2-beam-1": render_throughput,
    "throughput-avx2-beam-1-without": render_throughput,
    "peers": render_peers,
    "latency": render_latency,
    "latency-no-tiles": render_latency,
    "latency-newstest": render_latency,
    "latency-vnni": render_latency,
    "startup": render_startup,
    "scaling": render_scaling,
    "steady": render_steady,
    "search-options": render_search_options,
}
