"""Make models that ours, CTranslate2 and Marian can all run, and the text to run them on.

    python benchmarks/peer_models.py --data DIR --out MODELS [--steps 1200] [--model base]

`--data` holds Multi30k as `scripts/multi30k.sh` downloads it. The script writes into `--out`:

- a checkpoint of each of MODELS: `base`, and Bergamot's `tiny` with an SSRU decoder and with
  self-attention. Each is a shallow model, trained for some minutes on a CPU, with more layers that
  compute nothing and more vocabulary entries that are never chosen, as in `benchmarks/widen.py`:
  it costs what a model of its shape costs, and its translations have realistic lengths.
- `shortlist-MODEL.safetensors`, learned from the training text.
- `short.en`, `short.de` (pairs of the test set) and `long.en`, `long.de` (pairs whose source has
  about 24 tokens; the test set has too few, so most are from the training text).

Marian has fixed sinusoids, a LayerNorm epsilon of 1e-6, and begins a translation with a zero
vector. The models have the same positions and epsilon, and the start token's row of the embedding
matrix stays zero.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn
from widen import add_unused_pieces, hand_up

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.io.lines import read_parallel
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import DecodingDefaults, save_checkpoint
from translate_trt.train.config import START, ModelConfig, TrainConfig
from translate_trt.train.data.batches import encode_parallel, epoch_batches
from translate_trt.train.data.vocabulary import train_tokenizer
from translate_trt.train.model import Transformer
from translate_trt.train.schedule import learning_rate
from translate_trt.train.shortlist.learning import (
    Vocabularies,
    build_shortlist,
    read_pairs,
)
from translate_trt.train.shortlist.shortlist_size import ITERATIONS, ShortlistSize
from translate_trt.train.trainer.objective import Objective
from translate_trt.train.trainer.precision import processor_multiplies_bf16
from translate_trt.train.worker_processes import WorkerPool

PIECES = 8_000
#: Source tokens of a long line, the end symbol excluded, and the number of such lines.
LONG, LONG_LINES = 24, 200
#: Logit bias of added vocabulary entries. It is far below the logits of a trained model, which an
#: added row of average length changes by a few units, and above that of banned tokens.
ADDED_BIAS = -60.0

COMMON = {
    "vocabulary_size": PIECES, "dropout": 0.1, "layer_norm_epsilon": 1e-6, "output_bias": True,
    "sinusoid": "tensor2tensor", "heads": 8,
}  # fmt: skip
STUDENT = COMMON | {"d_model": 256, "d_ff": 1536, "encoder_layers": 2, "decoder_layers": 2}


@dataclass(frozen=True)
class Shape:
    """Shape of a model before and after layers and vocabulary entries are added.

    Attributes:
        trained: Configuration that is trained.
        encoder_layers: Layers of the encoder afterwards.
        decoder_layers: Layers of the decoder.
        vocabulary_size: Size of the vocabulary.
    """

    trained: ModelConfig
    encoder_layers: int
    decoder_layers: int
    vocabulary_size: int


MODELS = {
    "base": Shape(
        ModelConfig(
            **(COMMON | {"d_model": 512, "d_ff": 2048, "encoder_layers": 1, "decoder_layers": 1})
        ),
        6, 6, 37_000,
    ),
    "student": Shape(ModelConfig(**STUDENT), 6, 2, 32_000),
    "student-ssru": Shape(ModelConfig(**STUDENT, decoder_mixer="ssru"), 6, 2, 32_000),
}  # fmt: skip


def train(
    config: ModelConfig, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], steps: int
) -> Transformer:
    """Train a model whose start token has a zero embedding, in the processor's best precision."""
    torch.manual_seed(1)
    model = Transformer(config)
    start = model.embedding.weight[START]
    nn.init.zeros_(start.detach())
    model.embedding.weight.register_hook(without_start)
    dtype = torch.bfloat16 if processor_multiplies_bf16() else torch.float32
    objective = Objective(model, 0.1, dtype, fuse=False)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    data = encode_parallel([a for a, _ in pairs], [b for _, b in pairs], 100).for_model(model)
    begin, epoch, step = perf_counter(), 0, 0
    while step < steps:
        for rows in epoch_batches(data, 2_048, 1, epoch)[: steps - step]:
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, config.d_model, steps // 4, peak=1e-3)
            batch = data.batch(rows)
            losses = objective(batch)
            (losses.loss / len(batch.targets)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 50 == 0 or step == steps:
                mean = float(losses.likelihood) / len(batch.targets)
                print(f"  step {step}: {mean:.2f}, {perf_counter() - begin:.0f} s", flush=True)
        epoch += 1
    return model.eval()


def without_start(gradient: Tensor) -> Tensor:
    """Clear the start token's row of a gradient [V, d_model]; Adam then leaves the row at zero."""
    changed = gradient.clone()
    changed[START] = 0
    return changed


@torch.no_grad()
def grow(small: Transformer, shape: Shape) -> Transformer:
    """Return a model of that depth and vocabulary that computes what `small` computes."""
    config = dataclasses.replace(
        small.config,
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        vocabulary_size=shape.vocabulary_size,
    )
    grown = Transformer(config).eval()
    pieces = small.config.vocabulary_size
    grown.embedding.weight[:pieces] = small.embedding.weight
    nn.init.normal_(grown.embedding.weight[pieces:], std=float(small.embedding.weight.std()))
    assert grown.output_bias is not None  # of every Shape
    assert small.output_bias is not None
    grown.output_bias[:pieces] = small.output_bias
    grown.output_bias[pieces:] = ADDED_BIAS
    for layers, given in (
        (grown.encoder_layers, small.encoder_layers),
        (grown.decoder_layers, small.decoder_layers),
    ):
        for layer, known in zip(layers, given, strict=False):
            layer.load_state_dict(known.state_dict())
        hand_up(layers, len(given), 2)
    return grown


def write_texts(data: Path, tokenizer: Tokenizer, out: Path) -> None:
    """Write the pairs to translate: the test set, and the pairs nearest to LONG source tokens."""
    test = list(read_parallel(*(data / f"test_2016_flickr.{side}" for side in ("en", "de"))))
    more = list(read_parallel(*(data / f"train.{side}" for side in ("en", "de"))))
    every = test + more
    lengths = np.array([len(one) for one in tokenizer.encode_source_batch([a for a, _ in every])])
    rows = np.argsort(np.abs(lengths - LONG), kind="stable")[:LONG_LINES]
    for name, pairs in (("short", test), ("long", [every[row] for row in sorted(rows.tolist())])):
        for index, side in enumerate(("en", "de")):
            text = "".join(f"{pair[index]}\n" for pair in pairs)
            (out / f"{name}.{side}").write_text(text, encoding="utf-8")


def make(name: str, data: Path, out: Path, steps: int) -> None:
    """Train, grow and save one model, and learn its shortlist."""
    shape = MODELS[name]
    files = data / "train.en", data / "train.de"
    small = out / "pieces.spm"
    if not small.exists():
        lines = (line for pair in read_parallel(*files) for line in pair)
        train_tokenizer(lines, PIECES, small)
    tokenizer = Tokenizer(small, small)
    config = dataclasses.replace(shape.trained, vocabulary_size=tokenizer.vocabulary_size)
    texts = list(read_parallel(*files))
    sides = [tokenizer.encode_source_batch([pair[side] for pair in texts]) for side in (0, 1)]
    model = grow(train(config, list(zip(*sides, strict=True)), steps), shape)
    added = out / f"{name}.spm"
    count = shape.vocabulary_size - tokenizer.vocabulary_size
    added.write_bytes(add_unused_pieces(small.read_bytes(), count))
    save_checkpoint(
        out / name, model.state_dict(), model.config, TrainConfig(steps=steps), (added, added),
        DecodingDefaults("en", "de"),
    )  # fmt: skip
    with WorkerPool(1) as pool:
        pairs = read_pairs(*files, (added, added), pool)
        table = build_shortlist(
            pairs, Vocabularies.of(added, added), ShortlistSize(), ITERATIONS, pool
        )
    table.save(out / f"shortlist-{name}.safetensors")
    write_texts(data, tokenizer, out)


def main() -> None:
    """Make the models that are asked for and do not exist."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--data", type=Path, required=True, help="folder with Multi30k")
    options.add_argument("--out", type=Path, required=True, help="folder for the models")
    options.add_argument("--model", action="append", choices=MODELS, help="default: all")
    options.add_argument("--steps", type=int, default=1200, help="optimizer steps of each")
    given = options.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.model or MODELS:
        if (given.out / name).exists():
            print(f"{given.out / name} exists already")
            continue
        print(f"training {name}", flush=True)
        try:
            make(name, given.data, given.out, given.steps)
        except TranslateTrtError as error:
            raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
