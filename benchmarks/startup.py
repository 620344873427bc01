"""Measure the time from the start of a process to its first translation.

    python benchmarks/startup.py --checkpoint DIR --source test.en --reference test.de
        [--precision int8] [--peer ctranslate2]

Each system in turn starts a new process, round after round, which starts Python, imports, loads the
model (from the page cache, after the warm-up) and translates one sentence with one thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from time import perf_counter
from typing import Any

from comparison import libraries, models, options, systems, test_set
from harness import alternate, spread, write
from processes import Process
from systems import Models, Setting


def one_start(setting: Setting, made: Models, text: str) -> Callable[[], dict[str, Any]]:
    """Return a callable that starts a process and returns seconds of each part and its memory."""

    def run() -> dict[str, Any]:
        begin = perf_counter()
        with Process(setting, made) as process:
            process.ask("texts", texts=[text])
            answer = process.translate([0])
            whole = perf_counter() - begin
            return {
                "first translation": whole,
                "load": process.load_seconds,
                "translate": answer["translate"],
                "memory": process.memory(),
            }

    return run


def summarize(samples: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the spread of each part's seconds, and of the memory."""
    parts = ("first translation", "load", "translate")
    return {
        label: {
            **{part: spread(one[part] for one in found) for part in parts},
            "peak_memory": spread(one["memory"]["peak"] for one in found),
        }
        for label, found in samples.items()
    }


def main() -> None:
    """Measure, and write the report."""
    given = options(__doc__).parse_args()
    texts = test_set(given)
    text = sorted(texts.source, key=len)[len(texts.source) // 2]
    settings = [one for one in systems(given) if not one.paper_rule]
    # The choice of a matmul library hardly matters to one sentence.
    settings = [dataclasses.replace(one, **libraries(one)[0]) for one in settings]
    with models(given, settings) as made:
        runs = {one.label: one_start(one, made, text) for one in settings}
        samples = alternate(runs, given.rounds)
    results = summarize(samples)
    for label, found in results.items():
        print("{:34} {:6.2f} s [{:.2f}, {:.2f}]".format(label, *found["first translation"]))
    described = {"characters": len(text), "settings": [dataclasses.asdict(one) for one in settings]}
    print(write("startup", described, results, given, samples))


if __name__ == "__main__":
    main()
