"""Measure training speed: an epoch on a CPU beside JoeyNMT, or steps of any preset.

    python benchmarks/training.py --source train.en --target train.de
        [--pairs 4000] [--joeynmt PYTHON]    an interpreter whose environment has JoeyNMT 2.3
    python benchmarks/training.py --data DIR --preset base [--device cuda] [--peak-tflops 989]

The first form trains one epoch over the first --pairs pairs of the text, with the `small` preset
(3+3 layers, d_model 256, vocabulary 8,000) and batches of 4,096 tokens. JoeyNMT gets the same
vocabulary, shape, batch size, dropout and optimizer. Both run in processes of their own, in turn.
The figure is target tokens per second from the first batch to the last, without start-up and
validation.

The second form measures steps of any preset on data of `translate-trt data prepare`: tokens per
second, padding, the share of a step that waits for input, model-FLOPs utilization, and the duration
of the paper's schedule at that speed. Utilization is relative to --peak-tflops, or by default to a
large matmul of the same precision in the same run. What torch.compile compiles after --warmup steps
is part of a measured round.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from harness import (
    alternate,
    compared,
    kernel_times,
    kernels_of,
    parser,
    seconds_of,
    write,
)

from translate_trt.train.config import ModelConfig, TrainConfig, preset
from translate_trt.train.data.batches import (
    ParallelData,
    encode_parallel,
    epoch_batches,
)
from translate_trt.train.data.token_files import open_prepared
from translate_trt.train.data.vocabulary import train_tokenizer
from translate_trt.train.trainer.distributed import Group, choose_device
from translate_trt.train.trainer.flops import training_flops
from translate_trt.train.trainer.loop import Trainer
from translate_trt.train.trainer.run import prepare_job
from translate_trt.train.trainer.steps import Step, StepLoader, plan_epoch

BATCH_TOKENS = 4_096

JOEYNMT = """
name: epoch
joeynmt_version: 2.3.0
model_dir: {directory}/model
use_cuda: False
fp16: False
random_seed: 1
data:
  train: {directory}/train
  dev: {directory}/dev
  dataset_type: plain
  src: &side
    lang: source
    max_length: 256
    level: bpe
    voc_file: {directory}/vocabulary.txt
    tokenizer_type: sentencepiece
    tokenizer_cfg: {{model_file: {directory}/tokenizer.spm, model_type: unigram}}
  trg: {{<<: *side, lang: target}}
  special_symbols:
    {{unk_token: <unk>, unk_id: 0, pad_token: <pad>, pad_id: 1,
      bos_token: <s>, bos_id: 2, eos_token: </s>, eos_id: 3}}
testing: {{beam_size: 1, batch_size: 1024, batch_type: token, eval_metrics: [bleu]}}
training:
  optimizer: adam
  adam_betas: [0.9, 0.98]
  learning_rate: 0.0001
  scheduling: warmupinversesquareroot
  learning_rate_warmup: 2000
  normalization: tokens
  loss: crossentropy
  label_smoothing: 0.1
  batch_size: {batch_tokens}
  batch_type: token
  epochs: 1
  validation_freq: 1000000
  logging_freq: 1
  early_stopping_metric: loss
  overwrite: True
  shuffle: True
model:
  initializer: xavier_uniform
  tied_embeddings: True
  tied_softmax: True
  encoder: &stack
    type: transformer
    num_layers: {layers}
    num_heads: {heads}
    embeddings: {{embedding_dim: {d_model}, scale: True, dropout: {dropout}}}
    hidden_size: {d_model}
    ff_size: {d_ff}
    dropout: {dropout}
    layer_norm: post
  decoder: *stack
"""


def write_corpus(directory: Path, source: list[str], target: list[str]) -> None:
    """Write vocabulary and text in the formats of both systems."""
    model = preset("small").model
    train_tokenizer([*source, *target], model.vocabulary_size, directory / "tokenizer.spm")
    processor = sentencepiece.SentencePieceProcessor(str(directory / "tokenizer.spm"))
    pieces = [processor.id_to_piece(index) for index in range(4, processor.get_piece_size())]
    vocabulary = ["<unk>", "<pad>", "<s>", "</s>", *pieces]
    (directory / "vocabulary.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    for name, lines in (("train", slice(None)), ("dev", slice(0, 5))):
        for side, text in (("source", source), ("target", target)):
            path = directory / f"{name}.{side}"
            path.write_text("".join(f"{line}\n" for line in text[lines]), encoding="utf-8")


def run_ours(directory: Path, threads: int) -> float:
    """Return target tokens per second of one epoch with `translate-trt train`."""
    data = tokenized(directory)
    steps = len(epoch_batches(data, BATCH_TOKENS, 1, 0))
    out = directory / "run"
    subprocess.run(
        [
            Path(sys.executable).with_name("translate-trt"), "train", "--config", "small",
            "--train", directory / "train.source", directory / "train.target",
            "--valid", directory / "dev.source", directory / "dev.target",
            "--out", out, "--force", "--threads", str(threads), "--steps", str(steps),
            "--log-every", str(steps), "--checkpoint-every", str(10 * steps),
            "--validate-every", "0",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    first = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    return float(first["target_tokens_per_second"])


def run_joeynmt(directory: Path, python: str, threads: int) -> float:
    """Return target tokens per second of one epoch with JoeyNMT, from the times in its log."""
    model = preset("small").model
    settings = {"directory": directory, "layers": model.encoder_layers, "heads": model.heads}
    settings |= {"d_model": model.d_model, "d_ff": model.d_ff, "dropout": model.dropout}
    settings |= {"batch_tokens": BATCH_TOKENS}
    (directory / "joeynmt.yaml").write_text(JOEYNMT.format(**settings))
    command = [python, "-m", "joeynmt", "train", directory / "joeynmt.yaml", "--skip-test"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    text = done.stdout + done.stderr
    begin, end = (
        re.search(rf"^(\S+ \S+) - INFO - joeynmt.training - {pattern}", text, re.MULTILINE)
        for pattern in (r"EPOCH 1", r"Epoch +1[,:] total training loss")
    )
    if begin is None or end is None:
        raise SystemExit(f"JoeyNMT did not finish its epoch:\n{text[-3000:]}")
    first, last = (
        datetime.datetime.strptime(match.group(1), "%Y-%m-%d %H:%M:%S,%f") for match in (begin, end)
    )
    return int(tokenized(directory).target.offsets[-1]) / (last - first).total_seconds()


def tokenized(directory: Path) -> ParallelData:
    """Return the tokenized corpus."""
    processor = sentencepiece.SentencePieceProcessor(str(directory / "tokenizer.spm"))
    sides = [
        processor.encode((directory / f"train.{side}").read_text(encoding="utf-8").split("\n")[:-1])
        for side in ("source", "target")
    ]
    return encode_parallel(sides[0], sides[1], 256)


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


def throughput(given: argparse.Namespace) -> dict[str, Any]:
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
        print(kernel_times(profile["kernels of a step"]), file=sys.stderr)
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
    """Return medians over the rounds of `throughput`, in the units of the report."""

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
    """Return the figures of `throughput` and the peak they are relative to."""
    kept = ("peak_flops", "peak_is", "device", "precision", "micro_batch_tokens",
            "vocabulary_size", "pairs")  # fmt: skip
    return {
        "figures": figures(samples),
        **{name: samples[name] for name in kept},
        **samples["profile"],
    }


def summarize_epochs(samples: dict[str, list[float]]) -> dict[str, Any]:
    """Return the spread of each system's speed, and the ratio pair by pair."""
    return {"target_tokens_per_second": compared(samples, "translate-trt")}


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__)
    options.add_argument("--source", type=Path, help="training text")
    options.add_argument("--target", type=Path, help="translation of the training text")
    options.add_argument("--pairs", type=int, default=4_000, help="pairs of the epoch")
    options.add_argument(
        "--joeynmt", metavar="PYTHON", help="interpreter of an environment with JoeyNMT"
    )
    options.add_argument("--data", type=Path, help="directory of `translate-trt data prepare`")
    options.add_argument("--preset", default="base", help="with --data: model and recipe")
    options.add_argument("--device", default="auto", help="with --data: auto, cpu or cuda")
    options.add_argument("--steps", type=int, default=20, help="with --data: steps per round")
    options.add_argument("--warmup", type=int, default=5, help="with --data: steps before")
    options.add_argument("--peak-tflops", type=float, help="with --data: peak of the device")
    options.add_argument(
        "--set", action="append", metavar="NAME=VALUE", type=_setting,
        help="with --data: setting of the recipe, such as micro_batch_tokens=25000",
    )  # fmt: skip
    options.add_argument(
        "--profile", action="store_true", help="with --data on a GPU: kernels of a step"
    )
    options.add_argument("--note", default="", help="with --data: data and conditions")
    given = options.parse_args()
    if given.data is None and (given.source is None or given.target is None):
        options.error("give --source and --target, or --data")
    return given


def _setting(text: str) -> tuple[str, int | float | str]:
    """Split NAME=VALUE, and convert the value to a number if possible."""
    name, _, value = text.partition("=")
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return name, kind(value)
    return name, value


def main() -> None:
    """Measure an epoch or steps, and write the report."""
    given = arguments()
    torch.set_num_threads(given.threads)
    if given.data is not None:
        steps = throughput(given)
        results = summarize_steps(steps)
        for figure, value in results["figures"].items():
            print(f"{figure:44} {value:,.4g}")
        settings = {"preset": given.preset, "threads": given.threads, "set": given.set}
        settings["note"] = given.note
        # The newest report of a name is shown: one of a GPU must not replace one of a CPU.
        suffix = "" if results["device"] == "cpu" else "-cuda"
        print(write(f"training-{given.preset}{suffix}", settings, results, given, steps))
        return
    texts = [
        path.read_text(encoding="utf-8").split("\n")[:-1][: given.pairs]
        for path in (given.source, given.target)
    ]
    settings = {
        "pairs": given.pairs,
        "batch_tokens": BATCH_TOKENS,
        "threads": given.threads,
        "model": dataclasses.asdict(preset("small").model),
    }
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_corpus(directory, *texts)
        systems: dict[str, Callable[[], float]] = {
            "translate-trt": lambda: run_ours(directory, given.threads)
        }
        if given.joeynmt:
            systems["joeynmt"] = lambda: run_joeynmt(directory, given.joeynmt, given.threads)
        samples = alternate(systems, given.rounds, warmup=0)
    results = summarize_epochs(samples)
    for name, (middle, least, most) in results["target_tokens_per_second"].items():
        print(f"{name:28} {middle:10.4g} [{least:.4g}, {most:.4g}]")
    print(write("training", settings, results, given, samples))


if __name__ == "__main__":
    main()
