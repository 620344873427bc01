"""Checkpoints of OpenNMT-py's Transformer, with the settings under "opt" and their vocabularies.

Its layers are pre-norm, with LayerNorm behind the last one; the encoder reads no end symbol.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from translate_trt.export.importers.hugging_face import Config, Tensors
from translate_trt.export.importers.imported import Imported, Placed, build_model
from translate_trt.export.importers.matrices import Matrices
from translate_trt.export.importers.torch_file import Record, read_torch_file, tensors_of
from translate_trt.export.importers.vocabulary import Numbering, Special, make_tokenizers
from translate_trt.runtime.errors import InputError
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import sinusoid

_STACKS = {"encoder": "encoder.transformer", "decoder": "decoder.transformer_layers"}
_EMBEDDING = "embeddings.make_embedding.emb_luts.0.weight"
_POSITIONS = "embeddings.make_embedding.pe.pe"
# Of onmt/constants.py.
_PAD, _UNKNOWN, _START, _END = "<blank>", "<unk>", "<s>", "</s>"
# Settings that make other layers, and their values for the paper's; the first is the default.
_ONLY: dict[str, tuple[Any, ...]] = {
    "model_type": ("text",),
    "model_task": ("seq2seq",),
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "position_encoding": (True,),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "layer_norm": ("standard",),
    "generator_function": ("softmax",),
    "copy_attn": (False,),
    "max_relative_positions": (0,),
    "relative_positions_buckets": (0,),
    "parallel_residual": (False,),
    "shared_layer_norm": (False,),
    "multiquery": (False,),
    "num_kv": (0,),
    "sliding_window": (0,),
    "num_experts": (0,),
    "lora_layers": ([],),
    "lora_embedding": (False,),
    "quant_layers": ([],),
}
# The others are gated: their w_3 multiplies what is activated.
_ACTIVATIONS = ("relu", "gelu")
_SINUSOIDS = {"SinusoidalInterleaved": "interleaved", "SinusoidalConcat": "tensor2tensor"}
# Angles of later positions have rounding errors of float32 in the file.
_COMPARED_POSITIONS = 256
_SINUSOID_TOLERANCE = 1e-4
# LayerNorm's parameters in versions before 0.5.
_OLD_NORMS = {".a_2": ".weight", ".b_2": ".bias"}
_PROJECTIONS = {
    "linear_query": "query", "linear_keys": "key", "linear_values": "value",
    "final_linear": "output",
}  # fmt: skip
_NORMS = {
    "encoder": {"layer_norm": "self_attention", "feed_forward.layer_norm": "feed_forward"},
    "decoder": {
        "layer_norm_1": "self_attention", "layer_norm_2": "cross_attention",
        "feed_forward.layer_norm": "feed_forward",
    },
}  # fmt: skip


def import_opennmt_py(
    path: Path, tokenizers: tuple[Path | None, Path | None] = (None, None)
) -> Imported:
    """The model in a checkpoint that onmt_train wrote.

    Args:
        path: of the checkpoint.
        tokenizers: SentencePiece models of source and target, where the vocabularies are of their
            pieces; None: of the target as of the source, else tokens are words.

    Raises:
        InputError: the file is missing or damaged, or the model is of a kind that is not
            represented; the message names what.
    """
    checkpoint = read_torch_file(path, ["argparse.Namespace"], "OpenNMT-py")
    config = _settings(path, checkpoint.get("opt"))
    tensors = Tensors(path, _weights(path, checkpoint))
    source, target = _numberings(path, checkpoint.get("vocab"))
    matrices = Matrices(
        tensors.take(f"encoder.{_EMBEDDING}"), tensors.take(f"decoder.{_EMBEDDING}"),
        tensors.take("generator.weight"), tensors.take("generator.bias"),
    )  # fmt: skip
    matrices.check(path, source, target)
    (source, target), models = make_tokenizers(tokenizers, (source, target))
    model, weights = _convert(config, tensors, matrices.place(source, target))
    tensors.check_all_used(set())
    made = build_model(model, weights, path)
    return Imported(made, models, "opennmt-py", _search())


def _search() -> dict[str, Any]:
    """onmt_translate's own defaults, in `SearchOptions`."""
    return {"beam_size": 5, "length_penalty": 1.0, "length_penalty_form": "length"}


def _settings(path: Path, options: Any) -> Config:
    if not isinstance(options, Record):
        raise InputError(
            f"{path} has no settings under 'opt'; give a checkpoint that onmt_train wrote."
        )
    config = Config(path, options.fields)
    for name, allowed in _ONLY.items():
        if config.values.get(name, allowed[0]) not in allowed:
            represented = " or ".join(repr(value) for value in allowed)
            raise config.refused(name, f"represented is {represented}")
    activation = config.values.get("pos_ffn_activation_fn", "relu")
    if activation not in _ACTIVATIONS:
        raise config.refused(
            "pos_ffn_activation_fn", f"represented are {', '.join(_ACTIVATIONS)}; it is gated"
        )
    if config.values.get("position_encoding_type", "SinusoidalInterleaved") not in _SINUSOIDS:
        raise config.refused("position_encoding_type", f"represented are {', '.join(_SINUSOIDS)}")
    return config


def _weights(path: Path, checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """Of the layers and, as "generator.*", of the output."""
    if "model" not in checkpoint and "opt" in checkpoint:
        raise InputError(
            f"{path} has no weights, which are in a .safetensors file beside it; save the model "
            "with save_format: pytorch in OpenNMT-py."
        )
    found = {}
    for name, tensor in tensors_of(path, checkpoint["model"], "model").items():
        end = next((end for end in _OLD_NORMS if name.endswith(end)), None)
        found[name if end is None else name.removesuffix(end) + _OLD_NORMS[end]] = tensor
    for name, tensor in tensors_of(path, checkpoint.get("generator"), "generator").items():
        found[f"generator.{re.sub(r'^0[.]', '', name)}"] = tensor
    return found


def _numberings(path: Path, vocabularies: Any) -> tuple[Numbering, Numbering]:
    """Of source and target; the same object where they share a vocabulary."""
    if not isinstance(vocabularies, dict):
        raise InputError(f"{path} has no vocabularies under 'vocab'; it is damaged.")
    if vocabularies.get("src_feats"):
        raise InputError(
            f"{path}: src_feats is in the vocabularies; tokens with several features are not "
            "represented."
        )
    start = vocabularies.get("decoder_start_token", _START)
    sides = []
    for side in ("src", "tgt"):
        tokens = vocabularies.get(side)
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise InputError(f"{path}: {side} under 'vocab' is no list of tokens; it is damaged.")
        sides.append(tokens)
    if start not in sides[1] or _END not in sides[1]:
        raise InputError(
            f"{path}: the target's vocabulary lacks the end symbol {_END!r} or the start symbol "
            f"{start!r} (decoder_start_token)."
        )
    target = _numbering(sides[1], start)
    return (target if sides[0] == sides[1] else _numbering(sides[0], start)), target


def _numbering(tokens: list[str], start: str) -> Numbering:
    places = {name: place for place, name in enumerate(tokens)}
    found = (places.get(name) for name in (_PAD, _UNKNOWN, start, _END))
    return Numbering(tokens, Special(*found))


def _convert(
    config: Config, tensors: Tensors, placed: Placed
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The configuration, and the weights by their names in `Transformer`."""
    heads = config.integer("heads")
    epsilon = config.values.get("norm_eps", 1e-6)
    if not isinstance(epsilon, int | float):
        raise config.refused("norm_eps", "a number is needed")
    model = ModelConfig(
        encoder_layers=_layers(config, "enc_layers"),
        decoder_layers=_layers(config, "dec_layers"),
        d_ff=config.integer("transformer_ff"),
        heads=heads,
        dropout=0.0,
        norm="pre",
        activation=config.values.get("pos_ffn_activation_fn", "relu"),
        layer_norm_epsilon=float(epsilon),
        sinusoid=_sinusoid(config, tensors, placed.fields["d_model"]),
        source_end=False,
        **placed.fields,
    )
    weights = dict(placed.weights)
    for stack, count in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        weights |= _norm(tensors, f"{stack}.layer_norm", f"{stack}_norm")
        for index in range(count):
            weights |= _layer(config, tensors, stack, index)
    return model, weights


def _layers(config: Config, name: str) -> int:
    """`layers`, if it is set, is of both stacks."""
    both = config.values.get("layers", -1)
    return both if isinstance(both, int) and both > 0 else config.integer(name)


def _sinusoid(config: Config, tensors: Tensors, width: int) -> str:
    """The kind, after a look at the tables, which OpenNMT-py keeps with the weights."""
    kind = _SINUSOIDS[config.values.get("position_encoding_type", "SinusoidalInterleaved")]
    for stack in _STACKS:
        name = f"{stack}.{_POSITIONS}"
        table = tensors.take(name)[:_COMPARED_POSITIONS].squeeze(1)
        expected = sinusoid(torch.arange(len(table)), width, kind)
        if table.shape != expected.shape or not torch.allclose(
            table, expected, rtol=0, atol=_SINUSOID_TOLERANCE
        ):
            raise InputError(
                f"{config.path}: {name} is not the table of sinusoids that position_encoding_type "
                "says, which translate-trt does not represent."
            )
    return kind


def _layer(config: Config, tensors: Tensors, stack: str, index: int) -> dict[str, Tensor]:
    there, here = f"{_STACKS[stack]}.{index}", f"{stack}.{index}"
    names = {"feed_forward.w_1": "feed_forward.inner", "feed_forward.w_2": "feed_forward.outer"}
    attentions = {"self_attn": "self_attention", "context_attn": "cross_attention"}
    for attention, ours in attentions.items():
        if stack == "decoder" or attention == "self_attn":
            names |= {f"{attention}.{p}": f"{ours}.{part}" for p, part in _PROJECTIONS.items()}
    weights: dict[str, Tensor] = {}
    for name, ours in names.items():
        weight = tensors.take(f"{there}.{name}.weight")
        weights[f"{here}.{ours}.weight"] = weight
        flag = "add_ffnbias" if "feed_forward" in name else "add_qkvbias"
        bias = f"{there}.{name}.bias"
        there_is = bias in tensors or config.flag(flag, False)
        weights[f"{here}.{ours}.bias"] = (
            tensors.take(bias) if there_is else torch.zeros(len(weight))
        )
    for name, ours in _NORMS[stack].items():
        weights |= _norm(tensors, f"{there}.{name}", f"{here}.{ours}_norm.norm")
    return weights


def _norm(tensors: Tensors, there: str, here: str) -> dict[str, Tensor]:
    return {f"{here}.{part}": tensors.take(f"{there}.{part}") for part in ("weight", "bias")}
