"""Time every option of the search beside the defaults, in turn, on the same lines.

    python benchmarks/search_options.py --bundle DIR --source test.en [--target onnx-int8]
        [--with-attention DIR] [--lines 60] [--rounds 9]

An option changes translations, and so their lengths. The figure to compare is therefore the time of
a row, which is one sentence in one decoding step (`Statistics.rows`). Every round also translates
the lines up to their first token, which costs the encoder and one step. The time of a row is that
of a call beyond this one, results included, divided by the rows beyond its rows.

Each search is compared with the first one of its beam size in the same round. The first one runs
twice in every round: the ratio of the two is noise. All searches run in one process with one
worker, so that the batches of all rounds are alike. `--with-attention` is the same model exported
with `--attention`, whose graphs compute the attention in every step. A search that the bundle
refuses is left out, and the report says why.
"""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from harness import Report, alternate, benchmark, main, option, ratios, shown, spread

from translate_trt.runtime import InputError, OptionError, SearchOptions, Translator
from translate_trt.runtime.io.lines import open_input, read_lines


def first_words(translations: Sequence[str]) -> dict[str, Any]:
    """Return the first word of each translation as its target prefix."""
    return {"target_prefixes": [(text.split() or [""])[0] for text in translations]}


def longest_words(translations: Sequence[str], count: int) -> dict[str, Any]:
    """Return the longest words of each translation as its constraints."""
    return {"constraints": [sorted(text.split(), key=len)[-count:] for text in translations]}


@dataclass(frozen=True)
class Search:
    """Search that is timed.

    Attributes:
        name: Name in the table.
        options: Search options that differ from the bundle's defaults.
        arguments: Makes further arguments of `Translator.translate` from the translations of the
            first search.
        scores: Whether it scores the translations of the first search instead.
        on_attention: Whether it needs the bundle that is exported with `--attention`.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    arguments: Callable[[Sequence[str]], dict[str, Any]] = lambda translations: {}
    scores: bool = False
    on_attention: bool = False


_TEN = ", ".join(map(str, range(10, 20)))
#: Searches by beam size; the first one of a size is the one that the others are compared with.
SEARCHES: dict[int, tuple[Search, ...]] = {
    4: (
        Search("defaults"),
        Search("num_hypotheses 4", {"num_hypotheses": 4}),
        Search("early_stopping", {"early_stopping": True}),
        Search("min_length 5", {"min_length": 5}),
        Search("a target prefix of one word", arguments=first_words),
        Search("loop_guard", {"loop_guard": True}),
        Search("alternatives 4", {"alternatives": 4}),
        Search("repetition_penalty 1.2", {"repetition_penalty": 1.2}),
        Search("no_repeat_ngram_size 3", {"no_repeat_ngram_size": 3}),
        Search("suppress_sequences, 10 tokens", {"suppress_sequences": _TEN}),
        Search("disable_unk", {"disable_unk": True}),
        Search("constraints, 1 word", arguments=partial(longest_words, count=1)),
        Search("constraints, 3 words", arguments=partial(longest_words, count=3)),
        Search("defaults, exported with --attention", on_attention=True),
        Search("return_attention", {"return_attention": True}, on_attention=True),
        Search("defaults again"),
    ),
    1: (
        Search("beam_size 1"),
        Search("sampling_top_k 10", {"sampling_top_k": 10}),
        Search("sampling_top_k 1024", {"sampling_top_k": 1024}),
        Search("the same, sampling_top_p 0.9", {"sampling_top_k": 1024, "sampling_top_p": 0.9}),
        Search("sampling_top_k 0, the whole vocabulary", {"sampling_top_k": 0}),
        Search("scores of given translations", scores=True),
        Search("beam_size 1 again"),
    ),
}
#: Name of the search that ends after the first token.
FIRST_TOKEN = "the first token"


@dataclass(frozen=True)
class Run:
    """Times of one call, and the work that the library has counted."""

    seconds: float
    processor_seconds: float
    steps: int
    rows: int
    target_tokens: int


def measured(translator: Translator, call: Callable[[], object]) -> Callable[[], Run]:
    """Wrap a call in one that measures it."""
    core = translator.core
    if core is None:
        raise SystemExit(f"rows are counted by libtranslate_trt, and {translator!r} runs without.")

    def run() -> Run:
        before, processor_begin, begin = core.statistics(), process_time(), perf_counter()
        call()
        times = perf_counter() - begin, process_time() - processor_begin
        after = core.statistics()
        counts = ((getattr(after, name) - getattr(before, name))
                  for name in ("steps", "rows", "target_tokens"))  # fmt: skip
        return Run(*times, *counts)

    return run


def compare(
    translators: Mapping[bool, Translator], searches: Sequence[Search], options: SearchOptions,
    lines: Sequence[str], rounds: int,
) -> tuple[dict[str, list[Run]], dict[str, str]]:  # fmt: skip
    """Run searches in turn.

    Args:
        translators: Translators by `Search.on_attention`.
        searches: Searches of one beam size.
        options: Options of the first of them.
        lines: Lines to translate.
        rounds: Rounds after a warm-up.

    Returns:
        The runs of each search and of FIRST_TOKEN, and the reasons for those that are left out.
    """
    plain = translators[False]
    prompt = plain.manifest.prompt.of_target(options)
    one_token = dataclasses.replace(options, max_length=len(prompt) + 1, min_length=0)
    runs = {FIRST_TOKEN: measured(plain, lambda: plain.translate(lines, one_token))}
    left_out: dict[str, str] = {}
    try:
        translations = [one.text for one in plain.translate(lines, options)]
    except OptionError as error:  # of a target with a fixed beam size
        return {}, {search.name: str(error) for search in searches}
    for search in searches:
        if search.on_attention not in translators:
            left_out[search.name] = "no bundle is given as --with-attention."
            continue
        translator = translators[search.on_attention]
        try:
            changed = dataclasses.replace(options, **search.options)
            call: Callable[[], object] = partial(
                translator.translate, lines, changed, **search.arguments(translations)
            )
            if search.scores:
                call = partial(translator.score, lines, translations, changed)
            call()  # the warm-up
        except (InputError, OptionError) as error:
            left_out[search.name] = str(error)
            continue
        runs[search.name] = measured(translator, call)
    return alternate(runs, rounds, warmup=0), left_out


def summarize(samples: Mapping[str, Sequence[Run]], lines: int) -> dict[str, Any]:
    """Return speeds and counts of each search, and the time of its rows beside the first search's.

    Args:
        samples: Runs of each search and of FIRST_TOKEN, of the same rounds.
        lines: Lines of a run.
    """
    searches = {name: runs for name, runs in samples.items() if name != FIRST_TOKEN}
    wall, processor = (
        {
            name: [
                (getattr(run, clock) - getattr(one, clock)) / max(run.rows - one.rows, 1)
                for run, one in zip(runs, samples[FIRST_TOKEN], strict=True)
            ]
            for name, runs in searches.items()
        }
        for clock in ("seconds", "processor_seconds")
    )
    first = next(iter(searches), "")
    return {
        name: {
            "lines_per_second": spread(lines / run.seconds for run in runs),
            "steps": runs[-1].steps,
            "rows": runs[-1].rows,
            "target_tokens": runs[-1].target_tokens,
            "seconds_of_row": spread(wall[name]),
            "this / first": ratios(wall, name, first),
            "this / first, processor": ratios(processor, name, first),
        }
        for name, runs in searches.items()
    }


def whole_lines(path: Path, translator: Translator, count: int) -> list[str]:
    """Read the first lines that are neither blank nor cut into segments."""
    most = translator.manifest.max_segment_length
    encode = translator.tokenizer.encode_source
    with open_input(str(path)) as stream:
        whole = (one for one in read_lines(stream, str(path)) if 0 < len(encode(one)) <= most)
        lines = list(islice(whole, count))
    if not lines:
        raise SystemExit(f"{path} has no line of 1 to {most} tokens.")
    return lines


@benchmark(
    "search-options",
    "bundle source target",
    option("--with-attention", type=Path, help="bundle exported with --attention"),
    option("--lines", type=int, default=60, help="number of lines"),
    option("--max-length", type=int, help="limit of the translations, in tokens"),
    rounds=9,
    threads=1,
)
def cost(given: Namespace) -> Report:
    """Time the searches of every beam size."""
    bundles = {False: given.bundle} | ({True: given.with_attention} if given.with_attention else {})
    translators = {
        on_attention: Translator(bundle, given.target, threads=given.threads, workers=1)
        for on_attention, bundle in bundles.items()
    }
    plain = translators[False]
    lines = whole_lines(given.source, plain, given.lines)
    results: dict[str, Any] = {"beams": {}, "left_out": {}}
    samples: dict[str, Any] = {}
    for beam_size, searches in SEARCHES.items():
        changes = {"beam_size": beam_size, "num_hypotheses": 1, "max_length": given.max_length}
        options = dataclasses.replace(plain.default_options, **changes)
        runs, left_out = compare(translators, searches, options, lines, given.rounds)
        results["beams"][str(beam_size)] = summarize(runs, len(lines))
        results["left_out"] |= left_out
        samples[str(beam_size)] = {
            name: [dataclasses.asdict(run) for run in all_] for name, all_ in runs.items()
        }
        for name, found in results["beams"][str(beam_size)].items():
            print(f"{name:36} {shown(found['this / first'])}")
    settings = {
        "target": plain.target.name,
        "model": plain.manifest.to_json()["model"],
        "source": given.source.name,
        "lines": len(lines),
        "max_length": given.max_length,
    }
    return Report(results, settings, samples)


if __name__ == "__main__":
    main(__doc__)
