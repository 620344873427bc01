"""Measure time and memory of `translate-trt export` for the shape of `base`.

    python benchmarks/compiling.py [--rounds 3] [--tokenizer FILE]

Weights are random and the vocabulary has 37,000 tokens; export does not need a tokenizer of that
size, so any SentencePiece file will do. Each round exports in a fresh process: ONNX fp32 and int8;
an engine target with an empty engine cache; the same again from the cache. Memory is the peak
resident set.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from harness import parser, spread, write

from translate_trt.train.checkpoint import DecodingDefaults, save_checkpoint
from translate_trt.train.config import TrainConfig, preset
from translate_trt.train.model import Transformer

VOCABULARY = 37_000
EXPORTS = {
    "onnx-fp32 and onnx-int8": ["onnx-fp32", "onnx-int8"],
    "tensorrt-rtx-fp16": ["tensorrt-rtx-fp16"],
    "tensorrt-rtx-fp16, from the engine cache": ["tensorrt-rtx-fp16"],
}

# In a process of its own, whose children's largest is then this export's.
MEASURE = """
import json, resource, subprocess, sys, time
begin = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
seconds = time.perf_counter() - begin
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20]))
"""


def checkpoint(directory: Path, tokenizer: Path) -> Path:
    """Save a `base` model with random weights and return its path."""
    torch.manual_seed(0)
    config = dataclasses.replace(preset("base").model, vocabulary_size=VOCABULARY)
    model = Transformer(config)
    path = directory / "checkpoint"
    save_checkpoint(
        path,
        model.state_dict(),
        config,
        TrainConfig(),
        (tokenizer, tokenizer),
        DecodingDefaults("en", "de"),
    )  # fmt: skip
    return path


def measure(given: Path, out: Path, targets: list[str], cache: Path) -> tuple[float, float]:
    """Return seconds and peak GiB of one export."""
    command = [sys.executable, "-m", "translate_trt.runtime.cli", "export", str(given), "--force"]
    command += ["--out", str(out), "--engine-cache", str(cache)]
    for target in targets:
        command += ["--target", target]
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, *command], check=True, capture_output=True, text=True
    )
    seconds, memory = json.loads(run.stdout)
    return seconds, memory


def summarize(samples: dict[str, Any]) -> dict[str, Any]:
    """Return the spread of seconds and memory of each export."""
    return {
        name: {unit: spread(values) for unit, values in found.items()}
        for name, found in samples.items()
    }


def main() -> None:
    """Measure, and write the report."""
    options = parser(__doc__)
    options.add_argument("--tokenizer", type=Path, required=True)
    args = options.parse_args()
    exports = dict(EXPORTS)
    if find_spec("tensorrt_rtx") is None:
        exports = {name: targets for name, targets in exports.items() if "rtx" not in name}
    samples: dict[str, Any] = {name: {"seconds": [], "gib": []} for name in exports}
    with tempfile.TemporaryDirectory() as temporary:
        given = checkpoint(Path(temporary), args.tokenizer)
        for number in range(args.rounds):
            cache = Path(temporary) / f"cache-{number}"
            for name, targets in exports.items():
                seconds, gib = measure(given, Path(temporary) / "bundle", targets, cache)
                print(f"{name}: {seconds:.1f} s, {gib:.2f} GiB", flush=True)
                samples[name]["seconds"].append(seconds)
                samples[name]["gib"].append(gib)
    settings = {"vocabulary": VOCABULARY, "preset": "base"}
    print(write("compiling", settings, summarize(samples), args, samples))


if __name__ == "__main__":
    main()
