"""Print the paper's Table 3 from the runs that scripts/table3.sh has trained.

    python benchmarks/table3.py OUT --preset base

All figures are read from the files of the runs.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

from harness import write

from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import TABLE3, TABLE3_MODELS
from translate_trt.train.trainer.metrics import read_metrics


def measured(run: Path) -> dict[str, Any]:
    """Return perplexity per token, both kinds of BLEU, and the size of a finished run."""
    checkpoint = open_checkpoint(run)
    entries = read_metrics(run)
    (loss,) = (entry["averaged"]["loss"] for entry in entries if "averaged" in entry)
    scores = json.loads((run / "scores.json").read_text(encoding="utf-8"))
    found = scores["systems"][0]["scores"]
    bleu, tokenized = found["bleu"], found["tokenized-bleu"]
    model = checkpoint.load_model()
    return {
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


def main() -> None:
    """Read the runs, print the table, write it as JSON."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("runs", type=Path, help="OUT of scripts/table3.sh")
    options.add_argument("--preset", default="base", help="preset that the rows vary")
    options.add_argument("--note", default="", help="conditions of the runs")
    options.add_argument(
        "--json", type=Path, dest="out", help="JSON file; default: benchmarks/results/..."
    )
    given = options.parse_args()
    results = {}
    for name in ("plain", *TABLE3):
        if (given.runs / name / "scores.json").exists():
            results[name] = measured(given.runs / name)
    print(
        f"{'':14} {'PPL':>7} {'tokenized BLEU':>14} {'params':>9}    paper's: PPL, tokenized BLEU, "
        "10^6 parameters"
    )
    for name, found in results.items():
        row = TABLE3_MODELS.get(given.preset) if name == "plain" else TABLE3[name]
        paper = f"{row.perplexity} {row.bleu} {row.parameters or ''}" if row else ""
        print(
            f"{row.group if row else '':2}{name:12} {found['perplexity']:7.2f} "
            f"{found['tokenized_bleu']:14.2f} {found['parameters'] / 1e6:8.1f}M    {paper}"
        )
    settings = {"preset": given.preset, "note": given.note}
    print(write(f"table3-{given.preset}", settings, results, given))


if __name__ == "__main__":
    main()
