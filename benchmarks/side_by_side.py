"""Compare this project with CTranslate2, Marian and transformers on one model and one text.

    python benchmarks/side_by_side.py MODEL TEXT [--reference FILE ...] [--languages en de]
        [--lines 500] [--sentences 100] [--system ctranslate2] [--precision int8] [--out a.json]

MODEL is a run, a checkpoint, or a model of another toolkit that `translate-trt import auto`
recognizes. It is converted once for each system. Systems that are not installed, or cannot compute
the model, are listed with the reason. With --before, another version of this project runs, too.
`--precision fp16` compares with CTranslate2 on a GPU, in batches of up to 20,000 tokens; no GPU has
run it yet.

Matmul libraries, packed weights, workers, threads and batch sizes are tried for each system on a
part of the text (speed.py). Then all systems are measured in turn, round after round, in processes
that are stopped while another one runs: the whole text, single sentences, and new processes with
one thread until their first translation. Memory is the peak of the process of the whole text, and
size that of a system's packages with all their dependencies.

Translations are compared token for token: with the PyTorch beam search in fp32 by the same rule,
and those of batches with those of the same process for the sentences alone. With --reference, the
text is scored with sacreBLEU.

With --out, a page and a plot are written beside the JSON file; without, it is one of
`benchmarks/results/`, from which render.py makes README's first table and docs/performance.md.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import plots
from harness import RESULTS, ROOT, Report, alternate, benchmark, evenly, main, option, shown, spread
from packaging.requirements import Requirement
from render import text_of
from roofline import measure_peaks, work
from speed import (
    OPTIONS,
    Texts,
    best_setting,
    figure_of,
    latency_stages,
    libraries,
    models,
    throughput_stages,
    varied,
)
from systems import REQUIRED, Models, Process, Setting, processes

from translate_trt.runtime.errors import OptionError, TranslateTrtError
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.evaluation.scoring import make_metric

#: Timed parts of a translation: tokenization, search, detokenization.
PARTS = ("encode", "translate", "decode")
#: Lines that settings for single sentences are tried on.
TRIAL_SENTENCES = 15


def tune(
    given: Namespace, made: Models, texts: Texts, start: Setting
) -> tuple[Setting, Setting, dict[str, Any]]:
    """Return the best settings for the whole text and for single sentences, and all trials."""
    lines = evenly(texts.source, given.trial_lines)
    if not lines:
        start = replace(start, **libraries(start)[0])
        return start, start, {}
    print(f"  trying {start.label}", flush=True)
    many, few = figure_of(made, lines, 2), figure_of(made, evenly(lines, TRIAL_SENTENCES))
    fast, tried = best_setting(start, throughput_stages(start, given.threads), many)
    quick, more = best_setting(start, latency_stages(start, given.threads), few)
    found = {"text": tried, "sentences": more}
    return (
        fast,
        quick,
        {kind: {varied(x): y for x, y in all_.items()} for kind, all_ in found.items()},
    )


# ---- measuring ----


def expected(made: Models, setting: Setting, texts: Texts, threads: int) -> list[list[int]]:
    """Return the token ids of the PyTorch beam search in fp32 by the same rule."""
    system = {"system": "torch", "precision": "fp32", "shortlist": False, "python": ""}
    with Process(replace(setting, threads=threads, batch_tokens=1024, **system), made) as process:
        process.ask("texts", texts=texts.source)
        process.translate(range(len(texts.source)))
        return list(process.ask("last")["ids"])


def translate_all(
    running: Mapping[str, Process], texts: Texts, rounds: int, alone: Sequence[int]
) -> dict[str, Any]:
    """Translate all lines in turn, then some of them alone in the same processes."""
    rows = range(len(texts.source))
    for process in running.values():
        lengths = process.ask("texts", texts=texts.source)
    samples = alternate(
        {label: lambda p=process: p.translate(rows) for label, process in running.items()}, rounds
    )
    found: dict[str, Any] = {"source_tokens": lengths, "systems": {}}
    for label, process in running.items():
        last, memory, differing = process.ask("last"), process.memory(), 0
        for row in alone:
            process.translate([row])
            differing += process.ask("last")["ids"][0] != last["ids"][row]
        found["systems"][label] = {
            "tokens": samples[label][-1]["tokens"],
            "rounds": samples[label],
            "texts": last["texts"],
            "ids": last["ids"],
            "memory": memory,
            "other_alone": differing,
        }
    return found


def translate_each(
    running: Mapping[str, Process], texts: Sequence[str], rounds: int
) -> dict[str, list[list[float]]]:
    """Translate sentences one by one, all by each system in turn: seconds by round and sentence."""

    def measure(process: Process) -> list[float]:
        return [process.translate([row])["translate"] for row in range(len(texts))]

    for process in running.values():
        process.ask("texts", texts=list(texts))
    return alternate({label: lambda p=one: measure(p) for label, one in running.items()}, rounds)


def start(setting: Setting, made: Models, text: str) -> float:
    """Return the seconds from the start of a process to its first translation."""
    begin = perf_counter()
    with Process(setting, made) as process:
        process.ask("texts", texts=[text])
        process.translate([0])
        return perf_counter() - begin


# ---- figures ----


def figures(
    one: Mapping[str, Any], first: Mapping[str, Any], alone: Sequence[Sequence[float]],
    others: Sequence[Sequence[float]],
) -> dict[str, Any]:  # fmt: skip
    """Return a system's figures from its samples and those of the first: all lines, and single."""

    def seconds(system: Mapping[str, Any], *parts: str) -> list[float]:
        return [sum(one[part] for part in parts) for one in system["rounds"]]

    scale = sum(one["tokens"]) / max(1, sum(first["tokens"]))
    pairs = zip(seconds(one, "translate"), seconds(first, "translate"), strict=True)
    times, ratios = np.concatenate(alone), np.divide(alone, others)
    return {
        "sentences": len(one["tokens"]),
        "target_tokens": sum(one["tokens"]),
        "seconds": spread(seconds(one, "translate")),
        "seconds_with_tokenization": spread(seconds(one, *PARTS)),
        "first / this": spread(theirs / ours / scale for theirs, ours in pairs),
        "milliseconds": [1e3 * float(value) for value in np.percentile(times, (50, 95, 99))],
        # The median of all pairs, and the 5th and 95th percentile.
        "this / first": [float(value) for value in np.percentile(ratios, (50, 5, 95))],
        "memory": one["memory"],
        "other_alone": one["other_alone"],
    }


def installed_bytes(*names: str) -> int:
    """Return the bytes on disk of distributions and of all that they require."""
    sizes: dict[str, int] = {}
    waiting, known = [Requirement(name) for name in names], set()
    while waiting:
        needed = waiting.pop()
        if str(needed) in known:
            continue
        known.add(str(needed))
        try:
            found = distribution(needed.name)
        except PackageNotFoundError:  # an optional part of another platform
            continue
        sizes[found.name] = _bytes_of(found)
        for one in map(Requirement, found.requires or ()):
            extras = needed.extras or {""}
            if one.marker is None or any(one.marker.evaluate({"extra": name}) for name in extras):
                waiting.append(one)
    return sum(sizes.values())


def _bytes_of(found: Distribution) -> int:
    """Return the bytes of a distribution's files; an editable one lists none."""
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        inside = (
            path for name in ("runtime", "train", "export") for path in (ROOT / name).rglob("*")
        )
        files = [path for path in inside if "cpp" not in path.relative_to(ROOT).parts]
    else:
        files = [Path(str(one.locate())) for one in found.files or ()]
    return sum(one.stat().st_size for one in files if one.suffix != ".pyc" and one.is_file())


def revision() -> str:
    """Return the revision of this code and its date; empty outside a repository."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%h of %cs"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def scores(texts: Texts, translations: Sequence[str]) -> dict[str, Any]:
    """Return BLEU and chrF, and the signature of BLEU; nothing without references."""
    if not texts.references:
        return {}
    first, *others = texts.references
    bleu, chrf = (
        make_metric(name, first, others=others)(translations) for name in ("bleu", "chrf")
    )
    return {"bleu": bleu.score, "chrf": chrf.score, "signature": bleu.signature}


# ---- the comparison ----


@benchmark(
    "side-by-side",
    *OPTIONS,
    option("--reference", type=Path, nargs="+", default=[], help="its translations, for scores"),
    option("--sentences", type=int, default=100, help="lines that are translated alone, too"),
)
def side_by_side(given: Namespace) -> Report:
    """Compare all systems that can run the model."""
    texts = Texts.read(given.text, given.reference, given.lines)
    alone = evenly(range(len(texts.source)), max(1, given.sentences))
    with models(given) as (made, ready, left_out):
        fast, quick, trials = [], [], {}
        for setting in ready:
            try:
                best, alone_best, trials[setting.label] = tune(given, made, texts, setting)
            except TranslateTrtError as error:
                left_out[setting.label] = str(error)
                continue
            fast.append(best)
            quick.append(alone_best)
        if not fast:
            raise OptionError(f"no system can translate with {given.model}; see above.")
        references = {
            one.paper_rule: expected(made, one, texts, given.threads)
            for one in {one.paper_rule: one for one in fast}.values()
        }
        with processes(fast, made) as running:
            samples = translate_all(running, texts, given.rounds, alone)
        with processes(quick, made) as running:
            single = translate_each(running, [texts.source[row] for row in alone], given.rounds)
        text = sorted(texts.source, key=len)[len(texts.source) // 2]
        runs: dict[str, Callable[[], float]] = {
            one.label: lambda one=one: start(replace(one, threads=1), made, text)  # type: ignore[misc]
            for one in quick
        }
        starts = alternate(runs, given.rounds)
        config = open_checkpoint(made.checkpoint).model
    peaks = measure_peaks(given.threads, config)
    measured, results = samples["systems"], {}
    first = fast[0].label
    for setting, other in zip(fast, quick, strict=True):
        label, one = setting.label, measured[setting.label]
        pairs = zip(one["ids"], references[setting.paper_rule], strict=True)
        lengths = (samples["source_tokens"], one["tokens"])
        least = work(config, setting.precision, *lengths, setting.beam_size, setting.batch_tokens)
        results[label] = {
            **figures(one, measured[first], single[label], single[first]),
            **scores(texts, one["texts"]),
            "equal": sum(a == b for a, b in pairs),
            "start": spread(starts[label]),
            "installed_bytes": installed_bytes(*REQUIRED[setting.system]),
            "setting": dataclasses.asdict(setting),
            "setting_alone": dataclasses.asdict(other),
        }
        # The work with a shortlist depends on the lists, and the peaks are those of the processor.
        if not setting.shortlist and setting.precision != "fp16":
            for key, count in (("roofline", least.seconds), ("computing", least.computing)):
                results[label][key] = count(setting.precision, peaks) / results[label]["seconds"][0]
        print(f"{label:34} {shown(results[label]['first / this'])}", flush=True)
    described = {
        "lines": len(texts.source), "sentences": len(alone), "cores": given.threads,
        "beam_size": given.beam_size, "model": dataclasses.asdict(config), "code": revision(),
    }  # fmt: skip
    results = {"systems": results, "left_out": left_out, "trials": trials,
               "peaks": dataclasses.asdict(peaks)}  # fmt: skip
    return Report(results, described, {**samples, "single": single, "starts": starts}, show=show)


def show(report: dict[str, Any], out: Path) -> None:
    """Print the page of a report, and write it and its plot beside a JSON file of the user's."""
    drawn = out.with_suffix(".svg")
    page = text_of("side-by-side", [report | {"plot": drawn.name}])
    print(page)
    if out.parent.resolve() != RESULTS:
        out.with_suffix(".md").write_text(page, encoding="utf-8")
        plots.side_by_side(report, drawn)


if __name__ == "__main__":
    main(__doc__)
