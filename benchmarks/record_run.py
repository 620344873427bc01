"""Record a finished run: its settings, its training, and the parity evidence of its bundle.

    python benchmarks/record_run.py multi30k --run multi30k/run --bundle multi30k/bundle
        --command "bash scripts/multi30k.sh DATA"

All figures are read from the files of the run and the bundle.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from harness import write

from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.train.trainer.metrics import read_metrics


def training(run: Path) -> dict[str, Any]:
    """Return wall time, speed and validation scores from a run's files."""
    entries = read_metrics(run)
    speeds = [entry["target_tokens_per_second"] for entry in entries if "loss" in entry]
    began = (run / "run.json").stat().st_mtime  # written when the vocabulary is ready
    ended = (run / "checkpoint-averaged" / "config.json").stat().st_mtime
    return {
        "wall_seconds": round(ended - began),
        "median_target_tokens_per_second": statistics.median(speeds),
        "validation": [
            {"step": entry["step"], "kind": kind, **entry[kind]}
            for entry in entries
            for kind in ("validation", "averaged")
            if kind in entry
        ],
    }


def main() -> None:
    """Read the run and the bundle, write one JSON file."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("name", help="such as multi30k")
    options.add_argument("--run", type=Path, required=True)
    options.add_argument("--bundle", type=Path, required=True)
    options.add_argument("--command", required=True, help="command that made both")
    options.add_argument("--note", default="", help="conditions of the run")
    options.add_argument("--out", type=Path, help="JSON file; default: benchmarks/results/...")
    given = options.parse_args()
    manifest = read_manifest(given.bundle)
    targets = {
        name: {
            "bytes": sum(file.bytes for file in target.files.values()),
            "parity": target.parity,
        }
        for name, target in manifest.targets.items()
    }
    settings = {
        "command": given.command,
        "note": given.note,
        **json.loads((given.run / "run.json").read_text()),
    }
    results = {
        "parameters": manifest.model.parameters,
        "training": training(given.run),
        "targets": targets,
    }
    print(write(f"run-{given.name}", settings, results, given))


if __name__ == "__main__":
    main()
