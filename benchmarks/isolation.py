"""Tables of what sentences, clients and processes cost their neighbours, for docs/results.md."""

from __future__ import annotations

import statistics
from typing import Any

from report import ratios
from tables import table, where


def render_independence(report: dict[str, Any]) -> str:
    """Sentences that differ between random batches and alone."""
    settings = report["settings"]
    rows = [
        [
            target,
            f"{found['lines']:,}",
            str(len(found["batches"])),
            f"{min(one['workers'] for one in found['batches'])} to "
            f"{max(one['workers'] for one in found['batches'])}",
            str(sum(one["other tokens"] for one in found["batches"])),
            str(sum(one["other numbers"] for one in found["batches"])),
        ]
        for target, found in report["samples"].items()
    ]
    header = ["", "lines", "batchings", "workers", "with other tokens", "with other scores"]
    return (
        "`python benchmarks/independence.py --bundle DIR --source train.en`\n\n"
        f"{where(report)} Every line alone and in random batches of several sizes, beam "
        f"{settings['beam_size']}; tokens and scores are compared bit by bit.\n\n"
        f"{table(header, rows)}"
    )


def render_versions(report: dict[str, Any]) -> str:
    """Time of the revision before, relative to this one."""
    settings = report["settings"]
    rows = []
    for target, found in report["samples"].items():
        for way in ("batches", "one by one"):
            middle, low, high = ratios(found[way]["seconds"], "this", "before")
            rows.append([
                target, way, str(found[way]["lines"]), f"{middle:.3f} [{low:.3f}, {high:.3f}]",
                str(found[way]["differing"]),
            ])  # fmt: skip
        for what, name in (("seconds", "time"), ("peak_mib", "peak memory")):
            # Reports of older versions lack it.
            if (measured := found.get("start", {}).get(what)) is not None:
                middle, low, high = ratios(measured, "this", "before")
                rows.append([
                    target, f"start to first translation, {name}", "1",
                    f"{middle:.3f} [{low:.3f}, {high:.3f}]", "",
                ])  # fmt: skip
    header = ["", "", "lines", "before / after", "differing translations"]
    return (
        "`python benchmarks/versions.py --before PYTHON --bundle DIR --source test.en`\n\n"
        f"{where(report)} Time of the revision before over time after, pair by pair, "
        f"{settings['rounds']} rounds in turn (below 1: the change costs).\n\n"
        f"{table(header, rows)}"
    )


def render_exact(report: dict[str, Any]) -> str:
    """Lines of which two revisions find anything different."""
    rows, has_texts = [], False
    for target, found in report["samples"].items():
        counted = {name: one for name, one in found.items() if name != "kernels"}
        for name, one in counted.items():
            has_texts = has_texts or "texts" in one
            texts = [str(one["texts"])] if "texts" in one else []
            rows.append([target, name, f"{one['lines']:,}", str(one["differing"]), *texts])
    header = ["", "search", "lines", "differing", *(["in text"] if has_texts else [])]
    return (
        "`python benchmarks/versions.py --exact --before PYTHON --bundle DIR --source train.en`\n\n"
        f"{where(report)} Texts, scores and log-probabilities of all that is found are compared "
        f"bit by bit.\n\n{table(header, rows)}"
    )


def render_serving_attack(report: dict[str, Any]) -> str:
    """Latency of a client with short lines beside expensive requests, and cancelled requests."""
    settings, samples = report["settings"], report["samples"]

    def latencies(name: str) -> list[float]:
        return sorted(one for part in samples[name] for one in part["latencies"])

    alone = statistics.median(latencies("alone"))
    rows = []
    for name, what in (
        ("alone", "one client, short lines"),
        ("beside 16 beams", "beside 16 rows of 9,950 characters, 16 beams, again and again"),
        ("beside equal options", "beside the same with its own search options"),
        ("200 clients", "200 clients"),
    ):
        found = latencies(name)
        middle = statistics.median(found)
        p95 = found[int(0.95 * (len(found) - 1))]
        ratio = f"{middle / alone:.2f}" if name.startswith("beside") else ""
        rows.append([what, str(len(found)), f"{1e3 * middle:.0f}", f"{1e3 * p95:.0f}", ratio])

    def per_sentence(name: str) -> float:
        parts = samples[name]
        seconds: float = sum(one["processor_seconds"] for one in parts)
        return seconds / float(sum(one["sentences"] for one in parts))

    cancelled = per_sentence("cancelled") / per_sentence("as many")
    note = f" {settings['note']}" if settings["note"] else ""
    header = ["", "requests", "p50, ms", "p95", "p50 / alone"]
    return (
        f"`python benchmarks/serving_attack.py --bundle DIR --source {settings['source']}`\n\n"
        f"{where(report)}{note} Triton {settings['triton']}, {settings['target']}, gRPC; server "
        f"and clients share the cores.\n\n{table(header, rows)}\n"
        "A request of 64 rows whose client cancels it: processor time of each sentence begun, "
        f"{cancelled:.2f} times that of a request of as many sentences.\n"
    )


def render_waiting(report: dict[str, Any]) -> str:
    """Training speed by the OpenMP wait policy, beside busy processes or alone."""
    settings = report["settings"]
    rows = [
        [name, f"{statistics.median(values):.0f}", f"{min(values):.0f} to {max(values):.0f}"]
        for name, values in report["samples"]["target_tokens_per_second"].items()
    ]
    return (
        f"`python benchmarks/shared_machine.py --waiting --busy {settings['busy']}`\n\n"
        f"{where(report)} `{settings['preset']}`, fp32, batches of {settings['batch_tokens']:,} "
        f"tokens, {settings['threads']} threads, {settings['busy']} processes that only compute; "
        "step by step in turn.\n\n"
        + table(["threads wait by", "target tokens/s, median", "range"], rows)
    )


def render_memory(report: dict[str, Any]) -> str:
    """Resident memory of training in bf16, by the capacity of oneDNN's and torch's caches."""
    settings = report["settings"]
    rows = []
    for capacity, found in report["samples"].items():
        curve = found["megabytes"]
        half = len(curve) // 2
        rows.append([
            capacity,
            *(f"{min(part):.0f} to {max(part):.0f} MB" for part in (curve[:half], curve[half:])),
        ])  # fmt: skip
    return (
        f"`python benchmarks/shared_machine.py --memory --only {' '.join(report['samples'])}`\n\n"
        f"{where(report)} `{settings['preset']}` in bf16, {settings['steps']} steps of "
        f"{settings['batch_tokens']:,} tokens; resident set of the process.\n\n"
        + table(["cached shapes", "first half", "second half"], rows)
    )
