"""Learning a shortlist from a large corpus: seconds and memory.

    python benchmarks/shortlist.py --pairs 100000 --directory DIR

The corpus is that of data_preparation.py (25 words a sentence on average, distributed as in text;
the target is the source in other words and reversed), prepared with a vocabulary of 37,000 pieces.
A DIR that has it already is used again. What is timed is `translate-trt shortlist --data`. Memory
is the sum over its processes of what is resident.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

from data_preparation import generate, prepare, watched
from report import parser, write

from translate_trt.train.worker_processes import available_cores


def learn(prepared: Path, out: Path, workers: int, pairs: int) -> dict[str, Any]:
    """Run the command and watch it."""
    command = [
        sys.executable, "-c", "from translate_trt.runtime.cli import main; main()",
        "shortlist", "--data", str(prepared), "--out", str(out), "--force",
        "--workers", str(workers), "--pairs", str(pairs),
    ]  # fmt: skip
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, peak = watched(command)
    total = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(sum(total[:2]) - sum(used[:2]), 1),
        "peak_memory_gib": round(peak, 2),
        "bytes": out.stat().st_size,
    }


def main() -> None:
    """Generate, prepare, learn."""
    options = parser(__doc__)
    options.add_argument("--pairs", type=int, default=100_000)
    options.add_argument("--directory", type=Path, required=True, help="for the corpus")
    options.add_argument("--note", default="", help="what else the machine did")
    arguments = options.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    workers = min(arguments.threads, available_cores())
    prepared = arguments.directory / "prepared"
    if not (prepared / "data.json").exists():
        prepare(generate(arguments.directory, arguments.pairs, workers), prepared, workers)
    out = arguments.directory / "shortlist.safetensors"
    samples: dict[str, Any] = {"shortlist": learn(prepared, out, workers, arguments.pairs)}
    samples["text"] = json.loads((prepared / "data.json").read_text())["splits"]["train"]
    settings = {"pairs": arguments.pairs, "workers": workers, "note": arguments.note}
    print(samples["shortlist"])
    print(write("shortlist", settings, samples, arguments.out))


if __name__ == "__main__":
    main()
