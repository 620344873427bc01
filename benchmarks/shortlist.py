"""Learning a shortlist from a large corpus: seconds and memory.

    python benchmarks/shortlist.py --pairs 500000 --directory DIR

The corpus is that of data_preparation.py (25 words a sentence on average, distributed as in text;
the target is the source in other words and reversed), prepared with a vocabulary of 37,000 pieces.
What is timed is `translate-trt shortlist --data`. Memory is the sum over its processes of what is
resident.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from data_preparation import generate, prepare, resident
from report import parser, write

from translate_trt.train.workers import available_cores


def learn(prepared: Path, out: Path, workers: int) -> dict[str, Any]:
    """Run the command and watch it."""
    command = [
        sys.executable, "-c", "from translate_trt.runtime.cli import main; main()",
        "shortlist", "--data", str(prepared), "--out", str(out), "--force",
        "--workers", str(workers),
    ]  # fmt: skip
    begin = time.perf_counter()
    peak, done = [0.0], threading.Event()
    with subprocess.Popen(command) as process:

        def watch() -> None:
            while not done.wait(0.1):
                peak[0] = max(peak[0], resident(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        status = process.wait()
        done.set()
        watcher.join()
    if status:
        raise SystemExit(f"shortlist failed with {status}")
    seconds = round(time.perf_counter() - begin, 1)
    return {"seconds": seconds, "peak_memory_gib": round(peak[0], 2), "bytes": out.stat().st_size}


def main() -> None:
    """Generate, prepare, learn."""
    options = parser(__doc__)
    options.add_argument("--pairs", type=int, default=500_000)
    options.add_argument("--directory", type=Path, required=True, help="for the corpus")
    options.add_argument("--note", default="", help="what else the machine did")
    arguments = options.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    workers = min(arguments.threads, available_cores())
    prepared = arguments.directory / "prepared"
    files = generate(arguments.directory, arguments.pairs, workers)
    samples = {"prepare": prepare(files, prepared, workers)}
    samples["shortlist"] = learn(prepared, arguments.directory / "shortlist.safetensors", workers)
    settings = {"pairs": arguments.pairs, "workers": workers, "note": arguments.note}
    print(samples["shortlist"])
    print(write("shortlist", settings, samples, arguments.out))


if __name__ == "__main__":
    main()
