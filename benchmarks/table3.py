"""Make the paper's Table 3 from the runs that scripts/table3.sh has trained.

    python benchmarks/table3.py check PRESET [ROW ...]
    python benchmarks/table3.py measure RUN --row h16 --preset base [--device cuda] --out FILE
    python benchmarks/table3.py table DIR [--note TEXT] [--out FILE]

`check` tells before hours of training whether PRESET has all rows. `measure` reads the figures of
a finished run from its files. `table` prints the table of the measured runs in DIR, which may come
from several calls of the script, and writes one report.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from harness import save, write
from table3_rows import PLAIN
from tables import machines_of

from translate_trt.runtime.errors import OptionError
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import TABLE3, TABLE3_MODELS, TrainConfig, preset
from translate_trt.train.trainer.distributed import choose_device
from translate_trt.train.trainer.metrics import read_metrics
from translate_trt.train.trainer.precision import resolve_precision


def check(name: str, rows: Iterable[str]) -> None:
    """Exit with a message if there is no such preset, or it lacks a row."""
    try:
        for row in rows:
            preset(name if row == PLAIN else f"{name}-{row}")
    except OptionError as error:
        raise SystemExit(str(error)) from None


def figures(run: Path) -> dict[str, Any]:
    """Return perplexity per token, both kinds of BLEU, and the size of a finished run."""
    checkpoint = open_checkpoint(run)
    entries = read_metrics(run)
    # A run that was continued to more steps was averaged more than once.
    loss = [entry["averaged"]["loss"] for entry in entries if "averaged" in entry][-1]
    scores = json.loads((run / "scores.json").read_text(encoding="utf-8"))
    found = scores["systems"][0]["scores"]
    bleu, tokenized = found["bleu"], found["tokenized-bleu"]
    model = checkpoint.load_model()
    return {
        "seed": checkpoint.train["seed"],
        "perplexity": math.exp(loss),
        "bleu": bleu["score"],
        "signature": bleu["signature"],
        "tokenized_bleu": tokenized["score"],
        "tokenized_signature": tokenized["signature"],
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": checkpoint.train["steps"],
        "target_tokens_per_second": statistics.median(
            entry["target_tokens_per_second"] for entry in entries if "loss" in entry
        ),
    }


def measure(given: argparse.Namespace) -> None:
    """Write the report of one run, which was trained on this machine."""
    device = choose_device(given.device)
    train = open_checkpoint(given.run).train
    dtype = resolve_precision(TrainConfig(precision=train["precision"]), device)
    settings = {
        "preset": given.preset,
        "row": given.row,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "precision": str(dtype).removeprefix("torch."),
    }
    write("table3-run", settings, figures(given.run), given)


def read_runs(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Iterate over the reports of runs in files, each of which is one, or a table of many."""
    for path in sorted(paths):
        report = json.loads(path.read_text(encoding="utf-8"))
        if "row" in report["settings"]:
            yield report
            continue
        for row, found in report["results"].items():
            for run in found["runs"]:
                yield report | {"settings": report["settings"] | {"row": row}, "results": run}


def merge(paths: Iterable[Path], note: str) -> dict[str, Any]:
    """Merge reports of runs into one, with the rows in the paper's order.

    Machines may differ, since no figure is a time, but not the precision of the matmuls.

    Args:
        paths: Reports of runs, or of earlier tables.
        note: Conditions of the runs.

    Raises:
        SystemExit: There are no reports, a run is there twice, or they differ in preset, steps,
            precision or versions.
    """
    reports = [*read_runs(paths)]
    if not reports:
        raise SystemExit("there is no report of a run; scripts/table3.sh writes them.")
    conditions = {
        (
            *(one["settings"][name] for name in ("preset", "precision")),
            *(one["results"]["steps"], *one["versions"].values()),
        )
        for one in reports
    }
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
    devices, machines = set(), set()
    for one in reports:  # those of an earlier table may have several of each
        settings = one["settings"]
        devices.update(settings["devices"] if "devices" in settings else [settings["device"]])
        machines.update(machines_of(one))
    several = {"machines": sorted(machines)} if len(machines) > 1 else {}
    return reports[0] | {
        "benchmark": f"table3-{name}",
        "date": max(one["date"] for one in reports),
        "settings": {
            "preset": name,
            "devices": sorted(devices),
            "precision": precision,
            "note": note,
        },
        "results": rows,
        **several,
    }


def print_table(report: dict[str, Any]) -> None:
    """Print means over the seeds beside the paper's figures."""
    print(
        f"{'':14} {'runs':>4} {'PPL':>7} {'tokenized BLEU':>14} {'params':>9}    paper's: PPL, "
        "tokenized BLEU, 10^6 parameters"
    )
    for name, found in report["results"].items():
        row = TABLE3_MODELS.get(report["settings"]["preset"]) if name == PLAIN else TABLE3[name]
        paper = f"{row.perplexity} {row.bleu} {row.parameters or ''}" if row else ""
        runs = found["runs"]
        perplexity, bleu = (
            statistics.mean(run[figure] for run in runs)
            for figure in ("perplexity", "tokenized_bleu")
        )
        print(
            f"{row.group if row else '':2}{name:12} {len(runs):4} {perplexity:7.2f} {bleu:14.2f} "
            f"{runs[0]['parameters'] / 1e6:8.1f}M    {paper}"
        )


def main() -> None:
    """Check a preset, measure a run, or make the table."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = options.add_subparsers(dest="command", required=True)
    checked = commands.add_parser("check", help="check that a preset has rows")
    checked.add_argument("preset", help="preset that the rows vary")
    checked.add_argument("rows", nargs="*", help=f"rows, or {PLAIN}")
    measured = commands.add_parser("measure", help="write the report of a run")
    measured.add_argument("run", type=Path, help="finished and scored run")
    measured.add_argument("--preset", required=True, help="preset that the row varies")
    measured.add_argument("--row", required=True, help=f"row, or {PLAIN}")
    measured.add_argument("--device", default="auto", help="device that trained it (auto)")
    measured.add_argument("--out", type=Path, required=True, help="JSON file")
    measured.set_defaults(samples=False)
    tables = commands.add_parser("table", help="print the table, and write it as one report")
    tables.add_argument("runs", type=Path, help="directory of the reports of runs")
    tables.add_argument("earlier", type=Path, nargs="*", help="reports of earlier tables to add")
    tables.add_argument("--note", default="", help="conditions of the runs")
    tables.add_argument("--out", type=Path, help="JSON file; default: benchmarks/results/...")
    given = options.parse_args()
    if given.command == "check":
        check(given.preset, given.rows)
    elif given.command == "measure":
        measure(given)
    else:
        report = merge([*given.runs.glob("*.json"), *given.earlier], given.note)
        print_table(report)
        print(save(report, given.out))


if __name__ == "__main__":
    main()
