"""Measure training steps of any preset: speed, padding, waiting, utilization, cost of the schedule.

    python benchmarks/training.py --data DIR --preset base [--device cuda] [--peak-tflops 989]

Data are those of `translate-trt data prepare`. Utilization is relative to --peak-tflops, or by
default to a large matmul of the same precision in the same run. What torch.compile compiles after
--warmup steps is part of a measured round.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from estimates import training_flops
from harness import Report, benchmark, kernels_of, main, option, seconds_of

from translate_trt.train.config import ModelConfig, TrainConfig
from translate_trt.train.data.batches import ParallelData
from translate_trt.train.data.token_files import open_prepared
from translate_trt.train.trainer.distributed import Group, choose_device
from translate_trt.train.trainer.loop import Trainer
from translate_trt.train.trainer.run import prepare_job
from translate_trt.train.trainer.steps import Step, StepLoader, plan_epoch


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Measure operations per second of a large matmul."""
    size = 8_192 if device.type == "cuda" else 2_048
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def matmul() -> None:
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()

    run = seconds_of(matmul)
    return 2 * size**3 / statistics.median([run() for _ in range(12)][2:])


def _work(model: ModelConfig, steps: list[Step]) -> dict[str, int]:
    """Count tokens, positions and operations of those steps."""
    totals = dict.fromkeys(("source", "target", "positions", "flops"), 0)
    for batch in itertools.chain.from_iterable(step.batches for step in steps):
        source = batch.source_lengths.tolist()
        rows = batch.target_index // batch.previous.shape[1]
        target = torch.bincount(rows, minlength=len(source)).tolist()
        totals["source"] += sum(source)
        totals["target"] += sum(target)
        totals["positions"] += batch.padded_tokens
        totals["flops"] += training_flops(model, source, target)
    return totals


def epoch_padding(data: ParallelData, config: TrainConfig) -> float:
    """Return the share of padding in the batches of a whole epoch."""
    source, target = data.source.lengths, data.target.lengths
    positions = sum(
        len(rows) * int(source[rows].max() + target[rows].max())
        for rows in itertools.chain.from_iterable(plan_epoch(data, config, 0))
    )
    return 1 - int(source.sum() + target.sum()) / positions


def measure_steps(given: Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure a preset's optimizer steps on prepared data; return figures and all rounds."""
    device = choose_device(given.device)
    overrides = {"validate_every": 0, "seed": 1, **dict(given.set or [])}
    with tempfile.TemporaryDirectory() as name:
        job = prepare_job(open_prepared(given.data), Path(name) / "run", given.preset, overrides)
        trainer = Trainer(job, Group(device))  # records the size of micro-batches in the run
    trainer.model.train()
    loader = StepLoader(trainer.training_data, trainer.config, 0, 1, (0, 0), device.type == "cuda")
    steps = iter(loader)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(given.warmup):
        trainer._optimizer_step(next(steps))
    wait()
    rounds = []
    for _ in range(given.rounds):
        taken, waiting = [], 0.0
        begin = time.perf_counter()
        for _ in range(given.steps):
            before = time.perf_counter()
            taken.append(next(steps))
            waiting += time.perf_counter() - before
            trainer._optimizer_step(taken[-1])
        wait()
        times = {"seconds": time.perf_counter() - begin, "waiting": waiting}
        rounds.append(times | _work(job.settings.model, taken))
    profile: dict[str, Any] = {}
    if given.profile:
        kept = next(steps)
        profile = {"kernels of a step": kernels_of(lambda: trainer._optimizer_step(kept))}
    loader.close()
    alone = StepLoader(trainer.training_data, trainer.config, 0, 1, (0, 0))
    next(iter(alone))  # the epoch is planned
    begin, tokens = time.perf_counter(), 0
    for step in itertools.islice(alone, 300):
        tokens += step.target_tokens
    input_speed = tokens / (time.perf_counter() - begin)
    alone.close()
    peak = given.peak_tflops * 1e12 if given.peak_tflops else peak_flops(device, trainer.dtype)
    of_rounds = {name: np.array([one[name] for one in rounds]) for name in rounds[0]}
    seconds, target, flops = (of_rounds[name] for name in ("seconds", "target", "flops"))
    schedule = trainer.config.steps / given.steps
    figures = {
        "target tokens per second": np.median(target / seconds),
        "source and target tokens per second": np.median((of_rounds["source"] + target) / seconds),
        "padding of a whole epoch, %": 100 * epoch_padding(job.data.train, trainer.config),
        "waiting for input, % of the time": 100 * np.median(of_rounds["waiting"] / seconds),
        "input pipeline alone, target tokens per second": input_speed,
        "model-FLOPs utilization, %": 100 * np.median(flops / seconds) / peak,
        "hours for the schedule": schedule * np.median(seconds) / 3600,
        "FLOPs for the schedule": schedule * np.median(flops),
    }
    results = {
        "figures": {name: float(value) for name, value in figures.items()},
        "peak_flops": peak,
        "peak_is": "given" if given.peak_tflops else "a large matmul in this run",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "precision": str(trainer.dtype).removeprefix("torch."),
        "micro_batch_tokens": trainer.config.micro_batch_tokens,
        "vocabulary_size": job.settings.model.vocabulary_size,
        "pairs": len(job.data.train),
        **profile,
    }
    return results, rounds


def _setting(text: str) -> tuple[str, int | float | str]:
    """Split NAME=VALUE, and convert the value to a number if possible."""
    name, _, value = text.partition("=")
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return name, kind(value)
    return name, value


@benchmark(
    "training",
    option("--data", type=Path, required=True, help="directory of `translate-trt data prepare`"),
    option("--preset", default="base", help="model and recipe"),
    option("--device", default="auto", help="auto, cpu or cuda"),
    option("--steps", type=int, default=20, help="steps per round"),
    option("--warmup", type=int, default=5, help="steps before"),
    option("--peak-tflops", type=float, help="peak of the device"),
    option(
        "--set", action="append", metavar="NAME=VALUE", type=_setting,
        help="setting of the recipe, such as micro_batch_tokens=25000",
    ),
    option("--profile", action="store_true", help="on a GPU: kernels of a step"),
)  # fmt: skip
def training(given: Namespace) -> Report:
    """Measure steps of a preset."""
    torch.set_num_threads(given.threads)
    results, rounds = measure_steps(given)
    for figure, value in results["figures"].items():
        print(f"{figure:48} {value:12.4g}")
    settings = {"preset": given.preset, "set": given.set}
    # The newest report of a name is shown: one of a GPU must not replace one of a CPU.
    suffix = "" if results["device"] == "cpu" else "-cuda"
    return Report(results, settings, rounds, f"training-{given.preset}{suffix}")


if __name__ == "__main__":
    main(__doc__)
