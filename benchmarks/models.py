"""Make models to measure: of the shape of `base`, and for all peers.

    python benchmarks/models.py widen CHECKPOINT --output DIR [--preset base]
        [--vocabulary-size 37000] [--max-positions 512]
    python benchmarks/models.py peers --data DIR --output MODELS [--steps 1200] [--model base]

The speed of a model depends on its shape and on the lengths it produces, and BLEU tells whether a
fast system still translates. Training a real `base` needs GPUs.

**widen** makes one from a small post-norm model that a CPU trains in an hour. It costs what `base`
costs and translates as the small model does.

- Width. Every vector of the wide model is f copies of the small model's. A matmul sums over the
  copies, so its weights are divided by f; heads are repeated, and the LayerNorm of copies consists
  of copies of the LayerNorm. Embeddings are multiplied by sqrt(d_model) and shared with the output
  projection, so they are divided by sqrt(f), and so is what reaches the output projection.
  Positions become a learned table of copies: sinusoids of another width are other numbers.
- Depth. The sub-layers of added layers compute zero: their weights are dense and random, but those
  of the last matmul are w for one copy of its input and -w for the next, which cancel exactly, in
  int8 as well. The forget gate of an added SSRU is exactly 1 in float32, so its state stays zero.
  The LayerNorm that was the last one now only normalizes, added ones find normalized vectors, and
  the new last one scales and shifts. Cross-attention weights are those of an added layer.
- Vocabulary. The shift of the last LayerNorm rises in one copy and falls by as much in the next,
  which cancels in matmuls with equal copies. An added embedding row is r in one copy and -r in the
  next, so its logit is the same in every position, far below those of all other pieces.

**peers** makes models that ours, CTranslate2 and Marian can all run, from Multi30k as
`scripts/multi30k.sh` downloads it: a checkpoint of each of MODELS, which is a shallow model,
trained for some minutes on a CPU, with more layers that compute nothing and more vocabulary entries
that are never chosen; its `shortlist-MODEL.safetensors`; `short.en`, `short.de` (pairs of the test
set) and `long.en`, `long.de` (pairs whose source has about 24 tokens, mostly training text). Marian
has fixed sinusoids, a LayerNorm epsilon of 1e-6, and begins a translation with a zero vector. So
have these models, and the start token's row of the embedding matrix stays zero.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from harness import command, main, option
from sentencepiece import sentencepiece_model_pb2
from torch import Tensor, nn

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.io.lines import read_parallel
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import DecodingDefaults, open_checkpoint, save_checkpoint
from translate_trt.train.config import (
    END,
    PAD,
    PRESETS,
    START,
    UNKNOWN,
    ModelConfig,
    TrainConfig,
    preset,
)
from translate_trt.train.data.batches import encode_parallel, epoch_batches
from translate_trt.train.data.vocabulary import train_tokenizer
from translate_trt.train.model import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    Residual,
    Transformer,
)
from translate_trt.train.schedule import learning_rate
from translate_trt.train.shortlist.learning import Vocabularies, build_shortlist, read_pairs
from translate_trt.train.shortlist.shortlist_size import ITERATIONS, ShortlistSize
from translate_trt.train.ssru import SSRU
from translate_trt.train.trainer.objective import Objective
from translate_trt.train.trainer.precision import processor_multiplies_bf16
from translate_trt.train.worker_processes import WorkerPool

OUTPUT = option("--output", type=Path, required=True, help="directory that is made")


def random_checkpoint(path: Path, config: ModelConfig) -> None:
    """Save a model with random weights, and a tokenizer that never sees text."""
    torch.manual_seed(0)
    vocabulary = config.vocabulary_size
    tokenizer = sentencepiece_model_pb2.ModelProto()
    kinds = tokenizer.SentencePiece
    specials = {"<pad>": kinds.CONTROL, "<unk>": kinds.UNKNOWN, "<s>": kinds.CONTROL,
                "</s>": kinds.CONTROL}  # fmt: skip
    for piece, kind in specials.items():
        tokenizer.pieces.add(piece=piece, score=0.0, type=kind)
    for number in range(len(specials), vocabulary):
        tokenizer.pieces.add(piece=f"<{number}>", score=-float(number), type=kinds.NORMAL)
    spec = tokenizer.trainer_spec
    spec.vocab_size, spec.pad_id, spec.unk_id = vocabulary, PAD, UNKNOWN
    spec.bos_id, spec.eos_id = START, END
    weights = Transformer(config).state_dict()
    with tempfile.NamedTemporaryFile(suffix=".model") as file:
        Path(file.name).write_bytes(tokenizer.SerializeToString())
        both = (Path(file.name),) * 2
        save_checkpoint(path, weights, config, TrainConfig(), both, DecodingDefaults("en", "de"))


# ---- a wide model ----

Layer = EncoderLayer | DecoderLayer


def wide_config(small: ModelConfig, target: ModelConfig, max_positions: int) -> ModelConfig:
    """Return the small model's configuration in the target's shape.

    Raises:
        OptionError: The small model cannot be widened to that shape.
    """

    def require(holds: bool, reason: str) -> None:
        if not holds:
            raise OptionError(f"the checkpoint cannot be widened: {reason}.")

    require(small.norm == "post", "layers can only be added to a post-norm model (--norm post)")
    require(not small.decoder_ties, "it ties decoder layers; train one without ties")
    require(target.d_model % small.d_model == 0, f"its d_model must divide {target.d_model}")
    factor = target.d_model // small.d_model
    for name in ("d_ff", "decoder_inner", "heads"):
        wanted = getattr(target, name) / factor
        given = getattr(small, name)
        require(given == wanted, f"{name} is {given}, and must be {wanted:g} for its d_model")
    for name in ("encoder_layers", "decoder_layers"):
        given, most = getattr(small, name), getattr(target, name)
        require(given <= most, f"{name} is {given}, more than {most}")
    known = small.longest if small.longest is not None else max_positions
    require(known >= max_positions, f"it has learned {known} positions; lower --max-positions")
    shape = ("d_model", "d_ff", "heads", "encoder_layers", "decoder_layers")
    return dataclasses.replace(
        small,
        **{name: getattr(target, name) for name in shape},
        decoder_d_ff=target.decoder_inner,
        positions="learned",
        max_positions=max_positions,
    )


@torch.no_grad()
def widened(
    small: Transformer,
    target: ModelConfig,
    max_positions: int = 512,
    vocabulary_size: int | None = None,
) -> Transformer:
    """Return a model of the target's width and depth that translates as the small model does.

    Args:
        small: Trained post-norm model.
        target: Shape; d_model, heads and d_ff are the same multiple of small's.
        max_positions: Tokens of the longest sentence.
        vocabulary_size: Size of its vocabulary; by default the small model's.
    """
    config = wide_config(small.config, target, max_positions)
    factor = config.d_model // small.config.d_model
    pieces = small.config.vocabulary_size
    if vocabulary_size is not None:
        if vocabulary_size < pieces or (vocabulary_size > pieces and factor == 1):
            raise OptionError("entries can only be added, and only if d_model grows, too.")
        config = dataclasses.replace(config, vocabulary_size=vocabulary_size)
    wide = Transformer(config).eval()
    wide.embedding.weight[:pieces] = _copies(small.embedding.weight, factor) / math.sqrt(factor)
    wide.positions.table.copy_(_copies(small.positions(0, max_positions), factor))
    for grown, given in (
        (wide.encoder_layers, small.encoder_layers),
        (wide.decoder_layers, small.decoder_layers),
    ):
        for ours, theirs in zip(grown[: len(given)], given, strict=True):
            _widen_layer(ours, theirs, factor)
        hand_up(grown, len(given), factor)
    last = wide.decoder_layers[-1].feed_forward_norm.norm
    last.weight /= math.sqrt(factor)
    last.bias /= math.sqrt(factor)
    if config.vocabulary_size > pieces:
        _add_pieces(wide.embedding.weight[pieces:], last.bias, factor)
    return wide


# Logit of every added piece. Exponentials of a trained model's logits sum to e^9 and more, and
# 30,000 times e^-16 is 0.003.
_ADDED_LOGIT = -16.0
# Forget gate's bias of an added SSRU: sigmoid(x) is 1 in float32 from x = 17 on.
_CLOSED = 60.0
# Change of the last shift: small beside the shifted values, and large enough that added rows are no
# larger than others.
_SHIFT = 0.5


def _add_pieces(rows: Tensor, shift: Tensor, factor: int) -> None:
    """Fill the added rows [pieces, d_model]; change the last norm's shift [d_model]."""
    width = len(shift) // factor
    signs = torch.tensor([1.0, -1.0] * (factor // 2) + [0.0] * (factor % 2))
    signs = signs.repeat_interleave(width)
    shift += _SHIFT * signs
    mean = _ADDED_LOGIT / (_SHIFT * signs.abs().sum())
    noise = torch.randn(len(rows), width)
    noise -= noise.mean(1, keepdim=True)
    rows.copy_(_copies(mean * (1 + noise), factor) * signs)


def add_unused_pieces(tokenizer: bytes, count: int) -> bytes:
    """Return a SentencePiece model with that many more pieces, which it never uses."""
    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer)
    for _ in range(count):
        piece = f"<unused {len(model.pieces)}>"
        model.pieces.add(piece=piece, score=0.0, type=model.SentencePiece.UNUSED)
    model.trainer_spec.vocab_size = len(model.pieces)
    written: bytes = model.SerializeToString()
    return written


def _copies(x: Tensor, factor: int) -> Tensor:
    """Repeat the last axis: [..., d] -> [..., factor * d]."""
    return x.repeat(*[1] * (x.dim() - 1), factor)


def _widen_layer(wide: Layer, small: Layer, factor: int) -> None:
    """Fill a layer with copies of a small layer, module by module."""
    modules = dict(small.named_modules())
    for name, module in wide.named_modules():
        if isinstance(module, nn.Linear):
            weight = _copies(modules[name].weight, factor) / factor
            module.weight.copy_(weight.repeat(factor, 1))
        if isinstance(module, nn.LayerNorm):
            module.weight.copy_(_copies(modules[name].weight, factor))
        if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
            module.bias.copy_(_copies(modules[name].bias, factor))


def hand_up(layers: list[EncoderLayer] | list[DecoderLayer], given: int, factor: int) -> None:
    """Make the layers from `given` on compute the identity.

    Args:
        layers: All layers of a stack.
        given: Number of layers that compute something.
        factor: Number of equal parts of a sub-layer's inner vectors, which cancel.
    """
    if given == len(layers):
        return
    last, final = (layers[index].feed_forward_norm.norm for index in (given - 1, -1))
    scale, shift = last.weight.clone(), last.bias.clone()
    nn.init.ones_(last.weight)
    nn.init.zeros_(last.bias)
    for layer in layers[given:]:
        for module in layer.modules():
            if isinstance(module, MultiHeadAttention):
                for linear in (module.query, module.key, module.value):
                    _repeat_outputs(linear, factor)
                _cancel(module.output, factor)
            elif isinstance(module, FeedForward):
                _repeat_outputs(module.inner, factor)
                _cancel(module.outer, factor)
            elif isinstance(module, SSRU):
                nn.init.constant_(module.forget.bias, _CLOSED)
            elif isinstance(module, Residual):
                # LayerNorm divides by sqrt(1 + epsilon) where the variance is 1 already.
                nn.init.constant_(module.norm.weight, math.sqrt(1 + module.norm.eps))
                nn.init.zeros_(module.norm.bias)
    final.weight.copy_(scale * final.weight)
    final.bias.copy_(shift)


def _repeat_outputs(linear: nn.Linear, factor: int) -> None:
    """Make the output `factor` copies of its first part, whatever the input."""
    part = linear.weight[: len(linear.weight) // factor]
    linear.weight.copy_(part.repeat(factor, 1))


def _cancel(linear: nn.Linear, factor: int) -> None:
    """Make the output zero for an input of `factor` copies: w, -w, ..., 0 for an odd last one."""
    width = linear.in_features // factor
    for copy in range(factor):
        columns = linear.weight[:, copy * width : (copy + 1) * width]
        if copy % 2:
            columns.copy_(-linear.weight[:, (copy - 1) * width : copy * width])
        elif copy == factor - 1:
            columns.zero_()


@command(
    option("checkpoint", type=Path, help="run or checkpoint"),
    OUTPUT,
    option("--preset", default="base", choices=PRESETS, help="shape of the wide checkpoint"),
    option("--vocabulary-size", type=int, help="size of its vocabulary; default: unchanged"),
    option("--max-positions", type=int, default=512, help="tokens of the longest sentence"),
    option("--seed", type=int, default=0, help="seed of the added layers' weights"),
)
def widen(given: Namespace) -> None:
    """Widen a trained checkpoint to the shape of a preset, with the same translations."""
    checkpoint = open_checkpoint(given.checkpoint)
    torch.manual_seed(given.seed)
    small = checkpoint.load_model()
    shape = preset(given.preset).model
    wide = widened(small, shape, given.max_positions, given.vocabulary_size)
    known = {field.name for field in dataclasses.fields(TrainConfig)}
    recipe = TrainConfig(**{k: v for k, v in checkpoint.train.items() if k in known})
    added = wide.config.vocabulary_size - small.config.vocabulary_size
    with tempfile.TemporaryDirectory() as directory:
        tokenizer = Path(directory) / checkpoint.tokenizer.name
        tokenizer.write_bytes(add_unused_pieces(checkpoint.tokenizer.read_bytes(), added))
        save_checkpoint(
            given.output, wide.state_dict(), wide.config, recipe, (tokenizer, tokenizer),
            checkpoint.decoding,
        )  # fmt: skip
    parameters = sum(parameter.numel() for parameter in wide.parameters())
    print(f"{given.output}: {parameters:,} parameters that translate as {checkpoint.path} does")


# ---- models for all peers ----

PIECES = 8_000
#: Source tokens of a long line, the end symbol excluded, and the number of such lines.
LONG, LONG_LINES = 24, 200
#: Logit bias of added vocabulary entries. It is far below the logits of a trained model, which an
#: added row of average length changes by a few units, and above that of banned tokens.
ADDED_BIAS = -60.0

COMMON: dict[str, Any] = {
    "vocabulary_size": PIECES, "dropout": 0.1, "layer_norm_epsilon": 1e-6, "output_bias": True,
    "sinusoid": "tensor2tensor", "heads": 8,
}  # fmt: skip
STUDENT = COMMON | {"d_model": 256, "d_ff": 1536, "encoder_layers": 2, "decoder_layers": 2}


@dataclass(frozen=True)
class Shape:
    """Configuration that is trained, and the shape after layers and entries are added."""

    trained: ModelConfig
    encoder_layers: int
    decoder_layers: int
    vocabulary_size: int


_BASE = COMMON | {"d_model": 512, "d_ff": 2048, "encoder_layers": 1, "decoder_layers": 1}
MODELS = {
    "base": Shape(ModelConfig(**_BASE), 6, 6, 37_000),
    "student": Shape(ModelConfig(**STUDENT), 6, 2, 32_000),
    "student-ssru": Shape(ModelConfig(**STUDENT, decoder_mixer="ssru"), 6, 2, 32_000),
}


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


def _make(name: str, data: Path, out: Path, steps: int) -> None:
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


@command(
    option("--data", type=Path, required=True, help="folder with Multi30k"),
    OUTPUT,
    option("--model", action="append", choices=MODELS, help="default: all"),
    option("--steps", type=int, default=1200, help="optimizer steps of each"),
)
def peers(given: Namespace) -> None:
    """Make the models that do not exist."""
    given.output.mkdir(parents=True, exist_ok=True)
    for name in given.model or MODELS:
        if (given.output / name).exists():
            print(f"{given.output / name} exists already")
            continue
        print(f"training {name}", flush=True)
        _make(name, given.data, given.output, given.steps)


if __name__ == "__main__":
    main(__doc__)
