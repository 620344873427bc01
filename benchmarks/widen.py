"""Widen a trained checkpoint to the shape of `base`, with the same translations.

    python benchmarks/widen.py CHECKPOINT --out DIR [--preset base] [--vocabulary-size 37000]
        [--max-positions 512]

The speed of a model depends on its shape and on the lengths it produces, and BLEU tells whether a
fast system still translates. Training a real `base` needs GPUs. This script makes one from a small
model that a CPU trains in an hour: it costs what `base` costs and translates as the small model
does.

Width. Every vector of the wide model is f copies of the small model's, f = 512 / d_model. A matmul
sums over the copies, so its weights are divided by f; heads are repeated, and the LayerNorm of
copies consists of copies of the LayerNorm. Embeddings are multiplied by sqrt(d_model) and shared
with the output projection, so they are divided by sqrt(f), and so is what reaches the output
projection. Positions become a learned table of copies: sinusoids of another width are other
numbers.

Depth. The sub-layers of added layers compute zero: their weights are dense and random, but those of
the last matmul are w for one copy of its input and -w for the next, which cancel exactly, in int8
as well. An added SSRU forgets nothing and takes nothing in: its forget gate is exactly 1 in
float32, so its state and its output stay zero. The LayerNorm that was the last one now only
normalizes, added ones find normalized vectors, and the new last one scales and shifts.

Vocabulary. --vocabulary-size adds pieces that occur in no text and no translation. The shift of the
last LayerNorm rises in one copy and falls by as much in the next, which cancels in matmuls with
equal copies. An added embedding row is r in one copy and -r in the next, so its logit is the same
number in every position, far below the logits of all other pieces.

Cross-attention weights (`return_attention`) are not the small model's, because they come from the
last decoder layer, an added one. Only post-norm models can be made deeper this way.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import tempfile
from pathlib import Path

import torch
from sentencepiece import sentencepiece_model_pb2
from torch import Tensor, nn

from translate_trt.runtime.errors import OptionError, TranslateTrtError
from translate_trt.train.checkpoint import open_checkpoint, save_checkpoint
from translate_trt.train.config import PRESETS, ModelConfig, TrainConfig, preset
from translate_trt.train.model import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    Residual,
    Transformer,
)
from translate_trt.train.ssru import SSRU

Layer = EncoderLayer | DecoderLayer


def wide_config(small: ModelConfig, target: ModelConfig, max_positions: int) -> ModelConfig:
    """Return the small model's configuration in the target's shape.

    Raises:
        OptionError: The small model is pre-norm or deeper, or the target's shape is not a multiple
            of its shape.
    """
    if small.norm != "post":
        raise OptionError(
            "the checkpoint is pre-norm; only post-norm models can be widened, because added "
            "layers vanish between LayerNorms. Train one with --norm post."
        )
    if small.decoder_ties:
        raise OptionError(
            f"the checkpoint ties decoder layers ({small.decoder_ties}); a layer that is used more "
            "than once cannot be the last of a stack and another one. Train one without ties."
        )
    if target.d_model % small.d_model:
        raise OptionError(
            f"d_model {target.d_model} is not a multiple of the checkpoint's {small.d_model}; "
            f"train one whose d_model divides {target.d_model}."
        )
    factor = target.d_model // small.d_model
    for name in ("d_ff", "decoder_inner", "heads"):
        wanted, given = getattr(target, name), getattr(small, name)
        if given * factor != wanted:
            raise OptionError(
                f"{name} is {given}: times {factor}, as d_model is, that is {given * factor} and "
                f"not {wanted}; train a model with {name} {wanted / factor:g}."
            )
    for name in ("encoder_layers", "decoder_layers"):
        if getattr(small, name) > getattr(target, name):
            raise OptionError(
                f"{name} is {getattr(small, name)}, more than {getattr(target, name)}; layers can "
                "only be added."
            )
    if small.longest is not None and small.longest < max_positions:
        raise OptionError(
            f"max_positions {max_positions} is more than the {small.longest} the checkpoint has "
            "learned; lower it."
        )
    shape = ("d_model", "d_ff", "heads", "encoder_layers", "decoder_layers")
    return dataclasses.replace(
        small,
        **{name: getattr(target, name) for name in shape},
        decoder_d_ff=target.decoder_inner,
        positions="learned",
        max_positions=max_positions,
    )


@torch.no_grad()
def widen(
    small: Transformer,
    target: ModelConfig,
    max_positions: int = 512,
    vocabulary_size: int | None = None,
) -> Transformer:
    """Return a model of the target's shape that computes the same function as `small`.

    Args:
        small: Trained post-norm model.
        target: Width and depth; d_model, heads and d_ff are the same multiple of small's.
        max_positions: Number of tokens of the longest sentence.
        vocabulary_size: Size of the wide model's vocabulary; by default the small model's.

    Raises:
        OptionError: The model cannot be widened to that shape.
    """
    config = wide_config(small.config, target, max_positions)
    factor = config.d_model // small.config.d_model
    pieces = small.config.vocabulary_size
    if vocabulary_size is not None:
        _check_vocabulary(pieces, vocabulary_size, factor)
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


def _check_vocabulary(given: int, wanted: int, factor: int) -> None:
    if wanted < given:
        raise OptionError(f"the checkpoint has {given} pieces already, more than {wanted}.")
    if wanted > given and factor == 1:
        raise OptionError(
            "pieces are added by way of copies, and d_model stays as it is; leave "
            "--vocabulary-size out, or choose a wider --preset."
        )


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


def main() -> None:
    """Read a checkpoint, widen it, write it."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("checkpoint", type=Path, help="run or checkpoint")
    options.add_argument("--out", type=Path, required=True, help="directory of the wide checkpoint")
    options.add_argument(
        "--preset", default="base", choices=PRESETS, help="shape of the wide checkpoint"
    )
    options.add_argument(
        "--vocabulary-size", type=int, help="size of its vocabulary; default: unchanged"
    )
    options.add_argument(
        "--max-positions", type=int, default=512, help="tokens of the longest sentence"
    )
    options.add_argument("--seed", type=int, default=0, help="seed of the added layers' weights")
    given = options.parse_args()
    try:
        checkpoint = open_checkpoint(given.checkpoint)
        torch.manual_seed(given.seed)
        small = checkpoint.load_model()
        target = preset(given.preset).model
        wide = widen(small, target, given.max_positions, given.vocabulary_size)
        known = {field.name for field in dataclasses.fields(TrainConfig)}
        recipe = TrainConfig(**{k: v for k, v in checkpoint.train.items() if k in known})
        added = wide.config.vocabulary_size - small.config.vocabulary_size
        with tempfile.TemporaryDirectory() as directory:
            tokenizer = Path(directory) / checkpoint.tokenizer.name
            tokenizer.write_bytes(add_unused_pieces(checkpoint.tokenizer.read_bytes(), added))
            save_checkpoint(
                given.out, wide.state_dict(), wide.config, recipe, (tokenizer, tokenizer),
                checkpoint.decoding,
            )  # fmt: skip
    except TranslateTrtError as error:
        raise SystemExit(f"error: {error}") from error
    parameters = sum(parameter.numel() for parameter in wide.parameters())
    print(f"{given.out}: {parameters:,} parameters that translate as {checkpoint.path} does")


if __name__ == "__main__":
    main()
