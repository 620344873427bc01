"""Conversion of BART, mBART, M2M100 and Marian weights, whose layers have the same names."""

from __future__ import annotations

import torch

from translate_trt.export.importers.imported import ModelPart, build_model
from translate_trt.export.importers.matrices import Matrices
from translate_trt.export.importers.settings_table import Config
from translate_trt.export.importers.tensors import (
    STACKS,
    StackNames,
    Tensors,
    attention_names,
    read_modules,
)
from translate_trt.export.importers.vocabulary import TokenMap
from translate_trt.runtime.errors import InputError
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Transformer

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
_SHARED = "model.shared.weight"
# Tensors that only record a version.
_IGNORED = {f"model.{stack}.version" for stack in STACKS}

_PROJECTIONS = (".q_proj", ".k_proj", ".v_proj", ".out_proj")
_ENCODER = attention_names("self_attention", "self_attn", _PROJECTIONS, "self_attn_layer_norm") | {
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_norm.norm": "final_layer_norm",
}
_DECODER = _ENCODER | attention_names(
    "cross_attention", "encoder_attn", _PROJECTIONS, "encoder_attn_layer_norm"
)
#: Names of modules, without the prefix "model."; transformers adopted those of fairseq.
NAMES = {
    stack: StackNames(
        f"{stack}.layers.{{}}.", modules, f"{stack}.layer_norm", f"{stack}.layernorm_embedding"
    )
    for stack, modules in zip(STACKS, (_ENCODER, _DECODER), strict=True)
}


def _read_matrices(config: Config, tensors: Tensors) -> Matrices:
    """Read the token matrices; tied matrices may be saved once, under any of their names.

    Raises:
        InputError: Matrices that the configuration ties differ.
    """
    tied = config.flag("tie_word_embeddings", True)
    own = "lm_head.weight" in tensors
    if not own and not tied:
        raise config.setting_error("tie_word_embeddings", "but the weights lack lm_head.weight")
    embeddings = [f"model.{stack}.embed_tokens.weight" for stack in STACKS]
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


def build(
    config: Config,
    tensors: Tensors,
    token_maps: tuple[TokenMap, TokenMap],
    positions: ModelPart,
    norm: str = "post",
    norm_embedding: bool = False,
) -> Transformer:
    """Build a model from its configuration and tensors.

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
    activation = config.choice("activation_function", _ACTIVATIONS)
    for name in ("attention_heads", "ffn_dim"):
        config.check_equal(f"encoder_{name}", f"decoder_{name}", config.integer)
    matrices = _read_matrices(config, tensors)
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
    modules = read_modules(model, NAMES, lambda name, ours: tensors.renamed(f"model.{name}", ours))
    tensors.check_all_used(_IGNORED)
    weights = embeddings.weights | positions.weights | modules
    return build_model(model, weights, tensors.path)
