"""Measure how a corpus scales with workers on a cluster, and the overhead of the cluster.

    python benchmarks/corpus.py --bundle DIR --source test.en [--target onnx-int8]
        [--lines N] [--shard-lines N] [--workers 1 2] [--rounds 3]

Each number of workers translates the same lines in turn, round after round, on a Ray cluster that
is started on this machine, as `translate-trt corpus` does. One process with as many threads as
`translate-trt translate` uses runs beside them. The time is from the start of the first shard to
the end of the last; starting the cluster and loading the bundle are reported separately.
"""

from __future__ import annotations

import shutil
import tempfile
from argparse import Namespace
from pathlib import Path
from time import monotonic
from typing import Any

from harness import Report, alternate, benchmark, main, option, ratios, read_text, spread

from translate_trt.runtime import Translator
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.cores import available_cores
from translate_trt.runtime.serve.corpus.cluster import Work
from translate_trt.runtime.serve.corpus.job import Job, ShardRecord, make_settings
from translate_trt.runtime.serve.corpus.plan import Input, find_inputs
from translate_trt.runtime.serve.corpus.run import translate_inputs
from translate_trt.runtime.serve.corpus.run_options import CorpusOptions, WorkerOptions


def by_cluster(
    bundle: Path, target: str, source: Input, workers: int, lines: int
) -> dict[str, Any]:
    """Translate with that many workers into a directory that is removed."""
    manifest = read_manifest(bundle)
    search, options = manifest.search_options(), CorpusOptions(shard_lines=lines)
    finished: list[tuple[float, ShardRecord]] = []
    directory = Path(tempfile.mkdtemp())
    try:
        job = Job(directory / "out", make_settings(manifest, target, search, options))
        work = Work(str(bundle.resolve()), target, search, options, WorkerOptions(workers), job)
        asked = monotonic()
        translate_inputs(
            [source], work, lambda *_: None, lambda record: finished.append((monotonic(), record))
        )
    finally:
        shutil.rmtree(directory)
    begun = min(at - record.seconds for at, record in finished)
    return {
        "seconds": max(at for at, _ in finished) - begun,
        "start_seconds": begun - asked,
        "lines": sum(record.records for _, record in finished),
        "tokens": sum(record.target_tokens for _, record in finished),
        "worker_seconds": sum(record.seconds for _, record in finished),
        "shards": len(finished),
    }


def by_one_process(bundle: Path, target: str, source: Input) -> dict[str, Any]:
    """Translate in one process, with a worker on each core."""
    begun = monotonic()
    translator = Translator(bundle, target, threads=1, workers=available_cores())
    text = read_text(Path(source.path))
    loaded = monotonic()
    found = translator.translate(text)
    return {
        "seconds": monotonic() - loaded,
        "start_seconds": loaded - begun,
        "lines": len(text),
        "tokens": sum(len(one.hypotheses[0].token_log_probs) for one in found),
    }


def summarize(samples: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return lines, tokens and seconds of each system, and its speed relative to the first."""
    seconds = {name: [one["seconds"] for one in rounds] for name, rounds in samples.items()}
    first = next(iter(samples))
    return {
        name: {
            "lines": rounds[0]["lines"],
            "tokens": rounds[0]["tokens"],
            "seconds": spread(seconds[name]),
            "start_seconds": spread(one["start_seconds"] for one in rounds),
            "first / this": ratios(seconds, first, name),
        }
        for name, rounds in samples.items()
    }


@benchmark(
    "corpus",
    "bundle source",
    option("--target", default="onnx-int8", help="target of the bundle"),
    option("--lines", type=int, default=2000, help="lines; a short source is repeated"),
    option("--shard-lines", type=int, default=100, help="lines of a shard"),
    option("--workers", type=int, nargs="+", default=[1, 2], help="numbers of workers"),
    rounds=3,
)
def corpus(given: Namespace) -> Report:
    """Translate a corpus on clusters of several sizes and in one process, in turn."""
    with tempfile.TemporaryDirectory() as directory:
        lines = read_text(given.source)
        lines = (lines * (1 + given.lines // len(lines)))[: given.lines]
        path = Path(directory, "text")
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        (source,) = find_inputs([str(path)], "text")
        systems = {
            str(count): lambda count=count: by_cluster(
                given.bundle, given.target, source, count, given.shard_lines
            )
            for count in given.workers
        }
        systems["one process"] = lambda: by_one_process(given.bundle, given.target, source)
        samples = alternate(systems, given.rounds, warmup=0)
    settings = {"target": given.target, "lines": given.lines, "shard_lines": given.shard_lines}
    return Report(summarize(samples), settings, samples)


if __name__ == "__main__":
    main(__doc__)
