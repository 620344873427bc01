"""Measure the latency of single sentences, beside peers that run the same model.

    python benchmarks/latency.py --checkpoint DIR --source test.en --reference test.de
        [--lines 200] [--precision int8] [--peer ctranslate2] [--threads CORES]

Sentences come one at a time. Each system uses one thread or all cores, whichever is faster for it
on some of the lines. Then every sentence goes to each system in turn, in an order that changes from
sentence to sentence. Each system is a warm process that is stopped while another one runs. Times
are reported without tokenization and with it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from comparison import (
    PARTS,
    TestSet,
    as_json,
    best_setting,
    hold_to_limit,
    latency_stages,
    models,
    options,
    report_name,
    searched,
    sentences_per_second,
    systems,
    test_set,
)
from harness import write
from processes import Process, processes
from roofline import measure_peaks

from translate_trt.train.checkpoint import open_checkpoint


def compare(running: dict[str, Process], texts: TestSet, rounds: int) -> dict[str, Any]:
    """Measure seconds of each part, per system, round and sentence."""
    for process in running.values():
        lengths = process.ask("texts", texts=texts.source)
        for row in range(min(5, len(lengths))):
            process.translate([row])
    found: dict[str, Any] = {
        label: {"tokens": [0] * len(lengths), "rounds": []} for label in running
    }
    order = list(running)
    for _ in range(rounds):
        for one in found.values():
            one["rounds"].append({part: [] for part in PARTS})
        for row in range(len(lengths)):
            order = order[1:] + order[:1]
            for label in order:
                answer = running[label].translate([row])
                found[label]["tokens"][row] = answer["tokens"][0]
                for part in PARTS:
                    found[label]["rounds"][-1][part].append(answer[part])
    return {"source_tokens": lengths, "systems": found}


def summarize(samples: dict[str, Any]) -> dict[str, Any]:
    """Return percentiles over all sentences and rounds, and ratios to the first of a precision."""
    systems, first = {}, {}
    for label, found in samples["systems"].items():
        ours = first.setdefault(found["setting"]["precision"], found)
        compared = pair_ratios(ours, found)
        ends = (compared[round(share * (len(compared) - 1))] for share in (0.05, 0.95))
        systems[label] = {
            "target_tokens": sum(found["tokens"]),
            "milliseconds": percentiles(found),
            "milliseconds_with_tokenization": percentiles(found, PARTS),
            "this / first": [statistics.median(compared), *ends],
            **{name: found[name] for name in ("memory", "work", "roofline", "setting")},
        }
    return {
        "source_tokens": sum(samples["source_tokens"]),
        "systems": systems,
        "peaks": samples["peaks"],
        "trials": samples["trials"],
    }


def percentiles(system: dict[str, Any], parts: Sequence[str] = ("translate",)) -> list[float]:
    """Return p50, p95 and p99 over all rounds and sentences, in ms, of the sum of those parts."""
    sums = [
        1e3 * sum(times)
        for one in system["rounds"]
        for times in zip(*(one[part] for part in parts), strict=True)
    ]
    return [float(value) for value in np.percentile(sums, (50, 95, 99))]


def pair_ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> list[float]:
    """Return theirs / ours of every sentence in every round, sorted."""
    return sorted(
        b / a
        for one, other in zip(ours["rounds"], theirs["rounds"], strict=True)
        for a, b in zip(one["translate"], other["translate"], strict=True)
    )


def main() -> None:
    """Choose threads, measure, write."""
    arguments = options(__doc__)
    arguments.set_defaults(lines=200)
    arguments.add_argument(
        "--trial-lines", type=int, default=15, help="number of lines that settings are tried on"
    )
    given = arguments.parse_args()
    texts = test_set(given)
    with models(given, systems(given)) as made:
        config = open_checkpoint(made.checkpoint).model
        step = max(1, len(texts.source) // given.trial_lines)
        measure = sentences_per_second(made, texts.source[::step])
        chosen = {}
        for setting in systems(given):
            print(f"  trying {setting.label}", flush=True)
            stages = latency_stages(setting, given.threads)
            chosen[setting.label] = best_setting(setting, stages, measure)
        settings = [best for best, _ in chosen.values()]
        with processes(settings, made) as running:
            samples = compare(running, texts, given.rounds)
            for label, process in running.items():
                samples["systems"][label]["memory"] = process.memory()
        shapes = [searched(given.shortlist, made, setting, texts.source) for setting in settings]
    peaks = measure_peaks(given.threads)
    samples["peaks"] = dataclasses.asdict(peaks)
    for setting, shape in zip(settings, shapes, strict=True):
        found = samples["systems"][setting.label]
        lengths = (samples["source_tokens"], found["tokens"])
        whole = statistics.median(sum(one["translate"]) for one in found["rounds"])
        one_by_one = dataclasses.replace(setting, batch_tokens=1)
        hold_to_limit(found, one_by_one, shape, lengths, whole, peaks)
    samples["trials"] = {label: as_json(trials) for label, (_, trials) in chosen.items()}
    described = {
        "lines": len(texts.source),
        "cores": given.threads,
        "rounds": given.rounds,
        "model": dataclasses.asdict(config),
    }
    results = summarize(samples)
    for label, found in results["systems"].items():
        shown = ", ".join(f"{value:.0f}" for value in found["milliseconds"])
        print(
            f"{label:34} p50, p95, p99: {shown} ms  {100 * found['roofline']:.0f} % of the limit  "
            f"this/first {found['this / first'][0]:.2f}"
        )
    print(write(report_name("latency", given), described, results, given, samples))


if __name__ == "__main__":
    main()
