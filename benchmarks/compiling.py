"""Measure compiling: time and memory of exports, and the gain of each graph pass.

    python benchmarks/compiling.py export [--rounds 3]
    python benchmarks/compiling.py passes [--threads 1] [--rounds 15]

- export: `translate-trt export` of `base` with random weights and 37,000 tokens. Each round exports
  in a fresh process: ONNX fp32 and int8; an engine target with an empty engine cache; the same
  again from the cache. Memory is the peak resident set.
- passes: a decoding step of `base` with and without each pass, in turn. Random weights, 32,000
  tokens, 4 beams, 15 tokens so far, 30 source tokens; ONNX Runtime on the CPU, for 1, 8 and 32
  sentences. Two more variants: attention by the operator of the ONNX standard (opset 23) in place
  of ONNX Runtime's own, and a session without compiled kernels (docs/kernels.md).
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
from harness import Report, alternate, benchmark, compared, main, seconds_of, spread
from models import random_checkpoint

from translate_trt.export.compile import trace_graphs
from translate_trt.export.contract import ensemble_contract
from translate_trt.export.passes.attention import FuseAttention, FuseTransposes
from translate_trt.export.passes.base import Pass
from translate_trt.export.passes.multi_head import FuseMultiHeadAttention
from translate_trt.export.passes.pipeline import run_passes
from translate_trt.export.targets import DYNAMIC_OPSET, TARGETS
from translate_trt.export.trace import check
from translate_trt.export.verify.emulation_pass import Emulate
from translate_trt.runtime import kernels
from translate_trt.runtime.backends import Settings
from translate_trt.runtime.backends.onnxruntime import session_options
from translate_trt.runtime.bundle.contract import MASKED, Contract
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.train.config import ModelConfig, preset
from translate_trt.train.model import Transformer

# ---- exports ----

EXPORTED_VOCABULARY = 37_000
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


def measure_export(given: Path, out: Path, targets: list[str], cache: Path) -> tuple[float, float]:
    """Return seconds and peak GiB of one export."""
    command = [sys.executable, "-m", "translate_trt.runtime.cli", "export", str(given), "--force"]
    command += ["--output", str(out), "--engine-cache", str(cache)]
    for target in targets:
        command += ["--target", target]
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, *command], check=True, capture_output=True, text=True
    )
    seconds, memory = json.loads(run.stdout)
    return seconds, memory


@benchmark("compiling", rounds=3)
def export(given: Namespace) -> Report:
    """Measure time and memory of `translate-trt export` for the shape of `base`."""
    exports = dict(EXPORTS)
    if find_spec("tensorrt_rtx") is None:
        exports = {name: targets for name, targets in exports.items() if "rtx" not in name}
    samples: dict[str, Any] = {name: {"seconds": [], "gib": []} for name in exports}
    with tempfile.TemporaryDirectory() as temporary:
        saved = Path(temporary) / "checkpoint"
        random_checkpoint(saved, ModelConfig(vocabulary_size=EXPORTED_VOCABULARY))
        for number in range(given.rounds):
            cache = Path(temporary) / f"cache-{number}"
            for name, targets in exports.items():
                found = measure_export(saved, Path(temporary) / "bundle", targets, cache)
                print(f"{name}: {found[0]:.1f} s, {found[1]:.2f} GiB", flush=True)
                for unit, value in zip(("seconds", "gib"), found, strict=True):
                    samples[name][unit].append(value)
    results = {
        name: {unit: spread(values) for unit, values in found.items()}
        for name, found in samples.items()
    }
    return Report(results, {"vocabulary": EXPORTED_VOCABULARY, "preset": "base"}, samples)


# ---- passes ----

VOCABULARY, BEAMS, TOKENS, SOURCE_TOKENS = 32_000, 4, 15, 30
OPTIONAL = (
    "store-weights", "fold-scales", "merge-matmuls", "top-k-first", "keep-sizes",
    "fuse-multi-head", "fuse-ops",
)  # fmt: skip
STANDARD = "attention of the ONNX standard"
PORTABLE = "without compiled kernels"


def variants(precision: str) -> dict[str, tuple[Sequence[Pass], Sequence[str]]]:
    """Return the passes of each variant, and the names of those left out."""
    shipped = TARGETS[f"onnx-{precision}"].passes
    standard: list[Pass] = []
    for one in shipped:
        # Emulate repeats the mask for every query, which ONNX Runtime's Attention requires.
        fused = (FuseAttention(), FuseTransposes(), Emulate())
        standard += fused if isinstance(one, FuseMultiHeadAttention) else (one,)
    return {
        "as shipped": (shipped, ()),
        **{f"without {name}": (shipped, (name,)) for name in OPTIONAL},
        STANDARD: (standard, ()),
        PORTABLE: (shipped, ()),
    }


def session(
    traced: ir.Model, passes: Sequence[Pass], disabled: Sequence[str], threads: int, compiled: bool
) -> Any:
    """Load the step after those passes, with compiled kernels or without."""
    model = traced.clone()
    run_passes(model, passes, disabled)
    options = session_options(Settings(threads=threads))  # those of the runtime
    if compiled and kernels.describe():
        options.register_custom_ops_library(str(kernels.library()))
    content = check(model).SerializeToString()
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def feeds(contract: Contract, sentences: int) -> dict[str, np.ndarray]:
    """Return the inputs of a step after TOKENS tokens."""
    random = np.random.default_rng(0)
    sizes = {"N": sentences, "K": BEAMS, "S": SOURCE_TOKENS, "P": BEAMS * (TOKENS + 1)}
    sizes |= dict.fromkeys(("B", "R", "D", "U"), 0)  # no changes of log-probabilities
    values: dict[str, np.ndarray] = {}
    for spec in contract.step_inputs:
        axes = [sizes.get(axis, axis) for axis in spec.axes]
        values[spec.name] = random.standard_normal(axes).astype(spec.dtype)
    values["forced_tokens"] = np.full(sentences, -1)
    values["min_lengths"], values["max_lengths"] = np.zeros((2, sentences), np.int64)
    values["max_lengths"] += 100
    values["positions"] += TOKENS - values["positions"]
    values["slots"] = np.tile(np.arange(BEAMS), (sentences, 1))
    # Beams share about half of their past.
    values["ancestry"] = np.where(values["ancestry"] > 0, 0, MASKED).astype(np.float32)
    values["tokens"] = random.integers(4, VOCABULARY, (sentences, BEAMS))
    values["length_penalty_alpha"] = np.full(sentences, 0.6, np.float32)
    values["length_penalty_beta"] = np.full(sentences, 5, np.float32)
    values["num_hypotheses"] = np.ones(sentences, np.int64)
    values["early_stopping"] = np.full(sentences, False)
    return values


def typed(session: Any, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert values to the types of a session's inputs: int8 sessions have FP16 caches."""
    halves = {one.name for one in session.get_inputs() if one.type == "tensor(float16)"}
    return {
        name: value.astype(np.float16) if name in halves else value
        for name, value in values.items()
    }


@benchmark("graph-choices", rounds=15)
def passes(given: Namespace) -> Report:
    """Measure the gain of each pass."""
    torch.manual_seed(0)
    config = dataclasses.replace(preset("base").model, vocabulary_size=VOCABULARY)
    contract, limits = ensemble_contract([config]), Limits(256, 306)
    model = Transformer(config).eval()
    traced = {
        opset: trace_graphs(model, limits, contract, opset)["step"] for opset in (23, DYNAMIC_OPSET)
    }
    samples: dict[str, Any] = {}
    for precision in ("fp32", "int8"):
        chosen = variants(precision)
        shipped_passes, _ = chosen.pop("as shipped")
        shipped = session(traced[DYNAMIC_OPSET], shipped_passes, (), given.threads, True)
        for name, (varied, disabled) in chosen.items():
            graph = traced[23 if name == STANDARD else DYNAMIC_OPSET]
            other = session(graph, varied, disabled, given.threads, name != PORTABLE)
            for sentences in (1, 8, 32):
                values = feeds(contract, sentences)
                ours, theirs = typed(shipped, values), typed(other, values)
                systems = {
                    "shipped": seconds_of(lambda: shipped.run(None, ours)),  # noqa: B023
                    "other": seconds_of(lambda: other.run(None, theirs)),  # noqa: B023
                }
                found = alternate(systems, given.rounds, warmup=2)
                samples[f"{precision}, {name}, {sentences} sentences"] = found
                ratio, *_ = compared(found, "other")["other / shipped"]
                print(f"{precision}, {name}, {sentences}: {ratio:.3f}", flush=True)
    settings = {"vocabulary": VOCABULARY, "beams": BEAMS, "tokens": TOKENS, "source": SOURCE_TOKENS}
    results = {name: compared(found, "other") for name, found in samples.items()}
    return Report(results, settings, samples)


if __name__ == "__main__":
    main(__doc__)
