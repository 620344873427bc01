"""Compare translations that must be equal, bit by bit: in random batches, and of fewer hypotheses.

    python benchmarks/independence.py batches --bundle DIR --source test.en --target onnx-int8
        [--lines 5000] [--batches 8] [--beam-size 4]
    python benchmarks/independence.py stop-rule --bundle DIR --text test.en [--text news.en]

`batches` translates every line alone, then all together --batches times, in random order, with a
random limit of tokens per batch and 1 to 4 workers. `stop-rule` asks for the best hypothesis, and
for all of the beam; one row is one sentence in one step. Lines are counted whose tokens, or whose
scores and log-probabilities, differ. Nothing is timed, so the machine may be busy.
"""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import Report, benchmark, main, option, read_text

from translate_trt.runtime import SearchOptions, Translator
from translate_trt.runtime.results import TextHypothesis

WORKERS = (1, 2, 3, 4)
BATCH_TOKENS = (64, 4096)  # at least, at most
COUNTED = ("workers", "batch tokens", "other tokens", "other numbers")
LINES = option("--lines", type=int, default=5000, help="number of lines of a text")
BEAM_SIZE = option("--beam-size", type=int, default=4, help="beam size")


def tokens(hypotheses: Sequence[TextHypothesis]) -> list[tuple[int, ...]]:
    """Return the token ids of all segments."""
    return [tuple(segment.tokens) for one in hypotheses for segment in one.segments]


def numbers(hypotheses: Sequence[TextHypothesis]) -> list[str]:
    """Return scores and log-probabilities, exact to the last bit."""
    segments = [segment for one in hypotheses for segment in one.segments]
    return [value.hex() for one in segments for value in (one.score, *one.token_log_probs)]


def compare(
    bundle: Path, target: str, lines: Sequence[str], batches: int, options: SearchOptions
) -> dict[str, Any]:
    """Count the lines that differ in each batching, and describe the batching."""
    with Translator(bundle, target, threads=1) as translator:
        alone = [translator.translate([line], options)[0].hypotheses for line in lines]
    draw, found = random.Random(1), []
    for number in range(batches):
        workers = WORKERS[number % len(WORKERS)]
        batch_tokens = draw.randint(*BATCH_TOKENS)
        order = draw.sample(range(len(lines)), len(lines))
        with Translator(
            bundle, target, threads=1, workers=workers, batch_tokens=batch_tokens
        ) as translator:
            together = translator.translate([lines[index] for index in order], options)
        pairs = [(one.hypotheses, alone[i]) for one, i in zip(together, order, strict=True)]
        other_tokens = sum(tokens(one) != tokens(another) for one, another in pairs)
        other_numbers = sum(numbers(one) != numbers(another) for one, another in pairs)
        counts = (workers, batch_tokens, other_tokens, other_numbers)
        found.append(dict(zip(COUNTED, counts, strict=True)))
        print(target, *(f"{name}: {value}" for name, value in found[-1].items()), sep="  ")
    return {"lines": len(lines), "batches": found}


@benchmark(
    "independence",
    "bundle source targets",
    LINES, BEAM_SIZE,
    option("--batches", type=int, default=8, help="times that all lines are translated together"),
    timed=False,
)  # fmt: skip
def batches(given: Namespace) -> Report:
    """Compare translations alone and in random batches."""
    lines = read_text(given.source)[: given.lines]
    options = SearchOptions(beam_size=given.beam_size, num_hypotheses=given.beam_size)
    results = {
        target: compare(given.bundle, target, lines, given.batches, options)
        for target in given.target
    }
    settings = {"beam_size": given.beam_size, "lines": len(lines), "batches": given.batches}
    return Report(results, settings)


@benchmark(
    "stop-rule",
    "bundle target",
    option("--text", type=Path, action="append", required=True, help="text to translate"),
    LINES, BEAM_SIZE, timed=False,
)  # fmt: skip
def stop_rule(given: Namespace) -> Report:
    """Count the rows that rule 5 saves, and the lines whose best hypothesis differs."""
    results: dict[str, Any] = {}
    with Translator(given.bundle, given.target, threads=given.threads) as translator:
        core = translator.core
        if core is None:
            raise SystemExit(f"rows are counted by libtranslate_trt; {translator!r} runs without.")
        for text in given.text:
            lines = read_text(text)[: given.lines]
            best: list[list[Any]] = []
            rows: dict[str, int] = {}
            for name, count in (("all", given.beam_size), ("best", 1)):
                options = SearchOptions(beam_size=given.beam_size, num_hypotheses=count)
                before = core.statistics().rows
                found = [one.hypotheses[:1] for one in translator.translate(lines, options)]
                best.append([(tokens(one), numbers(one)) for one in found])
                rows[name] = core.statistics().rows - before
            other = sum(one != another for one, another in zip(*best, strict=True))
            results[text.name] = {"lines": len(lines), "rows": rows, "other_hypotheses": other}
    return Report(results, {"beam_size": given.beam_size, "target": given.target})


if __name__ == "__main__":
    main(__doc__)
