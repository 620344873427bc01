"""Time and memory of the loss's implementations: output projection, cross-entropy, gradients.

    python benchmarks/loss.py [--tokens 512] [--preset base] [--precision bf16] [--device cpu]

Compares the methods of train/loss.py with torch's cross-entropy on whole logits, and with the
compiled form of the method "rows", which holds float32 logits. Chunks have as many rows as
--tokens; on a CPU also 256, or for "rows" as many as fit into 8 MB in float32. Memory is the peak
of what a forward and backward pass allocates, beyond its inputs. Time on a CPU is CPU time, of
which other processes take little.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from harness import alternate, cpu_seconds_of, parser, peak_bytes, seconds_of, spread, write
from torch import Tensor
from torch.nn import functional as F

from translate_trt.train import loss
from translate_trt.train.config import PRESETS
from translate_trt.train.loss import projected_cross_entropy

SMOOTHING = 0.1
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def whole_logits(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Torch's cross-entropy of all logits at once, in float32 as autocast computes it."""
    logits = (hidden @ weight.to(hidden.dtype).T).float()
    return F.cross_entropy(logits, targets, label_smoothing=SMOOTHING, reduction="sum")


def in_chunks(
    method: loss.Method, rows: int, hidden: Tensor, weight: Tensor, targets: Tensor
) -> Tensor:
    """Our loss by one method, in chunks of so many rows."""
    loss.LEAST_ROWS, loss.ELEMENTS_AT_ONCE = rows, 0
    loss.BYTES_AT_ONCE_ACCELERATOR = rows * len(weight) * hidden.dtype.itemsize
    return projected_cross_entropy(hidden, weight, targets, SMOOTHING, method)[0]


@functools.cache
def _compiled_rows() -> Callable[..., Any]:
    return torch.compile(loss._rows_method, dynamic=True)


def compiled_rows(rows: int, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Method "rows", compiled: float32 logits in memory, and fewer passes over them."""
    eager = loss._METHODS["rows"]
    loss._METHODS["rows"] = _compiled_rows()
    try:
        return in_chunks("rows", rows, hidden, weight, targets)
    finally:
        loss._METHODS["rows"] = eager


def systems(device: torch.device, tokens: int, size: int) -> dict[str, Callable[..., Tensor]]:
    """Return the implementations by name."""
    found: dict[str, Callable[..., Tensor]] = {"torch, whole logits": whole_logits}
    found[f"rows compiled, {tokens}"] = functools.partial(compiled_rows, tokens)
    chunks = [tokens]
    if device.type == "cpu":
        chunks.append(loss.LEAST_ROWS)
        cached = loss.ELEMENTS_AT_ONCE // size
        found[f"rows, {cached}"] = functools.partial(in_chunks, "rows", cached)
    methods: tuple[loss.Method, ...] = ("rows", "online", "compiled")
    for method, rows in itertools.product(methods, chunks):
        found[f"{method}, {rows}"] = functools.partial(in_chunks, method, rows)
    return found


def measure(given: argparse.Namespace) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Return figures and raw seconds of each implementation."""
    device, dtype = torch.device(given.device), DTYPES[given.precision]
    config = PRESETS[given.preset].model
    torch.manual_seed(1)
    hidden = torch.randn(given.tokens, config.d_model, device=device).to(dtype).requires_grad_()
    weight = torch.randn(config.vocabulary_size, config.d_model, device=device)
    weight = weight.mul_(config.d_model**-0.5).requires_grad_()
    targets = torch.randint(config.vocabulary_size, (given.tokens,), device=device)

    def step(compute: Callable[..., Tensor]) -> Tensor:
        hidden.grad = weight.grad = None
        value = compute(hidden, weight, targets)
        value.backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return value.detach()

    found = systems(device, given.tokens, config.vocabulary_size)
    runs = {name: functools.partial(step, one) for name, one in found.items()}
    values = {name: float(run()) for name, run in runs.items()}  # compiles
    expected = next(iter(values.values()))
    for name, value in values.items():
        if abs(value - expected) > 1e-3 * expected:
            raise SystemExit(f"{name}: a loss of {value}, where torch's is {expected}")
    timed = seconds_of if device.type == "cuda" else cpu_seconds_of
    samples = alternate({name: timed(run) for name, run in runs.items()}, given.rounds, warmup=0)
    peaks = {}
    for name, run in runs.items():
        hidden.grad = weight.grad = None  # else the run begins by freeing them
        peaks[name] = peak_bytes(run, device.type)
    results = {
        name: {"seconds": spread(seconds), "peak_bytes": peaks[name]}
        for name, seconds in samples.items()
    }
    return results, samples


def main() -> None:
    """Measure one precision, and write the report."""
    options = parser(__doc__)
    options.add_argument("--tokens", type=int, default=512, help="target tokens")
    options.add_argument("--preset", choices=list(PRESETS), default="base", help="shape")
    options.add_argument("--precision", choices=list(DTYPES), default="bf16", help="of matmuls")
    options.add_argument("--device", default="cpu", help="cpu or cuda")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    results, samples = measure(given)
    for name, found in results.items():
        middle, least, most = found["seconds"]
        peak = found["peak_bytes"] / 2**20
        print(f"{name:28} {middle:8.3f} s [{least:.3f}, {most:.3f}] {peak:8.0f} MiB")
    settings = {"tokens": given.tokens, "preset": given.preset, "precision": given.precision}
    settings |= {"device": given.device, "threads": given.threads}
    name = f"loss-{given.precision}" if given.device == "cpu" else f"loss-cuda-{given.precision}"
    print(write(name, settings, results, given, samples))


if __name__ == "__main__":
    main()
