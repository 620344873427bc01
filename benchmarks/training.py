"""Training speed on a CPU: one epoch, and the choices in train/ that it comes from.

    python benchmarks/training.py --source train.en --target train.de
        [--pairs 4000] [--joeynmt PYTHON]    an interpreter whose environment has JoeyNMT 2.3
        [--parts]                            instead: dropout, loss and padding one by one

The epoch is over the first --pairs pairs of the text, with the `small` preset (3+3 layers, d_model
256, vocabulary 8,000) and batches of 4,096 tokens. JoeyNMT gets the same vocabulary, shape, batch
size, dropout and optimizer. Both run in processes of their own, in turn; what is compared is target
tokens per second from the first batch to the last, start-up and validation excluded.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
from report import alternate, parser, ratios, seconds_of, write
from torch import nn

from translate_trt.train import loss as loss_module
from translate_trt.train.config import PAD, preset
from translate_trt.train.data import (
    ParallelData,
    encode_parallel,
    epoch_batches,
    plan_batches,
)
from translate_trt.train.model import Dropout, scaled_dot_product_attention
from translate_trt.train.tokenizer import train_tokenizer

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


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--source", type=Path, required=True, help="training text")
    options.add_argument("--target", type=Path, required=True, help="its translation")
    options.add_argument("--pairs", type=int, default=4_000, help="pairs of the epoch")
    options.add_argument("--joeynmt", metavar="PYTHON", help="interpreter that has JoeyNMT")
    options.add_argument("--parts", action="store_true", help="measure the parts instead")
    return options.parse_args()


def main() -> None:
    """Measure what was asked for and write it down."""
    given = arguments()
    torch.set_num_threads(given.threads)
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
