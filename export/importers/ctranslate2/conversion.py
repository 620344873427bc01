"""Conversion of CTranslate2's arrays to the weights and configuration of `Transformer`."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from translate_trt.export.importers.ctranslate2.model_directory import Settings, Vocabularies
from translate_trt.export.importers.ctranslate2.variables import (
    STACKS,
    Variables,
    count_layers,
    source_table,
)
from translate_trt.export.importers.imported import ModelPart, read_positions
from translate_trt.export.importers.matrices import Matrices
from translate_trt.runtime.errors import InputError
from translate_trt.train.config import ModelConfig

# Attention heads per specification; files before revision 3 do not store the number.
_HEADS = {"TransformerBase": 8, "TransformerBig": 16}
# Enumerators of include/ctranslate2/ops/activation.h.
_ACTIVATIONS = {0: "relu", 2: "swish", 3: "gelu"}
_UNSUPPORTED_ACTIVATIONS = {1: "GELUTanh", 4: "GELUSigmoid", 5: "Tanh", 6: "Sigmoid"}
_BIAS = "decoder/projection/bias"


def convert(
    variables: Variables, settings: Settings, vocabularies: Vocabularies, source_end: bool
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the configuration, and the weights by their names in `Transformer`."""
    matrices = Matrices(
        source=variables.matrix(source_table(variables)),
        target=variables.matrix("decoder/embeddings/weight"),
        output=variables.matrix("decoder/projection/weight"),
        bias=variables.vector(_BIAS) if _BIAS in variables else None,
    )
    matrices.check(variables.path, vocabularies.source, vocabularies.target)
    embeddings = matrices.remap(vocabularies.source, vocabularies.target)
    positions = _positions(variables)
    pre_norm = bool(variables.setting("pre_norm", 1))
    config = ModelConfig(
        encoder_layers=count_layers(variables, "encoder"),
        decoder_layers=count_layers(variables, "decoder"),
        d_ff=variables.rows("encoder/layer_0/ffn/linear_0/weight"),
        heads=_heads(variables),
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
    weights = embeddings.weights | positions.weights
    for stack in STACKS:
        weights |= _stack(variables, config, stack)
    return config, weights


def _heads(variables: Variables) -> int:
    specification = variables.file.specification
    if variables.file.revision < 3:
        return _HEADS.get(specification, 8)
    return int(variables.setting("num_heads", 8))


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
    return read_positions(*(variables.matrix(name) for name in names))


def _stack(variables: Variables, config: ModelConfig, stack: str) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    ends = {"encoder": ("source_embedding_norm", "encoder_norm"),
            "decoder": ("embedding_norm", "decoder_norm")}[stack]  # fmt: skip
    if config.norm_embedding:
        weights |= _norm(variables, f"{stack}/layernorm_embedding", ends[0])
    if config.norm == "pre":
        weights |= _norm(variables, f"{stack}/layer_norm", ends[1])
    count = config.encoder_layers if stack == "encoder" else config.decoder_layers
    for index in range(count):
        prefix, layer = f"{stack}/layer_{index}", f"{stack}.{index}"
        weights |= _attention(variables, f"{prefix}/self_attention", f"{layer}.self_attention")
        if stack == "decoder":
            weights |= _attention(variables, f"{prefix}/attention", f"{layer}.cross_attention")
        for number, name in enumerate(("inner", "outer")):
            weights |= _linear(
                variables, f"{prefix}/ffn/linear_{number}", [f"{layer}.feed_forward.{name}"]
            )
        weights |= _norm(variables, f"{prefix}/ffn/layer_norm", f"{layer}.feed_forward_norm.norm")
    return weights


def _attention(variables: Variables, prefix: str, name: str) -> dict[str, Tensor]:
    """Split the fused projections: query, key, value; or key, value in cross-attention."""
    ends = [["query", "key", "value"], ["output"]]
    if f"{prefix}/linear_2/weight" in variables:
        ends = [["query"], ["key", "value"], ["output"]]
    weights = _norm(variables, f"{prefix}/layer_norm", f"{name}_norm.norm")
    for index, parts in enumerate(ends):
        linear = f"{prefix}/linear_{index}"
        weights |= _linear(variables, linear, [f"{name}.{part}" for part in parts])
    if f"{prefix}/queries_scale" in variables:
        # `Transformer` scales queries by 1 / sqrt(D).
        size = weights[f"{name}.query.weight"].shape[0] / _heads(variables)
        factor = variables.number(f"{prefix}/queries_scale") * math.sqrt(size)
        for kind in ("weight", "bias"):
            weights[f"{name}.query.{kind}"] = weights[f"{name}.query.{kind}"] * factor
    return weights


def _linear(variables: Variables, prefix: str, names: list[str]) -> dict[str, Tensor]:
    """Split a projection's rows between several of ours; a missing bias is zero."""
    weight = variables.matrix(f"{prefix}/weight")
    bias = torch.zeros(len(weight))
    if f"{prefix}/bias" in variables:
        bias = variables.vector(f"{prefix}/bias")
    found: dict[str, Tensor] = {}
    for kind, tensor in (("weight", weight), ("bias", bias)):
        if len(tensor) % len(names):
            raise InputError(
                f"{variables.path} is damaged: {prefix}/{kind} has {len(tensor)} rows, which are "
                f"not those of {len(names)} projections."
            )
        parts = tensor.chunk(len(names))
        found |= {f"{name}.{kind}": part for name, part in zip(names, parts, strict=True)}
    return found


def _norm(variables: Variables, prefix: str, name: str) -> dict[str, Tensor]:
    return {
        f"{name}.weight": variables.vector(f"{prefix}/gamma"),
        f"{name}.bias": variables.vector(f"{prefix}/beta"),
    }
