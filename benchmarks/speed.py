"""Measure how speed grows with batch, length and threads, and the memory of a long run.

    python benchmarks/speed.py scaling MODEL TEXT [--rounds 3] [--precision int8]
    python benchmarks/speed.py steady --bundle DIR [--sentences 100000] [--max-length 16]
    python benchmarks/speed.py depths [--layers 2 6]

- scaling: 1 to 128 sentences of the text's median length in one batch; one sentence of 5 to 200
  tokens, cut from the text; a batch of 32 sentences with 1, 2, 4 ... threads. The memory of a point
  is the peak of a process that has translated nothing else.
- steady: resident memory and sentences per second of one process over very many sentences of random
  tokens, with lengths drawn evenly from 1 to --longest, 500 in a call.
- depths: memory and speed of two models of MADLAD-400 3B's width with random weights, and by the
  line through both those of its 32 + 32 layers.

The module also prepares side_by_side.py: it converts the model for each system and chooses how the
cores are split and how large batches are. Every system gets the same weights, tokens, beam, length
penalty and cores, and translates in a warm process (systems.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from time import perf_counter
from typing import Any

import marian
import numpy as np
from harness import Report, alternate, benchmark, evenly, main, option, seconds_of, spread
from models import random_checkpoint
from roofline import Peaks, measure_peaks, work
from systems import BEFORE, OURS, REQUIRED, Models, Process, Setting, convert, processes

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.export.engines.options import EngineOptions
from translate_trt.export.importers.recognition import recognize_directory
from translate_trt.runtime import SearchOptions, Translator
from translate_trt.runtime.benchmark import peak_memory
from translate_trt.runtime.bundle.contract import forced_token
from translate_trt.runtime.bundle.manifest import SHORTLIST, read_manifest
from translate_trt.runtime.errors import InputError, TranslateTrtError
from translate_trt.runtime.io.lines import read_parallel
from translate_trt.train import checkpoint as checkpoints
from translate_trt.train.checkpoint import find_checkpoint, open_checkpoint
from translate_trt.train.config import GATED, ModelConfig

#: Rows of a comparison in their order: systems with their precisions.
ROWS = {
    OURS: ("int8", "fp32", "fp16"), BEFORE: ("int8", "fp32"),
    "ctranslate2": ("int8", "fp32", "fp16"),
    "marian": ("int8", "fp32"), "transformers": ("int8", "fp32", "fp16"), "torch": ("fp32",),
}  # fmt: skip
DEFAULT = (OURS, "ctranslate2", "marian", "transformers")
#: Systems with lexical shortlists.
WITH_SHORTLISTS = (OURS, "ctranslate2", "marian")
#: Relative difference below which noise decides which of two trials is faster.
NOISE = 0.03
#: Source tokens of a batch that are tried for throughput.
BATCH_TOKENS = (256, 512, 1024, 2048, 4096)
#: The same on a GPU, and the largest number of sentences.
GPU_BATCH_TOKENS, GPU_BATCH = (5_000, 10_000, 20_000), 512
#: Points of the scaling: sentences of a batch, source tokens.
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTHS = (5, 10, 20, 40, 80, 120, 160, 200)
WHOLE = 1_000_000  # tokens of a batch that is never split
CALL = 500  # sentences of a call of the steady run

#: Changes of a setting, by stages.
Stages = Sequence[Sequence[dict[str, Any]]]
Points = dict[int, list[list[int]]]  # sentences by the number that grows

OPTIONS = (
    option("model", type=Path, help="run, checkpoint, or model that `import auto` recognizes"),
    option("text", type=Path, help="text to translate, a sentence per line"),
    option("--languages", nargs=2, metavar=("SOURCE", "TARGET"), default=(None, None),
           help="languages, for models of several"),
    option("--shortlist", type=Path, help="also run systems with this table; default: the model's"),
    option("--lines", type=int, default=500, help="number of lines, spread evenly"),
    option("--trial-lines", type=int, default=120,
           help="lines that settings are tried on; 0 tries none"),
    option("--beam-size", type=int, default=4, help="beam size of all systems"),
    option("--precision", action="append", choices=("int8", "fp32", "fp16"),
           help="fp16 is on a GPU; default: int8 and fp32"),
    option("--gpu-target", default="torch-fp16", help="target that fp16 measures"),
    option("--system", action="append", choices=[one for one in ROWS if one != BEFORE],
           help=f"may be repeated; default: {', '.join(DEFAULT)}"),
    option("--before", metavar="PYTHON", help="also run another version: Python that has it"),
    option("--bundle-before", type=Path, metavar="DIR",
           help="bundle of the other version, if formats differ"),
)  # fmt: skip


@dataclass(frozen=True)
class Texts:
    """Lines to translate and their reference translations, if there are any."""

    source: list[str]
    references: list[list[str]] = field(default_factory=list)

    @classmethod
    def read(cls, text: Path, references: Sequence[Path], count: int) -> Texts:
        """Read that many lines with words, spread evenly, and their references.

        Raises:
            InputError: A file cannot be read, the text is empty, or the numbers of lines differ.
        """
        columns = [[right for _, right in read_parallel(text, one)] for one in (text, *references)]
        rows = evenly([row for row in zip(*columns, strict=True) if row[0].strip()], count)
        if not rows:
            raise InputError(f"{text} has no line to translate.")
        source, *others = (list(column) for column in zip(*rows, strict=True))
        return cls(source, others)


# ---- systems and their models ----


def checkpoint_of(model: Path, languages: tuple[str | None, str | None], out: Path) -> Path:
    """Return the checkpoint of a model, which is imported to `out` if it is another toolkit's.

    Raises:
        TranslateTrtError: The path holds no model that can be imported.
    """
    directory = model.parent if model.is_file() else model
    runs = (directory / checkpoints.AVERAGED, *checkpoints.numbered_checkpoints(directory))
    if not any(one.is_dir() for one in runs):
        form = recognize_directory(directory)
        if form.load is not None:
            form.load(directory, languages).save(out, languages, inputs=[directory])
            return out
    return find_checkpoint(directory)


def systems(given: Namespace, shortlist: bool, prompt: Mapping[str, Any]) -> list[Setting]:
    """Return the systems that the options ask for, ours first, with their initial settings."""
    asked = (*(given.system or DEFAULT), *([BEFORE] if given.before else []))
    found = []
    for precision in given.precision or ("int8", "fp32"):
        target = given.gpu_target if precision == "fp16" else ""
        rows = [Setting(one, precision, target) for one in ROWS
                if one in asked and precision in ROWS[one]]  # fmt: skip
        if OURS in asked and given.beam_size > 1:
            rows.insert(1, Setting(OURS, precision, target, paper_rule=True))
        if shortlist:
            rows += [replace(one, shortlist=True) for one in rows
                     if one.system in WITH_SHORTLISTS and not one.paper_rule]  # fmt: skip
        found += rows
    python = {BEFORE: given.before}
    return [replace(one, python=python.get(one.system, ""), **prompt) for one in found]


@contextlib.contextmanager
def models(given: Namespace) -> Iterator[tuple[Models, list[Setting], dict[str, str]]]:
    """Convert the model for every system, for as long as the context lasts.

    Yields:
        The models, the systems that can run them, and the reasons of the others by label.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        checkpoint = open_checkpoint(
            checkpoint_of(given.model, tuple(given.languages), directory / "checkpoint")
        )
        bundle = directory / "bundle"
        made = Models(checkpoint.path, bundle, directory, given.bundle_before or bundle)
        shortlist = given.shortlist or checkpoint.shortlist
        prompt = prompt_of(checkpoint, given.languages) | {"beam_size": given.beam_size}
        asked, ready, left_out = systems(given, shortlist is not None, prompt), [], {}
        targets = dict.fromkeys(
            f"{one.gpu_target or f'onnx-{one.precision}'}{SHORTLIST if one.shortlist else ''}"
            for one in asked
            if one.system in (OURS, BEFORE)
        )
        if targets:
            engines = EngineOptions(max_batch=GPU_BATCH)
            options = BuildOptions(tuple(targets), shortlist=shortlist, engines=engines)
            compile_bundle(checkpoint, bundle, options)
        for setting in asked:
            try:
                for name in REQUIRED[setting.system]:
                    distribution(name.partition("[")[0])
                convert(setting, made, shortlist)
                ready.append(setting)
            except PackageNotFoundError as error:
                left_out[setting.label] = f"not installed: pip install {error.name}"
            except TranslateTrtError as error:
                left_out[setting.label] = str(error)
        for label, reason in left_out.items():
            print(f"  {label} is left out: {reason}", flush=True)
        yield made, ready, left_out


def prompt_of(
    checkpoint: checkpoints.Checkpoint, languages: Sequence[str | None]
) -> dict[str, Any]:
    """Return the fields of `Setting` with the model's prompt for two languages.

    Raises:
        OptionError: The model needs languages, or does not know them.
    """
    options = SearchOptions(source_language=languages[0], target_language=languages[1])
    checkpoint.check_languages(options)
    prefixes = [checkpoint.prompt.of_source(options), checkpoint.prompt.of_target(options)]
    source, target = (tuple(map(forced_token, one)) for one in prefixes)
    return {"languages": tuple(languages), "source_prefix": source, "target_prefix": target}


# ---- the best setting of each system ----


def libraries(setting: Setting) -> list[dict[str, Any]]:
    """Return what chooses between the matmul libraries of a system."""
    if setting.system == "marian" and setting.precision == "int8":
        return [{"weights": name} for name in marian.int8_weights()]
    if setting.system != "ctranslate2" or setting.precision == "fp16":
        return [{}]
    return [{"environment": (("CT2_USE_MKL", value),)} for value in ("0", "1")]


def throughput_stages(setting: Setting, cores: int) -> Stages:
    """Return the settings to try: one batch at a time on all cores, or one batch on each."""
    together, apart = {"workers": 1, "threads": cores}, {"workers": cores, "threads": 1}
    splits = [together, apart] if cores > 1 else [together]
    if setting.precision == "fp16":
        return [[{"workers": 1}, {"workers": 2}], [{"batch_tokens": n} for n in GPU_BATCH_TOKENS]]
    if setting.system == "marian":  # a batch runs on one thread
        splits = [apart]
    elif setting.system not in (OURS, BEFORE, "ctranslate2"):
        splits = [together]
    return [libraries(setting), splits, [{"batch_tokens": size} for size in BATCH_TOKENS]]


def latency_stages(setting: Setting, cores: int) -> Stages:
    """Return the settings to try for sentences one at a time."""
    alone = setting.system == "marian" or setting.precision == "fp16"
    counts = (1,) if alone else dict.fromkeys((1, cores))
    return [libraries(setting), [{"threads": count} for count in counts]]


def best_setting(
    start: Setting, stages: Stages, measure: Callable[[Setting], float]
) -> tuple[Setting, dict[Setting, float]]:
    """Try the changes of each stage on top of the best setting of the stage before.

    Among settings whose order could be noise, the first is the best: it has smaller batches and
    needs less memory.

    Returns:
        The best setting, and the figure of each that was tried.
    """
    trials: dict[Setting, float] = {}
    best = start
    for changes in stages:
        tried = list(dict.fromkeys(replace(best, **change) for change in changes))
        for setting in tried:
            if setting not in trials:
                trials[setting] = measure(setting)
        top = max(trials[one] for one in tried)
        best = next(one for one in tried if trials[one] >= (1 - NOISE) * top)
    return best, trials


def figure_of(
    made: Models, lines: Sequence[str] | Sequence[list[int]], passes: int = 0
) -> Callable[[Setting], float]:
    """Return a measure for `best_setting`, in a fresh process, of lines or their tokens.

    It is the tokens per second of the fastest of so many passes over the lines, or without passes
    the sentences per second of the median line.
    """

    def measure(setting: Setting) -> float:
        rows, kind = range(len(lines)), "texts" if isinstance(lines[0], str) else "sources"
        with Process(setting, made) as process:
            process.ask(kind, **{kind: list(lines)})
            if passes:
                process.translate(rows[:16])
                found = [process.translate(rows) for _ in range(passes)]
                figure = max(sum(one["tokens"]) / one["translate"] for one in found)
            else:
                times = [process.translate([row])["translate"] for row in (*rows[:3], *rows)]
                figure = 1 / statistics.median(times[len(rows[:3]) :])
        print(f"    {figure:7.1f} {'tokens' if passes else 'sentences'}/s  {varied(setting)}")
        return figure

    return measure


def varied(setting: Setting) -> str:
    """Describe what `best_setting` varies."""
    variables = "".join(f", {name}={value}" for name, value in setting.environment)
    weights = f", {setting.weights}" if setting.weights else ""
    return (
        f"{setting.workers} x {setting.threads} threads, {setting.batch_tokens} tokens"
        f"{weights}{variables}"
    )


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
            memory = {label: process.memory() for label, process in running.items()}
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


@benchmark("scaling", *OPTIONS)
def scaling(given: Namespace) -> Report:
    """Measure how speed and memory grow with the batch, the sentence length and the threads."""
    texts = Texts.read(given.text, [], given.lines)
    with models(given) as (made, settings, _):
        config = open_checkpoint(made.checkpoint).model
        peaks = measure_peaks(given.threads, config)
        with Process(settings[0], made) as process:
            process.ask("texts", texts=texts.source)
            sources = [source for source in process.ask("tokens") if source]
        batches, lengths = batch_points(sources), length_points(sources)
        counts = [{"threads": count} for count in dict.fromkeys((1, given.threads))]
        large, small = (
            [best_setting(replace(one, batch_tokens=WHOLE), [libraries(one), counts],
                          figure_of(made, points, 2))[0] for one in settings]
            for points in (batches[8] + batches[32], lengths[20] + lengths[80])
        )  # fmt: skip
        results = {
            "batch": measure_points(large, made, batches, given.rounds, peaks),
            "length": measure_points(small, made, lengths, given.rounds, peaks),
            "threads": {one.label: {} for one in large},
        }
        for count in (2**power for power in range(given.threads.bit_length())):
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


# ---- a model too large for this machine ----

#: MADLAD-400 3B (config.json of google/madlad400-3b-mt), but for its depth.
MADLAD = ModelConfig(
    vocabulary_size=256_000, d_model=1024, d_ff=8192, heads=16, key_size=128, value_size=128,
    norm="pre", tied="input", activation=GATED, rms_norm=True, relative_positions=128,
    scale_embedding=False, layer_norm_epsilon=1e-6,
)  # fmt: skip
MADLAD_LAYERS = 32
SENTENCES = (1, 32)
SENTENCE_TOKENS = 24  # of a source and of its translation


def translate_random(bundle: Path, rounds: int, threads: int) -> dict[str, Any]:
    """Return the peak memory of this process and the seconds of batches of random sentences."""
    translator = Translator(bundle, threads=threads)
    vocabulary = translator.manifest.model.vocabulary_size
    tokens = np.random.default_rng(1).integers(4, vocabulary, (max(SENTENCES), SENTENCE_TOKENS))
    options = SearchOptions(beam_size=1, min_length=SENTENCE_TOKENS, max_length=SENTENCE_TOKENS)
    ways = {
        str(count): functools.partial(translator.translate_ids, tokens[:count].tolist(), options)
        for count in SENTENCES
    }
    translator.translate_ids(tokens.tolist(), options)
    samples = alternate({name: seconds_of(way) for name, way in ways.items()}, rounds)
    seconds = {name: spread(one) for name, one in samples.items()}
    return {"memory": peak_memory(), "seconds": seconds}


@benchmark("depths", option("--layers", type=int, nargs=2, default=(2, 6), help="of each stack"))
def depths(given: Namespace) -> Report:
    """Measure int8 models of MADLAD-400 3B's width at two depths, and estimate its own."""
    results: dict[str, Any] = {}
    for count in given.layers:
        shape = replace(MADLAD, encoder_layers=count, decoder_layers=count)
        with tempfile.TemporaryDirectory() as temporary:
            checkpoint, bundle = Path(temporary, "checkpoint"), Path(temporary, "bundle")
            random_checkpoint(checkpoint, shape)
            options = BuildOptions(("onnx-int8",), max_source_length=64, max_target_length=128)
            compile_bundle(open_checkpoint(checkpoint), bundle, options)
            context = multiprocessing.get_context("spawn")  # a process with a peak of its own
            with ProcessPoolExecutor(1, context) as process:
                work = process.submit(translate_random, bundle, given.rounds, given.threads)
                found = work.result()
            files = read_manifest(bundle).targets["onnx-int8"].files.values()
            results[str(count)] = found | {"bytes": sum(file.bytes for file in files)}
            print(f"  {count}", flush=True)
    few, many = (results[str(count)] for count in given.layers)
    steps = (MADLAD_LAYERS - given.layers[0]) / (given.layers[1] - given.layers[0])

    def extended(less: float, more: float) -> float:
        return less + steps * (more - less)

    results[str(MADLAD_LAYERS)] = {
        "estimated": True,
        **{name: extended(few[name], many[name]) for name in ("memory", "bytes")},
        "seconds": {name: [extended(one[0], many["seconds"][name][0])]
                    for name, one in few["seconds"].items()},
    }  # fmt: skip
    return Report(results, {"model": dataclasses.asdict(MADLAD), "tokens": SENTENCE_TOKENS})


if __name__ == "__main__":
    main(__doc__)
