"""Record finished runs: all figures are read from the files of runs, bundles and distillations.

    python benchmarks/record.py run --run multi30k/run --bundle multi30k/bundle
        --name multi30k --command "bash scripts/multi30k.sh DATA"
    python benchmarks/record.py front --distilled OUT/distilled --teacher OUT/bundle
        --name multi30k --command "bash scripts/distill_multi30k.sh DATA OUT"
        --test test_2016_flickr
    python benchmarks/record.py recipes RUNS [REPORT ...] --data DATA [--comparison initialization]
    python benchmarks/record.py levers OUT
    python benchmarks/record.py table3-check PRESET [ROW ...]
    python benchmarks/record.py table3-run RUN --data DATA --row h16 --preset base --out FILE
    python benchmarks/record.py table3 DIR [REPORT ...] [--note TEXT] [--out FILE]

- run: settings, training, and the parity evidence of the bundle.
- front: quality and speed of a teacher and its students, as `translate-trt distill` has measured.
- recipes: trains small models by the recipes of a comparison of recipes.toml, and records them
  beside those of earlier reports.
- levers: what options of training gain, as scripts/levers.sh has measured.
- table3-check tells before hours of training whether PRESET has all rows; table3-run reads the
  figures of a finished run; table3 prints the paper's Table 3 of the runs in DIR and of those in
  earlier tables, which may come from several calls of scripts/table3.sh, and writes one report.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
import subprocess
import tomllib
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from derived import PLAIN
from harness import Report, benchmark, command, machines_of, main, option
from render import text_of

from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.train.checkpoint import AVERAGED, open_checkpoint
from translate_trt.train.config import TABLE3, TrainConfig, preset
from translate_trt.train.data.token_files import open_prepared
from translate_trt.train.trainer.distributed import choose_device
from translate_trt.train.trainer.metrics import read_metrics
from translate_trt.train.trainer.precision import resolve_precision
from translate_trt.train.trainer.settings import SETTINGS

TEACHER = "teacher"
COMMAND = option("--command", required=True, help="command that made all")
#: Comparisons of small models' recipes by name: flags of one, its variations by name, and seeds.
COMPARISONS = tomllib.loads(Path(__file__).with_name("recipes.toml").read_text())


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def median_speed(run: Path) -> float:
    """Return the median of a run's target tokens per second."""
    entries = (entry for entry in read_metrics(run) if "loss" in entry)
    return float(statistics.median(one["target_tokens_per_second"] for one in entries))


def validations(run: Path) -> list[dict[str, Any]]:
    """Return the scores of a run by step; those of its average are the last."""
    return [
        {"step": entry["step"], "kind": kind, **entry[kind]}
        for entry in read_metrics(run)
        for kind in ("validation", "averaged")
        if kind in entry
    ]


@benchmark(
    "run", "bundle", option("--run", type=Path, required=True, help="run"), COMMAND, timed=False
)
def run(given: Namespace) -> Report:
    """Record a run and the parity of its bundle."""
    manifest = read_manifest(given.bundle)
    targets = {
        name: {"bytes": sum(file.bytes for file in one.files.values()), "parity": one.parity}
        for name, one in manifest.targets.items()
    }
    began = (given.run / "run.json").stat().st_mtime  # written when the vocabulary is ready
    ended = (given.run / AVERAGED / "config.json").stat().st_mtime
    training = {
        "wall_seconds": round(ended - began),
        "median_target_tokens_per_second": median_speed(given.run),
        "validation": validations(given.run),
    }
    parameters = manifest.model.parameters
    return Report(
        {"parameters": parameters, "training": training, "targets": targets},
        {"command": given.command, **read_json(given.run / "run.json")},
    )


@benchmark(
    "front",
    option("--distilled", type=Path, required=True, help="output of `translate-trt distill`"),
    option("--teacher", type=Path, required=True, help="bundle of the teacher"),
    option("--test", required=True, help="name of the test set"),
    COMMAND,
    timed=False,
)
def front(given: Namespace) -> Report:
    """Record the table of a distillation."""
    rows = read_json(given.distilled / "table.json")
    systems = {}
    for name in dict.fromkeys(row["system"] for row in rows):  # other students may be unfinished
        home = given.distilled / "students" / name
        model = read_manifest(given.teacher if name == TEACHER else home / "bundle").model
        decoder = ""
        if name != TEACHER:
            decoder = read_json(home / "run" / SETTINGS)["model"]["decoder_mixer"]
        size = (
            f"{model.encoder_layers}+{model.decoder_layers} layers, d_model {model.model_size}, "
            f"d_ff {model.feed_forward_size}"
        )
        systems[name] = {"size": size, "decoder": decoder, "parameters": model.parameters}
    selection = read_json(given.distilled / "pairs" / "selection.json")
    return Report(
        {"selection": selection, "systems": systems, "rows": rows},
        {"command": given.command, "test": given.test},
    )


@benchmark(
    "recipes",
    option("runs", type=Path, help="directory of the runs"),
    option("earlier", type=Path, nargs="*", help="reports whose recipes are not trained again"),
    option("--data", type=Path, required=True, help="directory of `translate-trt data prepare`"),
    option("--comparison", default="recipes", choices=COMPARISONS, help="of recipes.toml"),
    option("--only", action="append", default=[], help="train those with this in their names"),
    timed=False,
)
def recipes(given: Namespace) -> Report:
    """Train small models by several recipes, and record all that have ended, on any machine."""
    seeds, shapes, baseline, variations = COMPARISONS[given.comparison].values()
    earlier = [read_json(path) for path in given.earlier]
    if any(baseline.items() - one["settings"].items() for one in earlier):
        raise SystemExit("an earlier report has other settings than the comparison.")
    known = {name: found for one in earlier for name, found in one["results"].items()}
    results = {}
    for seed, shape, recipe in itertools.product(seeds, shapes, variations):
        name = f"{recipe}, {shape}, seed {seed}" if len(seeds) > 1 else recipe
        changes, out = shapes[shape] | variations[recipe], given.runs / name
        wanted = name not in known and any(part in name for part in given.only or [""])
        if wanted and not (out / AVERAGED).exists():
            flags = (
                f"--{flag}={value}" for flag, value in (baseline | {"seed": seed} | changes).items()
            )
            subprocess.run(
                ["translate-trt", "train", f"--data={given.data}", "--resume", f"--output={out}",
                 f"--threads={given.threads}", *flags], check=True,
            )  # fmt: skip
        if name in known:
            results[name] = known[name]
        elif (out / AVERAGED).exists() and (found := validations(out)):
            results[name] = {"changes": changes, "validation": found}
    machines = [name for one in earlier for name in machines_of(one)]
    return Report(results, baseline, name=given.comparison, machines=machines)


@benchmark("levers", option("runs", type=Path, help="output of scripts/levers.sh"), timed=False)
def levers(given: Namespace) -> Report:
    """Record what options of training gain."""
    results = []
    for path in sorted(given.runs.glob("scores/*.json")):
        changed, test = path.stem.split("--")
        found = read_json(path)
        scores = {name: [one["scores"][name]["score"] for one in found["systems"]]
                  for name in ("bleu", "chrf")}  # fmt: skip
        results.append({"option": changed, "test": test, "sentences": found["sentences"], **scores,
                        "difference": found["systems"][1]["difference"]})  # fmt: skip
    run = open_checkpoint(given.runs / "baseline")
    return Report(results, {"model": dataclasses.asdict(run.model), "train": run.train})


# ---- Table 3 ----


def unigram_loss(data: Path) -> float:
    """Return the loss per token of validation text by the frequencies of tokens in training."""
    prepared = open_prepared(data)
    train, valid = (prepared.split(name).target.tokens for name in ("train", "valid"))
    counts = np.bincount(train, minlength=prepared.vocabulary_size) + 1
    return float(-np.log(counts[valid] / counts.sum()).mean())


@command(
    option("preset", help="preset that the rows vary"),
    option("rows", nargs="*", help=f"rows, or {PLAIN}"),
)
def table3_check(given: Namespace) -> None:
    """Fail if there is no such preset, or it lacks a row."""
    for row in given.rows:
        preset(given.preset if row == PLAIN else f"{given.preset}-{row}")


@benchmark(
    "table3-run",
    option("run", type=Path, help="finished and scored run"),
    option("--data", type=Path, required=True, help="directory of `translate-trt data prepare`"),
    option("--preset", required=True, help="preset that the row varies"),
    option("--row", required=True, help=f"row, or {PLAIN}"),
    option("--device", default="auto", help="device that trained it"),
    timed=False,
)
def table3_run(given: Namespace) -> Report:
    """Record one run, which was trained on this machine."""
    device, checkpoint = choose_device(given.device), open_checkpoint(given.run)
    train, model = checkpoint.train, checkpoint.load_model()
    # A run that was continued to more steps was averaged more than once.
    averaged = [entry["averaged"] for entry in read_metrics(given.run) if "averaged" in entry][-1]
    scores = read_json(given.run / "scores.json")["systems"][0]["scores"]
    bleu, tokenized = scores["bleu"], scores["tokenized-bleu"]
    figures = {
        "seed": train["seed"],
        "perplexity": math.exp(averaged["loss"]),
        "unigram_loss": unigram_loss(given.data),
        "bleu": bleu["score"],
        "signature": bleu["signature"],
        "tokenized_bleu": tokenized["score"],
        "tokenized_signature": tokenized["signature"],
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": train["steps"],
        "target_tokens_per_second": median_speed(given.run),
    }
    dtype = resolve_precision(TrainConfig(precision=train["precision"]), device)
    settings = {
        "preset": given.preset,
        "row": given.row,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "precision": str(dtype).removeprefix("torch."),
    }
    return Report(figures, settings)


def read_runs(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Iterate over the reports of runs in files, each of which is one, or a table of many."""
    for report in map(read_json, sorted(paths)):
        if "row" in report["settings"]:
            yield report
            continue
        for row, found in report["results"].items():
            for run in found["runs"]:
                yield report | {"settings": report["settings"] | {"row": row}, "results": run}


def merge(paths: Iterable[Path], note: str) -> dict[str, Any]:
    """Merge reports of runs, or of earlier tables, with the rows in the paper's order.

    Machines may differ, since no figure is a time, but not the precision of the matmuls.

    Raises:
        SystemExit: There are no reports, a run is there twice, or they differ in preset, steps,
            precision or versions.
    """
    reports = [*read_runs(paths)]
    if not reports:
        raise SystemExit("there is no report of a run; scripts/table3.sh writes them.")
    conditions = {
        (one["settings"]["preset"], one["settings"]["precision"], one["results"]["steps"],
         *one["versions"].values())
        for one in reports
    }  # fmt: skip
    if len(conditions) > 1:
        differing = "\n".join(map(str, sorted(conditions)))
        raise SystemExit(f"the runs differ in preset, precision, steps or versions:\n{differing}")
    rows: dict[str, Any] = {}
    for name in (PLAIN, *TABLE3):
        runs = [one["results"] for one in reports if one["settings"]["row"] == name]
        if len({run["seed"] for run in runs}) < len(runs):
            raise SystemExit(f"a run of {name} is there twice; leave one of the reports out.")
        if runs:
            rows[name] = {"runs": sorted(runs, key=lambda run: run["seed"])}
    name, precision = (reports[0]["settings"][one] for one in ("preset", "precision"))
    found = [one["settings"] for one in reports]  # of earlier tables with several devices
    devices = {name for one in found for name in one.get("devices") or [one["device"]]}
    machines = {name for one in reports for name in machines_of(one)}
    described = {"preset": name, "devices": sorted(devices), "precision": precision, "note": note}
    merged = {
        "benchmark": f"table3-{name}",
        "date": max(one["date"] for one in reports),
        "settings": described,
        "results": rows,
    }
    several = {"machines": sorted(machines)} if len(machines) > 1 else {}
    return reports[0] | merged | several


@benchmark(
    "table3",
    option("runs", type=Path, help="directory of the reports of runs"),
    option("earlier", type=Path, nargs="*", help="reports of earlier tables to add"),
    timed=False,
)
def table3(given: Namespace) -> dict[str, Any]:
    """Merge reports of runs, and print the table."""
    report = merge([*given.runs.glob("*.json"), *given.earlier], given.note)
    print(text_of("table3", [report]))
    return report


if __name__ == "__main__":
    main(__doc__)
