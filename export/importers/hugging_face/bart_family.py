"""Conversion of BART, mBART, M2M100 and Marian weights, whose layers have the same names."""

from __future__ import annotations

import torch
from torch import Tensor

from translate_trt.export.importers.hugging_face.directory import Config, Tensors, layers
from translate_trt.export.importers.imported import ModelPart
from translate_trt.export.importers.matrices import Matrices
from translate_trt.export.importers.vocabulary import TokenMap
from translate_trt.runtime.errors import InputError
from translate_trt.train.config import ModelConfig

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
_STACKS = ("encoder", "decoder")
_SHARED = "model.shared.weight"
#: Tensors that only record a version.
IGNORED = {f"model.{stack}.version" for stack in _STACKS}


def read_matrices(config: Config, tensors: Tensors) -> Matrices:
    """Read the token matrices; tied matrices may be saved once, under any of their names.

    Raises:
        InputError: Matrices that the configuration ties differ.
    """
    tied = config.flag("tie_word_embeddings", True)
    own = "lm_head.weight" in tensors
    if not own and not tied:
        raise config.setting_error("tie_word_embeddings", "but the weights lack lm_head.weight")
    embeddings = [f"model.{stack}.embed_tokens.weight" for stack in _STACKS]
    shared = embeddings if config.flag("share_encoder_decoder_embeddings", True) else []
    source, target = (
        tensors.table(name, _SHARED, "lm_head.weight", *shared) for name in embeddings
    )
    output = tensors.table("lm_head.weight", embeddings[1], _SHARED, *shared)
    if tied and not torch.equal(output, target):
        raise InputError(
            f"{config.path.parent}: lm_head.weight differs from the decoder's embeddings, but "
            "tie_word_embeddings of config.json (default: true) ties them."
        )
    bias = None
    if "final_logits_bias" in tensors:
        bias = tensors.take("final_logits_bias").reshape(-1)
        bias = bias if bool(bias.any()) else None
    return Matrices(source, target, output, bias)


def convert(
    config: Config,
    tensors: Tensors,
    token_maps: tuple[TokenMap, TokenMap],
    positions: ModelPart,
    norm: str = "post",
    norm_embedding: bool = False,
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the configuration, and the weights by their names in `Transformer`.

    Args:
        config: The model's config.json.
        tensors: The model's tensors.
        token_maps: Maps of source and target; the same object for a shared vocabulary.
        positions: The model's positions.
        norm: See `ModelConfig`.
        norm_embedding: See `ModelConfig`.

    Raises:
        InputError: The model is not supported.
    """
    activation = config.values.get("activation_function")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise config.setting_error("activation_function", f"supported: {', '.join(_ACTIVATIONS)}")
    for name in ("attention_heads", "ffn_dim"):
        if config.integer(f"decoder_{name}") != config.integer(f"encoder_{name}"):
            raise config.setting_error(f"decoder_{name}", f"it must equal encoder_{name}")
    matrices = read_matrices(config, tensors)
    if config.integer("d_model") != matrices.target.shape[1]:
        raise config.setting_error("d_model", f"embeddings are {matrices.target.shape[1]} wide")
    matrices.check(config.path.parent, *token_maps)
    embeddings = matrices.remap(*token_maps)
    model = ModelConfig(
        encoder_layers=config.integer("encoder_layers"),
        decoder_layers=config.integer("decoder_layers"),
        d_ff=config.integer("encoder_ffn_dim"),
        heads=config.integer("encoder_attention_heads"),
        dropout=0.0,
        norm=norm,
        norm_embedding=norm_embedding,
        activation=_ACTIVATIONS[activation],
        scale_embedding=config.flag("scale_embedding", config.values["model_type"] == "m2m_100"),
        **embeddings.fields,
        **positions.fields,
    )
    weights = {**embeddings.weights, **positions.weights}
    weights |= layers(tensors, "encoder", model.encoder_layers)
    weights |= layers(tensors, "decoder", model.decoder_layers)
    return model, weights | _norms(tensors, model)


def _norms(tensors: Tensors, model: ModelConfig) -> dict[str, Tensor]:
    """Return the LayerNorms of the embeddings, and those at the end of pre-norm stacks."""
    ours = []
    if model.norm_embedding:
        ours += [("encoder.layernorm_embedding", "source_embedding_norm"),
                 ("decoder.layernorm_embedding", "embedding_norm")]  # fmt: skip
    if model.norm == "pre":
        ours += [("encoder.layer_norm", "encoder_norm"), ("decoder.layer_norm", "decoder_norm")]
    found: dict[str, Tensor] = {}
    for old, name in ours:
        found |= tensors.renamed(f"model.{old}", name)
    return found
