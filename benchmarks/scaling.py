"""Measure how speed and memory grow with the batch, the sentence length and the threads.

    python benchmarks/scaling.py --checkpoint DIR --source test.en --reference test.de
        [--precision int8] [--peer ctranslate2] [--threads CORES] [--plots DIR]

- Batch: 1 to 128 sentences of the test set's median length, all in one batch.
- Length: one sentence of 5 to 200 tokens, cut from the test set's text.
- Threads: a batch of 32 sentences with 1, 2, 4 ... threads.

Each system translates every point in turn, round after round, in a warm process. The memory of a
point is the peak of a process that has translated nothing else. Plots are made from the JSON, by
benchmarks/render.py as well; their dotted lines are the limit of benchmarks/roofline.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from comparison import best_setting, libraries, models, options, systems, test_set
from harness import alternate, spread, write
from plots import PLOT_DIRECTORY, plot_scaling
from processes import Process, processes
from roofline import Peaks, Work, measure_peaks, work
from systems import Models, Setting

from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import ModelConfig

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTHS = (5, 10, 20, 40, 80, 120, 160, 200)
WHOLE = 1_000_000  # tokens of a batch that is never split

Points = dict[int, list[list[int]]]  # sentences by the number that grows


def batch_points(sources: Sequence[Sequence[int]]) -> Points:
    """Return batches of the sentences whose length is nearest to the median."""
    middle = statistics.median(map(len, sources))
    nearest = sorted(sources, key=lambda source: abs(len(source) - middle))
    filled = [list(nearest[index % len(nearest)]) for index in range(max(BATCHES))]
    return {size: filled[:size] for size in BATCHES}


def length_points(sources: Sequence[Sequence[int]]) -> Points:
    """Return one sentence of each length, cut from the middle of the text."""
    text = [token for source in sources for token in source]
    text = text * (1 + max(LENGTHS) // len(text))
    begin = (len(text) - max(LENGTHS)) // 2
    return {length: [text[begin : begin + length]] for length in LENGTHS}


def measure_point(
    running: dict[str, Process], sources: list[list[int]], rounds: int
) -> dict[str, Any]:
    """Measure seconds and target tokens of those sentences, in one batch, for each system."""
    for process in running.values():
        process.ask("sources", sources=sources)
    rows = range(len(sources))
    runs = {label: lambda p=process: p.translate(rows) for label, process in running.items()}
    return {
        label: {
            "source_tokens": [len(source) for source in sources],
            "tokens": answers[-1]["tokens"],
            "seconds": [one["translate"] for one in answers],
        }
        for label, answers in alternate(runs, rounds).items()
    }


def measure(
    settings: dict[str, Setting], made: Models, points: Points, rounds: int
) -> dict[str, Any]:
    """Measure each system's points, with the memory of each."""
    found: dict[str, Any] = {label: {} for label in settings}
    with processes(list(settings.values()), made) as running:
        for number, sources in points.items():
            point = measure_point(running, sources, rounds)
            for label, one in point.items():
                found[label][number] = one
            middle = {label: statistics.median(one["seconds"]) for label, one in point.items()}
            shown = "  ".join(f"{label} {1e3 * one:.0f} ms" for label, one in middle.items())
            print(f"  {number:4}  {shown}", flush=True)
    for label, setting in settings.items():
        for number, sources in points.items():
            with Process(setting, made) as process:
                process.ask("sources", sources=sources)
                process.translate(range(len(sources)))
                found[label][number]["memory"] = process.memory()["peak"]
    return found


def add_limits(
    found: dict[str, Any], settings: dict[str, Setting], config: ModelConfig, peaks: Peaks
) -> None:
    """Add the least seconds that the work of each point could take."""
    for label, setting in settings.items():
        for one in found[label].values():
            lengths = (one["source_tokens"], one["tokens"])
            least: Work = work(config, setting.precision, *lengths, setting.beam_size, WHOLE)
            one["least_seconds"] = least.seconds(setting.precision, peaks)


def with_threads(given: argparse.Namespace, made: Models, points: Points) -> dict[str, Setting]:
    """Return each system with the number of threads that is fastest on these sentences."""
    chosen = {}
    for setting in systems(given):

        def seconds(one: Setting) -> float:
            with Process(one, made) as process:
                sources = [source for batch in points.values() for source in batch]
                process.ask("sources", sources=sources)
                process.translate([0])
                return -min(process.translate(range(len(sources)))["translate"] for _ in range(2))

        start = replace(setting, batch_tokens=WHOLE)
        counts = [{"threads": count} for count in dict.fromkeys((1, given.threads))]
        best, _ = best_setting(start, [libraries(setting), counts], seconds)
        chosen[setting.label] = best
    return chosen


def growth_of_threads(
    settings: dict[str, Setting], made: Models, sources: list[list[int]], given: argparse.Namespace
) -> dict[str, Any]:
    """Measure the same batch with more and more threads, each number by itself."""
    counts = [1]
    while counts[-1] * 2 <= given.threads:
        counts.append(counts[-1] * 2)
    found: dict[str, Any] = {label: {} for label in settings}
    for count in counts:
        changed = {label: replace(one, threads=count) for label, one in settings.items()}
        point = measure(changed, made, {count: sources}, given.rounds)
        for label, one in point.items():
            found[label].update(one)
    return found


def summarize(samples: dict[str, Any]) -> dict[str, Any]:
    """Return tokens, seconds, memory and the limit of each point."""
    return {
        growth: {
            label: {
                str(number): {
                    "target_tokens": sum(point["tokens"]),
                    "seconds": spread(point["seconds"]),
                    "memory": point["memory"],
                    "least_seconds": point["least_seconds"],
                }
                for number, point in points.items()
            }
            for label, points in systems.items()
        }
        for growth, systems in samples.items()
    }


def main() -> None:
    """Measure, write, plot."""
    arguments = options(__doc__)
    arguments.add_argument("--plots", type=Path, help="where plots go; default: docs/plots")
    given = arguments.parse_args()
    texts = test_set(given)
    with models(given, systems(given)) as made:
        config = open_checkpoint(made.checkpoint).model
        with Process(systems(given)[0], made) as process:
            process.ask("texts", texts=texts.source)
            sources = [source for source in process.ask("tokens") if source]
        batches, lengths = batch_points(sources), length_points(sources)
        few = {number: batches[number] for number in (8, 32)}
        large = with_threads(given, made, few)
        small = with_threads(given, made, {number: lengths[number] for number in (20, 80)})
        samples = {
            "batch": measure(large, made, batches, given.rounds),
            "length": measure(small, made, lengths, given.rounds),
            "threads": growth_of_threads(large, made, batches[32], given),
        }
    peaks = measure_peaks(given.threads)
    for name, settings in (("batch", large), ("length", small), ("threads", large)):
        add_limits(samples[name], settings, config, peaks)
    described = {
        "cores": given.threads,
        "peaks": dataclasses.asdict(peaks),
        "model": dataclasses.asdict(config),
        "batch": [dataclasses.asdict(one) for one in large.values()],
        "length": [dataclasses.asdict(one) for one in small.values()],
    }
    path = write("scaling", described, summarize(samples), given, samples)
    print(path)
    plot_scaling(json.loads(path.read_text()), given.plots or PLOT_DIRECTORY)


if __name__ == "__main__":
    main()
