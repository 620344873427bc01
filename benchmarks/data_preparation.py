"""Preparing a large corpus: memory, seconds, and how soon training has its first batch.

    python benchmarks/data_preparation.py --pairs 5000000 --directory DIR

A corpus of words that are distributed as in text (Zipf's law; 400,000 types a language, made of
syllables so that byte-pair encoding has something to learn; 25 words a sentence on average) is
written to DIR, with some duplicates and misaligned pairs, and prepared by `translate-trt data
prepare`. Memory is the sum over all its processes of what is resident, sampled 20 times a second:
what they share counts more than once. The first batch is timed from the start of a fresh process.

What grows with the number of pairs beyond that, finding duplicates and planning an epoch, is then
measured for 36 million of them (WMT14 English-French), alone.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from report import parser, write

from translate_trt.train.worker_processes import WorkerPool, available_cores

TYPES = 400_000
CHUNK = 50_000
MANY_PAIRS = 36_000_000

FIRST_BATCH = """
import sys, time
from pathlib import Path
from translate_trt.train.data.batches import epoch_batches
from translate_trt.train.data.token_files import open_prepared
imported = time.perf_counter()
prepared = open_prepared(Path(sys.argv[1]))
data = prepared.split("train")
opened = time.perf_counter()
batches = epoch_batches(data, int(sys.argv[2]), seed=1, epoch=0)
planned = time.perf_counter()
batch = data.batch(batches[0])
print(batch.padded_tokens, opened - imported, planned - opened, time.perf_counter() - planned)
"""

MANY = """
import json, resource, sys, time
import numpy as np
from translate_trt.train.data.cleaning import first_occurrences
from translate_trt.train.data.batches import plan_batches
random, pairs = np.random.default_rng(1), int(sys.argv[2])
if sys.argv[1] == "duplicates":
    hashes = random.integers(0, 2**64, pairs, dtype=np.uint64)
    begin = time.perf_counter()
    first_occurrences(hashes)
else:
    source = np.clip(random.lognormal(3.3, 0.55, pairs), 2, 256).astype(np.int64)
    target = np.clip(source + random.integers(-5, 6, pairs), 2, 256)
    begin = time.perf_counter()
    plan_batches(source, target, 4096, random)
print(time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


def words(seed: int) -> list[str]:
    """The types of a language, frequent ones first and shorter."""
    rng = random.Random(seed)
    onsets, vowels, codas = "bdfghklmnprstvwz", "aeiouyäöü"[: 6 + 3 * seed], ["", "", "n", "r", "s"]
    syllables = [a + b + c for a in onsets for b in vowels for c in codas]
    return [
        "".join(rng.choices(syllables, k=1 + round(math.log(rank + 1, 30))))
        for rank in range(TYPES)
    ]


LANGUAGES: list[list[str]] = []


def sentences(task: tuple[int, int]) -> tuple[str, str]:
    """Lines of both sides: `count` pairs, as a function of the seed alone."""
    seed, count = task
    if not LANGUAGES:
        LANGUAGES.extend(words(language) for language in (0, 1))
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(3.05, 0.6, count), 1, 200).astype(np.int64)  # mean 25
    # The word of rank r has probability 1 / r: its logarithm is evenly distributed.
    ranks = np.exp(rng.random(int(lengths.sum())) * math.log(TYPES)).astype(np.int64) - 1
    source, target = [], []
    for row in np.split(ranks, np.cumsum(lengths)[:-1]):
        ids = row.tolist()
        source.append(" ".join(map(LANGUAGES[0].__getitem__, ids)).capitalize() + ".\n")
        target.append(" ".join(map(LANGUAGES[1].__getitem__, reversed(ids))).capitalize() + ".\n")
    for row in range(0, count - 1, 50):
        source[row], target[row] = source[row + 1], target[row + 1]  # a duplicate
    for row in range(5, count, 500):
        target[row] = "\n" if row % 1000 == 5 else target[row][:3] + "\n"
    return "".join(source), "".join(target)


def generate(directory: Path, pairs: int, workers: int) -> list[str]:
    """Write the corpus; its four files."""
    names = ["train.en", "train.de", "valid.en", "valid.de"]
    paths = [directory / name for name in names]
    tasks = [(begin, min(CHUNK, pairs - begin)) for begin in range(0, pairs, CHUNK)]
    with WorkerPool(workers) as pool, paths[0].open("w") as one, paths[1].open("w") as other:
        for source, target in pool.map(sentences, tasks):
            one.write(source)
            other.write(target)
        for path, text in zip(paths[2:], next(pool.map(sentences, [(pairs, 3000)])), strict=True):
            path.write_text(text)
    return [str(path) for path in paths]


def resident(root: int) -> float:
    """GiB of that process and all below it."""
    parents, sizes = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        process = int(entry.parent.name)
        parents[process], sizes[process] = int(fields[1]), int(fields[21])
    family, before = {root}, 0
    while len(family) > before:
        before = len(family)
        family |= {process for process, parent in parents.items() if parent in family}
    pages = sum(sizes.get(process, 0) for process in family)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30


def watched(command: list[str]) -> tuple[float, float]:
    """Run a command; its seconds, and the most GiB that its processes had resident together."""
    begin = time.perf_counter()
    peak, done = [0.0], threading.Event()
    with subprocess.Popen(command) as process:

        def watch() -> None:
            while not done.wait(0.05):
                peak[0] = max(peak[0], resident(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        status = process.wait()
        done.set()
        watcher.join()
    if status:
        raise SystemExit(f"{command} failed with {status}")
    return time.perf_counter() - begin, peak[0]


def prepare(files: list[str], out: Path, workers: int) -> dict[str, Any]:
    """Run the command and watch it."""
    command = [
        sys.executable, "-c", "from translate_trt.runtime.cli import main; main()",
        "data", "prepare",
        "--from", *files[:2], "--valid", *files[2:], "--out", str(out), "--force",
        "--workers", str(workers),
    ]  # fmt: skip
    seconds, peak = watched(command)
    index = json.loads((out / "data.json").read_text())
    return {
        "seconds": {**index["seconds"], "all": round(seconds, 1)},
        "peak_memory_gib": round(peak, 2),
        "train": index["splits"]["train"],
        "vocabulary_size": index["vocabulary_size"],
        "bytes": sum(path.stat().st_size for path in out.glob("*.*")),
    }


def first_batch(out: Path, batch_tokens: int) -> dict[str, float]:
    """Seconds of a fresh process until it has a batch, and of its parts."""
    begin = time.perf_counter()
    command = [sys.executable, "-c", FIRST_BATCH, str(out), str(batch_tokens)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline().split()
        seconds = time.perf_counter() - begin
    opening, planning, batch = map(float, line[1:])
    return {"all": seconds, "open": opening, "plan": planning, "batch": batch}


def many(what: str) -> dict[str, float]:
    """Seconds and peak memory of one thing done for 36 million pairs, in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", MANY, what, str(MANY_PAIRS)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    seconds, memory = map(float, done.stdout.split())
    return {"seconds": seconds, "peak_memory_gib": memory}


def main() -> None:
    """Generate, prepare, open."""
    options = parser(__doc__)
    options.add_argument("--pairs", type=int, default=5_000_000)
    options.add_argument("--directory", type=Path, required=True, help="for the corpus (10 GB)")
    options.add_argument("--batch-tokens", type=int, default=4_096)
    options.add_argument("--note", default="", help="what else the machine did")
    arguments = options.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    workers = min(arguments.threads, available_cores())
    files = generate(arguments.directory, arguments.pairs, workers)
    out = arguments.directory / "prepared"
    samples: dict[str, Any] = {"text_bytes": sum(Path(path).stat().st_size for path in files[:2])}
    samples["prepare"] = prepare(files, out, workers)
    samples["first_batch_seconds"] = [
        first_batch(out, arguments.batch_tokens) for _ in range(arguments.rounds)
    ]
    samples["36 million pairs"] = {what: many(what) for what in ("duplicates", "plan")}
    settings = {"pairs": arguments.pairs, "workers": workers, "note": arguments.note}
    settings["batch_tokens"] = arguments.batch_tokens
    print(json.dumps(samples, indent=1))
    print(write("data-preparation", settings, samples, arguments.out))


if __name__ == "__main__":
    main()
