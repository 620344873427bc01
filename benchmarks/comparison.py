"""Common parts of the comparisons with peers: options, models, and each system's best setting.

Every system gets the same weights, tokens, beam, length penalty and cores. How the cores are split
and how large batches are is tried for each system before the measurement, and the report lists
what was tried.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import marian
from harness import parser
from processes import Process
from roofline import Peaks, work
from systems import OURS, SYSTEMS, Models, Setting

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.runtime.bundle.manifest import SHORTLIST
from translate_trt.runtime.io.lines import read_parallel
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import find_checkpoint, open_checkpoint
from translate_trt.train.config import ModelConfig
from translate_trt.train.shortlist.table import Shortlist

#: Peers by precision.
PEERS = {
    "int8": ("ctranslate2", "marian", "onnx-host-search"),
    "fp32": ("ctranslate2", "marian", "onnx-host-search", "torch", "torch-compiled"),
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

#: Changes of a setting, by stages.
Stages = Sequence[Sequence[dict[str, Any]]]


@dataclass(frozen=True)
class Trial:
    """Setting that was tried and the figure it reached (the higher, the better).

    Attributes:
        setting: The setting.
        figure: Figure that it reached.
        final: Whether it ran on all lines, which decides.
    """

    setting: Setting
    figure: float
    final: bool = False


@dataclass(frozen=True)
class TestSet:
    """Lines to translate and their reference translations."""

    source: list[str]
    reference: list[str]


def options(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every comparison."""
    found = parser(description)
    found.add_argument(
        "--checkpoint", type=Path, required=True, help="run or checkpoint of the model"
    )
    found.add_argument(
        "--bundle", type=Path, help="bundle of the checkpoint; default: compiled now"
    )
    found.add_argument("--source", type=Path, required=True, help="lines to translate")
    found.add_argument("--reference", type=Path, required=True, help="reference translations")
    found.add_argument(
        "--shortlist", type=Path, help="also run ours, CTranslate2 and Marian with this table"
    )
    found.add_argument("--name", default="", help="suffix of the report's name")
    found.add_argument("--lines", type=int, default=500, help="number of lines, spread evenly")
    found.add_argument("--beam-size", type=int, default=4, help="beam size of all systems")
    found.add_argument(
        "--precision", action="append", choices=sorted(PEERS), help="default: int8 and fp32"
    )
    found.add_argument(
        "--peer", action="append", choices=[name for name in SYSTEMS if name != OURS],
        help=f"may be repeated; default: {', '.join(DEFAULT)}",
    )  # fmt: skip
    found.add_argument(
        "--pymarian", type=Path, metavar="DIR",
        help=f"folder with the package pymarian, if it is elsewhere; default: ${marian.VARIABLE}",
    )  # fmt: skip
    return found


def report_name(kind: str, given: argparse.Namespace) -> str:
    """Return the name of the report."""
    return f"{kind}-{given.name}" if given.name else kind


def test_set(given: argparse.Namespace) -> TestSet:
    """Return the lines that the options ask for."""
    pairs = list(read_parallel(given.source, given.reference))
    count = min(given.lines, len(pairs))
    chosen = [pairs[index * len(pairs) // count] for index in range(count)]
    return TestSet([source for source, _ in chosen], [reference for _, reference in chosen])


def systems(given: argparse.Namespace) -> list[Setting]:
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
    return [dataclasses.replace(one, beam_size=given.beam_size) for one in found]


@contextlib.contextmanager
def models(given: argparse.Namespace, settings: Sequence[Setting]) -> Iterator[Models]:
    """Convert the checkpoint for every system, for as long as the context lasts."""
    checkpoint = find_checkpoint(given.checkpoint)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        bundle = given.bundle or directory / "bundle"
        made = Models(checkpoint, bundle, directory)
        if given.bundle is None:
            targets = dict.fromkeys(
                f"onnx-{one.precision}{SHORTLIST if one.shortlist else ''}" for one in settings
            )
            build = BuildOptions(tuple(targets), shortlist=given.shortlist)
            compile_bundle(open_checkpoint(checkpoint), bundle, build)
        for setting in settings:
            convert(setting, made, given.shortlist)
        yield made


def convert(setting: Setting, made: Models, shortlist: Path | None = None) -> None:
    """Convert the checkpoint for a peer; `shortlist` is the table for settings that use one."""
    import peers

    if setting.system == "marian":
        out = marian.folder_of(setting, made)
        if not out.exists():
            marian.convert(
                made.checkpoint, out, setting.precision, shortlist if setting.shortlist else None
            )
        return
    converter = peers.CONVERTERS.get(setting.system)
    out = made.converted / f"{setting.system}-{setting.precision}"
    if converter is not None and not out.exists():
        converter(made.checkpoint, out, setting.precision)
    if setting.system == "ctranslate2" and setting.shortlist and shortlist is not None:
        peers.write_vocabulary_map(shortlist, made.checkpoint, out)


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
    return dataclasses.replace(config, vocabulary_size=round(statistics.mean(sizes)))


def hold_to_limit(
    found: dict[str, Any],
    setting: Setting,
    shape: ModelConfig,
    lengths: tuple[Sequence[int], Sequence[int]],
    seconds: float,
    peaks: Peaks,
) -> None:
    """Add to a system's results its setting, its work and the share of the limit it reached.

    Args:
        found: Results of the system.
        setting: Its setting.
        shape: Its shape, see `searched`.
        lengths: Numbers of tokens of the sources and of their translations.
        seconds: Time that it took.
        peaks: Peaks of the machine.
    """
    least = work(shape, setting.precision, *lengths, setting.beam_size, setting.batch_tokens)
    found["work"] = dataclasses.asdict(least)
    found["roofline"] = least.seconds(setting.precision, peaks) / seconds
    found["setting"] = dataclasses.asdict(setting)


def splits(setting: Setting, cores: int) -> list[dict[str, Any]]:
    """Return the ways to use the cores: one batch at a time on all, or one batch on each."""
    together = {"workers": 1, "threads": cores}
    apart = {"workers": cores, "threads": 1}
    if setting.system == "marian":  # a batch runs on one thread
        return [apart]
    divides = setting.system in (OURS, "ctranslate2")
    return [together, apart] if divides and cores > 1 else [together]


def libraries(setting: Setting) -> list[dict[str, Any]]:
    """Return what chooses between the matmul libraries of a system."""
    if setting.system == "marian" and setting.precision == "int8":
        return [{"weights": name} for name in marian.int8_weights()]
    if setting.system != "ctranslate2":
        return [{}]
    return [{"environment": (("CT2_USE_MKL", value),)} for value in ("0", "1")]


def throughput_stages(setting: Setting, cores: int) -> Stages:
    """Return the settings to try for throughput."""
    sizes = [{"batch_tokens": size} for size in (256, 512, 1024, 2048, 4096)]
    return [libraries(setting), splits(setting, cores), sizes]


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

    Args:
        start: Initial setting.
        stages: Changes to try.
        measure: Returns the figure of a setting, the higher the better.
        decide: More expensive measure for the few best settings of `measure`, if any.

    Returns:
        The best setting, and all trials in order. Among settings whose order could be noise, the
        first is the best: it has smaller batches and needs less memory.
    """
    trials: list[Trial] = []
    best = start
    for changes in stages:
        known = {trial.setting: trial for trial in trials}
        tried = []
        for setting in dict.fromkeys(dataclasses.replace(best, **change) for change in changes):
            trial = known.get(setting) or Trial(setting, measure(setting))
            tried.append(trial)
        trials += [trial for trial in tried if trial.setting not in known]
        best = _first_of_the_best(tried)
    if decide is not None:
        final = [
            Trial(trial.setting, decide(trial.setting), final=True) for trial in _finalists(trials)
        ]
        best, trials = _first_of_the_best(final), trials + final
    return best, trials


def _first_of_the_best(trials: Sequence[Trial]) -> Setting:
    top = max(trial.figure for trial in trials)
    # A figure may be negative: seconds, say.
    return next(one.setting for one in trials if one.figure >= top - NOISE * abs(top))


def _finalists(trials: Sequence[Trial]) -> list[Trial]:
    """Trials that a part of the lines may have misjudged, in the order of the trials."""
    top = sorted(trials, key=lambda trial: trial.figure, reverse=True)[:FINALISTS]
    near = [one for one in top if one.figure >= top[0].figure - MISJUDGED * abs(top[0].figure)]
    return [trial for trial in trials if trial in near]


def tokens_per_second(made: Models, texts: Sequence[str], passes: int = 2) -> Any:
    """Return a measure for `best_setting`: the fastest pass over the lines in a fresh process."""

    def measure(setting: Setting) -> float:
        with Process(setting, made) as process:
            process.ask("texts", texts=list(texts))
            process.translate(range(min(16, len(texts))))
            found = [process.translate(range(len(texts))) for _ in range(passes)]
        figure = max(sum(one["tokens"]) / one["translate"] for one in found)
        print(f"    {figure:7.1f} tokens/s  {described(setting)}", flush=True)
        return figure

    return measure


def sentences_per_second(made: Models, texts: Sequence[str]) -> Any:
    """Return a measure for `best_setting`: the median of single sentences in a fresh process."""

    def measure(setting: Setting) -> float:
        with Process(setting, made) as process:
            process.ask("texts", texts=list(texts))
            for row in range(min(3, len(texts))):
                process.translate([row])
            found = [process.translate([row])["translate"] for row in range(len(texts))]
        middle = statistics.median(found)
        print(f"    {1e3 * middle:7.1f} ms  {described(setting)}", flush=True)
        return 1 / middle

    return measure


def described(setting: Setting) -> str:
    """Describe a setting in a line."""
    return f"{setting.label}: {cores_and_batch(setting)}"


def cores_and_batch(setting: Setting) -> str:
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
        f"{cores_and_batch(trial.setting)}{', all lines' if trial.final else ''}": trial.figure
        for trial in trials
    }
