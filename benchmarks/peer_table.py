"""Measure students and `base` beside Marian and CTranslate2: every row of a table, in one command.

    python benchmarks/peer_models.py --data DIR --out MODELS     # the models, once
    python benchmarks/peer_table.py --models MODELS --prepare    # bundles and settings, once
    python benchmarks/peer_table.py --models MODELS [--row NAME] # measure, write

ROWS is the table. The systems of a row translate the same lines with the same weights, except where
a row compares decoders. Each is a warm process that is stopped while another one runs, and they
take turns. Settings are tried before, on a part of the lines and one core: Marian's packed weights,
CTranslate2's matmul libraries, sizes of batches. `--prepare` keeps bundles, converted models and
the settings it found in MODELS/work, so that a later run measures only; `--prepare` again tries
anew.

Throughput is measured on one core and on all of them, a batch on each. Tokens are target tokens
without the end symbol; processor seconds are those of all threads of the system. Operations are
those of the matmuls with weights, per processor second, and their share of what AVX-512 VNNI allows
a core, which the kernel benchmark measures with registers alone. One sentence:
every sentence goes to each system in turn. `equal` counts translations that are token for token
those of the first system of the row; rows of kind "equality" only count.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kernels
import latency
import marian
import throughput
from comparison import (
    TestSet,
    as_json,
    best_setting,
    convert,
    latency_stages,
    libraries,
    searched,
    sentences_per_second,
    tokens_per_second,
)
from harness import parser, spread, write
from peers import installed
from processes import Process
from roofline import work
from systems import OURS, Models, Setting

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.runtime.bundle.manifest import SHORTLIST
from translate_trt.runtime.io.lines import read_parallel
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import ModelConfig

THROUGHPUT, LATENCY, EQUALITY = "throughput", "one sentence", "equality"
#: Words of the lines of "twelve".
WORDS = 12
#: Source tokens of a batch that are tried.
BATCHES = (512, 1024, 2048)


@dataclass(frozen=True)
class Entry:
    """System of a row.

    Attributes:
        system: Key of `systems.SYSTEMS`.
        model: Name of a checkpoint of peer_models.py.
        shortlist: Whether the vocabulary is restricted.
    """

    system: str
    model: str
    shortlist: bool = False


@dataclass(frozen=True)
class Row:
    """Row of the table.

    Attributes:
        title: Title of the row.
        kind: THROUGHPUT, LATENCY or EQUALITY.
        entries: Systems; the others are compared with the first one.
        text: Lines to translate: "short", "long" (24 tokens) or "twelve" (WORDS words).
        beam_size: K.
        precision: "int8" or "fp32".
    """

    title: str
    kind: str
    entries: tuple[Entry, ...]
    text: str = "short"
    beam_size: int = 1
    precision: str = "int8"


def _of(model: str, *systems: str, shortlist: bool = False) -> tuple[Entry, ...]:
    return tuple(Entry(system, model, shortlist) for system in systems)


_SSRU = _of("student-ssru", OURS, "marian", shortlist=True)
_ACROSS = (Entry(OURS, "student", True), Entry("marian", "student-ssru", True))
_BASE = _of("base", OURS, "ctranslate2", "marian")

ROWS = {
    "ssru-shortlist": Row("student-tiny SSRU, shortlist, beam 1", THROUGHPUT, _SSRU),
    "ssru-shortlist-sentence": Row("student-tiny SSRU, shortlist, beam 1", LATENCY, _SSRU),
    "ssru": Row(
        "student-tiny SSRU, beam 1", THROUGHPUT, _of("student-ssru", OURS, "marian")
    ),
    "self-attention-ssru": Row(
        "self-attention student against Marian's SSRU, shortlist, beam 1", THROUGHPUT, _ACROSS
    ),
    "self-attention-ssru-sentence": Row(
        "self-attention student against Marian's SSRU, shortlist, beam 1", LATENCY, _ACROSS
    ),
    "base-1-short": Row("base, beam 1, short lines", THROUGHPUT, _BASE),
    "base-1-long": Row("base, beam 1, lines of 24 tokens", THROUGHPUT, _BASE, "long"),
    "base-1-shortlist": Row(
        "base, beam 1, short lines, shortlist", THROUGHPUT,
        _of("base", OURS, "ctranslate2", "marian", shortlist=True),
    ),
    "base-4": Row("base, beam 4, short lines", THROUGHPUT, _BASE, beam_size=4),
    "base-4-sentence": Row("base, beam 4", LATENCY, _BASE, beam_size=4),
    "twelve": Row(
        f"student-tiny, shortlist, beam 1, {WORDS} words", LATENCY,
        (Entry(OURS, "student-ssru", True), Entry(OURS, "student", True),
         Entry("marian", "student-ssru", True)),
        "twelve",
    ),
    **{
        f"equality-{model}": Row(
            f"{model}, beam 1, fp32", EQUALITY, _of(model, "torch", *peers), precision="fp32"
        )
        for model, peers in (
            ("student-ssru", ("marian",)), ("student", ("marian",)),
            ("base", ("ctranslate2", "marian")),
        )
    },
}  # fmt: skip


@dataclass(frozen=True)
class Workplace:
    """Folder of the models, and what is made of them."""

    models: Path

    @property
    def work(self) -> Path:
        """Folder of bundles, converted models and chosen settings."""
        return self.models / "work"

    @property
    def settings(self) -> Path:
        """File of chosen settings."""
        return self.work / "settings.json"

    def shortlist(self, model: str) -> Path:
        """Return the shortlist of a model."""
        return self.models / f"shortlist-{model}.safetensors"

    def made(self, model: str) -> Models:
        """Return a model in all formats."""
        converted = self.work / model
        return Models(self.models / model, converted / "bundle", converted)

    def texts(self, name: str, count: int) -> TestSet:
        """Return that many lines, spread evenly."""
        file = "short" if name == "twelve" else name
        pairs = list(read_parallel(*(self.models / f"{file}.{side}" for side in ("en", "de"))))
        if name == "twelve":
            pairs = [pair for pair in pairs if len(pair[0].split()) == WORDS]
        count = min(count, len(pairs))
        chosen = [pairs[index * len(pairs) // count] for index in range(count)]
        return TestSet([pair[0] for pair in chosen], [pair[1] for pair in chosen])


def prepare(place: Workplace, rows: Sequence[Row]) -> None:
    """Compile and convert every model that the rows use, unless it is there already."""
    entries = dict.fromkeys(entry for row in rows for entry in row.entries)
    for model in dict.fromkeys(entry.model for entry in entries):
        made = place.made(model)
        made.converted.mkdir(parents=True, exist_ok=True)
        ours = [entry for entry in entries if entry.model == model and entry.system == OURS]
        if ours and not made.bundle.exists():
            print(f"compiling {model}", flush=True)
            targets = ("onnx-int8", f"onnx-int8{SHORTLIST}")
            build = BuildOptions(targets, shortlist=place.shortlist(model))
            compile_bundle(open_checkpoint(made.checkpoint), made.bundle, build)
    for row in rows:
        for entry in row.entries:
            setting = setting_of(row, entry)
            convert(setting, place.made(entry.model), place.shortlist(entry.model))


def setting_of(row: Row, entry: Entry) -> Setting:
    """Return the initial setting of a system in a row."""
    return Setting(entry.system, row.precision, beam_size=row.beam_size, shortlist=entry.shortlist)


def key_of(row: Row, entry: Entry) -> str:
    """Return the key of a setting that was found: rows that ask for the same share it."""
    text = "short" if row.kind == LATENCY else row.text
    return f"{row.kind}, {text}, {entry.model}, {setting_of(row, entry).label}"


def tune(place: Workplace, rows: Sequence[Row], lines: int) -> dict[str, dict[str, Any]]:
    """Try settings on one core, or for single sentences on each number of threads.

    Returns:
        The best changes of the initial setting, and all trials, by `key_of`.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        for entry in row.entries:
            key, start = key_of(row, entry), setting_of(row, entry)
            if key in found or row.kind == EQUALITY:
                continue
            print(f"  trying {key}", flush=True)
            made, texts = place.made(entry.model), place.texts(row.text, lines)
            if row.kind == LATENCY:
                stages = latency_stages(start, cores())
                measure = sentences_per_second(made, texts.source[:10])
            else:
                stages = [libraries(start), [{"batch_tokens": size} for size in BATCHES]]
                measure = tokens_per_second(made, texts.source)
            best, trials = best_setting(start, stages, measure)
            chosen = {
                name: getattr(best, name)
                for name in ("threads", "batch_tokens", "weights", "environment")
            }
            found[key] = {"chosen": chosen, "trials": as_json(trials)}
    return found


def cores() -> int:
    """Return the number of cores."""
    count: int = parser(None).get_default("threads")
    return count


def tuned(row: Row, entry: Entry, known: dict[str, dict[str, Any]], workers: int) -> Setting:
    """Return the setting that was found, with that many batches side by side."""
    changes = dict(known.get(key_of(row, entry), {}).get("chosen", {}))
    if "environment" in changes:
        changes["environment"] = tuple(map(tuple, changes["environment"]))
    return dataclasses.replace(setting_of(row, entry), **changes, workers=workers)


@contextlib.contextmanager
def running(
    place: Workplace, row: Row, known: dict[str, dict[str, Any]], workers: int
) -> Iterator[dict[str, Process]]:
    """Start a warm process for each system of a row; yield them by label."""
    with contextlib.ExitStack() as stack:
        yield {
            f"{setting.label}, {entry.model}": stack.enter_context(
                Process(setting, place.made(entry.model))
            )
            for entry in row.entries
            for setting in [tuned(row, entry, known, workers)]
        }


def measure(
    place: Workplace, row: Row, known: dict[str, dict[str, Any]], given: argparse.Namespace
) -> dict[str, Any]:
    """Measure a row; return its results, with throughput by number of cores."""
    if row.kind == THROUGHPUT:
        texts = place.texts(row.text, given.lines)
        found = {}
        for workers in dict.fromkeys((1, given.threads)):
            with running(place, row, known, workers) as processes:
                samples = throughput.compare(processes, texts, given.rounds)
                settings = {label: one.setting for label, one in processes.items()}
            shapes = {
                label: searched(
                    place.shortlist(entry.model), place.made(entry.model), settings[label],
                    texts.source,
                )
                for label, entry in zip(settings, row.entries, strict=True)
            }  # fmt: skip
            found[str(workers)] = throughputs(samples, settings, shapes)
        return {"source_tokens": sum(samples["source_tokens"]), "cores": found}
    if row.kind == LATENCY:
        texts = place.texts(row.text, given.sentences)
        with running(place, row, known, 1) as processes:
            samples = latency.compare(processes, texts, given.rounds)
            settings = {label: one.setting for label, one in processes.items()}
        return {
            "source_tokens": sum(samples["source_tokens"]),
            "systems": latencies(samples, settings),
        }
    texts = place.texts(row.text, given.lines)
    with running(place, row, known, 1) as processes:
        return {"systems": equalities(processes, texts)}


def throughputs(
    samples: dict[str, Any], settings: dict[str, Setting], shapes: dict[str, ModelConfig]
) -> dict[str, Any]:
    """Return speed, operations, equal translations and ratios to the first system.

    Args:
        samples: Measurements of `throughput.compare`.
        settings: Setting of each system.
        shapes: Shape of each system's model, see `searched`.
    """
    first = next(iter(samples["systems"].values()))
    operations = {
        label: work(
            shapes[label], one.precision, samples["source_tokens"],
            samples["systems"][label]["tokens"], one.beam_size, one.batch_tokens,
        ).matmuls
        for label, one in settings.items()
    }  # fmt: skip
    return {
        label: {
            "sentences": len(one["tokens"]),
            "target_tokens": sum(one["tokens"]),
            "seconds": spread(throughput.seconds_of_rounds(one)),
            "processor_seconds": spread(throughput.seconds_of_rounds(one, ("processor",))),
            "operations": operations[label],
            "first / this": throughput.speed_ratios(first, one),
            "first / this, processor": throughput.speed_ratios(first, one, ("processor",)),
            "equal": equal(one["ids"], first["ids"]),
            "bleu": one["bleu"],
            "memory": one["memory"],
            "setting": dataclasses.asdict(settings[label]),
        }
        for label, one in samples["systems"].items()
    }


def latencies(samples: dict[str, Any], settings: dict[str, Setting]) -> dict[str, Any]:
    """Return milliseconds and ratios to the first system."""
    first = next(iter(samples["systems"].values()))
    found = {}
    for label, one in samples["systems"].items():
        compared = latency.pair_ratios(first, one)
        ends = (compared[round(share * (len(compared) - 1))] for share in (0.05, 0.95))
        found[label] = {
            "sentences": len(one["tokens"]),
            "target_tokens": sum(one["tokens"]),
            "milliseconds": latency.percentiles(one),
            "this / first": [compared[len(compared) // 2], *ends],
            "setting": dataclasses.asdict(settings[label]),
        }
    return found


def equalities(processes: dict[str, Process], texts: TestSet) -> dict[str, Any]:
    """Return how many translations are those of the first system."""
    ids: dict[str, list[list[int]]] = {}
    for label, process in processes.items():
        process.ask("texts", texts=texts.source)
        process.translate(range(len(texts.source)))
        ids[label] = process.ask("last")["ids"]
    first = next(iter(ids.values()))
    return {
        label: {"sentences": len(one), "equal": equal(one, first)} for label, one in ids.items()
    }


def equal(one: list[list[int]], other: list[list[int]]) -> int:
    """Count translations that are the same tokens."""
    return sum(a == b for a, b in zip(one, other, strict=True))


def available(rows: dict[str, Row]) -> dict[str, Row]:
    """Leave out peers that are not installed, and rows that have nothing to compare then."""
    found = {}
    for name, row in rows.items():
        entries = tuple(entry for entry in row.entries if installed(entry.system))
        if len(entries) > 1 or len(entries) == len(row.entries):
            found[name] = dataclasses.replace(row, entries=entries)
    return found


def main() -> None:
    """Prepare, or measure and write after each row."""
    options = parser(__doc__)
    options.add_argument("--models", type=Path, required=True, help="folder of peer_models.py")
    options.add_argument("--row", action="append", choices=ROWS, help="default: all")
    options.add_argument("--prepare", action="store_true", help="convert and try settings only")
    options.add_argument("--lines", type=int, default=150, help="lines of a throughput row")
    options.add_argument("--sentences", type=int, default=15, help="sentences of a latency row")
    options.add_argument("--trial-lines", type=int, default=48, help="lines of a trial")
    options.add_argument("--name", default="", help="suffix of the report's name")
    options.add_argument("--pymarian", type=Path, metavar="DIR", help="see throughput.py")
    given = options.parse_args()
    if not marian.locate(given.pymarian):
        print(marian.NOT_INSTALLED, file=sys.stderr)
    place = Workplace(given.models)
    rows = available({name: ROWS[name] for name in given.row or ROWS})
    if not rows:
        raise SystemExit("no row is left: the peers of all of them are missing (see above).")
    known: dict[str, dict[str, Any]] = {}
    if place.settings.exists():
        known = json.loads(place.settings.read_text(encoding="utf-8"))
    keys = {key_of(row, entry) for row in rows.values() for entry in row.entries}
    missing = [
        row
        for row in rows.values()
        if given.prepare or any(key_of(row, one) not in known for one in row.entries)
    ]
    prepare(place, list(rows.values()))
    known |= tune(place, missing, given.trial_lines)
    place.work.mkdir(exist_ok=True)
    place.settings.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    if given.prepare:
        return
    settings = {
        "cores": given.threads,
        "lines": given.lines,
        "sentences": given.sentences,
        "rounds": given.rounds,
        "models": {
            name: dataclasses.asdict(open_checkpoint(given.models / name).model)
            for name in dict.fromkeys(entry.model for row in rows.values() for entry in row.entries)
        },
        "trials": {key: one["trials"] for key, one in known.items() if key in keys},
        "vnni_limit": kernels.vnni_limit(),
    }
    results: dict[str, Any] = {}
    for name, row in rows.items():
        described = {"title": row.title, "kind": row.kind, "text": row.text}
        results[name] = {**described, **measure(place, row, known, given)}
        print(f"{name}: {json.dumps(summary(results[name]))}", flush=True)
        out = write(f"peers{'-' if given.name else ''}{given.name}", settings, results, given)
    print(out)


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Return the ratios of a row."""
    ratios = ("first / this", "first / this, processor", "this / first", "equal")
    groups = found.get("cores", {"": found.get("systems", {})})
    return {
        f"{label} {cores}".strip(): [one[name] for name in ratios if name in one]
        for cores, systems in groups.items()
        for label, one in systems.items()
    }


if __name__ == "__main__":
    main()
