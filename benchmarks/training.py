"""Training speed on a CPU: one epoch, and the choices in train/ that it comes from.

    python benchmarks/training.py --source train.en --target train.de
        [--pairs 4000] [--joeynmt PYTHON]    an interpreter whose environment has JoeyNMT 2.3
        [--parts]                            instead: dropout, loss and padding one by one
    python benchmarks/training.py --data DIR --preset base [--device cuda] [--peak-tflops 989]

The third form measures steps of any preset on data of `translate-trt data prepare`: tokens per
second, padding, the share of a step that waits for input, model-FLOPs utilization, and what the
paper's schedule would take at that speed. The utilization is of --peak-tflops, or else of what a
large matrix product in the same precision reaches in the same run.

Of the first two: the epoch is over the first --pairs pairs of the text, with the `small` preset
(3+3 layers, d_model 256, vocabulary 8,000) and batches of 4,096 tokens. JoeyNMT gets the same
vocabulary, shape, batch size, dropout and optimizer. Both run in processes of their own, in turn;
what is compared is target tokens per second from the first batch to the last, start-up and
validation excluded.
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

import numpy as np
import sentencepiece
import torch
from report import alternate, parser, ratios, seconds_of, throughput_figures, write
from torch import nn

from translate_trt.train import loss as loss_module
from translate_trt.train.config import PAD, ModelConfig, TrainConfig, preset
from translate_trt.train.data.batches import (
    ParallelData,
    encode_parallel,
    epoch_batches,
    plan_batches,
)
from translate_trt.train.data.vocabulary import train_tokenizer
from translate_trt.train.model import Dropout, scaled_dot_product_attention
from translate_trt.train.trainer.distributed import Group, choose_device
from translate_trt.train.trainer.flops import training_flops
from translate_trt.train.trainer.loop import Trainer
from translate_trt.train.trainer.run import prepare_job_from_data
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
    """Vocabulary and text in the forms that both systems read."""
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
    """Target tokens per second of one epoch with `translate-trt train`."""
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
    """Target tokens per second of one epoch with JoeyNMT, from the times in its log."""
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
    """The corpus as both systems see it."""
    processor = sentencepiece.SentencePieceProcessor(str(directory / "tokenizer.spm"))
    sides = [
        processor.encode((directory / f"train.{side}").read_text(encoding="utf-8").split("\n")[:-1])
        for side in ("source", "target")
    ]
    return encode_parallel(sides[0], sides[1], 256)


def parts(data: ParallelData, rounds: int) -> dict[str, Any]:
    """Dropout, loss, attention and padding, each beside the plain way."""
    model = preset("small").model
    x = torch.randn(BATCH_TOKENS, model.d_model)
    ours, plain = Dropout(model.dropout).train(), nn.Dropout(model.dropout).train()
    runs: dict[str, Callable[[], float]] = {
        "16 bits an element": seconds_of(lambda: ours(x)),
        "torch.nn.Dropout": seconds_of(lambda: plain(x)),
    }
    dropout = alternate(runs, 4 * rounds, warmup=3)

    weight = torch.randn(model.vocabulary_size, model.d_model, requires_grad=True)
    hidden = torch.randn(BATCH_TOKENS, model.d_model, requires_grad=True)
    targets = torch.randint(4, model.vocabulary_size, (BATCH_TOKENS,))

    def fused(elements: int) -> Callable[[], float]:
        def run() -> None:
            loss_module.ELEMENTS_AT_ONCE = elements
            value, _ = loss_module.projected_cross_entropy(hidden, weight, targets, 0.1)
            value.backward()  # type: ignore[no-untyped-call]

        return seconds_of(run)

    def unfused() -> None:
        logits = nn.functional.linear(hidden, weight)
        value = nn.functional.cross_entropy(
            logits, targets, label_smoothing=0.1, ignore_index=PAD, reduction="sum"
        )
        value.backward()  # type: ignore[no-untyped-call]

    heads = (272, model.heads, 15, model.d_v)  # a batch of Multi30k
    sides = (torch.randn(heads, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    query, key, value = sides

    def attention(function: Callable[..., torch.Tensor]) -> Callable[[], float]:
        return seconds_of(
            lambda: function(query, key, value, is_causal=True).sum().backward()  # type: ignore[no-untyped-call]
        )

    def by_products(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool) -> Any:
        return scaled_dot_product_attention(q, k, v, causal=is_causal)

    kinds = {
        "products": attention(by_products),
        "torch's fused kernel": attention(nn.functional.scaled_dot_product_attention),
    }
    attending = alternate(kinds, 4 * rounds, warmup=3)

    before = loss_module.ELEMENTS_AT_ONCE
    sizes = {f"fused, {n:,} logits at once": fused(n) for n in (512_000, before, 8_192_000)}
    loss = alternate({**sizes, "F.cross_entropy": seconds_of(unfused)}, rounds)
    loss_module.ELEMENTS_AT_ONCE = before
    samples = {"dropout, s": dropout, "loss, s": loss, "attention in bfloat16, s": attending}
    samples |= {"padding": padding(data)}
    for name, values in itertools.chain(dropout.items(), loss.items(), attending.items()):
        print(f"{name:40} {1e3 * statistics.median(values):8.1f} ms")
    for name, share in samples["padding"].items():
        print(f"{name:40} {100 * share:8.1f} % padding")
    return samples


def padding(data: ParallelData) -> dict[str, float]:
    """Share of places that hold no token, for batches by our order and by the target's length."""
    source, target = data.source.lengths, data.target.lengths

    def share(batches: list[np.ndarray]) -> float:
        places = sum(len(rows) * (source[rows].max() + target[rows].max()) for rows in batches)
        return float(1 - (source.sum() + target.sum()) / places)

    by_target = np.lexsort((source, target))
    cuts: list[list[int]] = [[]]
    for row in by_target:
        widest = max([source[r] for r in cuts[-1]] + [source[row], target[row]])
        if widest * (len(cuts[-1]) + 1) > BATCH_TOKENS:
            cuts.append([])
        cuts[-1].append(row)
    ours = plan_batches(source, target, BATCH_TOKENS, np.random.default_rng(1))
    return {
        "by the longer side, up and down": share(ours),
        "by target, then source length": share([np.array(cut) for cut in cuts]),
    }


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a large matrix product."""
    size = 8_192 if device.type == "cuda" else 2_048
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def product() -> None:
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()

    run = seconds_of(product)
    return 2 * size**3 / statistics.median([run() for _ in range(12)][2:])


def _work(model: ModelConfig, steps: list[Step]) -> dict[str, int]:
    """Tokens, places and operations of those steps."""
    totals = dict.fromkeys(("source", "target", "places", "flops"), 0)
    for batch in itertools.chain.from_iterable(step.batches for step in steps):
        source = batch.source_lengths.tolist()
        rows = batch.target_index // batch.previous.shape[1]
        target = torch.bincount(rows, minlength=len(source)).tolist()
        totals["source"] += sum(source)
        totals["target"] += sum(target)
        totals["places"] += batch.padded_tokens
        totals["flops"] += training_flops(model, source, target)
    return totals


def epoch_padding(data: ParallelData, config: TrainConfig) -> float:
    """Share of the places of a whole epoch's batches that hold no token."""
    source, target = data.source.lengths, data.target.lengths
    places = sum(
        len(rows) * int(source[rows].max() + target[rows].max())
        for rows in itertools.chain.from_iterable(plan_epoch(data, config, 0))
    )
    return 1 - int(source.sum() + target.sum()) / places


def throughput(given: argparse.Namespace) -> dict[str, Any]:
    """Speed of optimizer steps of a preset on prepared data, and what follows from it."""
    device = choose_device(given.device)
    overrides = {"validate_every": 0, "seed": 1, **dict(given.set or [])}
    with tempfile.TemporaryDirectory() as name:
        job = prepare_job_from_data(given.data, Path(name) / "run", given.preset, overrides)
    trainer = Trainer(job, Group(device))
    trainer.model.train()
    loader = StepLoader(job.data, job.train, 0, 1, (0, 0), pin=device.type == "cuda")
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
        rounds.append({"seconds": seconds, "waiting": waiting, **_work(job.model, taken)})
    loader.close()
    alone = StepLoader(job.data, job.train, 0, 1, (0, 0))
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
        "padding_of_an_epoch": epoch_padding(job.data, job.train),
        "schedule_steps": job.train.steps,
        "input_target_tokens_per_second": input_speed,
        "peak_flops": peak,
        "peak_is": "given" if given.peak_tflops else "a large matrix product in this run",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "precision": str(trainer.dtype).removeprefix("torch."),
    }


def print_throughput(samples: dict[str, Any]) -> None:
    """The figures that throughput() measured, in words."""
    for name, value in throughput_figures(samples).items():
        print(f"{name:44} {value:,.4g}")


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--source", type=Path, help="training text")
    options.add_argument("--target", type=Path, help="its translation")
    options.add_argument("--pairs", type=int, default=4_000, help="pairs of the epoch")
    options.add_argument("--joeynmt", metavar="PYTHON", help="interpreter that has JoeyNMT")
    options.add_argument("--parts", action="store_true", help="measure the parts instead")
    options.add_argument("--data", type=Path, help="directory of `translate-trt data prepare`")
    options.add_argument("--preset", default="base", help="with --data: model and recipe")
    options.add_argument("--device", default="auto", help="with --data: auto, cpu or cuda")
    options.add_argument("--steps", type=int, default=20, help="with --data: steps per round")
    options.add_argument("--warmup", type=int, default=5, help="with --data: steps before")
    options.add_argument("--peak-tflops", type=float, help="with --data: what the device can do")
    options.add_argument(
        "--set", action="append", metavar="NAME=VALUE", type=_setting,
        help="with --data: a setting of the recipe, as micro_batch_tokens=25000",
    )  # fmt: skip
    options.add_argument("--note", default="", help="with --data: which data, which conditions")
    given = options.parse_args()
    if given.data is None and (given.source is None or given.target is None):
        options.error("give --source and --target, or --data")
    return given


def _setting(text: str) -> tuple[str, int | float | str]:
    """NAME=VALUE with the value as a number where it is one."""
    name, _, value = text.partition("=")
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return name, kind(value)
    return name, value


def main() -> None:
    """Measure what was asked for and write it down."""
    given = arguments()
    torch.set_num_threads(given.threads)
    if given.data is not None:
        samples = throughput(given)
        print_throughput(samples)
        settings = {"preset": given.preset, "threads": given.threads, "set": given.set}
        settings["note"] = given.note
        print(write(f"training-{given.preset}", settings, samples, given.out))
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
        if given.parts:
            print(
                write(
                    "training-parts", settings, parts(tokenized(directory), given.rounds), given.out
                )
            )
            return
        systems: dict[str, Callable[[], float]] = {
            "translate-trt": lambda: run_ours(directory, given.threads)
        }
        if given.joeynmt:
            systems["joeynmt"] = lambda: run_joeynmt(directory, given.joeynmt, given.threads)
        samples = alternate(systems, given.rounds, warmup=0)
    for system, values in samples.items():
        print(f"{system:14} {statistics.median(values):8.0f} target tokens/s")
    if given.joeynmt:
        middle, low, high = ratios(samples, "joeynmt", "translate-trt")
        print(f"ratio {middle:.2f} [{low:.2f}, {high:.2f}]")
    print(write("training", settings, {"target_tokens_per_second": samples}, given.out))


if __name__ == "__main__":
    main()
