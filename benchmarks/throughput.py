"""Measure the throughput of a whole test set, beside peers that run the same model.

    python benchmarks/throughput.py --checkpoint DIR --source test.en --reference test.de
        [--lines 500] [--precision int8] [--peer ctranslate2] [--threads CORES]

Each system gets all cores. How they are split and the size of batches are tried first, on some of
the lines. Then the systems translate all lines in turn, round after round, each in a warm process
that is stopped while another one runs. Tokens are target tokens without the end symbol; speeds are
reported with and without tokenization. Memory is the peak of the measured process.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from comparison import (
    PARTS,
    TestSet,
    as_json,
    best_setting,
    hold_to_limit,
    models,
    options,
    report_name,
    searched,
    systems,
    test_set,
    throughput_stages,
    tokens_per_second,
)
from harness import alternate, spread, write
from processes import Process, processes
from roofline import measure_peaks
from systems import Models, Setting

from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.evaluation.scoring import bleu


def tuned(given: argparse.Namespace, made: Models, texts: TestSet) -> dict[str, Any]:
    """Return the best setting of each system and all trials, by label."""
    step = max(1, len(texts.source) // given.trial_lines)
    measure = tokens_per_second(made, texts.source[::step])
    decide = tokens_per_second(made, texts.source, passes=1) if step > 1 else None
    found = {}
    for setting in systems(given):
        print(f"  trying {setting.label}", flush=True)
        stages = throughput_stages(setting, given.threads)
        best, trials = best_setting(setting, stages, measure, decide)
        found[setting.label] = (best, trials)
    return found


def compare(running: dict[str, Process], texts: TestSet, rounds: int) -> dict[str, Any]:
    """Measure rounds, translations and memory of each system."""
    rows = range(len(texts.source))
    for process in running.values():
        lengths = process.ask("texts", texts=texts.source)
    samples = alternate(
        {label: lambda p=process: p.translate(rows) for label, process in running.items()}, rounds
    )
    found: dict[str, Any] = {"source_tokens": lengths, "systems": {}}
    for label, process in running.items():
        last = process.ask("last")
        found["systems"][label] = {
            "tokens": samples[label][-1]["tokens"],
            "rounds": [
                {part: one[part] for part in (*PARTS, "processor")} for one in samples[label]
            ],
            "bleu": bleu(last["texts"], texts.reference).score,
            "memory": process.memory(),
            "ids": last["ids"],
        }
    return found


def seconds_of_rounds(system: dict[str, Any], parts: Sequence[str] = ("translate",)) -> list[float]:
    """Return the sum of those parts in each round."""
    return [sum(one[part] for part in parts) for one in system["rounds"]]


def speed_ratios(
    one: dict[str, Any], other: dict[str, Any], parts: Sequence[str] = ("translate",)
) -> list[float]:
    """Return the spread of how many times as many tokens per second `one` reaches as `other`."""
    scale = sum(other["tokens"]) / sum(one["tokens"])
    pairs = zip(seconds_of_rounds(one, parts), seconds_of_rounds(other, parts), strict=True)
    return spread(theirs / ours / scale for ours, theirs in pairs)


def summarize(samples: dict[str, Any]) -> dict[str, Any]:
    """Return speed, memory and BLEU of each system, and ratios to the first of its precision."""
    systems, first = {}, {}
    kept = ("bleu", "memory", "work", "roofline", "setting", "identical_to_first")
    for label, found in samples["systems"].items():
        ours = first.setdefault(found["setting"]["precision"], found)
        systems[label] = {
            "sentences": len(found["tokens"]),
            "target_tokens": sum(found["tokens"]),
            "seconds": spread(seconds_of_rounds(found)),
            "seconds_with_tokenization": spread(seconds_of_rounds(found, PARTS)),
            "processor_seconds": spread(seconds_of_rounds(found, ("processor",))),
            "first / this": speed_ratios(ours, found),
            **{name: found[name] for name in kept},
        }
    # Peers without int8, against our int8: the gain of leaving such a peer.
    across = {
        f"translate-trt int8 / {label}": speed_ratios(first["int8"], found)
        for label, found in samples["systems"].items()
        if "int8" in first and label.startswith("torch")
    }
    return {
        "source_tokens": sum(samples["source_tokens"]),
        "systems": systems,
        "int8 / fp32": across,
        "peaks": samples["peaks"],
        "trials": samples["trials"],
    }


def main() -> None:
    """Tune, measure, write."""
    arguments = options(__doc__)
    arguments.add_argument(
        "--trial-lines", type=int, default=120, help="number of lines that settings are tried on"
    )
    given = arguments.parse_args()
    texts = test_set(given)
    with models(given, systems(given)) as made:
        config = open_checkpoint(made.checkpoint).model
        chosen = tuned(given, made, texts)
        settings: list[Setting] = [best for best, _ in chosen.values()]
        with processes(settings, made) as running:
            samples = compare(running, texts, given.rounds)
        shapes = [searched(given.shortlist, made, setting, texts.source) for setting in settings]
    peaks = measure_peaks(given.threads)
    samples["peaks"] = dataclasses.asdict(peaks)
    first = next(iter(samples["systems"].values()))
    ids = first["ids"]
    for setting, shape in zip(settings, shapes, strict=True):
        found = samples["systems"][setting.label]
        lengths = (samples["source_tokens"], found["tokens"])
        seconds = statistics.median(one["translate"] for one in found["rounds"])
        hold_to_limit(found, setting, shape, lengths, seconds, peaks)
        same = sum(a == b for a, b in zip(found["ids"], ids, strict=True))
        found["identical_to_first"] = same / len(ids)
    for found in samples["systems"].values():
        del found["ids"]
    samples["trials"] = {label: as_json(trials) for label, (_, trials) in chosen.items()}
    described = {
        "lines": len(texts.source),
        "cores": given.threads,
        "trial_lines": given.trial_lines,
        "model": dataclasses.asdict(config),
    }
    results = summarize(samples)
    for label, found in results["systems"].items():
        print(
            f"{label:34} {found['target_tokens'] / found['seconds'][0]:8.1f} tokens/s  "
            f"BLEU {found['bleu']:5.2f}  {found['memory']['peak'] / 2**20:6.0f} MiB  "
            f"{100 * found['roofline']:4.0f} % of the limit  "
            "first/this {:.2f} [{:.2f}, {:.2f}]".format(*found["first / this"])
        )
    print(write(report_name("throughput", given), described, results, given, samples))


if __name__ == "__main__":
    main()
