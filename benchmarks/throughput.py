"""How fast a whole test set is translated, beside peers that run the same model.

    python benchmarks/throughput.py --checkpoint DIR --source test.en --reference test.de
        [--lines 500] [--precision int8] [--peer ctranslate2] [--threads CORES]

Each system gets all cores, split as suits it best: its split and batch size are tried first, on
some of the lines. Then they translate the lines in turn, each in a warm process of its own that is
stopped while another one runs, round after round. Tokens per second are target tokens without the
end symbol; with and without tokenization. Memory is the peak of the process that was measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from typing import Any

from comparison import (
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
from processes import Process, processes
from report import alternate, write
from roofline import measure_peaks
from systems import Models, Setting

from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.evaluation.scoring import bleu


def tuned(given: argparse.Namespace, made: Models, texts: TestSet) -> dict[str, Any]:
    """The best setting of each system and what was tried, by label."""
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
    """Rounds, translations and memory of each system."""
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
                {part: one[part] for part in ("encode", "translate", "decode")}
                for one in samples[label]
            ],
            "bleu": bleu(last["texts"], texts.reference).score,
            "memory": process.memory(),
            "ids": last["ids"],
        }
    return found


def show(label: str, found: dict[str, Any], first: dict[str, Any]) -> None:
    """A line for a system, its speed relative to the first one's."""
    seconds = [one["translate"] for one in found["rounds"]]
    count = sum(found["tokens"])
    speeds = [count / one for one in seconds]
    base = [sum(first["tokens"]) / one["translate"] for one in first["rounds"]]
    ratio = [ours / theirs for ours, theirs in zip(base, speeds, strict=True)]
    print(
        f"{label:34} {statistics.median(speeds):8.1f} tokens/s  BLEU {found['bleu']:5.2f}  "
        f"{found['memory']['peak'] / 2**20:6.0f} MiB  {100 * found['roofline']:4.0f} % of the limit"
        f"  first/this {statistics.median(ratio):.2f} [{min(ratio):.2f}, {max(ratio):.2f}]",
        flush=True,
    )


def main() -> None:
    """Tune, measure, write."""
    arguments = options(__doc__)
    arguments.add_argument(
        "--trial-lines", type=int, default=120, help="lines that settings are tried on"
    )
    given = arguments.parse_args()
    texts = test_set(given)
    with models(given, systems(given)) as made:
        config = open_checkpoint(made.checkpoint).model
        chosen = tuned(given, made, texts)
        settings: list[Setting] = [best for best, _ in chosen.values()]
        with processes(settings, made) as running:
            samples = compare(running, texts, given.rounds)
        shapes = [searched(given, made, setting, texts.source) for setting in settings]
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
        show(setting.label, found, first)
    for found in samples["systems"].values():
        del found["ids"]
    samples["trials"] = {label: as_json(trials) for label, (_, trials) in chosen.items()}
    described = {
        "lines": len(texts.source),
        "cores": given.threads,
        "trial_lines": given.trial_lines,
        "model": dataclasses.asdict(config),
    }
    print(write(report_name("throughput", given), described, samples, given.out))


if __name__ == "__main__":
    main()
