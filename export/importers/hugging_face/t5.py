"""Importer of T5, T5 1.1, mT5 and MADLAD-400 models.

Scores of attention are not scaled, which the query matrices undo. A tied output projection has a
scale, which becomes part of the last norm. Biases of attention scores by buckets of distances
become one per distance.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from translate_trt.export.importers.hugging_face.directory import read_config, read_weights
from translate_trt.export.importers.hugging_face.generation import Generation
from translate_trt.export.importers.hugging_face.tokens import read_added_tokens, read_object
from translate_trt.export.importers.imported import (
    Imported,
    build_model,
    relative_positions,
)
from translate_trt.export.importers.input_files import find_file
from translate_trt.export.importers.languages import tag_prompt
from translate_trt.export.importers.matrices import Matrices
from translate_trt.export.importers.model_format import format_of_transformers, need
from translate_trt.export.importers.settings_table import Config
from translate_trt.export.importers.tensors import (
    STACKS,
    StackNames,
    Tensors,
    attention_names,
    read_modules,
)
from translate_trt.export.importers.vocabulary import (
    TokenMap,
    make_tokenizers,
    read_sentencepiece,
)
from translate_trt.runtime.errors import InputError
from translate_trt.train.config import GATED, ModelConfig
from translate_trt.train.model import Transformer

_MODEL = "spiece.model"
_ACTIVATIONS = {"relu": "relu", GATED: GATED}
_SHARED = "shared.weight"
_BIAS = "block.0.layer.{}.relative_attention_bias.weight"
# Older versions of transformers saved a table of the cross-attention, which nothing reads.
_IGNORED = {f"decoder.{_BIAS.format('1.EncDecAttention')}"}
# Sentinels of pre-training, which follow the pieces of the SentencePiece model.
_SENTINEL = "<extra_id_{}>"


def import_t5(directory: Path, spm: Path | None = None) -> Imported:
    """Import a directory of `T5ForConditionalGeneration` or `MT5ForConditionalGeneration`.

    Args:
        directory: Directory with config.json, the weights and the tokenizer's files.
        spm: SentencePiece model. Default: spiece.model in `directory`.

    Raises:
        InputError: A file is missing or damaged, or the model is not supported.
    """
    config = read_config(directory, "t5", "mt5")
    generation = Generation.read(config)
    spm = spm or find_file(directory, (_MODEL,))
    if spm is None:
        raise InputError(
            f"{directory} has no {_MODEL}; transformers 5 saves tokenizers without it. Pass the "
            f"file of the original model with --spm, or copy it to {directory / _MODEL}."
        )
    settings = read_object(directory / "tokenizer_config.json")
    added = read_added_tokens(directory, settings)
    names, unused = _names(config, spm, added, settings.get("extra_ids"))
    token_map = generation.token_map(names, settings, unused)
    (token_map, _), tokenizers = make_tokenizers(
        (spm, None), (token_map, token_map),
        lambda token: token in added and not token.startswith("<"), is_hidden=lambda token: True,
    )  # fmt: skip
    tensors = Tensors(directory, read_weights(directory))
    model = _build(config, tensors, token_map)
    prompt = tag_prompt(token_map.names, tokenizers[0])
    return Imported(model, tokenizers, "t5-hf", generation.search(), prompt)


def _names(
    config: Config, spm: Path, added: dict[str, int], extra: object
) -> tuple[list[str], list[int]]:
    """Return the tokens by id, and the ids that no text has.

    Args:
        config: The model's config.json.
        spm: SentencePiece model.
        added: Ids of added tokens.
        extra: Number of sentinels, `extra_ids` of tokenizer_config.json; None for 100.

    Raises:
        InputError: The SentencePiece model has more pieces than the model has tokens.
    """
    names = [piece.piece for piece in read_sentencepiece(spm).pieces]
    size, pieces = config.integer("vocab_size"), len(names)
    if pieces > size:
        raise config.setting_error(
            "vocab_size", f"{spm} has {pieces} pieces, so it belongs to another model"
        )
    later = {index: token for token, index in added.items() if pieces <= index}
    last = pieces + (extra if isinstance(extra, int) else 100) - 1
    later |= {
        index: _SENTINEL.format(last - index)
        for index in range(pieces, min(size, last + 1))
        if index not in later
    }
    unused = [index for index in range(pieces, size) if index not in later]
    names += [later.get(index, f"<unused-{index}>") for index in range(pieces, size)]
    return names, unused


def _stack(stack: str, gated: bool) -> StackNames:
    """Return transformers' names of a stack's modules."""
    parts = (".q", ".k", ".v", ".o")
    modules = attention_names(
        "self_attention", "layer.0.SelfAttention", parts, "layer.0.layer_norm"
    )
    if stack == "decoder":
        modules |= attention_names(
            "cross_attention", "layer.1.EncDecAttention", parts, "layer.1.layer_norm"
        )
    last = f"layer.{1 + (stack == 'decoder')}"
    inner = {"inner": "wi_0", "gate": "wi_1"} if gated else {"inner": "wi"}
    modules |= {
        f"feed_forward.{ours}": f"{last}.DenseReluDense.{name}"
        for ours, name in (inner | {"outer": "wo"}).items()
    } | {"feed_forward_norm.norm": f"{last}.layer_norm"}
    return StackNames(f"{stack}.block.{{}}.", modules, f"{stack}.final_layer_norm")


def _build(config: Config, tensors: Tensors, token_map: TokenMap) -> Transformer:
    """Build the model from its configuration and tensors."""
    activation = _ACTIVATIONS[config.choice("feed_forward_proj", _ACTIVATIONS)]
    size, layers = config.integer("d_kv"), config.integer("num_layers")
    positions = relative_positions(
        config.path,
        config.integer("relative_attention_max_distance"),
        *(tensors.table(f"{stack}.{_BIAS.format('0.SelfAttention')}") for stack in STACKS),
    )
    source, target = (tensors.table(f"{stack}.embed_tokens.weight", _SHARED) for stack in STACKS)
    matrices = Matrices(source, target, tensors.table("lm_head.weight", _SHARED), None)
    matrices.check(config.path.parent, token_map, token_map)
    embeddings = matrices.remap(token_map, token_map)
    decoder_layers = config.values.get("num_decoder_layers")
    epsilon = config.values.get("layer_norm_epsilon", 1e-6)
    if not isinstance(epsilon, float):
        raise config.setting_error("layer_norm_epsilon", "a number such as 1e-6 is required")
    model = ModelConfig(
        encoder_layers=layers,
        decoder_layers=layers if decoder_layers is None else config.integer("num_decoder_layers"),
        d_ff=config.integer("d_ff"),
        heads=config.integer("num_heads"),
        key_size=size,
        value_size=size,
        dropout=0.0,
        norm="pre",
        rms_norm=True,
        layer_norm_epsilon=epsilon,
        activation=activation,
        scale_embedding=False,
        **embeddings.fields,
        **positions.fields,
    )

    def read(name: str, ours: str) -> dict[str, Tensor]:
        weight = tensors.take(f"{name}.weight")
        if ours.endswith("norm"):
            return {f"{ours}.weight": weight}
        if ours.endswith("query"):
            weight = weight * math.sqrt(model.d_k)
        return {f"{ours}.weight": weight, f"{ours}.bias": torch.zeros(len(weight))}

    names = {stack: _stack(stack, activation == GATED) for stack in STACKS}
    modules = read_modules(model, names, read)
    if config.values["model_type"] == "t5" and config.flag(
        "scale_decoder_outputs", config.flag("tie_word_embeddings", True)
    ):
        modules["decoder_norm.weight"] *= model.d_model**-0.5
    tensors.check_all_used(_IGNORED)
    return build_model(model, embeddings.weights | modules | positions.weights, tensors.path)


#: Recognized by its model type.
FORMAT = format_of_transformers(
    "t5-hf", "a T5, mT5 or MADLAD-400 model saved by transformers", ("t5", "mt5"), import_t5,
    (need(_MODEL),), (),
)  # fmt: skip
