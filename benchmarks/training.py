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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import Report, benchmark, kernels_of, main, option, seconds_of

from translate_trt.train.config import ModelConfig, TrainConfig
from translate_trt.train.data.batches import ParallelData
from translate_trt.train.data.token_files import open_prepared
from translate_trt.train.trainer.distributed import Group, choose_device
from translate_trt.train.trainer.flops import training_flops
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


def measure_steps(given: Namespace) -> dict[str, Any]:
    """Measure the speed of a preset's optimizer steps on prepared data."""
    device = choose_device(given.device)
    overrides = {"validate_every": 0, "seed": 1, **dict(given.set or [])}
    with tempfile.TemporaryDirectory() as name:
        job = prepare_job(open_prepared(given.data), Path(name) / "run", given.preset, overrides)
        trainer = Trainer(job, Group(device))  # records the size of micro-batches in the run
    trainer.model.train()
    loader = StepLoader(job.data.train, trainer.config, 0, 1, (0, 0), pin=device.type == "cuda")
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
        seconds = time.perf_counter() - begin
        rounds.append({"seconds": seconds, "waiting": waiting, **_work(job.settings.model, taken)})
    profile: dict[str, Any] = {}
    if given.profile:
        kept = next(steps)
        profile = {"kernels of a step": kernels_of(lambda: trainer._optimizer_step(kept))}
    loader.close()
    alone = StepLoader(job.data.train, trainer.config, 0, 1, (0, 0))
    next(iter(alone))  # the epoch is planned
    begin, tokens = time.perf_counter(), 0
    for step in itertools.islice(alone, 300):
        tokens += step.target_tokens
    input_speed = tokens / (time.perf_counter() - begin)
    alone.close()
    peak = given.peak_tflops * 1e12 if given.peak_tflops else peak_flops(device, trainer.dtype)
    return {
        "rounds": rounds,
        "steps_a_round": given.steps,
        "padding_of_an_epoch": epoch_padding(job.data.train, trainer.config),
        "schedule_steps": trainer.config.steps,
        "micro_batch_tokens": trainer.config.micro_batch_tokens,
        "input_target_tokens_per_second": input_speed,
        "peak_flops": peak,
        "peak_is": "given" if given.peak_tflops else "a large matmul in this run",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "precision": str(trainer.dtype).removeprefix("torch."),
        "vocabulary_size": job.settings.model.vocabulary_size,
        "pairs": len(job.data.train),
        "profile": profile,
    }


def figures(samples: dict[str, Any]) -> dict[str, float]:
    """Return medians over the rounds of `measure_steps`, in the units of the report."""

    def median(of: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(of(one) for one in samples["rounds"])

    steps, schedule = samples["steps_a_round"], samples["schedule_steps"]
    return {
        "target tokens per second": median(lambda one: one["target"] / one["seconds"]),
        "source and target tokens per second": median(
            lambda one: (one["source"] + one["target"]) / one["seconds"]
        ),
        "padding of a whole epoch, %": 100 * samples["padding_of_an_epoch"],
        "waiting for input, % of the time": 100
        * median(lambda one: one["waiting"] / one["seconds"]),
        "input pipeline alone, target tokens per second": samples["input_target_tokens_per_second"],
        "model-FLOPs utilization, %": 100
        * median(lambda one: one["flops"] / one["seconds"])
        / samples["peak_flops"],
        "hours for the schedule": schedule * median(lambda one: one["seconds"]) / steps / 3600,
        "FLOPs for the schedule": schedule * median(lambda one: one["flops"]) / steps,
    }


def summarize_steps(samples: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of `measure_steps` and the peak they are relative to."""
    kept = ("peak_flops", "peak_is", "device", "precision", "micro_batch_tokens",
            "vocabulary_size", "pairs")  # fmt: skip
    return {
        "figures": figures(samples),
        **{name: samples[name] for name in kept},
        **samples["profile"],
    }


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
    samples = measure_steps(given)
    results = summarize_steps(samples)
    for figure, value in results["figures"].items():
        print(f"{figure:48} {value:12.4g}")
    settings = {"preset": given.preset, "set": given.set}
    # The newest report of a name is shown: one of a GPU must not replace one of a CPU.
    suffix = "" if results["device"] == "cpu" else "-cuda"
    return Report(results, settings, samples["rounds"], f"training-{given.preset}{suffix}")


if __name__ == "__main__":
    main(__doc__)
