"""Conversion of CTranslate2's arrays to the weights and configuration of `Transformer`."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from translate_trt.export.importers.ctranslate2.model_directory import Settings
from translate_trt.export.importers.ctranslate2.variables import (
    Variables,
    count_layers,
    source_table,
)
from translate_trt.export.importers.imported import ModelPart, read_positions
from translate_trt.export.importers.matrices import Matrices
from translate_trt.export.importers.tensors import STACKS, StackNames, read_modules
from translate_trt.export.importers.vocabulary import TokenMap
from translate_trt.runtime.errors import InputError
from translate_trt.train.config import ModelConfig

# Attention heads per specification; files before revision 3 do not store the number.
_HEADS = {"TransformerBase": 8, "TransformerBig": 16}
# Enumerators of include/ctranslate2/ops/activation.h.
_ACTIVATIONS = {0: "relu", 2: "swish", 3: "gelu"}
_UNSUPPORTED_ACTIVATIONS = {1: "GELUTanh", 4: "GELUSigmoid", 5: "Tanh", 6: "Sigmoid"}
_BIAS = "decoder/projection/bias"

_ENCODER = {
    "self_attention_norm.norm": "self_attention/layer_norm",
    "self_attention.query+key+value": "self_attention/linear_0",
    "self_attention.output": "self_attention/linear_1",
    "feed_forward.inner": "ffn/linear_0",
    "feed_forward.outer": "ffn/linear_1",
    "feed_forward_norm.norm": "ffn/layer_norm",
}
_DECODER = {
    **_ENCODER,
    "cross_attention_norm.norm": "attention/layer_norm",
    "cross_attention.query": "attention/linear_0",
    "cross_attention.key+value": "attention/linear_1",
    "cross_attention.output": "attention/linear_2",
}
_NAMES = {
    stack: StackNames(
        f"{stack}/layer_{{}}/", modules, f"{stack}/layer_norm", f"{stack}/layernorm_embedding"
    )
    for stack, modules in zip(STACKS, (_ENCODER, _DECODER), strict=True)
}


def convert(
    variables: Variables,
    settings: Settings,
    token_maps: tuple[TokenMap, TokenMap],
    source_end: bool,
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the configuration, and the weights by their names in `Transformer`."""
    matrices = Matrices(
        source=variables.weight(source_table(variables)),
        target=variables.weight("decoder/embeddings/weight"),
        output=variables.weight("decoder/projection/weight"),
        bias=variables.weight(_BIAS, axes=1) if _BIAS in variables else None,
    )
    matrices.check(variables.path, *token_maps)
    embeddings = matrices.remap(*token_maps)
    positions = _positions(variables)
    heads = _HEADS.get(variables.file.specification, 8)
    if variables.file.revision >= 3:
        heads = int(variables.setting("num_heads", 8))
    pre_norm = bool(variables.setting("pre_norm", 1))
    config = ModelConfig(
        encoder_layers=count_layers(variables, "encoder"),
        decoder_layers=count_layers(variables, "decoder"),
        d_ff=len(variables.weight("encoder/layer_0/ffn/linear_0/weight")),
        heads=heads,
        dropout=0.0,
        norm="pre" if pre_norm else "post",
        layer_norm_epsilon=settings.epsilon,
        activation=_activation(variables),
        scale_embedding=_scales_embeddings(variables, embeddings.fields["d_model"]),
        norm_embedding="encoder/layernorm_embedding/gamma" in variables,
        source_end=source_end,
        **embeddings.fields,
        **positions.fields,
    )
    read = partial(_read, variables, heads)
    return config, embeddings.weights | positions.weights | read_modules(config, _NAMES, read)


def _activation(variables: Variables) -> str:
    number = int(variables.setting("activation", 0))
    if number not in _ACTIVATIONS:
        raise variables.setting_error(
            "activation", f"is {_UNSUPPORTED_ACTIVATIONS.get(number, number)}"
        )
    return _ACTIVATIONS[number]


def _scales_embeddings(variables: Variables, width: int) -> bool:
    """Return whether embeddings are multiplied by sqrt(d_model), stored as a flag or a factor."""
    factors = set()
    for stack, table in (("encoder", source_table(variables)),
                         ("decoder", "decoder/embeddings/weight")):  # fmt: skip
        names = f"{stack}/scale_embeddings", table.replace("weight", "multiply_by_sqrt_depth")
        name = next((name for name in names if name in variables), None)
        factor = 1.0 if name is None else variables.number(name)
        if name is None or np.issubdtype(variables.take(name).dtype, np.integer):
            factor = math.sqrt(width) if factor else 1.0
        factors.add(round(factor, 4))
    if factors == {round(math.sqrt(width), 4)}:
        return True
    if factors == {1.0}:
        return False
    raise variables.setting_error("scale_embeddings", f"is {sorted(factors)}")


def _positions(variables: Variables) -> ModelPart:
    """Read both position tables; without tables CTranslate2 computes OpenNMT-tf's sinusoids."""
    names = [f"{stack}/position_encodings/encodings" for stack in STACKS]
    present = [name in variables for name in names]
    if not any(present):
        return ModelPart({"sinusoid": "tensor2tensor", "first_position": 1}, {})
    if not all(present):
        raise variables.setting_error(
            names[present.index(True)], "has no counterpart in the other stack"
        )
    return read_positions(*(variables.weight(name) for name in names))


def _read(variables: Variables, heads: int, name: str, ours: str) -> dict[str, Tensor]:
    """Read a LayerNorm, or a matrix whose rows are those of several of ours; no bias is zero.

    Args:
        variables: Arrays of the model.
        heads: Number of heads.
        name: CTranslate2's name of the module.
        ours: Our name; the last parts of several are joined with +.

    Raises:
        InputError: An array is missing or damaged.
    """
    if ours.endswith("norm"):
        parts = (("weight", "gamma"), ("bias", "beta"))
        return {f"{ours}.{part}": variables.weight(f"{name}/{x}", axes=1) for part, x in parts}
    weight = variables.weight(f"{name}/weight")
    bias = torch.zeros(len(weight))
    if f"{name}/bias" in variables:
        bias = variables.weight(f"{name}/bias", axes=1)
    module, _, last = ours.rpartition(".")
    names = [f"{module}.{part}" for part in last.split("+")]
    found: dict[str, Tensor] = {}
    for kind, tensor in (("weight", weight), ("bias", bias)):
        if len(tensor) % len(names):
            raise InputError(
                f"{variables.path} is damaged: {name}/{kind} has {len(tensor)} rows, which are "
                f"not those of {len(names)} projections."
            )
        rows = tensor.chunk(len(names))
        found |= {f"{ours}.{kind}": part for ours, part in zip(names, rows, strict=True)}
    scale = f"{name.rpartition('/')[0]}/queries_scale"
    if "query" in last and scale in variables:
        # `Transformer` scales queries by 1 / sqrt(D).
        query = f"{module}.query"
        factor = variables.number(scale) * math.sqrt(len(found[f"{query}.weight"]) / heads)
        for kind in ("weight", "bias"):
            found[f"{query}.{kind}"] = found[f"{query}.{kind}"] * factor
    return found
