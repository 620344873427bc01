"""Measure speed and memory beside peers that run the same model.

    python benchmarks/speed.py throughput --checkpoint DIR --source test.en --reference test.de
        [--lines 500] [--precision int8] [--peer ctranslate2] [--threads CORES]
    python benchmarks/speed.py latency --checkpoint DIR --source test.en --reference test.de
    python benchmarks/speed.py startup --checkpoint DIR --source test.en --reference test.de
    python benchmarks/speed.py scaling --checkpoint DIR --source test.en --reference test.de
    python benchmarks/speed.py steady --bundle DIR [--sentences 100000] [--max-length 16]

Every system gets the same weights, tokens, beam, length penalty and cores, and translates in a warm
process that is stopped while another one runs (systems.py). How the cores are split and how large
batches are is tried for each system before the measurement, and the report lists what was tried.
Tokens are target tokens without the end symbol; times are reported with and without tokenization.

- throughput: all lines in turn, round after round. Memory is the peak of the measured process.
- latency: every sentence goes to each system in turn, in an order that changes from sentence to
  sentence, with one thread or all cores, whichever is faster.
- startup: a new process each time starts Python, imports, loads the model (from the page cache) and
  translates one sentence with one thread.
- scaling: 1 to 128 sentences of the test set's median length in one batch; one sentence of 5 to 200
  tokens, cut from the text; a batch of 32 sentences with 1, 2, 4 ... threads. The memory of a point
  is the peak of a process that has translated nothing else.
- steady: resident memory and sentences per second of one process over very many sentences of random
  tokens, with lengths drawn evenly from 1 to --longest, 500 in a call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import marian
import numpy as np
from harness import Report, alternate, benchmark, evenly, main, option, shown, spread
from roofline import Peaks, measure_peaks, work
from systems import OURS, SYSTEMS, Models, Process, Setting, convert, processes

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.runtime import SearchOptions, Translator
from translate_trt.runtime.bundle.manifest import SHORTLIST
from translate_trt.runtime.io.lines import read_parallel
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import find_checkpoint, open_checkpoint
from translate_trt.train.config import ModelConfig
from translate_trt.train.evaluation.scoring import bleu
from translate_trt.train.shortlist.table import Shortlist

#: Peers by precision.
PEERS = {
    "int8": ("ctranslate2", "marian"),
    "fp32": ("ctranslate2", "marian", "torch", "torch-compiled"),
}
DEFAULT = ("ctranslate2",)
#: Systems with lexical shortlists.
WITH_SHORTLISTS = (OURS, "ctranslate2", "marian")
#: Timed parts of a translation: tokenization, search, detokenization.
PARTS = ("encode", "translate", "decode")
#: Relative difference below which noise decides which of two trials is faster.
NOISE = 0.03
#: Settings that are tried again on all lines, and how far below the best trial they may be.
FINALISTS, MISJUDGED = 3, 0.15
#: Source tokens of a batch that are tried for throughput.
BATCH_TOKENS = (256, 512, 1024, 2048, 4096)
#: Points of the scaling: sentences of a batch, source tokens.
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTHS = (5, 10, 20, 40, 80, 120, 160, 200)
WHOLE = 1_000_000  # tokens of a batch that is never split
CALL = 500  # sentences of a call of the steady run

#: Changes of a setting, by stages.
Stages = Sequence[Sequence[dict[str, Any]]]
Points = dict[int, list[list[int]]]  # sentences by the number that grows

PYMARIAN = option(
    "--pymarian", type=Path, metavar="DIR",
    help=f"folder with the package pymarian, if it is elsewhere; default: ${marian.VARIABLE}",
)  # fmt: skip
OPTIONS = (
    option("--checkpoint", type=Path, required=True, help="run or checkpoint of the model"),
    option("--bundle", type=Path, help="bundle of the checkpoint; default: compiled now"),
    "source reference",
    option("--shortlist", type=Path, help="also run systems that have shortlists with this table"),
    option("--lines", type=int, default=500, help="number of lines, spread evenly"),
    option("--trial-lines", type=int, default=120, help="lines that settings are tried on"),
    option("--beam-size", type=int, default=4, help="beam size of all systems"),
    option("--precision", action="append", choices=sorted(PEERS), help="default: int8 and fp32"),
    option(
        "--peer", action="append", choices=[name for name in SYSTEMS if name != OURS],
        help=f"may be repeated; default: {', '.join(DEFAULT)}",
    ),
    PYMARIAN,
)  # fmt: skip


@dataclass(frozen=True)
class TestSet:
    """Lines to translate and their reference translations."""

    source: list[str]
    reference: list[str]

    @classmethod
    def read(cls, source: Path, reference: Path, count: int) -> TestSet:
        """Read that many pairs of lines, spread evenly."""
        pairs = evenly(list(read_parallel(source, reference)), count)
        return cls([source for source, _ in pairs], [reference for _, reference in pairs])


# ---- systems and their models ----


def systems(given: Namespace) -> list[Setting]:
    """Return the systems that the options ask for, ours first, with their initial settings."""
    asked = given.peer or DEFAULT
    if "marian" in asked and not marian.locate(given.pymarian):
        print(marian.NOT_INSTALLED, file=sys.stderr)
        asked = [peer for peer in asked if peer != "marian"]
    found = []
    for precision in given.precision or ("int8", "fp32"):
        found += [Setting(OURS, precision), Setting(OURS, precision, paper_rule=True)]
        found += [Setting(peer, precision) for peer in PEERS[precision] if peer in asked]
        if given.shortlist is not None:
            found += [
                Setting(system, precision, shortlist=True)
                for system in WITH_SHORTLISTS
                if system == OURS or system in asked
            ]
    return [replace(one, beam_size=given.beam_size) for one in found]


@contextlib.contextmanager
def models(given: Namespace, settings: Sequence[Setting]) -> Iterator[Models]:
    """Convert the checkpoint for every system, for as long as the context lasts."""
    checkpoint = find_checkpoint(given.checkpoint)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        made = Models(checkpoint, given.bundle or directory / "bundle", directory)
        if given.bundle is None:
            targets = dict.fromkeys(
                f"onnx-{one.precision}{SHORTLIST if one.shortlist else ''}" for one in settings
            )
            build = BuildOptions(tuple(targets), shortlist=given.shortlist)
            compile_bundle(open_checkpoint(checkpoint), made.bundle, build)
        for setting in settings:
            convert(setting, made, given.shortlist)
        yield made


def searched(
    shortlist: Path | None, made: Models, setting: Setting, texts: Sequence[str]
) -> ModelConfig:
    """Return the model's shape; with a shortlist, the vocabulary is as large as its mean list."""
    config = open_checkpoint(made.checkpoint).model
    if not setting.shortlist:
        return config
    assert shortlist is not None
    path = made.checkpoint / "tokenizer.spm"
    table, encode = Shortlist.load(shortlist), Tokenizer(path, path).encode_source
    sizes = [len(table.for_sentence(encode(text))) for text in texts]
    return replace(config, vocabulary_size=round(statistics.mean(sizes)))


# ---- the best setting of each system ----


@dataclass(frozen=True)
class Trial:
    """Setting that was tried, and the figure that it reached, the higher the better."""

    setting: Setting
    figure: float
    final: bool = False  # it ran on all lines, which decides


def libraries(setting: Setting) -> list[dict[str, Any]]:
    """Return what chooses between the matmul libraries of a system."""
    if setting.system == "marian" and setting.precision == "int8":
        return [{"weights": name} for name in marian.int8_weights()]
    if setting.system != "ctranslate2":
        return [{}]
    return [{"environment": (("CT2_USE_MKL", value),)} for value in ("0", "1")]


def throughput_stages(setting: Setting, cores: int) -> Stages:
    """Return the settings to try: one batch at a time on all cores, or one batch on each."""
    together, apart = {"workers": 1, "threads": cores}, {"workers": cores, "threads": 1}
    splits = [together, apart] if cores > 1 else [together]
    if setting.system == "marian":  # a batch runs on one thread
        splits = [apart]
    elif setting.system not in (OURS, "ctranslate2"):
        splits = [together]
    return [libraries(setting), splits, [{"batch_tokens": size} for size in BATCH_TOKENS]]


def latency_stages(setting: Setting, cores: int) -> Stages:
    """Return the settings to try for sentences one at a time."""
    counts = (1,) if setting.system == "marian" else dict.fromkeys((1, cores))
    return [libraries(setting), [{"threads": count} for count in counts]]


def best_setting(
    start: Setting,
    stages: Stages,
    measure: Callable[[Setting], float],
    decide: Callable[[Setting], float] | None = None,
) -> tuple[Setting, list[Trial]]:
    """Try the changes of each stage on top of the best setting of the stage before.

    Among settings whose order could be noise, the first is the best: it has smaller batches and
    needs less memory. `decide` is a more expensive measure for the few best ones of `measure`.
    """
    trials: list[Trial] = []
    best = start
    for changes in stages:
        known = {trial.setting: trial for trial in trials}
        tried = []
        for setting in dict.fromkeys(replace(best, **change) for change in changes):
            tried.append(known.get(setting) or Trial(setting, measure(setting)))
        trials += [trial for trial in tried if trial.setting not in known]
        best = _first_of_the_best(tried)
    if decide is not None:
        top = sorted(trials, key=lambda trial: trial.figure, reverse=True)[:FINALISTS]
        near = [one for one in top if one.figure >= top[0].figure - MISJUDGED * abs(top[0].figure)]
        final = [
            Trial(trial.setting, decide(trial.setting), final=True)
            for trial in trials
            if trial in near  # a part of the lines may have misjudged them
        ]
        best, trials = _first_of_the_best(final), trials + final
    return best, trials


def _first_of_the_best(trials: Sequence[Trial]) -> Setting:
    top = max(trial.figure for trial in trials)
    # A figure may be negative: seconds, say.
    return next(one.setting for one in trials if one.figure >= top - NOISE * abs(top))


def figure_of(made: Models, texts: Sequence[str], passes: int = 0) -> Callable[[Setting], float]:
    """Return a measure for `best_setting`, in a fresh process.

    It is the tokens per second of the fastest of so many passes over the lines, or without passes
    the sentences per second of the median line.
    """

    def measure(setting: Setting) -> float:
        rows = range(len(texts))
        with Process(setting, made) as process:
            process.ask("texts", texts=list(texts))
            if passes:
                process.translate(rows[:16])
                found = [process.translate(rows) for _ in range(passes)]
                figure = max(sum(one["tokens"]) / one["translate"] for one in found)
            else:
                times = [process.translate([row])["translate"] for row in (*rows[:3], *rows)]
                figure = 1 / statistics.median(times[len(rows[:3]) :])
        print(f"    {figure:7.1f} {'tokens' if passes else 'sentences'}/s  {_varied(setting)}")
        return figure

    return measure


def _varied(setting: Setting) -> str:
    """Describe what `best_setting` varies."""
    variables = "".join(f", {name}={value}" for name, value in setting.environment)
    weights = f", {setting.weights}" if setting.weights else ""
    return (
        f"{setting.workers} x {setting.threads} threads, {setting.batch_tokens} tokens"
        f"{weights}{variables}"
    )


def as_json(trials: Sequence[Trial]) -> dict[str, float]:
    """Return the figure of each trial by its setting; final trials are marked."""
    return {
        f"{_varied(trial.setting)}{', all lines' if trial.final else ''}": trial.figure
        for trial in trials
    }


# ---- a whole test set ----


def translate_all(running: Mapping[str, Process], texts: TestSet, rounds: int) -> dict[str, Any]:
    """Translate all lines in turn: rounds, translations and memory of each system."""
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


def seconds_of_rounds(
    system: Mapping[str, Any], parts: Sequence[str] = ("translate",)
) -> list[float]:
    """Return the sum of those parts in each round."""
    return [sum(one[part] for part in parts) for one in system["rounds"]]


def speed_ratios(
    one: Mapping[str, Any], other: Mapping[str, Any], parts: Sequence[str] = ("translate",)
) -> list[float]:
    """Return the spread of how many times as many tokens per second `one` reaches as `other`."""
    scale = sum(other["tokens"]) / sum(one["tokens"])
    pairs = zip(seconds_of_rounds(one, parts), seconds_of_rounds(other, parts), strict=True)
    return spread(theirs / ours / scale for ours, theirs in pairs)


def throughputs(samples: Mapping[str, Any]) -> dict[str, Any]:
    """Return speed, memory and BLEU of each system, and ratios to the first of its precision."""
    found: dict[str, Any] = {}
    first: dict[str, Any] = {}
    for label, one in samples["systems"].items():
        ours = first.setdefault(one["setting"]["precision"], one)
        found[label] = {
            "sentences": len(one["tokens"]),
            "target_tokens": sum(one["tokens"]),
            "seconds": spread(seconds_of_rounds(one)),
            "seconds_with_tokenization": spread(seconds_of_rounds(one, PARTS)),
            "processor_seconds": spread(seconds_of_rounds(one, ("processor",))),
            "first / this": speed_ratios(ours, one),
            "first / this, processor": speed_ratios(ours, one, ("processor",)),
            "equal": sum(a == b for a, b in zip(one["ids"], ours["ids"], strict=True)),
            "bleu": one["bleu"],
            "memory": one["memory"],
            "setting": one["setting"],
        }
    return found


@benchmark("throughput", *OPTIONS)
def throughput(given: Namespace) -> Report:
    """Measure the throughput of a whole test set."""
    texts = TestSet.read(given.source, given.reference, given.lines)

    def best(setting: Setting, made: Models) -> tuple[Setting, list[Trial]]:
        step = max(1, len(texts.source) // given.trial_lines)
        decide = figure_of(made, texts.source, 1) if step > 1 else None
        measure = figure_of(made, texts.source[::step], 2)
        return best_setting(setting, throughput_stages(setting, given.threads), measure, decide)

    report = _compare(given, texts, best, translate_all, throughputs)
    systems = report.samples["systems"]
    int8 = [one for one in systems.values() if one["setting"]["precision"] == "int8"]
    # Peers without int8, against our int8: the gain of leaving such a peer.
    report.results["int8 / fp32"] = {
        f"{OURS} int8 / {label}": speed_ratios(int8[0], one)
        for label, one in systems.items()
        if int8 and label.startswith("torch")
    }
    return report


# ---- single sentences ----


def translate_each(running: Mapping[str, Process], texts: TestSet, rounds: int) -> dict[str, Any]:
    """Translate each sentence in turn: seconds of each part, per system, round and sentence."""
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
    for label, process in running.items():
        found[label]["memory"] = process.memory()
    return {"source_tokens": lengths, "systems": found}


def percentiles(system: Mapping[str, Any], parts: Sequence[str] = ("translate",)) -> list[float]:
    """Return p50, p95 and p99 over all rounds and sentences, in ms, of the sum of those parts."""
    sums = [
        1e3 * sum(times)
        for one in system["rounds"]
        for times in zip(*(one[part] for part in parts), strict=True)
    ]
    return [float(value) for value in np.percentile(sums, (50, 95, 99))]


def pair_ratios(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[float]:
    """Return theirs / ours of every sentence in every round, sorted."""
    return sorted(
        b / a
        for one, other in zip(ours["rounds"], theirs["rounds"], strict=True)
        for a, b in zip(one["translate"], other["translate"], strict=True)
    )


def latencies(samples: Mapping[str, Any]) -> dict[str, Any]:
    """Return percentiles, and the median ratio to the first system with its 5th and 95th."""
    found: dict[str, Any] = {}
    first: dict[str, Any] = {}
    for label, one in samples["systems"].items():
        ratios = pair_ratios(first.setdefault(one["setting"]["precision"], one), one)
        ends = (ratios[round(share * (len(ratios) - 1))] for share in (0.05, 0.95))
        found[label] = {
            "sentences": len(one["tokens"]),
            "target_tokens": sum(one["tokens"]),
            "milliseconds": percentiles(one),
            "milliseconds_with_tokenization": percentiles(one, PARTS),
            "this / first": [statistics.median(ratios), *ends],
            "memory": one["memory"],
            "setting": one["setting"],
        }
    return found


@benchmark("latency", *OPTIONS, lines=200, trial_lines=15)
def latency(given: Namespace) -> Report:
    """Measure the latency of single sentences."""
    texts = TestSet.read(given.source, given.reference, given.lines)

    def best(setting: Setting, made: Models) -> tuple[Setting, list[Trial]]:
        step = max(1, len(texts.source) // given.trial_lines)
        measure = figure_of(made, texts.source[::step])
        return best_setting(setting, latency_stages(setting, given.threads), measure)

    return _compare(given, texts, best, translate_each, latencies)


def _compare(
    given: Namespace,
    texts: TestSet,
    best: Callable[[Setting, Models], tuple[Setting, list[Trial]]],
    translate: Callable[[Mapping[str, Process], TestSet, int], dict[str, Any]],
    summarize: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> Report:
    """Choose each system's setting, measure, and hold the figures against the machine's limit."""
    trials, settings = {}, []
    with models(given, systems(given)) as made:
        for setting in systems(given):
            print(f"  trying {setting.label}", flush=True)
            chosen, tried = best(setting, made)
            settings.append(chosen)
            trials[setting.label] = as_json(tried)
        with processes(settings, made) as running:
            samples = translate(running, texts, given.rounds)
        shapes = [searched(given.shortlist, made, one, texts.source) for one in settings]
        config = open_checkpoint(made.checkpoint).model
    for setting in settings:
        samples["systems"][setting.label]["setting"] = dataclasses.asdict(setting)
    results, peaks = summarize(samples), measure_peaks(given.threads)
    alone = translate is translate_each
    for setting, shape in zip(settings, shapes, strict=True):
        one, found = samples["systems"][setting.label], results[setting.label]
        lengths = (samples["source_tokens"], one["tokens"])
        batch_tokens = 1 if alone else setting.batch_tokens
        least = work(shape, setting.precision, *lengths, setting.beam_size, batch_tokens)
        times = [float(np.sum(part["translate"])) for part in one["rounds"]]
        found["work"] = dataclasses.asdict(least)
        found["roofline"] = least.seconds(setting.precision, peaks) / statistics.median(times)
        ratio = found.get("first / this") or found["this / first"]
        print(f"{setting.label:34} {100 * found['roofline']:4.0f} % of the limit, {shown(ratio)}")
    return Report(
        {
            "source_tokens": sum(samples["source_tokens"]),
            "systems": results,
            "peaks": dataclasses.asdict(peaks),
            "trials": trials,
        },
        {"lines": len(texts.source), "cores": given.threads, "model": dataclasses.asdict(config)},
        samples,
    )


# ---- starting a process ----


@benchmark("startup", *OPTIONS)
def startup(given: Namespace) -> Report:
    """Measure the time from the start of a process to its first translation."""
    source = TestSet.read(given.source, given.reference, given.lines).source
    text = sorted(source, key=len)[len(source) // 2]
    settings = [one for one in systems(given) if not one.paper_rule]
    # The choice of a matmul library hardly matters to one sentence.
    settings = [replace(one, **libraries(one)[0]) for one in settings]

    def start(setting: Setting, made: Models) -> dict[str, Any]:
        begin = perf_counter()
        with Process(setting, made) as process:
            process.ask("texts", texts=[text])
            translated = process.translate([0])["translate"]
            whole = perf_counter() - begin
            return {"first translation": whole, "load": process.load_seconds,
                    "translate": translated, "peak_memory": process.memory()["peak"]}  # fmt: skip

    with models(given, settings) as made:
        runs = {one.label: lambda one=one: start(one, made) for one in settings}
        samples = alternate(runs, given.rounds)
    results = {
        label: {part: spread(one[part] for one in found) for part in found[0]}
        for label, found in samples.items()
    }
    described = {"characters": len(text), "settings": [dataclasses.asdict(one) for one in settings]}
    return Report(results, described, samples)


# ---- scaling ----


def batch_points(sources: Sequence[Sequence[int]]) -> Points:
    """Return batches of different sentences, those whose length is nearest to the median."""
    middle = statistics.median(map(len, sources))
    different = dict.fromkeys(map(tuple, sources))
    nearest = sorted(different, key=lambda source: abs(len(source) - middle))
    assert len(nearest) >= max(BATCHES), "the source has too few different lines"
    return {size: [list(source) for source in nearest[:size]] for size in BATCHES}


def length_points(sources: Sequence[Sequence[int]]) -> Points:
    """Return one sentence of each length, cut from the middle of the text."""
    text = [token for source in sources for token in source]
    text = text * (1 + max(LENGTHS) // len(text))
    begin = (len(text) - max(LENGTHS)) // 2
    return {length: [text[begin : begin + length]] for length in LENGTHS}


def measure_points(
    settings: Sequence[Setting], made: Models, points: Points, rounds: int, peaks: Peaks
) -> dict[str, Any]:
    """Measure each system's points, beside the least seconds that their work could take."""
    found: dict[str, Any] = {one.label: {} for one in settings}
    config = open_checkpoint(made.checkpoint).model
    for number, sources in points.items():
        rows = range(len(sources))
        with processes(settings, made) as running:
            for process in running.values():
                process.ask("sources", sources=sources)
                process.translate(rows)
            # Each process has translated nothing else.
            memory = {label: process.memory()["peak"] for label, process in running.items()}
            runs = {label: lambda p=one: p.translate(rows) for label, one in running.items()}  # noqa: B023
            samples = alternate(runs, rounds)
        for setting in settings:
            answers = samples[setting.label]
            lengths = ([len(source) for source in sources], answers[-1]["tokens"])
            least = work(config, setting.precision, *lengths, setting.beam_size, WHOLE)
            found[setting.label][str(number)] = {
                "target_tokens": sum(answers[-1]["tokens"]),
                "seconds": spread(one["translate"] for one in answers),
                "memory": memory[setting.label],
                "least_seconds": least.seconds(setting.precision, peaks),
            }
        print(f"  {number}", flush=True)
    return found


def with_threads(given: Namespace, made: Models, points: Points) -> list[Setting]:
    """Return each system with the number of threads that is fastest on these sentences."""
    sources = [source for batch in points.values() for source in batch]

    def speed(setting: Setting) -> float:
        with Process(setting, made) as process:
            process.ask("sources", sources=sources)
            process.translate([0])
            return -min(process.translate(range(len(sources)))["translate"] for _ in range(2))

    counts = [{"threads": count} for count in dict.fromkeys((1, given.threads))]
    return [
        best_setting(replace(one, batch_tokens=WHOLE), [libraries(one), counts], speed)[0]
        for one in systems(given)
    ]


@benchmark("scaling", *OPTIONS)
def scaling(given: Namespace) -> Report:
    """Measure how speed and memory grow with the batch, the sentence length and the threads."""
    texts = TestSet.read(given.source, given.reference, given.lines)
    peaks = measure_peaks(given.threads)
    with models(given, systems(given)) as made:
        config = open_checkpoint(made.checkpoint).model
        with Process(systems(given)[0], made) as process:
            process.ask("texts", texts=texts.source)
            sources = [source for source in process.ask("tokens") if source]
        batches, lengths = batch_points(sources), length_points(sources)
        large = with_threads(given, made, {number: batches[number] for number in (8, 32)})
        small = with_threads(given, made, {number: lengths[number] for number in (20, 80)})
        results = {
            "batch": measure_points(large, made, batches, given.rounds, peaks),
            "length": measure_points(small, made, lengths, given.rounds, peaks),
            "threads": {one.label: {} for one in large},
        }
        counts = (2**power for power in range(given.threads.bit_length()))
        for count in counts:
            changed = [replace(one, threads=count) for one in large]
            point = measure_points(changed, made, {count: batches[32]}, given.rounds, peaks)
            for label, one in point.items():
                results["threads"][label] |= one
    described = {
        "cores": given.threads,
        "peaks": dataclasses.asdict(peaks),
        "model": dataclasses.asdict(config),
        "batch": [dataclasses.asdict(one) for one in large],
        "length": [dataclasses.asdict(one) for one in small],
    }
    return Report(results, described)


# ---- a long run ----


@benchmark(
    "steady",
    "bundle target",
    option("--workers", type=int, default=1, help="batches side by side"),
    option("--sentences", type=int, default=100_000, help="sentences in all"),
    option("--longest", type=int, default=400, help="tokens of the longest source"),
    option("--max-length", type=int, default=16, help="tokens of the longest translation"),
)
def steady(given: Namespace) -> Report:
    """Measure memory and throughput over very many sentences, and compare halves of the run."""
    threads = max(1, given.threads // given.workers)
    translator = Translator(given.bundle, given.target, threads=threads, workers=given.workers)
    vocabulary = translator.manifest.model.vocabulary_size
    longest = min(given.longest, translator.manifest.limits.max_source_length - 1)
    options = SearchOptions(max_length=given.max_length)
    random = np.random.default_rng(1)
    memory, speed = [], []
    for _ in range(given.sentences // CALL):
        lengths = random.integers(1, longest + 1, CALL)
        sources = [random.integers(4, vocabulary, length).tolist() for length in lengths]
        begin = perf_counter()
        translator.translate_ids(sources, options)
        speed.append(CALL / (perf_counter() - begin))
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        memory.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
    half = len(speed) // 2
    results = {
        "most_resident_mib": {
            "after a tenth": max(memory[: max(1, len(speed) // 10)]),
            "first half": max(memory[:half]),
            "second half": max(memory[half:]),
        },
        "sentences_per_second": {
            "first half": statistics.median(speed[:half]),
            "second half": statistics.median(speed[half:]),
        },
    }
    settings = {"sentences": len(speed) * CALL, "longest": longest, "max_length": given.max_length,
                "workers": given.workers, "threads": threads,
                "target": translator.target.name}  # fmt: skip
    return Report(results, settings, {"resident_mib": memory, "sentences_per_second": speed})


if __name__ == "__main__":
    main(__doc__)
